package image

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// sweep removes what is left of attempts that are neither running, nor served,
// nor about to be, and forgets revisions of which nothing is left.
//
// It goes by numbers that only grow, so that what has failed may be removed by a
// cache: an attempt that has ended does not run again, and one that the status
// does not know of yet is left alone. What may once have served is removed by
// two live looks of two sides (DESIGN, S2): the status says, stored, that it does
// not serve, then nobody is seen live to have pinned it. Whoever pins it later
// sees, live, that it does not serve.
func (s *step) sweep() {
	if s.d.NeedsLive {
		return
	}
	s.retire()
	numbers := make([]int32, 0, len(s.Attempts))
	for n := range s.Attempts {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s.sweepAttempt(n, s.Attempts[n])
		s.release(s.Attempts[n])
	}
	s.st.Revisions = slices.DeleteFunc(s.st.Revisions, func(e v1alpha1.RevisionStatus) bool {
		_, left := s.Attempts[e.AttemptEnded]
		return e.Revision != s.target && !s.serves(e.Revision) && !s.hasSlot(e.Revision) &&
			e.Attempt <= e.AttemptEnded && !left
	})
}

// retire gives up revisions that were imported and do not serve, one by one. By
// a write without way back: a revision that is wanted again gets another attempt,
// for somebody may still be about to delete what was left of this one.
func (s *step) retire() {
	for i := range s.st.Revisions {
		e := &s.st.Revisions[i]
		n := e.AttemptEnded
		if e.Revision == s.target || e.Outcome != v1alpha1.OutcomeSucceeded || e.Attempt > n || s.servesAttempt(n) || s.tearDown {
			continue
		}
		pinned := len(s.pins(n)) > 0
		o := s.Attempts[n]
		there := o != nil && o.Claim != nil && !lost(o.Claim)
		switch {
		case pinned && there:
			continue
		case !s.Live:
			s.d.NeedsLive = true
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

// servesAttempt tells that an attempt serves, or did so by what is stored: VMs
// may still be acquiring it.
func (s *step) servesAttempt(n int32) bool {
	for _, serving := range []*v1alpha1.Serving{s.st.Serving, s.Image.Status.Serving} {
		if serving != nil && serving.Attempt == n {
			return true
		}
	}
	return false
}

func (s *step) sweepAttempt(n int32, o *Objects) {
	if s.d.NeedsLive {
		return
	}
	keepStorage, keepSnapshots := s.wanted(n, o)
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
				s.d.NeedsLive = true // somebody may have pinned it
				return
			}
			s.d.Delete = append(s.d.Delete, Target{Kind: VolumeSnapshot, Name: snap.Name, UID: snap.UID})
		}
	}
	// A snapshot that never became ready is gone before its claim goes, or
	// neither ever does.
	if keepStorage || snapshots > 0 {
		return
	}
	var target Target
	switch {
	case o.DataVolume != nil && o.DataVolume.DeletionTimestamp == nil:
		target = Target{Kind: DataVolume, Name: o.DataVolume.Name, UID: o.DataVolume.UID}
	case o.DataVolume == nil && o.Claim != nil && o.Claim.DeletionTimestamp == nil:
		target = Target{Kind: PersistentVolumeClaim, Name: o.Claim.Name, UID: o.Claim.UID}
	default:
		return
	}
	if !s.Live && !s.hasFailed(n) {
		s.d.NeedsLive = true
		return
	}
	s.d.Delete = append(s.d.Delete, target)
}

// release has claims go that Pods keep. Where CDI's cache shows an importer as gone
// and its claim still as it was before it was done, CDI makes that importer once more,
// and then looks at neither again: it has done with finished claims. A claim does not
// go while a Pod uses it, nor does a Pod for its owner's sake before that has gone.
// A foreground deletion takes the Pod first. The claim is going already, which no
// write takes back: a cache may say so.
func (s *step) release(o *Objects) {
	claims := o.OtherClaims
	if o.Claim != nil {
		claims = append(slices.Clone(claims), *o.Claim)
	}
	for i := range claims {
		claim := &claims[i]
		if claim.DeletionTimestamp == nil || !filled(claim) || slices.Contains(claim.Finalizers, metav1.FinalizerDeleteDependents) {
			continue
		}
		if slices.ContainsFunc(o.Pods, func(pod corev1.Pod) bool { return pod.DeletionTimestamp == nil && metav1.IsControlledBy(&pod, claim) }) {
			s.d.Delete = append(s.d.Delete, Target{Kind: PersistentVolumeClaim, Name: claim.Name, UID: claim.UID, Foreground: true})
		}
	}
}

// hasFailed tells that the status has an attempt as failed: it has never served,
// or was retired, or lost its storage.
func (s *step) hasFailed(n int32) bool {
	return slices.ContainsFunc(s.st.Revisions, func(e v1alpha1.RevisionStatus) bool {
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

// wanted tells what of an attempt is to stay.
func (s *step) wanted(n int32, o *Objects) (storage bool, snapshots []string) {
	if s.tearDown {
		return false, nil
	}
	for _, serving := range []*v1alpha1.Serving{s.st.Serving, s.Image.Status.Serving} {
		if serving == nil || serving.Attempt != n {
			continue
		}
		e := find(s.st.Revisions, serving.Revision)
		storage = storage || e == nil || e.AttemptEnded < n || (e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeSucceeded)
		snapshots = append(snapshots, serving.VolumeSnapshot)
	}
	for i := range s.st.Revisions {
		e := &s.st.Revisions[i]
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
	for _, pin := range s.pins(n) {
		storage = storage || (o.Claim != nil && !lost(o.Claim) && !s.hasFailed(n))
		snapshots = append(snapshots, pin.VolumeSnapshot)
	}
	known := n <= s.st.LastAttempt
	return storage || !known, snapshots
}

// finish lets the image go once nothing of it is left, by a live View and by
// what is stored.
func (s *step) finish() {
	if s.tearDown && s.Image.Status.TearDown && len(s.Slots) == 0 && len(s.Attempts) == 0 {
		s.d.RemoveFinalizer = true
	}
}
