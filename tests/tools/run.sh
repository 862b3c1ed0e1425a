#!/usr/bin/env bash
# Builds and serves: this machine's GPUs if the driver is there and no SCENARIO is given, else a simulated
# node. LISTEN is the address. All that the daemon writes goes to .run.
set -euo pipefail
cd "$(dirname "$0")/../.."

listen=${LISTEN:-:9408}
scenario=${SCENARIO:-}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
built=$target/release

# The library, where the loader knows it or where containers mount it.
nvml_library() {
	{
		PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libnvidia-ml\.so\.1 / { print $NF }'
		compgen -G '/usr/lib*/libnvidia-ml.so.1'
		compgen -G '/usr/lib/*/libnvidia-ml.so.1'
		compgen -G '/usr/local/nvidia/lib*/libnvidia-ml.so.1'
	} | sed -n 1p
}

nvml=
if [ -z "$scenario" ] && [ -e /dev/nvidiactl ]; then
	nvml=$(nvml_library || true)
fi

if [ -n "$nvml" ]; then
	what="the GPUs of this machine"
else
	why="as SCENARIO asks"
	if [ -z "$scenario" ]; then
		why="no NVIDIA driver here"
		scenario=tests/scenarios/node-8xh200.toml
	fi
	if [ ! -r "$scenario" ]; then
		echo "error: no scenario $scenario; there are:" tests/scenarios/*.toml >&2
		exit 1
	fi
	what="a SIMULATED node, $scenario ($why)"
	tests/tools/ensure-tools.sh sim
fi

GNE_REVISION=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
export GNE_REVISION
cargo build --release -p gpu-node-exporter
# The driver is a test's: built as `make test` builds it, in seconds, its kernels fast all the same.
[ -n "$nvml" ] || cargo build -p simgpu

mkdir -p .run
state=.run/state
if [ -z "$nvml" ]; then
	# One library under all the names by which the daemon looks for a driver.
	rm -rf .run/simgpu
	mkdir -p .run/simgpu
	for name in libnvidia-ml.so.1 libcuda.so.1 libcuda.so; do
		ln -s "$target/debug/libsimgpu.so" ".run/simgpu/$name"
	done
	# A host of its own: a kernel log that the scenario writes to, and a kernel module.
	root=$PWD/.run/simgpu/root
	"$target/debug/simhost" "$root" "$(cut -d' ' -f1 /proc/uptime)"
	mkdir -p "$root/dev" "$root/sys/module/nvidia"
	touch "$root/dev/kmsg"
	ln -sf /proc/stat "$root/proc/stat"
	cp /proc/sys/kernel/random/boot_id "$root/proc/sys/kernel/random/boot_id"
	echo 580.159.04 >"$root/sys/module/nvidia/version"
	echo live >"$root/sys/module/nvidia/initstate"
	export GPU_NODE_EXPORTER__HOST__ROOT=$root GPU_SIM_KMSG=$root/dev/kmsg
	export GPU_SIM_SCENARIO=$scenario GPU_SIM_STATE=$PWD/.run/simgpu/state
	nvml=$PWD/.run/simgpu/libnvidia-ml.so.1
	# Its kernel log starts empty each time, so nothing is to be known of an earlier one.
	state=.run/simgpu/kept
	# Sooner than anybody wants it on real GPUs, so that there is something to see within a minute.
	export GPU_NODE_EXPORTER__CANARY__INTERVAL=1m GPU_NODE_EXPORTER__CANARY__IDLE_FOR=5s
	export GPU_NODE_EXPORTER__CANARY__MAX_DUTY_RATIO=0.01
	export GPU_NODE_EXPORTER__CANARY__CUDA_LIBRARY=$PWD/.run/simgpu/libcuda.so.1
fi

# ":9408" and "[::]:9408" are all addresses: as a target, this host.
address=$(sed -E 's/^(\[::\]|0\.0\.0\.0)?:/localhost:/' <<<"$listen")
cat <<END

Serving $what
  status page   http://$address/
  metrics       http://$address/metrics
  snapshot      GPU_NODE_EXPORTER__CONTROL__SOCKET=.run/control.sock $built/gpu-node-exporter snapshot

For prometheus.yml:
  scrape_configs:
    - job_name: gpu-node-exporter
      static_configs:
        - targets: ["$address"]

Ctrl-C ends it.

END
export GPU_NODE_EXPORTER__CANARY__LOCK_FILE=$PWD/.run/canary.lock
# A relative path, because a socket's path may be 107 bytes long and no more.
export GPU_NODE_EXPORTER__CONTROL__SOCKET=.run/control.sock GPU_NODE_EXPORTER__HEALTH__SOCKET=.run/health.sock
exec "$built/gpu-node-exporter" serve --listen "$listen" --nvml-library "$nvml" --state-dir "$state"
