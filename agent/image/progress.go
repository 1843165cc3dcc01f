package image

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Progress is stored when it has grown by minStoredPercent or after
// maxProgressAge: a status write for each percent of each import would be many.
const (
	minStoredPercent = 10
	maxProgressAge   = 30 * time.Second
	// maxDownloadBytes is twice the largest disk: a source that reports more is not believed.
	maxDownloadBytes = 128 << 40
)

// watchProgress stores the progress of an attempt. It ends an attempt that takes
// longer than attemptTimeout or has not progressed for stallTimeout.
func (d *decider) watchProgress(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot, objects *AttemptObjects) {
	phase, progress := importState(objects.DataVolume)
	progressed := phase != rev.ImportPhase || progress != d.status.Progress
	age := d.Now.Sub(ptr.Deref(rev.ProgressedAt, metav1.Time{}).Time)
	// Progress is always stored before the stall deadline.
	maxAge := min(maxProgressAge, d.policy.StallTimeout/3)
	if progressed && (phase != rev.ImportPhase || parsePercent(progress)-parsePercent(d.status.Progress) >= minStoredPercent || age >= maxAge) {
		rev.ImportPhase = phase
		rev.ProgressedAt = &d.now
		d.setProgress(progress)
		age = 0
	} else if progressed {
		d.requeueWithin(maxAge - age)
	}
	untilTimeout := d.policy.AttemptTimeout - max(d.SlotAges[slot.DataVolume], d.Now.Sub(slot.StartedAt.Time))
	untilStall := d.policy.StallTimeout - age
	switch {
	case untilTimeout <= 0:
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("not done within attemptTimeout, %s: %s", d.policy.AttemptTimeout, quote(describeStall(objects)))})
	case untilStall <= 0:
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonStalled, Message: fmt.Sprintf("nothing moved for stallTimeout, %s: %s", d.policy.StallTimeout, quote(describeStall(objects)))})
	default:
		d.requeueWithin(min(untilTimeout, untilStall))
	}
}

// importState returns phase and progress of a DataVolume as the status stores them.
func importState(dv *cdiv1.DataVolume) (phase, progress string) {
	return v1alpha1.SanitizeText(string(dv.Status.Phase), maxImportPhaseBytes), v1alpha1.SanitizeText(string(dv.Status.Progress), maxProgressBytes)
}

// resetProgress drops the progress of a former source. It follows syncAttempts,
// which counts the bytes of ended attempts.
func (d *decider) resetProgress() {
	rev := findRevision(d.status.Revisions, d.targetRevision)
	if d.Image.Status.Revision != d.targetRevision && rev.Outcome != v1alpha1.OutcomeSucceeded {
		d.status.Progress, d.status.BytesDone, d.status.BytesTotal = "", 0, 0
	}
}

func (d *decider) setProgress(progress string) {
	if d.status.BytesTotal == 0 {
		d.status.BytesTotal = d.Image.Spec.DiskSize.Value()
	}
	d.status.Progress = progress
	d.status.BytesDone = min(int64(float64(d.status.BytesTotal)/100*parsePercent(progress)), d.status.BytesTotal)
}

// parsePercent parses CDI's progress, such as "42.0%". "N/A" and anything else
// that is no number from 0 to 100 are 0.
func parsePercent(progress string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSuffix(progress, "%"), 64)
	if err != nil || !(v >= 0 && v <= 100) { // NaN is no number
		return 0
	}
	return v
}

func (d *decider) describeImport(rev *v1alpha1.RevisionStatus) string {
	attempt := rev.Attempt
	for i := range d.Slots {
		if d.Slots[i].Revision == rev.Revision && d.lacksOutcome(d.Slots[i]) {
			attempt = max(attempt, d.Slots[i].Attempt)
		}
	}
	// An attempt that ran when a person restarted the revision counts as the first.
	n := max(1, attempt-rev.AttemptsBefore)
	text := fmt.Sprintf("importing, attempt %d of %d", n, d.policy.RetryLimit+1)
	objects := d.ObjectsByAttempt[rev.Attempt]
	if rev.Attempt <= rev.AttemptEnded || objects == nil || objects.DataVolume == nil {
		return text
	}
	switch objects.DataVolume.Status.Phase {
	case cdiv1.ImportInProgress, cdiv1.ImportScheduled:
		return text
	}
	if findCondition(objects.DataVolume, cdiv1.DataVolumeBound).Reason == cdiReasonClaimInvalid {
		text += ": " + quote(describeStall(objects))
	}
	return text
}
