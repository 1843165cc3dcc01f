//go:build linux

package simulator

import (
	"fmt"
	"strings"
	"text/template"
)

// AttemptLabel has the number of the attempt, for /flaky/ and /stuck/ images.
const AttemptLabel = "pelotech.ot/attempt"

// importerFailure is the exit code and the termination message of a failed importer, in the words
// of CDI 1.65.
type importerFailure struct {
	Behaviour string
	Exit      int
	Reason    string
	Message   string
}

var importerFailures = []importerFailure{
	{"notfound", 1, "Error", "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found"},
	{"forbidden", 1, "Error", "Unable to connect to http data source: expected status code 200, got 403. Status: 403 Forbidden"},
	{"servererror", 1, "Error", "Unable to connect to http data source: expected status code 200, got 500. Status: 500 Internal Server Error"},
	{"cut", 1, "Error", "Unable to process data: Unable to transfer source data to scratch space: failed to pull image: unexpected EOF"},
	{"toosmall", 1, "Error", "Unable to process data: virtual image size 42949672960 is larger than the reported available storage 1073741824. A larger PVC is required"},
	{"crashloop", 2, "Error", ""},
	{"oom", 137, "OOMKilled", ""},
	{"checksum", 0, "Completed", `{"message":"Unable to process data: checksum mismatch: expected sha256:` + strings.Repeat("0", 64) + `, calculated sha256:` + strings.Repeat("1", 64) + `"}`},
}

// pathSegmentsExpr begins each expression on an importer pod: the segments of the path of the
// image's URL; none for a blank image.
const pathSegmentsExpr = `(([.spec.containers[0].env[]? | select(.name == "IMPORTER_ENDPOINT") | .value][0] // "") | split("/") | .[3:]) as $s` +
	` | (.metadata.labels["` + AttemptLabel + `"] // "1" | tonumber) as $attempt`

var behaviourExpr = pathSegmentsExpr + ` | if $s[0] == "flaky" then (if $attempt <= ($s[1] | tonumber) then "servererror" else "ok" end)` +
	` elif $s[0] == "stuck" then (if $attempt <= ($s[1] | tonumber) then "hang" else "ok" end)` +
	` elif ([` + quotedBehaviours() + `] | index($s[0] // "")) then $s[0] else "ok" end`

// durationPattern is what a duration in a path looks like: a number alone is how often an image fails.
const durationPattern = "^[0-9]+(ms|s|m|h)$"

// durationExpr takes the first segment after the behaviour that is a duration. A /flaky/ image
// fails at once; the duration is that of its success.
func durationExpr(fallback string, failing bool) string {
	flaky := ""
	if failing {
		flaky = `if $s[0] == "flaky" then "` + fallback + `" else `
	}
	expression := pathSegmentsExpr + ` | ` + flaky + `([$s[1:3][]? | select(test("` + durationPattern + `"))][0] // "` + fallback + `")`
	if failing {
		expression += ` end`
	} else {
		expression = pathSegmentsExpr + ` | if ($s | length) == 0 then "0s" else (` + strings.TrimPrefix(expression, pathSegmentsExpr+` | `) + `) end`
	}
	return expression
}

func quotedBehaviours() string {
	quoted := []string{`"hang"`}
	for _, f := range importerFailures {
		quoted = append(quoted, `"`+f.Behaviour+`"`)
	}
	return strings.Join(quoted, ",")
}

// renderStages renders KWOK's configuration. The stage for nodes never applies: KWOK serves no pods
// of nodes without a stage. Pods get a loopback address of their member: CDI reads the progress
// from the importer's metrics port.
func renderStages(podIP string) (string, error) {
	parsed, err := template.New("stages").Delims("<<", ">>").Parse(stagesTemplate)
	if err != nil {
		return "", fmt.Errorf("parsing the stages of the simulated kubelet: %w", err)
	}
	var text strings.Builder
	err = parsed.Execute(&text, map[string]any{
		"PodIP": podIP, "Failures": importerFailures, "Behaviour": behaviourExpr,
		"Success": durationExpr("1s", false), "Failing": durationExpr("300ms", true),
	})
	if err != nil {
		return "", fmt.Errorf("rendering the stages of the simulated kubelet: %w", err)
	}
	return text.String(), nil
}

const stagesTemplate = `
<<- define "importer" >>
    - {key: '.metadata.deletionTimestamp', operator: DoesNotExist}
    - {key: '.metadata.labels["cdi.kubevirt.io"]', operator: In, values: [importer]}
    - {key: '.status.phase', operator: In, values: [Running]}
<<- end >>
<<- define "stage" >>
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
<<- end >>
<<- define "pod" >>
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
<<- end >>
<<- define "status" >>
  next:
    patches:
    - subresource: status
      root: status
      type: strategic
      template: |
<<- end >>
<<- define "ended" >>
        containerStatuses:
        {{ range .status.containerStatuses }}
        - name: {{ .name | Quote }}
          image: {{ .image | Quote }}
          imageID: ""
          ready: false
          started: false
          restartCount: {{ .restartCount }}
<<- end >>
<<- define "completed" >>
        {{ end }}
        conditions:
        - {type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
        - {type: ContainersReady, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
        phase: Succeeded
<<- end >>
<<- template "stage" >>
metadata: {name: node-adopt}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.phase', operator: In, values: [Never]}
  next: {}
<<- template "stage" >>
metadata: {name: pod-delete}
<<- template "pod" >>
    - {key: '.metadata.deletionTimestamp', operator: Exists}
    - {key: '.metadata.labels["kubevirt.io"]', operator: NotIn, values: [virt-launcher]}
  next: {delete: true}
<<- template "stage" >>
metadata: {name: pod-run}
<<- template "pod" >>
    - {key: '.metadata.deletionTimestamp', operator: DoesNotExist}
    - {key: '.status.phase', operator: In, values: [Pending]}
    - {key: '.status.podIP', operator: DoesNotExist}
<<- template "status" >>
        {{ $now := Now }}
        conditions:
        - {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
        - {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
        - {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
        containerStatuses:
        {{ range .spec.containers }}
        - name: {{ .name | Quote }}
          image: {{ .image | Quote }}
          imageID: ""
          ready: true
          started: true
          restartCount: 0
          state: {running: {startedAt: {{ $now | Quote }}}}
        {{ end }}
        hostIP: "127.0.0.1"
        podIP: "<<.PodIP>>"
        podIPs: [{ip: "<<.PodIP>>"}]
        phase: Running
        startTime: {{ $now | Quote }}
<<- template "stage" >>
metadata: {name: clone-succeed}
<<- template "pod" >>
    - {key: '.metadata.deletionTimestamp', operator: DoesNotExist}
    - {key: '.metadata.labels["cdi.kubevirt.io"]', operator: In, values: [cdi-populator-prep, cdi-clone-source]}
    - {key: '.status.phase', operator: In, values: [Running]}
  delay: {durationMilliseconds: 300}
<<- template "status" >>
        {{ $now := Now }}
<<- template "ended" >>
          state:
            terminated: {exitCode: 0, reason: Completed, startedAt: {{ .state.running.startedAt | Quote }}, finishedAt: {{ $now | Quote }}}
<<- template "completed" >>
<<- template "stage" >>
metadata: {name: importer-succeed}
<<- template "pod" >><<- template "importer" >>
    - {key: '.status.containerStatuses[0].state.running', operator: Exists}
    - key: '<<.Behaviour>>'
      operator: In
      values: [ok]
  delay:
    durationMilliseconds: 0
    durationFrom:
      expressionFrom: '<<.Success>>'
<<- template "status" >>
        {{ $now := Now }}
<<- template "ended" >>
          state:
            terminated:
              exitCode: 0
              reason: Completed
              message: '{"scratchSpaceRequired":false,"preallocationApplied":false,"message":"Import Complete"}'
              startedAt: {{ .state.running.startedAt | Quote }}
              finishedAt: {{ $now | Quote }}
<<- template "completed" >>
<<- range .Failures >>
<<- template "stage" >>
metadata: {name: importer-<<.Behaviour>>}
<<- template "pod" >><<- template "importer" >>
    - {key: '.status.containerStatuses[0].state.running', operator: Exists}
    - key: '<<$.Behaviour>>'
      operator: In
      values: [<<.Behaviour>>]
  delay:
    durationMilliseconds: 300
    durationFrom:
      expressionFrom: '<<$.Failing>>'
<<- template "status" >>
        {{ $now := Now }}
<<- template "ended" >>
          state:
            terminated:
              exitCode: <<.Exit>>
              reason: <<.Reason>>
              message: '<<.Message>>'
              startedAt: {{ .state.running.startedAt | Quote }}
              finishedAt: {{ $now | Quote }}
        {{ end }}
        conditions:
        - {type: Ready, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
        - {type: ContainersReady, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
        <<- if eq .Exit 0 >>
        phase: Succeeded
        <<- else >>
        phase: {{ if eq .spec.restartPolicy "Never" }}Failed{{ else }}Running{{ end }}
        <<- end >>
<<- end >>
<<- template "stage" >>
metadata: {name: importer-back-off}
<<- template "pod" >><<- template "importer" >>
    - {key: '.status.containerStatuses[0].state.terminated', operator: Exists}
    - {key: '.status.containerStatuses[0].restartCount > 0 | tostring', operator: In, values: ["true"]}
  delay: {durationMilliseconds: 200}
<<- template "status" >>
<<- template "ended" >>
          state:
            waiting: {reason: CrashLoopBackOff, message: back-off restarting failed container}
          lastState:
            {{ YAML .state 3 }}
        {{ end }}
<<- template "stage" >>
metadata: {name: importer-restart}
<<- template "pod" >><<- template "importer" >>
    - key: '.status.containerStatuses[0] | (.state.waiting != null) or (.state.terminated != null and .restartCount == 0) | tostring'
      operator: In
      values: ["true"]
  delay:
    durationMilliseconds: 900
    durationFrom:
      expressionFrom: '.status.containerStatuses[0].restartCount as $n | if $n == 0 then "900ms" else ([12 * pow(2; $n - 1), 300] | min | floor | tostring) + "s" end'
<<- template "status" >>
        {{ $now := Now }}
        containerStatuses:
        {{ range .status.containerStatuses }}
        - name: {{ .name | Quote }}
          image: {{ .image | Quote }}
          imageID: ""
          ready: true
          started: true
          restartCount: {{ add .restartCount 1 }}
          state: {running: {startedAt: {{ $now | Quote }}}}
          lastState:
            {{ if .state.terminated }}{{ YAML .state 3 }}{{ else }}{{ YAML .lastState 3 }}{{ end }}
        {{ end }}
        conditions:
        - {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
        - {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
`
