{{- define "type_members" -}}{{- end -}}
