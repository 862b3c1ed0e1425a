{{- define "gpu-node-exporter.labels" -}}
{{ include "gpu-node-exporter.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpu-node-exporter.selector" -}}
app.kubernetes.io/name: gpu-node-exporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The port of an address such as ":9408". */ -}}
{{- define "gpu-node-exporter.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- /* A duration of Prometheus, as 1m30s. */ -}}
{{- define "gpu-node-exporter.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 "y" 31536000000 }}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) (get $units (regexFind "[a-z]+" .))) }}
{{- end }}
{{- $sum }}
{{- end }}

{{- /* A value as text; integers of YAML are floats here, and large ones would be written as 2e+09. */ -}}
{{- define "gpu-node-exporter.text" -}}
{{- if kindIs "slice" . }}{{- join "," . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) }}{{- printf "%.0f" . }}
{{- else }}{{- toString . }}
{{- end }}
{{- end }}

{{- /* The folder of the pod-resources socket; "" if the kubelet is not asked. */ -}}
{{- define "gpu-node-exporter.kubelet" -}}
{{- if ne (dig "owners" "kubelet_socket" "unset" .Values.config) "" }}{{ .Values.kubelet.dir }}/pod-resources{{- end }}
{{- end }}

{{- /* `config` as the file of the exporter, which reads numbers and truth values from texts too. JSON's texts are TOML's. */ -}}
{{- define "gpu-node-exporter.file" -}}
{{- range $section, $keys := .Values.config }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "gpu-node-exporter.toml" $value }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpu-node-exporter.toml" -}}
{{- if kindIs "slice" . }}
{{- $items := list }}{{- range . }}{{- $items = append $items (include "gpu-node-exporter.toml" .) }}{{- end -}}
[{{ join ", " $items }}]
{{- else }}{{ include "gpu-node-exporter.text" . | toJson }}
{{- end }}
{{- end }}

{{- /* Of the settings in `config` that pods take up only when they start. */ -}}
{{- define "gpu-node-exporter.checksum" -}}
{{- $live := .Files.Lines "live_keys.txt" }}
{{- $fixed := dict }}
{{- range $section, $keys := .Values.config }}
{{- range $key, $value := $keys }}
{{- $name := printf "%s.%s" $section $key }}
{{- if not (has $name $live) }}{{- $_ := set $fixed $name $value }}{{- end }}
{{- end }}
{{- end }}
{{- toJson $fixed | sha256sum }}
{{- end }}

{{- /* The chart's own settings, as JSON. */ -}}
{{- define "gpu-node-exporter.settings" -}}
{{- $own := dict "host" (dict "root" "/host") "events" (dict "kernel_log" .Values.kernelLog) }}
{{- with .Values.webConfig.secret }}
{{- /* Probes have neither a certificate nor a password. */ -}}
{{- $open := hasKey (default dict $.Values.config.http) "open_paths" | ternary dict (dict "open_paths" (list "/livez" "/readyz" "/health")) }}
{{- $_ := set $own "http" (merge $open (dict "web_config_file" "/etc/gpu-node-exporter/web/web.yml")) }}
{{- end }}
{{- if include "gpu-node-exporter.kubelet" . }}
{{- $_ := set $own "owners" (dict "kubelet_socket" (printf "%s/kubelet.sock" (include "gpu-node-exporter.kubelet" .))) }}
{{- end }}
{{- toJson $own }}
{{- end }}

{{- /* JSON of port numbers by name. */ -}}
{{- define "gpu-node-exporter.ports" -}}
{{- $ports := dict "metrics" (include "gpu-node-exporter.port" (dig "http" "listen" ":9408" .Values.config) | int) }}
{{- with dig "dcgm" "listen" "" .Values.config }}{{- $_ := set $ports "dcgm" (include "gpu-node-exporter.port" . | int) }}{{- end }}
{{- toJson $ports }}
{{- end }}
