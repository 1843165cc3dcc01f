{{/*
The hub's objects have the chart's name, whatever the release is called:
there is one hub per cluster, and people and other charts name its roles.
*/}}
{{- define "ot-hub.selectorLabels" -}}
app.kubernetes.io/name: ot-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ot-hub.labels" -}}
{{ include "ot-hub.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ot-fleet
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
