package image

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// deleteUnused deletes the objects of attempts that neither run nor serve nor are
// pinned, and forgets revisions without objects.
//
// Invariant: attempt numbers only grow. An ended attempt never runs again, so the
// objects of a failed one may be deleted by the cache; an attempt that the status
// does not know yet is left alone.
//
// Invariant (S2 of docs/architecture.md): storage that may have served is deleted
// only after the stored status says that it does not serve, and then a live list
// shows no VM that has pinned it. A VM that pins it later sees, live, that it does
// not serve.
func (d *decider) deleteUnused() {
	if d.decision.NeedsLiveRead {
		return
	}
	d.supersede()
	for _, attempt := range slices.Sorted(maps.Keys(d.ObjectsByAttempt)) {
		d.deleteUnusedOfAttempt(attempt, d.ObjectsByAttempt[attempt])
		d.releaseClaims(d.ObjectsByAttempt[attempt])
	}
	d.status.Revisions = slices.DeleteFunc(d.status.Revisions, func(rev v1alpha1.RevisionStatus) bool {
		_, exists := d.ObjectsByAttempt[rev.AttemptEnded]
		return rev.Revision != d.targetRevision && !d.isServing(rev.Revision) && !d.hasSlot(rev.Revision) &&
			rev.Attempt <= rev.AttemptEnded && !exists
	})
}

// supersede fails imported revisions that do not serve and are not pinned. This is
// irreversible: a revision that is wanted again gets another attempt, as a paused
// leader may still delete the storage of this one.
func (d *decider) supersede() {
	for i := range d.status.Revisions {
		rev := &d.status.Revisions[i]
		attempt := rev.AttemptEnded
		if rev.Revision == d.targetRevision || rev.Outcome != v1alpha1.OutcomeSucceeded || rev.Attempt > attempt || d.isServingAttempt(attempt) || d.tearDown {
			continue
		}
		pinned := len(d.pinsForAttempt(attempt)) > 0 || d.attemptMayBeCloned(attempt)
		exists := d.ObjectsByAttempt[attempt].claimExists()
		switch {
		case pinned && exists:
			continue
		case !d.requireLive():
			return
		case exists:
			d.failRevision(rev, v1alpha1.ReasonSuperseded, "superseded by another source, and no VirtualMachine is built from it")
		default:
			// CDI recreates a lost claim and downloads into it, even a pinned one.
			d.failRevision(rev, v1alpha1.ReasonStorageLost, storageLostMessage(rev))
		}
	}
}

// servings are what the image serves and what the stored status serves: VMs may
// still be acquiring the latter.
func (d *decider) servings() []*v1alpha1.Serving {
	return slices.DeleteFunc([]*v1alpha1.Serving{d.status.Serving, d.Image.Status.Serving}, func(s *v1alpha1.Serving) bool { return s == nil })
}

func (d *decider) isServingAttempt(attempt int32) bool {
	return slices.ContainsFunc(d.servings(), func(s *v1alpha1.Serving) bool { return s.Attempt == attempt })
}

func (d *decider) deleteUnusedOfAttempt(attempt int32, objects *AttemptObjects) {
	if d.decision.NeedsLiveRead {
		return
	}
	keepStorage, keepSnapshots := d.objectsInUse(attempt, objects)
	keepStorage = keepStorage || d.mayBeCreated(attempt)
	unusedSnapshots := 0
	for i := range objects.Snapshots {
		snapshot := &objects.Snapshots[i]
		if slices.Contains(keepSnapshots, snapshot.Name) {
			continue
		}
		unusedSnapshots++
		if snapshot.DeletionTimestamp == nil {
			if !d.requireLive() { // a VM may have pinned it
				return
			}
			d.decision.Delete = append(d.decision.Delete, DeleteTarget{Kind: KindVolumeSnapshot, Name: snapshot.Name, UID: snapshot.UID})
		}
	}
	// A snapshot that never became ready must be gone before its claim is deleted:
	// otherwise both deletions hang.
	if keepStorage || unusedSnapshots > 0 {
		return
	}
	var target DeleteTarget
	switch {
	case objects.DataVolume != nil && objects.DataVolume.DeletionTimestamp == nil:
		target = DeleteTarget{Kind: KindDataVolume, Name: objects.DataVolume.Name, UID: objects.DataVolume.UID}
	case objects.DataVolume == nil && objects.Claim != nil && objects.Claim.DeletionTimestamp == nil:
		target = DeleteTarget{Kind: KindPersistentVolumeClaim, Name: objects.Claim.Name, UID: objects.Claim.UID}
	default:
		return
	}
	if !d.hasAttemptFailed(attempt) && !d.requireLive() {
		return
	}
	d.decision.Delete = append(d.decision.Delete, target)
}

// claimReleaseInterval is how often a finished claim with an importer Pod is looked up: a
// claim of CDI without the labels of its image is not watched.
const claimReleaseInterval = 10 * time.Second

// releaseClaims deletes claims in the foreground that a late importer Pod keeps.
//
// CDI recreates an importer when its cache shows the Pod as gone and the claim as
// unfinished, and then ignores both, as the claim is finished. The claim is not
// deleted while the Pod uses it, nor the Pod as its dependent before the claim is
// gone; a foreground deletion deletes the Pod first. The cache suffices, as the
// claim is being deleted already, which is irreversible.
func (d *decider) releaseClaims(objects *AttemptObjects) {
	claims := objects.allClaims()
	for i := range claims {
		claim := &claims[i]
		if !isPopulated(claim) || slices.Contains(claim.Finalizers, metav1.FinalizerDeleteDependents) {
			continue
		}
		if !slices.ContainsFunc(objects.Pods, func(pod corev1.Pod) bool { return pod.DeletionTimestamp == nil && metav1.IsControlledBy(&pod, claim) }) {
			continue
		}
		if claim.DeletionTimestamp == nil {
			d.requeueWithin(claimReleaseInterval) // no event may announce the deletion
		} else {
			d.decision.Delete = append(d.decision.Delete, DeleteTarget{Kind: KindPersistentVolumeClaim, Name: claim.Name, UID: claim.UID, Foreground: true})
		}
	}
}

// hasAttemptFailed reports whether the status stores an attempt as failed: it never
// served, was superseded, or lost its storage.
func (d *decider) hasAttemptFailed(attempt int32) bool {
	return slices.ContainsFunc(d.status.Revisions, func(rev v1alpha1.RevisionStatus) bool {
		return rev.AttemptEnded == attempt && rev.Outcome == v1alpha1.OutcomeFailed
	})
}

// mayBeCreated reports whether an attempt has a slot that is not marked as ended: a
// delayed create request could bring back what is deleted now. The slot is marked
// as soon as the outcome is stored.
func (d *decider) mayBeCreated(attempt int32) bool {
	return slices.ContainsFunc(d.Slots, func(slot v1alpha1.Slot) bool { return slot.Attempt == attempt && !slot.Ended })
}

// objectsInUse reports whether the storage of an attempt stays, and which of its
// snapshots do.
func (d *decider) objectsInUse(attempt int32, objects *AttemptObjects) (storage bool, snapshots []string) {
	if d.tearDown {
		return false, nil
	}
	for _, serving := range d.servings() {
		if serving.Attempt != attempt {
			continue
		}
		rev := findRevision(d.status.Revisions, serving.Revision)
		storage = storage || rev == nil || rev.AttemptEnded < attempt || (rev.AttemptEnded == attempt && rev.Outcome == v1alpha1.OutcomeSucceeded)
		snapshots = append(snapshots, serving.VolumeSnapshot)
	}
	for i := range d.status.Revisions {
		rev := &d.status.Revisions[i]
		if rev.Attempt == attempt && rev.AttemptEnded < attempt {
			storage = true
		}
		if rev.AttemptEnded == attempt && rev.Outcome == v1alpha1.OutcomeSucceeded { // current, or not superseded yet
			storage = true
			snapshots = append(snapshots, rev.VolumeSnapshot)
		}
	}
	pins, mayBeCloned := d.pinsForAttempt(attempt), d.attemptMayBeCloned(attempt)
	// Storage that is pinned, or may be cloned, stays, even of a forgotten revision, unless
	// its claim is lost: CDI would recreate the claim and download into it.
	if len(pins) > 0 || mayBeCloned {
		storage = storage || (objects.claimExists() && !d.hasAttemptFailed(attempt))
	}
	for _, pin := range pins {
		snapshots = append(snapshots, pin.VolumeSnapshot)
	}
	if mayBeCloned {
		snapshots = append(snapshots, d.clonableSnapshots(objects)...)
	}
	known := attempt <= d.status.LastAttempt
	return storage || !known, snapshots
}
