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

// patterns tell failures by what CDI's importer says (CDI 1.65,
// pkg/importer). They are anchored in its own wording: an image that is called
// lab-404 is not missing.
var patterns = []struct {
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
	cdiError         = "Error"
	cdiChecksumError = "ChecksumError"
	cdiExceededQuota = "ErrExceededQuota"
	cdiClaimInvalid  = "ErrClaimNotValid"
)

// FailureOf tells whether an import has failed, at its first sign: CDI itself
// would start the download over, for ever.
func FailureOf(o *Objects) (v1alpha1.Failure, bool) {
	for i := range o.Pods {
		if text, failed := podFailure(&o.Pods[i]); failed {
			return explain(text), true
		}
	}
	dv := o.DataVolume
	if dv == nil {
		return v1alpha1.Failure{}, false
	}
	running := condition(dv, cdiv1.DataVolumeRunning)
	for _, c := range dv.Status.Conditions {
		if c.Reason == cdiExceededQuota {
			return v1alpha1.Failure{Reason: v1alpha1.ReasonQuotaExceeded, Message: cut(c.Message)}, true
		}
	}
	if running.Reason == cdiChecksumError {
		return v1alpha1.Failure{Reason: v1alpha1.ReasonChecksumMismatch, Message: cut(running.Message)}, true
	}
	notRunning := running.Status == corev1.ConditionFalse
	if dv.Status.Phase == cdiv1.Failed || dv.Status.RestartCount > 0 || (notRunning && running.Reason == cdiError) {
		return explain(running.Message), true
	}
	return v1alpha1.Failure{}, false
}

// podFailure reads an importer's own status, which says so before CDI does.
func podFailure(pod *corev1.Pod) (string, bool) {
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

// explain gives an importer's words a reason, and says what to do where only a
// person can help.
func explain(text string) v1alpha1.Failure {
	f := v1alpha1.Failure{Reason: v1alpha1.ReasonImportFailed, Message: cut(text)}
	if f.Message == "" {
		f.Message = "the importer failed and gave no reason"
	}
	for _, p := range patterns {
		if p.pattern.MatchString(text) {
			f.Reason = p.reason
			break
		}
	}
	return f
}

// stuckOn says what an import that does not get on is waiting for.
func stuckOn(o *Objects) string {
	dv := o.DataVolume
	if dv == nil {
		return "its DataVolume has not been created"
	}
	if dv.Status.Phase == cdiv1.PhaseUnset && len(dv.Status.Conditions) == 0 {
		return "CDI has not looked at its DataVolume: is cdi-controller running?"
	}
	if bound := condition(dv, cdiv1.DataVolumeBound); bound.Reason == cdiClaimInvalid {
		return "CDI cannot make its claim: " + bound.Message +
			". Set claimPropertySets (accessModes) in the StorageProfile of its StorageClass"
	} else if bound.Status != corev1.ConditionTrue && bound.Message != "" {
		return "its claim is not bound: " + bound.Message
	}
	if running := condition(dv, cdiv1.DataVolumeRunning); running.Status != corev1.ConditionTrue && running.Message != "" {
		return "its importer does not run: " + running.Message
	}
	return fmt.Sprintf("its DataVolume is in phase %q at %q", dv.Status.Phase, dv.Status.Progress)
}

func condition(dv *cdiv1.DataVolume, t cdiv1.DataVolumeConditionType) cdiv1.DataVolumeCondition {
	for _, c := range dv.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return cdiv1.DataVolumeCondition{}
}

const maxMessage = 512

func cut(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if r := []rune(text); len(r) > maxMessage {
		return string(r[:maxMessage]) + "…"
	}
	return text
}

// StoreRefusal writes into an image's status that the API server refused the
// DataVolume of a slot. It tells whether there was anything to write: an
// outcome that is stored already is not changed.
func StoreRefusal(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot, f v1alpha1.Failure, p *policy.Policy, now metav1.Time) bool {
	if outcome, begun := OutcomeOf(img, slot); outcome != "" || begun {
		return false
	}
	e := find(img.Status.Revisions, slot.Revision)
	if e == nil {
		return false
	}
	if p == nil {
		d := policy.Default()
		p = &d
	}
	f.Message = cut(f.Message)
	Fail(&img.Status, img.UID, e, slot.Attempt, f, *p, now)
	return true
}
