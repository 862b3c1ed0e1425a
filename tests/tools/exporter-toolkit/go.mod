// The examples of the Prometheus exporter-toolkit, which `make prove PARTS=access` tries.
module gpu-node-exporter/tests/tools/exporter-toolkit

go 1.25.0

require github.com/prometheus/exporter-toolkit v0.20.0
