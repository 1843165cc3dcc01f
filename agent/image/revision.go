package image

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// KeyOf returns the key of an image, which no other image will have.
func KeyOf(img *v1alpha1.VMDiskImage) v1alpha1.ImageKey {
	return v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}
}

func findRevision(revisions []v1alpha1.RevisionStatus, revision string) *v1alpha1.RevisionStatus {
	for i := range revisions {
		if revisions[i].Revision == revision {
			return &revisions[i]
		}
	}
	return nil
}

// OutcomeOf returns the outcome that the image's status stores for a slot's
// attempt, and whether it says that the attempt was started.
//
// An unknown attempt that is not later than status.lastAttempt has ended: its
// revision was forgotten since, and may be back.
func OutcomeOf(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) (outcome v1alpha1.Outcome, started bool) {
	return attemptOutcome(&img.Status, slot)
}

func attemptOutcome(st *v1alpha1.VMDiskImageStatus, slot v1alpha1.Slot) (outcome v1alpha1.Outcome, started bool) {
	rev := findRevision(st.Revisions, slot.Revision)
	switch {
	case rev != nil && rev.AttemptEnded == slot.Attempt:
		return rev.Outcome, true
	case rev != nil && rev.AttemptEnded > slot.Attempt:
		return v1alpha1.OutcomeFailed, true
	case rev != nil && rev.Attempt >= slot.Attempt:
		return "", true
	case slot.Attempt <= st.LastAttempt:
		return v1alpha1.OutcomeFailed, true
	default:
		return "", false
	}
}

// IsAdoptable reports whether the ledger has lost the slot of an attempt that no
// slot names, by the image's stored status: the attempt has no outcome, and its
// revision was not forgotten.
func IsAdoptable(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) bool {
	outcome, started := OutcomeOf(img, slot)
	return outcome == "" && (started || slot.Attempt > img.Status.LastAttempt)
}

// AwaitsSnapshot reports whether an image is imported and lacks its snapshot.
func AwaitsSnapshot(img *v1alpha1.VMDiskImage) bool {
	rev := findRevision(img.Status.Revisions, img.Status.Revision)
	return rev != nil && rev.SnapshotSince != nil && (img.Status.Serving == nil || img.Status.Serving.VolumeSnapshot != rev.VolumeSnapshot)
}

func hasFailedPermanently(rev *v1alpha1.RevisionStatus) bool {
	return rev.Outcome == v1alpha1.OutcomeFailed && rev.NotBefore == nil && rev.Attempt <= rev.AttemptEnded
}
