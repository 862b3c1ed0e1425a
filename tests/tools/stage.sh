#!/usr/bin/env bash
# stage.sh NAME COMMAND...: runs the command; one line if it succeeds, all of its output if it fails.
# Lines that match $SHOW are printed also when it succeeds. With $BESIDE the line comes at the end, as a whole.
set -euo pipefail

name=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

begin() { printf '%-28s' "$name"; }
[ -n "${BESIDE:-}" ] || begin
if "$@" >"$log" 2>&1; then
	[ -z "${BESIDE:-}" ] || begin
	printf 'ok  %4ds\n' "$SECONDS"
	if [ -n "${SHOW:-}" ]; then
		grep -E "$SHOW" "$log" || true
	fi
else
	[ -z "${BESIDE:-}" ] || begin
	printf 'FAILED after %ds: %s\n' "$SECONDS" "$*"
	cat "$log"
	exit 1
fi
