#!/bin/sh
# Proves on real GPUs what the exporter says of known work:   tests/device/prove.sh BINARY OUTDIR [more options of prove.py]
# Needs root, python3 with nvidia-ml-py and torch. Some 20 minutes for all; `--only gpm,nvlink` for some.
# Changes no setting of any GPU.
set -eu
if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 64
fi
here=$(dirname "$0")
binary=$1
out=$2
shift 2
mkdir -p "$out"
exec python3 -u "$here/prove.py" --binary "$binary" --out "$out" "$@"
