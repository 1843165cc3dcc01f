package image

import (
	"fmt"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// reconcileSnapshot creates the VolumeSnapshot of an imported revision, which
// needs no slot. A snapshot that does not become ready is replaced by another one,
// as often as the policy retries. One that is taken gets attemptTimeout, as its driver
// may be uploading it: another one would upload everything again.
func (d *decider) reconcileSnapshot(rev *v1alpha1.RevisionStatus, objects *AttemptObjects) {
	snapshot := objects.findSnapshot(rev.VolumeSnapshot)
	classMatches := snapshot != nil && ptr.Deref(snapshot.Spec.VolumeSnapshotClassName, "") == d.Image.Spec.SnapshotClass
	if classMatches && IsSnapshotReady(snapshot) { // it no longer needs its class
		d.serveRevision(rev, objects, snapshot)
		return
	}
	if d.Blocker != nil && (d.Blocker.Reason == v1alpha1.ReasonSnapshotClassMissing || d.Blocker.Reason == v1alpha1.ReasonSnapshotClassMismatch) {
		rev.SnapshotSince = nil
		d.requeueWithin(blockerRecheckInterval)
		d.setActivity(d.Blocker.Reason, d.Blocker.Message)
		return
	}
	if hasSnapshotFailed(rev) {
		d.showFailure(rev)
		return
	}
	served := d.Image.Status.Serving != nil && rev.VolumeSnapshot != "" && d.Image.Status.Serving.VolumeSnapshot == rev.VolumeSnapshot
	switch {
	case rev.VolumeSnapshot == "":
		d.startSnapshotAttempt(rev, objects)
	case snapshot != nil && !classMatches:
		rev.SnapshotAttempt = 0 // each class has its own attempts
		d.startSnapshotAttempt(rev, objects)
	case served && (snapshot == nil || snapshot.DeletionTimestamp != nil):
		if !d.requireLive() {
			return
		}
		if !d.spendResync(rev, "its VolumeSnapshot "+rev.VolumeSnapshot+" is gone") {
			rev.VolumeSnapshot, rev.SnapshotAttempt = "", 0
			d.showFailure(rev)
			return
		}
		rev.Failure = nil
		rev.SnapshotAttempt = 0
		d.startSnapshotAttempt(rev, objects)
	}
	rev.SnapshotSince = storedtime.Since(d.now, rev.SnapshotSince)
	snapshot = objects.findSnapshot(rev.VolumeSnapshot)
	limit := d.policy.StallTimeout
	if isSnapshotTaken(snapshot) {
		limit = max(limit, d.policy.AttemptTimeout)
	}
	untilTimeout := limit - d.Now.Sub(rev.SnapshotSince.Time)
	if untilTimeout <= 0 {
		if rev.SnapshotAttempt > d.policy.RetryLimit {
			setFailure(rev, v1alpha1.ReasonSnapshotFailed, fmt.Sprintf("none of %d VolumeSnapshots became ready within %s%s. The import is kept: repair the CSI driver",
				rev.SnapshotAttempt, limit, snapshotErrorSuffix(snapshot)), d.now)
			rev.VolumeSnapshot, rev.SnapshotAttempt = "", 0
			d.showFailure(rev)
			return
		}
		d.startSnapshotAttempt(rev, objects)
		snapshot = nil // its error is not that of the next one
		untilTimeout = d.policy.StallTimeout
	}
	d.requeueWithin(untilTimeout)
	if objects.findSnapshot(rev.VolumeSnapshot) == nil {
		d.decision.CreateSnapshot = d.buildSnapshot(rev, objects)
	}
	d.setActivity(v1alpha1.ReasonSnapshotting, fmt.Sprintf("imported; VolumeSnapshot %s is not ready yet%s", rev.VolumeSnapshot, snapshotErrorSuffix(snapshot)))
	if cause := importcause.OfSnapshot(snapshot); cause != nil {
		d.activity.NeedsPerson = cause.NeedsPerson
	}
	if d.decision.CreateSnapshot != nil && d.ChildRefusal != "" {
		rev.SnapshotSince = nil // nothing is tried yet that could stall
	}
}

// startSnapshotAttempt gives the next snapshot a name that was not used before.
func (d *decider) startSnapshotAttempt(rev *v1alpha1.RevisionStatus, objects *AttemptObjects) {
	rev.SnapshotAttempt++
	rev.VolumeSnapshot = fmt.Sprintf("%s-%s", objects.Claim.Name, strconv.FormatInt(d.Now.UnixMilli(), 36))
	rev.SnapshotSince = &d.now
}

func (d *decider) buildSnapshot(rev *v1alpha1.RevisionStatus, objects *AttemptObjects) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		TypeMeta: metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   d.Image.Namespace,
			Name:        rev.VolumeSnapshot,
			Labels:      AttemptLabels(KeyOf(d.Image), rev.Revision, rev.AttemptEnded),
			Annotations: map[string]string{v1alpha1.AnnotationImageName: d.Image.Name},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &objects.Claim.Name},
			VolumeSnapshotClassName: &d.Image.Spec.SnapshotClass,
		},
	}
}

// IsSnapshotReady reports whether disks can be cloned from a snapshot. It requires
// the bound content too: snapshots have been seen to be readyToUse without one.
func IsSnapshotReady(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.DeletionTimestamp == nil && snapshot.Status != nil &&
		ptr.Deref(snapshot.Status.ReadyToUse, false) &&
		ptr.Deref(snapshot.Status.BoundVolumeSnapshotContentName, "") != ""
}

// isSnapshotTaken reports whether the driver has taken the snapshot. Errors do not count: the
// sidecar keeps them until the snapshot is ready.
func isSnapshotTaken(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot != nil && snapshot.Status != nil && snapshot.Status.CreationTime != nil
}

// snapshotErrorSuffix is the snapshot's error as ": <message>"; empty for none.
func snapshotErrorSuffix(snapshot *snapshotv1.VolumeSnapshot) string {
	if cause := importcause.OfSnapshot(snapshot); cause != nil {
		return ": " + cause.Message
	}
	return ""
}

// hasSnapshotFailed reports whether a revision is imported and no further snapshot
// of it is attempted.
func hasSnapshotFailed(rev *v1alpha1.RevisionStatus) bool {
	return rev.Outcome == v1alpha1.OutcomeSucceeded && rev.Failure != nil
}
