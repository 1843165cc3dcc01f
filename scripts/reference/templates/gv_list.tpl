{{- define "gvList" -}}
<!-- Written by make generate from api/v1alpha1. -->
# API

Group `pelotech.ot`, version `v1alpha1`. `kubectl explain` shows the same texts.
Kinds: {{ range $gv := . }}{{ range $i, $k := $gv.SortedKinds }}{{ if $i }}, {{ end }}{{ $gv.TypeForKind $k | markdownRenderTypeLink }}{{ end }}{{ end }}.
{{ range . }}{{ template "gvDetails" . }}{{ end }}
{{- end -}}
