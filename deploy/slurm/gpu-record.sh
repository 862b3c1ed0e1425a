#!/bin/bash
# Stores the GPU usage of a Slurm job on the node, as gpu-node-exporter recorded it. Add to slurm.conf:
#   Epilog=/etc/slurm/gpu-record.sh
# Every job has one file, JOB.json, with the document of /api/v1/owners?slurm_job=JOB. It contains one record for every step that used
# a GPU for 10 s or more. The script waits for the record, which appears seconds after the last process has left its GPU. The script
# always succeeds, because a missing exporter, a missing answer or a full disk must not drain the node.
set -u
trap 'exit 0' EXIT

# Slurm starts programs without a PATH.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin

url=${GPU_RECORD_URL:-http://127.0.0.1:9408}
dir=${GPU_RECORD_DIR:-/var/log/slurm/gpu-records}
# Maximum wait in seconds. The samples of the last processes arrive within 15 s.
patience=${GPU_RECORD_PATIENCE:-20}
# Options for curl, such as `user = "epilog:PASSWORD"` and `cacert = "FILE"`, if the exporter requires them.
options=${GPU_RECORD_CURL:-/etc/slurm/gpu-record.curl}

job=${SLURM_JOB_ID:-}
[[ $job =~ ^[0-9]+$ ]] || exit 0
[ -r "$options" ] || options=/dev/null

say() { echo "gpu-record: job $job: $*" >&2; }

SECONDS=0
answer= tries=0
while :; do
	newer=$(curl --silent --show-error --fail --noproxy '*' --max-time 3 --config "$options" \
		"$url/api/v1/owners?slurm_job=$job")
	failed=$?
	tries=$((tries + 1))
	if ((failed == 0)); then
		answer=$newer
		# Quotes in names are escaped, so only the document itself can contain this text.
		[[ $answer == *'"pending":0,'* ]] && break
	elif ((failed == 7 && tries == 1)); then
		# curl cannot connect, so the node has no exporter. In later attempts the exporter may be restarting.
		say "no answer from $url; no record stored" && exit
	fi
	if ((SECONDS >= patience)); then
		[ -n "$answer" ] || { say "no answer from $url after $SECONDS s; no record stored" && exit; }
		say "has work on a GPU, or no record yet, after $SECONDS s" && break
	fi
	sleep 1
done
[[ $answer == *'"ended":[{'* ]] || exit

umask 027
file=$dir/$job.json
{ mkdir -p "$dir" && printf '%s\n' "$answer" >"$file.new" && mv "$file.new" "$file"; } || say "failed to write $file; no record stored"
