{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type }}
### {{ $type.Name }}

{{ if $type.IsAlias }}Underlying type: {{ markdownRenderTypeLink $type.UnderlyingType }}

{{ end }}{{ $type.Doc }}
{{ if $type.References }}
Appears in: {{ range $i, $r := $type.SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $r }}{{ end }}.
{{ end -}}
{{ range $type.Members }}{{ if ne .Name "metadata" }}
- **`{{ .Name }}`** _{{ markdownRenderType .Type }}_{{ if .Default }}, default {{ markdownRenderDefault .Default }}{{ end }}: {{ .Doc | replace "\n" " " }}
{{- end }}{{ end }}
{{ range $type.EnumValues }}
- **`{{ .Name }}`**: {{ .Doc | replace "\n" " " }}
{{- end }}
{{- end -}}
{{- end -}}
