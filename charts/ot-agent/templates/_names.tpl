{{/*
The agent's objects have the chart's name, whatever the release is called:
there is one agent per cluster, and the admission policies are known by name.
*/}}
{{- define "ot-agent.selectorLabels" -}}
app.kubernetes.io/name: ot-agent
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "ot-agent.labels" -}}
{{ include "ot-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ot-fleet
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/*
The chart's labels and those of a value. Of one key the chart's counts: selectors go by it, and a
key that is there twice is refused.
*/}}
{{- define "ot-agent.labelsWith" -}}
{{- toYaml (merge (include "ot-agent.labels" (index . 0) | fromYaml) (index . 1 | default dict)) }}
{{- end }}

{{/*
The image. global.imageRegistry takes the place of all up to the first slash.
*/}}
{{- define "ot-agent.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.global.imageRegistry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^[^/]*/" $repository "") }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/*
Secrets to pull it with, those of this chart and the global ones.
*/}}
{{- define "ot-agent.imagePullSecrets" -}}
{{- with concat (.Values.imagePullSecrets | default list) (.Values.global.imagePullSecrets | default list) | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Constraints that do not say which Pods they count mean this chart's, those of one
version of the Deployment at a time.
*/}}
{{- define "ot-agent.topologySpreadConstraints" -}}
{{- $selector := dict "matchLabels" (include "ot-agent.selectorLabels" . | fromYaml) }}
{{- $constraints := list }}
{{- range .Values.topologySpreadConstraints }}
{{- $constraint := deepCopy . }}
{{- if not (hasKey . "labelSelector") }}
{{- $constraint = merge $constraint (dict "labelSelector" $selector "matchLabelKeys" (list "pod-template-hash")) }}
{{- end }}
{{- $constraints = append $constraints $constraint }}
{{- end }}
{{- with $constraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
A security context that namespaces of Pod Security's level restricted accept. OpenShift assigns user
and groups itself, and its restricted SCC refuses others. A value replaces the whole context: Helm
would merge it with defaults in values.yaml, and no key could be left out.
*/}}
{{- define "ot-agent.podSecurityContext" -}}
{{- $context := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
{{- $context = merge $context (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532) }}
{{- end }}
{{- toYaml (.Values.podSecurityContext | default $context) }}
{{- end }}

{{- define "ot-agent.securityContext" -}}
{{- $context := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- toYaml (.Values.securityContext | default $context) }}
{{- end }}

{{- /*
The version of MutatingAdmissionPolicy that the policies on imports use: the most stable one
that is served, or nothing without any. A cluster that is asked lists its kinds; where none
is asked, Kubernetes 1.36 is the first that serves v1 by default.
*/}}
{{- define "ot-agent.mutatingPolicies" -}}
{{- $version := "" }}
{{- range list "v1alpha1" "v1beta1" "v1" }}
{{- if $.Capabilities.APIVersions.Has (printf "admissionregistration.k8s.io/%s/MutatingAdmissionPolicy" .) }}
{{- $version = . }}
{{- end }}
{{- end }}
{{- if and (not $version) (not (.Capabilities.APIVersions.Has "v1/Pod")) (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version) }}
{{- $version = "v1" }}
{{- end }}
{{- if and (eq .Values.oneDownload.policies "Required") (not $version) }}
{{- fail "oneDownload.policies is Required, and this cluster serves no version of MutatingAdmissionPolicy (it does by default from Kubernetes 1.36 on): set it to IfServed" }}
{{- end }}
{{- if ne .Values.oneDownload.policies "Never" }}
{{- print $version }}
{{- end }}
{{- end }}

{{- define "ot-agent.byCDI" -}}
{{- printf "request.userInfo.username == '%s'" .Values.cdi.serviceAccount }}
{{- end }}

{{/*
The texts of a list, quoted for CEL; the schema keeps quotes and backslashes out.
*/}}
{{- define "ot-agent.quoted" -}}
{{- $quoted := list }}
{{- range . }}
{{- $quoted = append $quoted (printf "'%s'" .) }}
{{- end }}
{{- join ", " $quoted }}
{{- end }}

{{- /*
Namespaces of the cluster itself, as a list in CEL.
*/}}
{{- define "ot-agent.protectedNamespaces" -}}
{{- $names := list "kube-system" "kube-public" "kube-node-lease" }}
{{- $account := splitList ":" .Values.cdi.serviceAccount }}
{{- if and (hasPrefix "system:serviceaccount:" .Values.cdi.serviceAccount) (eq (len $account) 4) }}
{{- $names = append $names (index $account 2) }}
{{- end }}
{{- $quoted := list }}
{{- range concat $names (.Values.protectedNamespaces | default list) | uniq | sortAlpha }}
{{- $quoted = append $quoted (squote .) }}
{{- end }}
{{- join ", " $quoted }}
{{- end }}

{{/* Namespaces that the agent may clone from: none of protectedNamespaces. */}}
{{- define "ot-agent.dataSourceNamespaces" -}}
{{- $protected := include "ot-agent.protectedNamespaces" . }}
{{- $names := list }}
{{- range .Values.dataSources.namespaces }}
{{- if not (contains (squote .) $protected) }}
{{- $names = append $names . }}
{{- end }}
{{- end }}
{{- join "," $names }}
{{- end }}

{{/*
An object of extraObjects as YAML. Objects and texts are templates.
*/}}
{{- define "ot-agent.extraObject" -}}
{{- $object := index . 1 }}
{{- tpl (typeIs "string" $object | ternary $object (toYaml $object)) (index . 0) }}
{{- end }}

{{/*
Says "true" where this cluster has no such namespace, or deletes it: an object in it would be refused,
and the whole release with it. Namespaces that the release itself makes are there in time. kube-system
is in every cluster. Without it no cluster is asked, as by helm template, and all count as present.
*/}}
{{- define "ot-agent.lacksNamespace" -}}
{{- $root := index . 0 }}
{{- $own := list $root.Release.Namespace }}
{{- if $root.Values.policy.createNamespace }}
{{- $own = append $own $root.Values.policy.namespace }}
{{- end }}
{{- range $root.Values.extraObjects }}
{{- range splitList "\n---" (include "ot-agent.extraObject" (list $root .)) }}
{{- $object := fromYaml . }}
{{- if eq (toString $object.kind) "Namespace" }}
{{- $own = append $own $object.metadata.name }}
{{- end }}
{{- end }}
{{- end }}
{{- if not (has (index . 1) $own) }}
{{- $namespace := lookup "v1" "Namespace" "" (index . 1) }}
{{- if or (dig "metadata" "deletionTimestamp" "" $namespace) (and (not $namespace) (lookup "v1" "Namespace" "" "kube-system")) -}}
true
{{- end }}
{{- end }}
{{- end }}
