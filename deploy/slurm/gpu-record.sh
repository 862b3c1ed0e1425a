#!/bin/bash
# Slurm: files what a job had of the node's GPUs, as gpu-node-exporter recorded it. In slurm.conf:
#   Epilog=/etc/slurm/gpu-record.sh
# One file a job, JOB.json: the document of /api/v1/owners?slurm_job=JOB, with one record for each step that used a GPU for 10 s or
# more. The record comes seconds after the last process has left its GPU: this waits for it. It always ends well: no
# exporter, no answer or no room for the file must not drain the node.
set -u
trap 'exit 0' EXIT

# Slurm starts its programs without a search path.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin

url=${GPU_RECORD_URL:-http://127.0.0.1:9408}
dir=${GPU_RECORD_DIR:-/var/log/slurm/gpu-records}
# Seconds: the samples of the last processes are there after 15 s at most.
patience=${GPU_RECORD_PATIENCE:-20}
# Options of curl, as `user = "epilog:PASSWORD"` and `cacert = "FILE"`, where the exporter asks for them.
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
		# A quote in a name is escaped: only the document itself has this text.
		[[ $answer == *'"pending":0,'* ]] && break
	elif ((failed == 7 && tries == 1)); then
		# curl: no connection. No exporter is here; later it may be one that restarts.
		say "no answer: no record" && exit
	fi
	if ((SECONDS >= patience)); then
		[ -n "$answer" ] || { say "no answer after $SECONDS s: no record" && exit; }
		say "has work on a GPU, or no record yet, after $SECONDS s" && break
	fi
	sleep 1
done
[[ $answer == *'"ended":[{'* ]] || exit

umask 027
file=$dir/$job.json
{ mkdir -p "$dir" && printf '%s\n' "$answer" >"$file.new" && mv "$file.new" "$file"; } || say "not filed"
