#!/usr/bin/env bash
# chart.sh EXPORTER HELM: the rules of deploy/chart are those of `gpu-node-exporter assets`, with the defaults and with the same values
# for both; values without a default are refused. chart.py checks all other objects.
set -euo pipefail
cd "$(dirname "$0")/../.."
exporter=$1 helm=$2 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

render() {
	"$helm" template t deploy/chart --kube-version v1.34 --set monitor.kind=none "$@"
}

# NAME<tab>LINE of each object's spec, without comments, by name.
specs() {
	awk -v prefix="$1" '
		/^---/ { name = ""; spec = 0 }
		/^  name: / && name == "" { name = $2; sub("^" prefix "-", "", name) }
		spec && !/^ *#/ && NF { print name "\t" $0 }
		/^spec:/ { spec = 1 }
	' | sort -s -t"$(printf '\t')" -k1,1
}

# compare WHAT VALUES: both with a values file and all optional rules.
compare() {
	local what=$1 values=$2 optional=(autoscaling cost kubernetes objectives service slurm)
	{
		echo "rules:"
		echo "  optional: [$(IFS=,; echo "${optional[*]}")]"
		echo "  values:"
		sed 's/^/    /' "$values"
	} >"$work/chart.yaml"
	render -s templates/prometheusrules.yaml -f "$work/chart.yaml" 2>"$work/stderr" | specs t >"$work/chart" || cat "$work/stderr"
	"$exporter" assets --format prometheusrule --values "$values" "${optional[@]/#/--with=}" | specs gpu-node-exporter >"$work/command"
	[ -s "$work/command" ] || { echo "$what: the command gives no rules"; failed=1; }
	if ! diff "$work/command" "$work/chart" >"$work/diff"; then
		echo "$what: the command (<) and the chart (>) differ:"
		head -n 20 "$work/diff"
		failed=1
	fi
}

# refused WHAT ARGUMENTS...: rendering ends with an error that names WHAT.
refused() {
	local what=$1
	shift
	if render "$@" >/dev/null 2>"$work/stderr"; then
		echo "accepted, and is to be refused: $*"
		failed=1
	elif ! grep -q "$what" "$work/stderr"; then
		echo "the error does not name $what:"
		cat "$work/stderr"
		failed=1
	fi
}

echo '{}' >"$work/defaults.yml"
compare 'defaults' "$work/defaults.yml"
cat >"$work/values.yml" <<'VALUES'
job: gpu-nodes
severity:
  GpuWatchdog: ticket
links:
  grafana: https://grafana.example.net/sub
VALUES
compare 'values of an operator' "$work/values.yml"
# The example in the chart's own file, read from there.
sed -n '/^rules:/,/^$/s/^  #   //p' deploy/chart/values.yaml >"$work/example.yml"
[ "$(grep -c : "$work/example.yml")" -ge 3 ] || { echo 'deploy/chart/values.yaml has no example'; failed=1; }
compare 'the example' "$work/example.yml"
refused 'severity.GpuNone' --set rules.values.severity.GpuNone=page
refused 'optional' --set 'rules.optional={none}'
# What both refuse.
while read -r value; do
	refused 'values' --set-string "rules.values.$value"
	if "$exporter" assets --format prometheusrule --set "$value" >/dev/null 2>&1; then
		echo "the command accepts, and is to refuse: $value"
		failed=1
	fi
done <<'REFUSED'
severity.GpuDriverLoaded=loud
threshold.GpuSlo=5m
for.GpuAllocatedIdle=10
for.GpuAllocatedIdle=1m1h
node=cluster zone
job=a"b
links.grafana=grafana.example.net
metrics.queue_wait=queue wait
page.owners=a{b
page.owners=.*
REFUSED
[ "$(render --set rules.enabled=false 2>/dev/null | grep -c PrometheusRule)" = 0 ] || {
	echo "rules.enabled=false renders rules"
	failed=1
}
exit $failed
