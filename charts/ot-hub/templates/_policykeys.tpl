{{- /*
What values of the policy's keys have to look like. Package hub/policy has the last word:
what is refused here, it refuses, too.
*/}}
{{- define "ot-hub.policyKeys" -}}
concurrency: {kind: number, least: 0, most: 256}
retryLimit: {kind: number, least: 0, most: 100}
retryBackoffDuration: {kind: duration, least: 0s, most: 720h}
maxRetryBackoff: {kind: duration, least: 0s, most: 720h}
attemptTimeout: {kind: duration, least: 1s, most: 720h}
stallTimeout: {kind: duration, least: 1s, most: 720h}
maxPriority: {kind: number, least: 0, most: 1000}
resyncLimit: {kind: number, least: 0, most: 100}
preflight: {kind: boolean}
preflightAllow: {kind: sources}
namespaceShare: {kind: number, least: 0, most: 256}
safeConcurrency: {kind: number, least: 0, most: 256}
fleetConcurrency: {kind: number, least: 0, most: 100000}
fleetGrantDuration: {kind: duration, least: 15s, most: 24h}
fleetExcessTolerance: {kind: duration, least: 1s, most: 720h}
fleetWeight: {kind: number, least: 1, most: 1000}
{{- end }}

{{- define "ot-hub.policyKeyTakes" -}}
{{- if eq .kind "number" }}a whole number from {{ int .least }} to {{ int .most }}
{{- else if eq .kind "duration" }}a duration from {{ .least }} to {{ .most }}, such as 30s, 5m or 1h30m
{{- else if eq .kind "boolean" }}true or false
{{- else if eq .kind "sources" }}a list of CIDRs such as 10.20.0.0/16 and hosts such as images.example.com or *.example.com, without scheme, port and path
{{- end }}
{{- end }}

{{- define "ot-hub.numberPattern" -}}
^([+]?0*[0-9]{1,6}|-0+)$
{{- end }}

{{- define "ot-hub.durationPattern" -}}
^[+-]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$
{{- end }}

{{- define "ot-hub.booleans" -}}
'1', 't', 'T', 'true', 'TRUE', 'True', '0', 'f', 'F', 'false', 'FALSE', 'False'
{{- end }}

{{- /*
Fails where a value of policy.data cannot be used: the policy that would say so is made after
the ConfigMap.
*/}}
{{- define "ot-hub.checkPolicyValue" -}}
{{- $value := trim .value }}
{{- $usable := true }}
{{- if eq .is.kind "number" }}
{{- $usable = regexMatch (include "ot-hub.numberPattern" .) $value }}
{{- if $usable }}
{{- $number := regexReplaceAll "^[+-]?0*" $value "" | default "0" | int }}
{{- $usable = and (ge $number (int .is.least)) (le $number (int .is.most)) }}
{{- end }}
{{- else if eq .is.kind "duration" }}
{{- $usable = regexMatch (include "ot-hub.durationPattern" .) $value }}
{{- else if eq .is.kind "boolean" }}
{{- $usable = contains (squote $value) (include "ot-hub.booleans" .) }}
{{- end }}
{{- if not $usable }}
{{- fail (printf "policy.data.%s is %s: it must be %s" .key (quote .value) (include "ot-hub.policyKeyTakes" .is)) }}
{{- end }}
{{- end }}

{{- define "ot-hub.policyConfigMap" -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ .Values.policy.namespace | quote }}
resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE, UPDATE]
    resources: [configmaps]
    resourceNames: [{{ .Values.policy.name | quote }}]
    scope: Namespaced
{{- end }}
