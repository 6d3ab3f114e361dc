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
{{- end }}
