#!/bin/sh
# Proves on real GPUs that the exporter agrees with NVML and nvidia-smi, as root and as an unprivileged user, and measures
# its cost:   tests/device/run.sh BINARY OUTDIR [more options of compare.py]
# Needs root, python3 with nvidia-ml-py and torch. About four minutes. Changes no setting of any GPU.
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
status=0
PYTHONUNBUFFERED=1 python3 "$here/compare.py" --binary "$binary" --out "$out" --load --seconds 45 \
    --cost-seconds 60 "$@" >"$out/summary.txt" 2>&1 || status=$?
echo "==== $out: $(cd "$out" && echo *)"
tail -n 60 "$out/summary.txt"
exit "$status"
