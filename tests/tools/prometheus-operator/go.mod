// The Prometheus operator's schemas of its objects, which `make prove PARTS=chart` checks the chart with.
module gpu-node-exporter/tests/tools/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
