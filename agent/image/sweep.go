package image

import (
	"slices"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// sweep removes what is left of attempts that are neither running, nor served,
// nor about to be, and forgets revisions of which nothing is left.
//
// It goes by numbers that only grow, so it may rest on a cache: an attempt that
// has ended does not run again, and one that the status does not know of yet is
// left alone.
func (s *step) sweep() {
	if s.d.NeedsLive {
		return
	}
	numbers := make([]int32, 0, len(s.Attempts))
	for n := range s.Attempts {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s.sweepAttempt(n, s.Attempts[n])
	}
	s.st.Revisions = slices.DeleteFunc(s.st.Revisions, func(e v1alpha1.RevisionStatus) bool {
		_, left := s.Attempts[e.AttemptEnded]
		return e.Revision != s.target && !s.serves(e.Revision) && !s.hasSlot(e.Revision) &&
			e.Attempt <= e.AttemptEnded && !left
	})
}

func (s *step) sweepAttempt(n int32, o *Objects) {
	keepStorage, keepSnapshots := s.wanted(n)
	keepStorage = keepStorage || s.mayBeCreated(n)
	snapshots := 0
	for i := range o.Snapshots {
		snap := &o.Snapshots[i]
		if slices.Contains(keepSnapshots, snap.Name) {
			continue
		}
		snapshots++
		if snap.DeletionTimestamp == nil {
			s.d.Delete = append(s.d.Delete, Target{VolumeSnapshot, snap.Name, snap.UID})
		}
	}
	// A snapshot that never became ready is gone before its claim goes, or
	// neither ever does.
	if keepStorage || snapshots > 0 {
		return
	}
	switch {
	case o.DataVolume != nil:
		if o.DataVolume.DeletionTimestamp == nil {
			s.d.Delete = append(s.d.Delete, Target{DataVolume, o.DataVolume.Name, o.DataVolume.UID})
		}
	case o.Claim != nil && o.Claim.DeletionTimestamp == nil:
		s.d.Delete = append(s.d.Delete, Target{PersistentVolumeClaim, o.Claim.Name, o.Claim.UID})
	}
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
func (s *step) wanted(n int32) (storage bool, snapshots []string) {
	if s.tearDown {
		return false, nil
	}
	if serving := s.st.Serving; serving != nil && serving.Attempt == n {
		e := find(s.st.Revisions, serving.Revision)
		storage = e == nil || e.AttemptEnded < n || (e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeSucceeded)
		snapshots = append(snapshots, serving.VolumeSnapshot)
	}
	known := n <= s.st.LastAttempt
	for i := range s.st.Revisions {
		e := &s.st.Revisions[i]
		if e.Attempt == n && e.AttemptEnded < n {
			storage = true
		}
		if e.Revision == s.target && e.AttemptEnded == n && e.Outcome == v1alpha1.OutcomeSucceeded {
			storage = true
			snapshots = append(snapshots, e.VolumeSnapshot)
		}
	}
	return storage || !known, snapshots
}

// finish lets the image go once nothing of it is left, by a live View.
func (s *step) finish() {
	if s.tearDown && len(s.Slots) == 0 && len(s.Attempts) == 0 {
		s.d.RemoveFinalizer = true
	}
}
