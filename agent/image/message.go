package image

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of texts in the status, in bytes.
const (
	// maxQuotedBytes bounds a text from outside in a message of the agent.
	maxQuotedBytes        = 512
	maxLogEndBytes        = 256  // of an importer's log
	maxClassifiedBytes    = 8192 // of a message that is matched against patterns
	maxFailureBytes       = 1024 // of Failure.message
	maxPruneMessageBytes  = 512  // of PruneStatus.message
	maxStatusMessageBytes = 2048
	maxSourceBytes        = 2048 // of RevisionStatus.source
	maxProgressBytes      = 32
	maxImportPhaseBytes   = 64
)

// quote returns a text of CDI, a driver or an API server for a message.
func quote(text string) string { return v1alpha1.SanitizeText(text, maxQuotedBytes) }

// setFailure is the only way in which a failure gets into a status.
func setFailure(rev *v1alpha1.RevisionStatus, reason v1alpha1.Reason, message string, now metav1.Time) {
	rev.Failure = &v1alpha1.Failure{Reason: reason, Message: v1alpha1.SanitizeText(message, maxFailureBytes), Time: now}
}

func (d *decider) setActivity(reason v1alpha1.Reason, message string) {
	d.activity = statusReason{reason, v1alpha1.SanitizeText(message, maxStatusMessageBytes), false}
}

// redactStored redacts what an earlier version of the agent has stored: the source's URL as it
// is in the spec, and messages that quote it.
func (d *decider) redactStored() {
	for i := range d.status.Revisions {
		rev := &d.status.Revisions[i]
		rev.Source = sourceForPeople(rev.Source)
		if f := rev.Failure; f != nil {
			f.Message = v1alpha1.SanitizeText(f.Message, maxFailureBytes)
		}
	}
}

// redactHeaders redacts the image's headers in all texts of the decision: those of the spec, and
// those that attempts run with, which the spec may no longer have. Events quote the same failures.
func (d *decider) redactHeaders() {
	spec, st := d.headersInUse(), d.status
	if len(spec.ExtraHeaders) == 0 && len(spec.SecretExtraHeaders) == 0 {
		return
	}
	st.Message = spec.RedactHeaders(st.Message)
	for i := range st.Conditions {
		st.Conditions[i].Message = spec.RedactHeaders(st.Conditions[i].Message)
	}
	for i := range st.Revisions {
		if f := st.Revisions[i].Failure; f != nil {
			f.Message = spec.RedactHeaders(f.Message)
		}
	}
}

// headersInUse returns a spec with the headers of the image and of all its DataVolumes.
func (d *decider) headersInUse() *v1alpha1.VMDiskImageSpec {
	spec := &v1alpha1.VMDiskImageSpec{ExtraHeaders: slices.Clone(d.Image.Spec.ExtraHeaders), SecretExtraHeaders: slices.Clone(d.Image.Spec.SecretExtraHeaders)}
	for _, objects := range d.ObjectsByAttempt {
		if dv := objects.DataVolume; dv != nil && dv.Spec.Source != nil && dv.Spec.Source.HTTP != nil {
			spec.ExtraHeaders = append(spec.ExtraHeaders, dv.Spec.Source.HTTP.ExtraHeaders...)
			spec.SecretExtraHeaders = append(spec.SecretExtraHeaders, dv.Spec.Source.HTTP.SecretExtraHeaders...)
		}
	}
	return spec
}

func sourceForPeople(url string) string {
	return v1alpha1.Truncate(v1alpha1.RedactURL(url), maxSourceBytes)
}
