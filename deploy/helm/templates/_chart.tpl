{{/* The image of (list context image). */}}
{{- define "bandoneon.image" -}}
{{- $context := index . 0 }}{{ $image := index . 1 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ default $context.Chart.AppVersion $image.tag }}{{ end }}
{{- end }}

{{- define "bandoneon.job" -}}
BANDONEON_JOB_ID: {{ .Values.job.id | quote }}
BANDONEON_WORKERS: {{ .Values.job.workers | quote }}
BANDONEON_SERVERS: {{ .Values.job.servers | quote }}
BANDONEON_SCHEDULER: "bandoneon-scheduler:7000"
BANDONEON_EXIT_WHEN_DONE: "false"
BANDONEON_DRAIN_TIMEOUT: {{ .Values.job.drainTimeout | quote }}
BANDONEON_HEALTH_LISTEN: "0.0.0.0:7080"
BANDONEON_METRICS_LISTEN: "0.0.0.0:7090"
BANDONEON_TLS_CA: /certs/ca.crt
BANDONEON_TLS_CERT: /certs/tls.crt
BANDONEON_TLS_KEY: /certs/tls.key
{{- if .Values.rdma.enabled }}
BANDONEON_TRANSPORT: rdma
{{- with .Values.rdma.provider }}
BANDONEON_FABRIC_PROVIDER: {{ . | quote }}
{{- end }}
{{- with .Values.rdma.domain }}
BANDONEON_FABRIC_DOMAIN: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Resources of (list resources more ...): what device plugins give, {name: count}, is among the limits. */}}
{{- define "bandoneon.resources" -}}
{{- $resources := deepCopy (index . 0) -}}
{{- range rest . }}{{ $_ := set $resources "limits" (merge $resources.limits .) }}{{ end -}}
{{- toYaml $resources }}
{{- end }}

{{/* The device of a container that speaks RDMA: {name: count}, or {}. */}}
{{- define "bandoneon.rdma" -}}
{{- if .Values.rdma.enabled }}{{ dict .Values.rdma.resource .Values.rdma.count | toYaml }}{{ else }}{}{{ end }}
{{- end }}

{{/* The security context of (list context locks): whether the container locks memory for RDMA. Only root is given an added
     capability by Linux, and a pod's processes are all of the user of their bandoneon-worker. */}}
{{- define "bandoneon.security" -}}
{{- $rdma := (index . 0).Values.rdma -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- if and $rdma.enabled $rdma.ipcLock }}
runAsNonRoot: false
runAsUser: 0
{{- end }}
capabilities:
  drop: [ALL]
  {{- if and $rdma.enabled $rdma.ipcLock (index . 1) }}
  add: [IPC_LOCK]
  {{- end }}
{{- end }}
