#!/bin/bash
# Drains the Slurm node, with the reason, if the verdict of gpu-node-exporter is critical. Add to slurm.conf:
#   HealthCheckProgram=/etc/slurm/gpu-health.sh
#   HealthCheckInterval=60
#   HealthCheckNodeState=ANY
#   Prolog=/etc/slurm/gpu-health.sh
#   PrologFlags=Alloc
# As a prolog, the script also fails, so that Slurm requeues the job. A warning lets work start, and so does an unknown verdict,
# because a failed exporter must not take its node out of service. To drain in these cases too, change `2)` below to
# `1 | 2 | 3)`. The script never resumes a node. After the repair, run `scontrol update NodeName=NODE State=RESUME`.
set -u

# Slurm starts programs without a PATH.
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

# A node that is already drained keeps its reason.
drained=' State=[^ ]*DRAIN'
if ! [[ $(timeout 20 scontrol show node -o "$node") =~ $drained ]]; then
	reason="gpu-node-exporter: ${verdict//[\"\']/}"
	timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="${reason:0:250}" || exit 1
fi

# Only a prolog has SLURM_JOB_ID, and fails. The health check succeeds, as Slurm requires, because the node is drained.
[ -z "${SLURM_JOB_ID:-}" ]
