package image

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/storedtime"
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

// conversionPercent is from where on an import may be converting: CDI counts the download of
// an HTTP source up to 100, reports no value from there on, and the last one is whatever it
// read up to a few seconds before.
const conversionPercent = 80

// watchProgress stores the progress of an attempt. It ends an attempt that takes
// longer than attemptTimeout or has not progressed for stallTimeout. An importer whose
// progress is not measured counts as progressing: only attemptTimeout ends it.
func (d *decider) watchProgress(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot, objects *AttemptObjects) {
	phase, progress := importState(objects.DataVolume)
	moved := phase != rev.ImportPhase || progress != d.status.Progress
	progressed := moved || d.runsUnmeasured(objects, progress)
	if rev.ProgressedAt != nil {
		rev.ProgressedAt = storedtime.Since(d.now, rev.ProgressedAt)
	}
	age := d.Now.Sub(ptr.Deref(rev.ProgressedAt, metav1.Time{}).Time)
	// Progress is always stored before the stall deadline.
	maxAge := d.policy.StallTimeout / 3
	if moved {
		maxAge = min(maxProgressAge, maxAge)
	}
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
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("not done within attemptTimeout, %s: %s", d.policy.AttemptTimeout, describeStall(objects))})
	case untilStall <= 0:
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonStalled, Message: fmt.Sprintf("nothing moved for stallTimeout, %s: %s", d.policy.StallTimeout, describeStall(objects))})
	default:
		d.requeueWithin(min(untilTimeout, untilStall))
	}
}

// runsUnmeasured reports whether an importer runs and CDI's progress cannot show whether it
// moves: CDI measures no download from S3, GCS or a registry, none whose length the server does
// not say, and no conversion after one that it measures. Where CDI cannot reach the importer it
// reads no progress at all, which looks like a server that never answers.
func (d *decider) runsUnmeasured(o *AttemptObjects, progress string) bool {
	if isNumber(progress) && parsePercent(progress) < conversionPercent {
		return false
	}
	return slices.ContainsFunc(o.Pods, importcause.IsWorking)
}

func isNumber(progress string) bool { return strings.HasSuffix(progress, "%") }

// unreadProgressDelay is how long an importer may run before CDI should have read its progress,
// which it does every 2 seconds.
const unreadProgressDelay = 2 * time.Minute

// describeUnreadProgress says what may keep CDI from reading the progress of a download that it
// measures; empty where it reads it, or may still.
func (d *decider) describeUnreadProgress(o *AttemptObjects) string {
	knowsSize := d.Image.Spec.SourceType == v1alpha1.SourceHTTP && d.status.BytesTotal > 0 && d.status.BytesTotal != d.Image.Spec.DiskSize.Value()
	if !knowsSize || isNumber(string(o.DataVolume.Status.Progress)) {
		return ""
	}
	for i := range o.Pods {
		for _, c := range importcause.CDIContainers(&o.Pods[i]) {
			if c.State.Running == nil {
				continue
			}
			if age := d.Now.Sub(c.State.Running.StartedAt.Time); age < unreadProgressDelay {
				d.requeueWithin(unreadProgressDelay - age)
				continue
			}
			return ": the importer runs, and CDI cannot read its progress; if NetworkPolicies isolate this namespace, allow ingress to port 8443 of importers from CDI's namespace"
		}
	}
	return ""
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

// passingCauseDelay is how long an import must not have moved before a step of every
// import counts as what holds it up. A status for each such step would cost each import a
// write.
const passingCauseDelay = 10 * time.Second

// describeImport returns reason and message of a running attempt, with what holds it up.
func (d *decider) describeImport(rev *v1alpha1.RevisionStatus) statusReason {
	attempt := rev.Attempt
	var problem *importcause.Cause
	for i := range d.Slots {
		if d.Slots[i].Revision == rev.Revision && d.lacksOutcome(d.Slots[i]) {
			attempt = max(attempt, d.Slots[i].Attempt)
			if rev.Attempt < d.Slots[i].Attempt && d.CreationProblem != nil {
				problem = d.CreationProblem(d.Slots[i])
			}
		}
	}
	// An attempt that ran when a person restarted the revision counts as the first.
	n := max(1, attempt-rev.AttemptsBefore)
	importing := statusReason{Reason: v1alpha1.ReasonImporting, Message: fmt.Sprintf("importing, attempt %d of %d", n, d.policy.RetryLimit+1)}
	objects := d.ObjectsByAttempt[rev.Attempt]
	if problem != nil {
		return statusReason{problem.Reason, importing.Message + ": " + problem.Message, problem.NeedsPerson}
	}
	if rev.Attempt <= rev.AttemptEnded || objects == nil || objects.DataVolume == nil {
		return importing
	}
	cause := objects.findCause()
	if (cause == nil || cause.Passing) && d.keepsStoredCause(rev, objects) {
		return statusReason{storedWaitReason(&d.Image.Status), d.storedImportMessage(), meta.IsStatusConditionTrue(d.Image.Status.Conditions, v1alpha1.ConditionStalled)}
	}
	if cause == nil {
		importing.Message += d.describeUnreadProgress(objects)
		return importing
	}
	if age := d.Now.Sub(ptr.Deref(rev.ProgressedAt, metav1.Time{}).Time); cause.Passing && age < passingCauseDelay {
		d.requeueWithin(passingCauseDelay - age)
		return importing
	}
	return statusReason{cause.Reason, importing.Message + ": " + cause.Message, cause.NeedsPerson}
}

func (o *AttemptObjects) findCause() *importcause.Cause {
	return importcause.OfImport(o.DataVolume, o.allClaims(), o.Pods)
}

// keepsStoredCause reports whether the status stays as it is where an import waited for
// its volume: while a claim is Pending, CDI 1.65 sets and clears the cause many times a
// second.
func (d *decider) keepsStoredCause(rev *v1alpha1.RevisionStatus, objects *AttemptObjects) bool {
	reason := storedWaitReason(&d.Image.Status)
	return (reason == v1alpha1.ReasonVolumePending || reason == v1alpha1.ReasonQuotaExceeded) && d.storedImportMessage() != "" &&
		findRevision(d.Image.Status.Revisions, rev.Revision) != nil && rev.Attempt == d.Image.Status.LastAttempt &&
		objects.DataVolume.Status.Phase != cdiv1.ImportInProgress && !slices.ContainsFunc(objects.Pods, func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
}

func (d *decider) storedImportMessage() string {
	if c := meta.FindStatusCondition(d.Image.Status.Conditions, v1alpha1.ConditionImported); c != nil {
		return c.Message
	}
	return ""
}

// describeStall says what an import without progress waits for.
func describeStall(o *AttemptObjects) string {
	dv := o.DataVolume
	switch cause := o.findCause(); {
	case dv == nil:
		return "its DataVolume has not been created"
	case cause != nil:
		return cause.Message
	case dv.Status.Phase == cdiv1.PhaseUnset && len(dv.Status.Conditions) == 0:
		return "CDI has not processed its DataVolume: check that the CDI controller is running, and its log"
	default:
		return quote(fmt.Sprintf("its DataVolume is in phase %q at %q", dv.Status.Phase, dv.Status.Progress))
	}
}

// awaitEvents decides again when the Events of an importer that does not start, or of a claim that CDI does
// not fill, are due.
func (d *decider) awaitEvents() {
	await := func(in time.Duration, awaits bool) {
		if awaits {
			d.requeueWithin(cmp.Or(in, importcause.EventsInterval))
		}
	}
	for _, objects := range d.ObjectsByAttempt {
		for i := range objects.Pods {
			await(importcause.AwaitsEvents(&objects.Pods[i], d.Now))
		}
		if objects.Claim != nil {
			await(importcause.AwaitsClaimEvents(objects.Claim, d.Now))
		}
	}
}
