package image

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// deleteUnused removes what is left of attempts that are neither running, nor served,
// nor about to be, and forgets revisions of which nothing is left.
//
// It goes by numbers that only grow, so that what has failed may be removed by a
// cache: an attempt that has ended does not run again, and one that the status
// does not know of yet is left alone. What may once have served is removed by
// two live looks of two sides (DESIGN, S2): the status says, stored, that it does
// not serve, then nobody is seen live to have pinned it. Whoever pins it later
// sees, live, that it does not serve.
func (s *step) deleteUnused() {
	if s.decision.NeedsLiveRead {
		return
	}
	s.supersede()
	numbers := make([]int32, 0, len(s.ObjectsByAttempt))
	for n := range s.ObjectsByAttempt {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s.deleteUnusedOfAttempt(n, s.ObjectsByAttempt[n])
		s.releaseClaims(s.ObjectsByAttempt[n])
	}
	s.status.Revisions = slices.DeleteFunc(s.status.Revisions, func(e v1alpha1.RevisionStatus) bool {
		_, left := s.ObjectsByAttempt[e.AttemptEnded]
		return e.Revision != s.targetRevision && !s.isServing(e.Revision) && !s.hasSlot(e.Revision) &&
			e.Attempt <= e.AttemptEnded && !left
	})
}

// supersede gives up revisions that were imported and do not serve, one by one. By
// a write without way back: a revision that is wanted again gets another attempt,
// for somebody may still be about to delete what was left of this one.
func (s *step) supersede() {
	for i := range s.status.Revisions {
		e := &s.status.Revisions[i]
		n := e.AttemptEnded
		if e.Revision == s.targetRevision || e.Outcome != v1alpha1.OutcomeSucceeded || e.Attempt > n || s.isServingAttempt(n) || s.tearDown {
			continue
		}
		pinned := len(s.pinsForAttempt(n)) > 0
		o := s.ObjectsByAttempt[n]
		there := o != nil && o.Claim != nil && !isClaimLost(o.Claim)
		switch {
		case pinned && there:
			continue
		case !s.Live:
			s.decision.NeedsLiveRead = true
			return
		case there:
			e.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonSuperseded, Message: "another source took its place, and no VirtualMachine is built from it", Time: s.now}
		default:
			// CDI makes a lost claim again and downloads into it, also one that is pinned.
			e.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonStorageLost, Message: "the storage of its DataVolume " + e.DataVolume + " is gone", Time: s.now}
		}
		e.Outcome, e.NotBefore = v1alpha1.OutcomeFailed, nil
	}
}

// isServingAttempt tells that an attempt serves, or did so by what is stored: VMs
// may still be acquiring it.
func (s *step) isServingAttempt(n int32) bool {
	for _, serving := range []*v1alpha1.Serving{s.status.Serving, s.Image.Status.Serving} {
		if serving != nil && serving.Attempt == n {
			return true
		}
	}
	return false
}

func (s *step) deleteUnusedOfAttempt(n int32, o *AttemptObjects) {
	if s.decision.NeedsLiveRead {
		return
	}
	keepStorage, keepSnapshots := s.objectsInUse(n, o)
	keepStorage = keepStorage || s.mayBeCreated(n)
	snapshots := 0
	for i := range o.Snapshots {
		snap := &o.Snapshots[i]
		if slices.Contains(keepSnapshots, snap.Name) {
			continue
		}
		snapshots++
		if snap.DeletionTimestamp == nil {
			if !s.Live {
				s.decision.NeedsLiveRead = true // somebody may have pinned it
				return
			}
			s.decision.Delete = append(s.decision.Delete, DeleteTarget{Kind: VolumeSnapshot, Name: snap.Name, UID: snap.UID})
		}
	}
	// A snapshot that never became ready is gone before its claim goes, or
	// neither ever does.
	if keepStorage || snapshots > 0 {
		return
	}
	var target DeleteTarget
	switch {
	case o.DataVolume != nil && o.DataVolume.DeletionTimestamp == nil:
		target = DeleteTarget{Kind: DataVolume, Name: o.DataVolume.Name, UID: o.DataVolume.UID}
	case o.DataVolume == nil && o.Claim != nil && o.Claim.DeletionTimestamp == nil:
		target = DeleteTarget{Kind: PersistentVolumeClaim, Name: o.Claim.Name, UID: o.Claim.UID}
	default:
		return
	}
	if !s.Live && !s.hasAttemptFailed(n) {
		s.decision.NeedsLiveRead = true
		return
	}
	s.decision.Delete = append(s.decision.Delete, target)
}

// releaseClaims has claims go that Pods keep. Where CDI's cache shows an importer as gone
// and its claim still as it was before it was done, CDI makes that importer once more,
// and then looks at neither again: it has done with finished claims. A claim does not
// go while a Pod uses it, nor does a Pod for its owner's sake before that has gone.
// A foreground deletion takes the Pod first. The claim is going already, which no
// write takes back: a cache may say so.
func (s *step) releaseClaims(o *AttemptObjects) {
	claims := o.CDIClaims
	if o.Claim != nil {
		claims = append(slices.Clone(claims), *o.Claim)
	}
	for i := range claims {
		claim := &claims[i]
		if claim.DeletionTimestamp == nil || !isPopulated(claim) || slices.Contains(claim.Finalizers, metav1.FinalizerDeleteDependents) {
			continue
		}
		if slices.ContainsFunc(o.Pods, func(pod corev1.Pod) bool { return pod.DeletionTimestamp == nil && metav1.IsControlledBy(&pod, claim) }) {
			s.decision.Delete = append(s.decision.Delete, DeleteTarget{Kind: PersistentVolumeClaim, Name: claim.Name, UID: claim.UID, Foreground: true})
		}
	}
}

// hasAttemptFailed tells that the status has an attempt as failed: it has never served,
// or was retired, or lost its storage.
func (s *step) hasAttemptFailed(n int32) bool {
	return slices.ContainsFunc(s.status.Revisions, func(e v1alpha1.RevisionStatus) bool {
		return e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeFailed
	})
}

// mayBeCreated tells that an attempt stands in a slot that is not marked as
// ended. What were removed of it now, a creation that was held up could bring
// back; the mark comes as soon as the outcome is stored.
func (s *step) mayBeCreated(n int32) bool {
	for i := range s.Slots {
		if s.Slots[i].Attempt == n && !s.Slots[i].Ended {
			return true
		}
	}
	return false
}

// objectsInUse tells what of an attempt is to stay.
func (s *step) objectsInUse(n int32, o *AttemptObjects) (storage bool, snapshots []string) {
	if s.tearDown {
		return false, nil
	}
	for _, serving := range []*v1alpha1.Serving{s.status.Serving, s.Image.Status.Serving} {
		if serving == nil || serving.Attempt != n {
			continue
		}
		e := findRevision(s.status.Revisions, serving.Revision)
		storage = storage || e == nil || e.AttemptEnded < n || (e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeSucceeded)
		snapshots = append(snapshots, serving.VolumeSnapshot)
	}
	for i := range s.status.Revisions {
		e := &s.status.Revisions[i]
		if e.Attempt == n && e.AttemptEnded < n {
			storage = true
		}
		if e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeSucceeded { // it is wanted, or not retired yet
			storage = true
			snapshots = append(snapshots, e.VolumeSnapshot)
		}
	}
	// What is pinned stays, also of a revision that has lost its place in the list.
	// A claim that is lost does not: CDI would make it again and download into it.
	for _, pin := range s.pinsForAttempt(n) {
		storage = storage || (o.Claim != nil && !isClaimLost(o.Claim) && !s.hasAttemptFailed(n))
		snapshots = append(snapshots, pin.VolumeSnapshot)
	}
	known := n <= s.status.LastAttempt
	return storage || !known, snapshots
}

// removeFinalizer lets the image go once nothing of it is left, by a live View and by
// what is stored.
func (s *step) removeFinalizer() {
	if s.tearDown && s.Image.Status.TearDown && len(s.Slots) == 0 && len(s.ObjectsByAttempt) == 0 {
		s.decision.RemoveFinalizer = true
	}
}
