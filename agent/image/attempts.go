package image

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// syncAttempts stores the outcomes of the attempts that have slots, and of those
// that were started and have lost their slot.
func (d *decider) syncAttempts() {
	for _, slot := range d.Slots {
		if !d.lacksOutcome(slot) {
			continue
		}
		rev := findRevision(d.status.Revisions, slot.Revision)
		if rev == nil {
			d.trimRevisions(1)
			if len(d.status.Revisions) >= v1alpha1.MaxRevisions {
				continue // until another one loses its slot
			}
			d.status.Revisions = append(d.status.Revisions, v1alpha1.RevisionStatus{
				Revision: slot.Revision, OrderingKey: d.EndOfQueueKey, AttemptsBefore: slot.Attempt - 1,
			})
			rev = &d.status.Revisions[len(d.status.Revisions)-1]
		}
		d.syncAttempt(rev, slot)
	}
	for i := range d.status.Revisions {
		rev := &d.status.Revisions[i]
		if rev.Attempt <= rev.AttemptEnded || d.hasSlot(rev.Revision) || !d.requireLive() {
			continue
		}
		slot := v1alpha1.Slot{Image: KeyOf(d.Image), Revision: rev.Revision, Attempt: rev.Attempt, DataVolume: rev.DataVolume, StartedAt: ptr.Deref(rev.StartedAt, metav1.Time{})}
		if !d.ObjectsByAttempt[rev.Attempt].CanDownload() {
			d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its slot and its DataVolume are gone: the SyncLedger was edited by hand or restored"})
			continue
		}
		// The ledger adopts an unfinished DataVolume, and nothing else: any other
		// outcome is stored from here.
		d.syncAttempt(rev, slot)
	}
}

// lacksOutcome reports whether the outcome of a slot's attempt is not stored yet.
func (d *decider) lacksOutcome(slot v1alpha1.Slot) bool {
	outcome, _ := attemptOutcome(d.status, slot)
	return outcome == ""
}

func (d *decider) syncAttempt(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	objects := d.ObjectsByAttempt[slot.Attempt]
	switch {
	case d.tearDown:
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDeleted, Message: "the image is being deleted"})
		return
	case slot.Revision != d.targetRevision:
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonSuperseded, Message: "the source was changed while it was imported"})
		return
	case slot.Ended && !objects.ImportComplete():
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its stored outcome is gone: the image's status was edited by hand or restored"})
		return
	case objects == nil || objects.DataVolume == nil:
		switch {
		case objects.ImportComplete():
			d.recordSuccess(rev, slot)
		case rev.Attempt < slot.Attempt:
			// Not started: the ledger creates the DataVolume.
		case d.requireLive():
			d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: fmt.Sprintf("DataVolume %s was deleted while it was imported", slot.DataVolume)})
		}
		return
	}
	d.recordStart(rev, slot, objects.DataVolume)
	if field := findDroppedField(d.Image, objects.DataVolume); field != "" {
		d.recordFailure(rev, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: UnknownFieldsMessage([]string{field})})
		return
	}
	if objects.ImportComplete() {
		d.recordSuccess(rev, slot)
		return
	}
	if failure, failed := DetectFailure(objects); failed {
		if isCorrected(&d.Image.Spec, objects.DataVolume) {
			rev.AttemptsBefore = max(rev.AttemptsBefore, slot.Attempt)
		}
		d.recordFailure(rev, slot, failure)
		return
	}
	d.watchProgress(rev, slot, objects)
}

// recordStart stores that the DataVolume of an attempt exists: from then on its
// absence is a loss.
func (d *decider) recordStart(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot, dv *cdiv1.DataVolume) {
	if rev.Attempt < slot.Attempt {
		rev.Attempt = slot.Attempt
		rev.DataVolume = dv.Name
		rev.VolumeSnapshot, rev.SnapshotAttempt, rev.SnapshotSince = "", 0, nil
		rev.NotBefore = nil
		rev.StartedAt = &slot.StartedAt
		rev.ProgressedAt = &d.now
		rev.ImportPhase, d.status.Progress = importState(dv)
		d.status.BytesDone = 0
		d.status.QueuePosition = nil
	}
	d.status.LastAttempt = max(d.status.LastAttempt, slot.Attempt)
}

func (d *decider) recordSuccess(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	rev.Attempt = max(rev.Attempt, slot.Attempt)
	rev.AttemptEnded = slot.Attempt
	rev.Outcome = v1alpha1.OutcomeSucceeded
	rev.Failure, rev.NotBefore = nil, nil
	rev.ImportedAt = &d.now
	rev.ImportPhase = string(cdiv1.Succeeded)
	d.status.LastAttempt = max(d.status.LastAttempt, slot.Attempt)
	d.setProgress("100.0%")
	d.decision.EndedAttempts = append(d.decision.EndedAttempts, EndedAttempt{Slot: slot, Outcome: rev.Outcome, DownloadedBytes: d.status.BytesDone})
}

func (d *decider) recordFailure(rev *v1alpha1.RevisionStatus, slot v1alpha1.Slot, failure v1alpha1.Failure) {
	bytes := d.status.BytesDone
	if rev.Attempt < slot.Attempt {
		bytes = 0
	}
	storeFailure(d.status, d.Image.UID, rev, slot.Attempt, failure, d.policy, d.now)
	d.decision.EndedAttempts = append(d.decision.EndedAttempts, EndedAttempt{Slot: slot, Outcome: rev.Outcome, Failure: rev.Failure, DownloadedBytes: bytes})
}

// storeFailure stores the failure of an attempt in a status, whose entry rev is.
// The attempt is retried after a backoff while the policy allows it and the failure is retryable, or a
// person has corrected the image or asked for a retry while it ran.
func storeFailure(st *v1alpha1.VMDiskImageStatus, uid types.UID, rev *v1alpha1.RevisionStatus, attempt int32, failure v1alpha1.Failure, p policy.Policy, now metav1.Time) {
	rev.Attempt = max(rev.Attempt, attempt)
	rev.AttemptEnded = attempt
	rev.Outcome = v1alpha1.OutcomeFailed
	setFailure(rev, failure.Reason, failure.Message, now)
	rev.NotBefore = nil
	used := attempt - rev.AttemptsBefore
	corrected := used == 0 && failure.Reason != v1alpha1.ReasonSuperseded && failure.Reason != v1alpha1.ReasonDeleted
	if (failure.Reason.IsRetryable() || corrected) && used <= p.RetryLimit {
		notBefore := metav1.NewTime(now.Add(ComputeBackoff(p, uid, max(used, 1))))
		rev.NotBefore = &notBefore
	}
	st.LastAttempt = max(st.LastAttempt, attempt)
	st.Progress = ""
	st.BytesDone = 0
}

// hasUsedUpRetries reports whether a revision that waits for another attempt has had as
// many as the policy allows: its limit may have been lowered since the last one failed.
func hasUsedUpRetries(rev *v1alpha1.RevisionStatus, p policy.Policy) bool {
	return rev.Outcome == v1alpha1.OutcomeFailed && rev.NotBefore != nil && rev.AttemptEnded-rev.AttemptsBefore > p.RetryLimit
}

// RecordRefusal stores in an image's status that the API server refused the
// DataVolume of a slot. It reports whether it changed the status: an outcome that
// is stored already stays.
func RecordRefusal(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot, failure v1alpha1.Failure, p *policy.Policy, now metav1.Time) bool {
	if outcome, started := OutcomeOf(img, slot); outcome != "" || started {
		return false
	}
	rev := findRevision(img.Status.Revisions, slot.Revision)
	if rev == nil {
		return false
	}
	if p == nil {
		defaultPolicy := policy.Default()
		p = &defaultPolicy
	}
	storeFailure(&img.Status, img.UID, rev, slot.Attempt, failure, *p, now)
	return true
}
