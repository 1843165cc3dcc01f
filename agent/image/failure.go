package image

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failurePatterns tell failures by what CDI's importer says (CDI 1.65,
// pkg/importer). They are anchored in its own wording: an image that is called
// lab-404 is not missing.
var failurePatterns = []struct {
	reason  v1alpha1.Reason
	pattern *regexp.Regexp
}{
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`expected status code \d+, got (404|410)\b`)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`expected status code \d+, got (401|403)\b`)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`could not get s3 object: "[^"]*": (NoSuchKey|NoSuchBucket|NotFound): `)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`could not get s3 object: "[^"]*": (AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch): `)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`(?i)(manifest unknown|repository name not known to registry)`)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`(?i)unauthorized: `)},
	{v1alpha1.ReasonChecksumMismatch, regexp.MustCompile(`checksum mismatch`)},
	{v1alpha1.ReasonDiskTooSmall, regexp.MustCompile(`^DataVolume too small to contain image|is larger than the reported available|no space left on device|file largest block is bigger than maxblock|disk quota exceeded`)},
}

// CDI's reasons on the conditions of a DataVolume (CDI 1.65, pkg/controller).
const (
	cdiReasonError         = "Error"
	cdiReasonChecksumError = "ChecksumError"
	cdiReasonExceededQuota = "ErrExceededQuota"
	cdiReasonClaimInvalid  = "ErrClaimNotValid"
)

// DetectFailure tells whether an import has failed, at its first sign: CDI itself
// would start the download over, for ever.
func DetectFailure(o *AttemptObjects) (v1alpha1.Failure, bool) {
	for i := range o.Pods {
		if text, failed := detectPodFailure(&o.Pods[i]); failed {
			return classifyFailure(text), true
		}
	}
	dv := o.DataVolume
	if dv == nil {
		return v1alpha1.Failure{}, false
	}
	running := findCondition(dv, cdiv1.DataVolumeRunning)
	for _, c := range dv.Status.Conditions {
		if c.Reason == cdiReasonExceededQuota {
			return v1alpha1.Failure{Reason: v1alpha1.ReasonQuotaExceeded, Message: truncateMessage(c.Message)}, true
		}
	}
	if running.Reason == cdiReasonChecksumError {
		return v1alpha1.Failure{Reason: v1alpha1.ReasonChecksumMismatch, Message: truncateMessage(running.Message)}, true
	}
	notRunning := running.Status == corev1.ConditionFalse
	if dv.Status.Phase == cdiv1.Failed || dv.Status.RestartCount > 0 || (notRunning && running.Reason == cdiReasonError) {
		return classifyFailure(running.Message), true
	}
	return v1alpha1.Failure{}, false
}

// detectPodFailure reads an importer's own status, which says so before CDI does.
func detectPodFailure(pod *corev1.Pod) (string, bool) {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				if t.Message == "" {
					return fmt.Sprintf("importer ended with exit code %d (%s)", t.ExitCode, t.Reason), true
				}
				return t.Message, true
			}
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return strings.TrimSpace("importer Pod failed " + pod.Status.Reason + " " + pod.Status.Message), true
	}
	return "", false
}

// classifyFailure gives an importer's words a reason, and says what to do where only a
// person can help.
func classifyFailure(text string) v1alpha1.Failure {
	f := v1alpha1.Failure{Reason: v1alpha1.ReasonImportFailed, Message: truncateMessage(text)}
	if f.Message == "" {
		f.Message = "the importer failed and gave no reason"
	}
	for _, p := range failurePatterns {
		if p.pattern.MatchString(text) {
			f.Reason = p.reason
			break
		}
	}
	return f
}

// describeStall says what an import that does not get on is waiting for.
func describeStall(o *AttemptObjects) string {
	dv := o.DataVolume
	if dv == nil {
		return "its DataVolume has not been created"
	}
	if dv.Status.Phase == cdiv1.PhaseUnset && len(dv.Status.Conditions) == 0 {
		return "CDI has not looked at its DataVolume: is cdi-controller running?"
	}
	if bound := findCondition(dv, cdiv1.DataVolumeBound); bound.Reason == cdiReasonClaimInvalid {
		return "CDI cannot make its claim: " + bound.Message +
			". Set claimPropertySets (accessModes) in the StorageProfile of its StorageClass"
	} else if bound.Status != corev1.ConditionTrue && bound.Message != "" {
		return "its claim is not bound: " + bound.Message
	}
	if running := findCondition(dv, cdiv1.DataVolumeRunning); running.Status != corev1.ConditionTrue && running.Message != "" {
		return "its importer does not run: " + running.Message
	}
	return fmt.Sprintf("its DataVolume is in phase %q at %q", dv.Status.Phase, dv.Status.Progress)
}

func findCondition(dv *cdiv1.DataVolume, t cdiv1.DataVolumeConditionType) cdiv1.DataVolumeCondition {
	for _, c := range dv.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return cdiv1.DataVolumeCondition{}
}

const maxMessageLength = 512

func truncateMessage(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if r := []rune(text); len(r) > maxMessageLength {
		return string(r[:maxMessageLength]) + "…"
	}
	return text
}

// RecordRefusal writes into an image's status that the API server refused the
// DataVolume of a slot. It tells whether there was anything to write: an
// outcome that is stored already is not changed.
func RecordRefusal(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot, f v1alpha1.Failure, p *policy.Policy, now metav1.Time) bool {
	if outcome, begun := OutcomeOf(img, slot); outcome != "" || begun {
		return false
	}
	e := findRevision(img.Status.Revisions, slot.Revision)
	if e == nil {
		return false
	}
	if p == nil {
		d := policy.Default()
		p = &d
	}
	f.Message = truncateMessage(f.Message)
	RecordFailure(&img.Status, img.UID, e, slot.Attempt, f, *p, now)
	return true
}
