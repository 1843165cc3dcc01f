package image

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// recordEvents emits the events and counts the metrics of a status that was just stored.
func (r *Reconciler) recordEvents(img *v1alpha1.VMDiskImage, before *v1alpha1.VMDiskImageStatus, d image.Decision) {
	source := v1alpha1.SourceOther
	if p := r.Policy(); p != nil {
		source = p.Sources.GroupOrOther(img.Spec.SourceHost())
	}
	for _, ended := range d.EndedAttempts {
		if ended.Outcome == v1alpha1.OutcomeSucceeded {
			var duration time.Duration
			if !ended.Slot.StartedAt.IsZero() {
				duration = time.Since(ended.Slot.StartedAt.Time)
			}
			r.Metrics.RecordSuccess(source, ended.DownloadedBytes, duration)
			r.Events.Eventf(img, nil, corev1.EventTypeNormal, "Imported", "Import", "attempt %d succeeded, %s after it got its slot: DataVolume %s",
				ended.Slot.Attempt, duration.Truncate(time.Second), ended.Slot.DataVolume)
			continue
		}
		r.Metrics.RecordFailure(ended.Failure.Reason, source, ended.DownloadedBytes)
		r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(ended.Failure.Reason), "Import", "attempt %d failed: %s", ended.Slot.Attempt, ended.Failure.Message)
	}
	if countResyncs(&img.Status) > countResyncs(before) {
		r.Metrics.CountResync()
		r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(v1alpha1.ReasonStorageLost), "Resync", "storage of a finished image is gone: importing it again")
	}
	r.recordPruneEvent(img, before.Prune)
	if before.Phase != img.Status.Phase && len(d.EndedAttempts) == 0 && !isOrdinaryStep(img.Status.Reason) {
		eventType := corev1.EventTypeNormal
		if img.Status.Phase == v1alpha1.PhaseFailed {
			eventType = corev1.EventTypeWarning
		}
		r.Events.Eventf(img, nil, eventType, string(img.Status.Reason), "Reconcile", "%s: %s", img.Status.Phase, img.Status.Message)
	}
}

// isOrdinaryStep reports whether every image takes a step, which the conditions describe with its
// time. An event for each would cost as many requests as the import itself; the one at its
// end says how long it took.
func isOrdinaryStep(reason v1alpha1.Reason) bool {
	return reason == v1alpha1.ReasonWaitingForSlot || reason == v1alpha1.ReasonImporting || reason == v1alpha1.ReasonReady
}

// recordPruneEvent emits an event for a prune that ended without deleting the image. A
// prune that begins changes the phase.
func (r *Reconciler) recordPruneEvent(img *v1alpha1.VMDiskImage, before *v1alpha1.PruneStatus) {
	p := img.Status.Prune
	if p == nil || !p.State.IsFinal() || (before != nil && before.UID == p.UID && before.State == p.State) {
		return
	}
	if p.State == v1alpha1.PruneSkipped {
		r.Metrics.CountSkippedPrune(p.Reason)
	}
	r.Events.Eventf(img, nil, corev1.EventTypeNormal, "Prune"+string(p.State), "Prune", "not deleted by the hub's ImagePrune with UID %s: %s: %s", p.UID, p.Reason, p.Message)
}

func (r *Reconciler) recordDeletion(img *v1alpha1.VMDiskImage, d image.Decision) {
	since := img.Status.References.UnreferencedSince.UTC().Format(time.RFC3339)
	record := func(reason, format string, args ...any) {
		r.Events.Eventf(img, nil, corev1.EventTypeNormal, reason, "Delete", format, args...)
	}
	switch {
	case d.Pruned:
		r.Metrics.CountPrunedImage()
		record("Pruned", "deleted: the undo window of the hub's ImagePrune with UID %s has ended, and no VirtualMachine has referenced it since %s", img.Status.Prune.UID, since)
	case d.ExpiredByPlan:
		record("Retired", "deleted: the ClusterPlan has retired it, and no VirtualMachine has referenced it since %s", since)
	default:
		record("Unreferenced", "deleted: no VirtualMachine has referenced it since %s, for longer than spec.deleteUnreferencedAfter, %s",
			since, img.Spec.DeleteUnreferencedAfter.Duration)
	}
}

// countResyncs of the current revision.
func countResyncs(status *v1alpha1.VMDiskImageStatus) (n int32) {
	for i := range status.Revisions {
		if status.Revisions[i].Revision == status.Revision {
			n = status.Revisions[i].Resyncs
		}
	}
	return n
}
