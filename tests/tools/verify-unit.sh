#!/usr/bin/env bash
# verify-unit.sh BINARY: systemd has nothing to say about the units, alone and with each drop-in, and the user; the unit limits memory and
# threads, loads the configuration again, and both services are exposed by 2.0 at most.
set -euo pipefail
binary=$(realpath "$1")
name=gpu-node-exporter
cd "$(dirname "$0")/../../systemd"

for limit in 'MemoryMax=[1-9][0-9]*[MG]' 'TasksMax=[1-9][0-9]*'; do
	if [ "$(grep -cE "^$limit\$" $name.service)" != 1 ]; then
		echo "$name.service has no line or several lines $limit"
		exit 1
	fi
done
# shellcheck disable=SC2016
if ! grep -qx 'ExecReload=/bin/kill -HUP $MAINPID' $name.service; then
	echo "$name.service does not send SIGHUP on a reload"
	exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Verifies what is in the folder. `verify` also succeeds when it warns, so its silence is what counts.
verify() {
	local said
	local unit
	# The installed path does not exist here, which systemd would complain about.
	for unit in $name.service optional/*.service; do
		sed "s|^ExecStart=/usr/bin/$name|ExecStart=$binary|" "$unit" >"$folder/$(basename "$unit")"
	done
	said=$(systemd-analyze verify "$folder"/*.service "$folder"/*.socket 2>&1) || true
	if [ -n "$said" ]; then
		echo "$1:" "$said"
		exit 1
	fi
}
# exposure UNIT
exposure() {
	systemd-analyze security --offline=true --no-pager "$folder/$1" | sed -n 's/^→ Overall exposure level .*: \([0-9.]*\) .*/\1/p'
}

cp optional/*.socket "$folder"
verify "$name.service"
for unit in $name.service $name-kubelet.service; do
	exposed=$(exposure $unit)
	# A number, and 2.0 at most.
	if ! awk -v exposure="$exposed" 'BEGIN { exit !(exposure ~ /^[0-9.]+$/ && exposure <= 2.0) }'; then
		echo "exposure of $unit: '$exposed', to be 2.0 at most"
		exit 1
	fi
	echo "exposure $exposed of $unit"
done
mkdir "$folder/$name.service.d"
for drop_in in optional/*.conf; do
	grep -q '^# Feature: ' "$drop_in" || { echo "$drop_in names no feature"; exit 1; }
	grep -q '^# Without it, ' "$drop_in" || { echo "$drop_in does not say what is without it"; exit 1; }
	cp "$drop_in" "$folder/$name.service.d/"
	verify "$drop_in"
	echo "exposure $(exposure $name.service) with $(basename "$drop_in")"
	rm "$folder/$name.service.d/"*
done
systemd-sysusers --dry-run "$PWD/$name.sysusers.conf"
