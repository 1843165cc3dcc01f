{{/*
The agent's objects have the chart's name, whatever the release is called:
there is one agent per cluster, and the admission policies are known by name.
*/}}
{{- define "ot-agent.selectorLabels" -}}
app.kubernetes.io/name: ot-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ot-agent.labels" -}}
{{ include "ot-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ot-fleet
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
