{{- define "chronos.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "chronos.selector" -}}
app.kubernetes.io/name: chronos
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "chronos.labels" -}}
{{ include "chronos.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The headless service, which gives each pod a name. */}}
{{- define "chronos.nodes" -}}
{{ include "chronos.name" . }}-nodes
{{- end -}}

{{- define "chronos.nodesDomain" -}}
{{ include "chronos.nodes" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "chronos.serviceDomain" -}}
{{ include "chronos.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "chronos.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- end -}}

{{/* The request of a probe, of a path and the root context. */}}
{{- define "chronos.get" -}}
path: {{ first . }}
port: http
scheme: {{ include "chronos.scheme" (last .) | upper }}
{{- end -}}

{{- define "chronos.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* chronos.yaml: the settings of values.yaml, and those of the chart. */}}
{{- define "chronos.config" -}}
{{- $name := include "chronos.name" . -}}
{{- $config := deepCopy .Values.config -}}
{{- $admin := get $config "admin" | default dict -}}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (include "chronos.serviceDomain" .) -}}
{{- $_ := set $admin "host" "0.0.0.0" -}}
{{- $_ := set $admin "allowed_hosts" (concat $hosts (get $admin "allowed_hosts" | default list) | uniq) -}}
{{- if .Values.tokens.existingSecret -}}
{{- $_ := set $admin "tokens" "/etc/chronos/tokens/tokens.yaml" -}}
{{- else -}}
{{- $_ := set $admin "open" true -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- $tls := dict "certificate" "/etc/chronos/tls/tls.crt" "key" "/etc/chronos/tls/tls.key" -}}
{{- if .Values.tls.caKey -}}
{{/* The kubelet shows no certificate to probes. */}}
{{- $tls = merge $tls (dict "client_ca" "/etc/chronos/tls/ca.crt" "client_certificates" "optional") -}}
{{- end -}}
{{- $_ := set $admin "tls" $tls -}}
{{- end -}}
{{- if ne $config.log.kind "kafka" -}}
{{- $_ := unset $config.log "kafka" -}}
{{- else if .Values.kafka.tls.existingSecret -}}
{{- $files := dict "ssl.ca.location" "/etc/chronos/kafka/ca.crt" -}}
{{- if .Values.kafka.tls.certificateKey -}}
{{- $files = merge $files (dict "ssl.certificate.location" "/etc/chronos/kafka/tls.crt" "ssl.key.location" "/etc/chronos/kafka/tls.key") -}}
{{- end -}}
{{- $_ := set $config.log.kafka "properties" (merge $files (get $config.log.kafka "properties" | default dict)) -}}
{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{/* Not the mount itself: that belongs to root, and may have a lost+found. */}}
{{- $_ := set $config "node" (dict "data_dir" "/var/lib/chronos/data") -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Combinations that no schema of single values refuses. */}}
{{- define "chronos.check" -}}
{{- if and (eq .Values.config.log.kind "kafka") (not .Values.config.log.kafka.bootstrap_servers) -}}
{{- fail "set config.log.kafka.bootstrap_servers to the brokers, as host:port with commas between" -}}
{{- end -}}
{{- if and (gt (int .Values.replicaCount) 1) (eq .Values.config.coordinator.kind "standalone") -}}
{{- fail "with config.coordinator.kind: standalone there is one node: set replicaCount: 1, or the kind kafka" -}}
{{- end -}}
{{- if and (not .Values.tokens.existingSecret) (not .Values.tokens.open) -}}
{{- fail "set tokens.existingSecret to a secret with the file of tokens (docs/how-to/secure.md), or tokens.open: true if everybody who reaches the port may do everything" -}}
{{- end -}}
{{- if and .Values.tokens.existingSecret .Values.tokens.open -}}
{{- fail "tokens.open: true contradicts tokens.existingSecret: set one of them" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.tokens.open) (not .Values.serviceMonitor.tokenSecret) -}}
{{- fail "set serviceMonitor.tokenSecret to a secret with a token of the role read: /metrics needs one" -}}
{{- end -}}
{{- if le (int .Values.terminationGracePeriodSeconds) (add 60 (int .Values.preStopSeconds)) -}}
{{- fail "terminationGracePeriodSeconds must be more than 60 and preStopSeconds together: a stop takes up to 60 s" -}}
{{- end -}}
{{- range list "host" "port" "advertised" "tokens" "open" "tls" -}}
{{- if hasKey (default dict $.Values.config.admin) . -}}
{{- fail (printf "config.admin.%s is set by the chart: use the values tokens and tls" .) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.config "node" -}}
{{- fail "config.node is set by the chart: the name of the pod is the node id, the volume holds the data directory" -}}
{{- end -}}
{{- end -}}
