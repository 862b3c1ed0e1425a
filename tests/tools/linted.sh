#!/usr/bin/env bash
# linted.sh COMMAND...: runs cargo with clippy's driver as the compiler of this workspace's own crates; a lint is an
# error. Lints and code come from one pass, and dependencies are compiled once.
set -euo pipefail

export RUSTC_WORKSPACE_WRAPPER=clippy-driver
# As cargo-clippy hands over what follows its `--`.
export CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

# What is built here is built once more only after a change, by crate; caches for less would take longer, and gigabytes.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

# A driver that ignored this would find nothing to complain about.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if clippy-driver --crate-type lib --crate-name probe --emit metadata --out-dir "$out" - 2>/dev/null \
	<<<'pub fn needless_return() -> u8 { return 1; }'; then
	echo 'error: clippy-driver takes code that has a lint' >&2
	exit 1
fi
# What is right must pass.
clippy-driver --crate-type lib --crate-name probe --emit metadata --out-dir "$out" - <<<'pub fn one() -> u8 { 1 }'

"$@"
