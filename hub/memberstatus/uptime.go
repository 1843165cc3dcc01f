package memberstatus

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// setUptime records when the member was online, and when no window held it up: rollouts count
// what a progressDeadline has used up by that. It needs the conditions.
//
// Invariant: no time is recorded in which the member was offline or may have waited for a window.
// Less may be recorded than was: what came before the first record, and what the status was not
// written for.
func (s *statusBuilder) setUptime() {
	before := &s.Member.Status
	was := v1alpha1.MemberUptime{}
	if before.Uptime != nil {
		was = *before.Uptime
	}
	wasOnline, since := isOnline(before.Conditions)
	isOnlineNow, _ := isOnline(s.status.Conditions)
	wasOpen, openSince := wasOnline && (before.Window == nil || before.Window.OpensAt == nil), since
	if wasOpen && before.Window != nil && before.Window.OpenedAt != nil && before.Window.OpenedAt.After(since) {
		openSince = before.Window.OpenedAt.Time
	}
	if s.mayWaitForHigherWindow() {
		openSince = s.Now // it may have waited before, too
	}
	isOpenNow := isOnlineNow && (s.status.Window == nil || s.status.Window.OpensAt == nil) && !s.mayWaitForHigherWindow()
	next := v1alpha1.MemberUptime{
		Online: s.nextStretches(was.Online, wasOnline, since, isOnlineNow),
		Open:   s.nextStretches(was.Open, wasOpen, openSince, isOpenNow),
	}
	if len(next.Online)+len(next.Open) > 0 {
		s.status.Uptime = &next
	}
}

// isOnline reports whether rollouts count on a member, and since when.
func isOnline(conditions []metav1.Condition) (online bool, since time.Time) {
	if meta.FindStatusCondition(conditions, v1alpha1.ConditionQuarantined) != nil {
		return false, time.Time{}
	}
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		c := meta.FindStatusCondition(conditions, t)
		if c == nil || c.Status != metav1.ConditionTrue {
			return false, time.Time{}
		}
		if c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	return true, since
}

// mayWaitForHigherWindow reports whether the member imports, and a window to come lets it import more
// at a time: some of its images may wait for that one, and the status does not say which.
func (s *statusBuilder) mayWaitForHigherWindow() bool {
	r := s.Report
	return r != nil && r.InForce != nil && r.InForce.OpensAt != nil && r.InForce.OpensAt.After(s.Now)
}

// nextStretches returns the stretches after this moment, of something that lasted since a time
// where it was so before. Without an interruption nothing is recorded.
func (s *statusBuilder) nextStretches(before []v1alpha1.MemberStretch, was bool, since time.Time, is bool) []v1alpha1.MemberStretch {
	now := metav1.NewTime(s.Now.UTC().Truncate(time.Second))
	list := slices.Clone(before)
	switch {
	case len(list) == 0 && !is && was:
		list = append(list, v1alpha1.MemberStretch{From: metav1.NewTime(since.UTC().Truncate(time.Second)), Until: &now})
	case len(list) == 0:
		return nil
	case is && list[len(list)-1].Until != nil:
		last := list[len(list)-1]
		list = append(list, v1alpha1.MemberStretch{From: now, SecondsBefore: last.SecondsBefore + int64(last.Length(s.Now)/time.Second)})
	case !is && list[len(list)-1].Until == nil:
		list[len(list)-1].Until = &now
	}
	// The clock of the hub that began it was ahead: without this, none of its time would count.
	if last := &list[len(list)-1]; last.From.After(now.Time) {
		last.From = now
	}
	return s.dropUnneeded(list)
}

// dropUnneeded keeps the last two stretches, and those that tell how much came before an image was
// planned. Invariant: a stretch that is dropped has no item in it, as the next one counts all of it
// as before.
func (s *statusBuilder) dropUnneeded(list []v1alpha1.MemberStretch) []v1alpha1.MemberStretch {
	if len(list) <= 2 {
		return list
	}
	needed := make([]bool, len(list))
	needed[len(list)-2], needed[len(list)-1] = true, true
	if s.Plan != nil {
		for i := range s.Plan.Images {
			if at := s.Plan.Images[i].PlannedAt; at != nil {
				first := max(0, v1alpha1.StretchAt(list, at.Time))
				needed[first] = true
				if until := list[first].Until; until != nil && !until.After(at.Time) && first+1 < len(list) {
					needed[first+1] = true // it was planned in between
				}
			}
		}
	}
	kept := make([]v1alpha1.MemberStretch, 0, len(list))
	for i := range list {
		if needed[i] {
			kept = append(kept, list[i])
		}
	}
	return kept[max(0, len(kept)-v1alpha1.MaxMemberStretches):]
}
