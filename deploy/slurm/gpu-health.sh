#!/bin/bash
# Slurm: drains the node, with the reason, while the verdict of gpu-node-exporter is critical. In slurm.conf:
#   HealthCheckProgram=/etc/slurm/gpu-health.sh
#   HealthCheckInterval=60
#   HealthCheckNodeState=ANY
#   Prolog=/etc/slurm/gpu-health.sh
#   PrologFlags=Alloc
# As a prolog it fails as well, so that Slurm requeues the job. A warning lets work start, and so does an unknown verdict: a node
# is not lost because its exporter is. Who wants neither has 1 and 3 drain too. Nothing here ends a drain: that is for who
# repaired the GPU, with `scontrol update NodeName=NODE State=RESUME`.
set -u

# Slurm starts its programs without a search path.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin
node=${SLURMD_NODENAME:-$(hostname -s)}

verdict=$(gpu-node-exporter health --timeout 2s)
case $? in
0) exit 0 ;;
2) ;;
*)
	echo "gpu-node-exporter: $verdict" >&2
	exit 0
	;;
esac

# A node that is drained already keeps its reason.
drained=' State=[^ ]*DRAIN'
if ! [[ $(timeout 20 scontrol show node -o "$node") =~ $drained ]]; then
	reason="gpu-node-exporter: ${verdict//[\"\']/}"
	timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="${reason:0:250}" || exit 1
fi

# The prolog of a job has the job's id. The health check ends well: Slurm wants its program to, and has the state.
[ -z "${SLURM_JOB_ID:-}" ]
