{{- /*
What values of the policy's keys have to look like. Package api/policy has the last word:
what is refused here, it refuses, too.
*/}}
{{- define "ot-agent.policyKeys" -}}
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
windows: {kind: windows}
allowedNamespaces: {kind: namespaces}
{{- end }}

{{- /*
Keys of the fleet's policy, in the cluster that hub and agent share.
*/}}
{{- define "ot-agent.fleetKeys" -}}
'overrides', 'fleetConcurrency', 'fleetSources', 'fleetGrantDuration', 'fleetExcessTolerance', 'safeConcurrency', 'fleetWeight'
{{- end }}

{{- define "ot-agent.policyKeyTakes" -}}
{{- if eq .kind "number" }}a whole number from {{ int .least }} to {{ int .most }}
{{- else if eq .kind "duration" }}a duration from {{ .least }} to {{ .most }}, such as 30s, 5m or 1h30m
{{- else if eq .kind "boolean" }}true or false
{{- else if eq .kind "sources" }}a list of CIDRs such as 10.20.0.0/16 and hosts such as images.example.com or *.example.com, without scheme, port and path
{{- else if eq .kind "namespaces" }}a list of names and patterns of namespaces, as in farm, ci-*
{{- end }}
{{- end }}

{{- define "ot-agent.numberPattern" -}}
^([+]?0*[0-9]{1,6}|-0+)$
{{- end }}

{{- define "ot-agent.durationPattern" -}}
^[+-]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$
{{- end }}

{{- define "ot-agent.booleans" -}}
'1', 't', 'T', 'true', 'TRUE', 'True', '0', 'f', 'F', 'false', 'FALSE', 'False'
{{- end }}

{{- /*
Fails where a value of policy.data cannot be used: the policy that would say so is made after
the ConfigMap.
*/}}
{{- define "ot-agent.checkPolicyValue" -}}
{{- $value := trim .value }}
{{- $usable := true }}
{{- if eq .is.kind "number" }}
{{- $usable = regexMatch (include "ot-agent.numberPattern" .) $value }}
{{- if $usable }}
{{- $number := regexReplaceAll "^[+-]?0*" $value "" | default "0" | int }}
{{- $usable = and (ge $number (int .is.least)) (le $number (int .is.most)) }}
{{- end }}
{{- else if eq .is.kind "duration" }}
{{- $usable = regexMatch (include "ot-agent.durationPattern" .) $value }}
{{- else if eq .is.kind "boolean" }}
{{- $usable = contains (squote $value) (include "ot-agent.booleans" .) }}
{{- end }}
{{- if not $usable }}
{{- fail (printf "policy.data.%s is %s: it must be %s" .key (quote .value) (include "ot-agent.policyKeyTakes" .is)) }}
{{- end }}
{{- end }}

{{- define "ot-agent.policyConfigMap" -}}
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
