#!/usr/bin/env bash
# verify-unit.sh BINARY: systemd has nothing to say about the unit file and the user it declares, and the unit limits
# memory and threads.
set -euo pipefail
binary=$(realpath "$1")
cd "$(dirname "$0")/../../systemd"

for limit in 'MemoryMax=[1-9][0-9]*[MG]' 'TasksMax=[1-9][0-9]*'; do
	if [ "$(grep -cE "^$limit\$" gpu-node-exporter.service)" != 1 ]; then
		echo "gpu-node-exporter.service has no line or several lines $limit"
		exit 1
	fi
done
if ! command -v systemd-analyze >/dev/null; then
	echo "systemd-analyze is not installed: nothing verified"
	exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The installed path does not exist here, which systemd would complain about.
sed "s|^ExecStart=/usr/bin/gpu-node-exporter|ExecStart=$binary|" gpu-node-exporter.service \
	>"$folder/gpu-node-exporter.service"
# `verify` also succeeds when it warns, so its silence is what counts.
said=$(systemd-analyze verify "$folder/gpu-node-exporter.service" 2>&1) || true
if [ -n "$said" ]; then
	echo "$said"
	exit 1
fi
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers --dry-run "$PWD/gpu-node-exporter.sysusers.conf"
fi
