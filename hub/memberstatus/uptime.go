package memberstatus

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// setUptime records when the member was online, and when no window held it up: rollouts count
// what a progressDeadline has used up by that. It needs the conditions.
//
// Invariant: no time is recorded in which the member was offline or may have waited for a window,
// as far as the hub watched. Less may be recorded than was: what came before the first record,
// what the status was not written for, and what another cluster of that name was.
func (s *statusBuilder) setUptime() {
	before, was := &s.Member.Status, v1alpha1.MemberUptime{}
	if before.Uptime != nil && (before.ClusterUID == "" || before.ClusterUID == s.status.ClusterUID) {
		was = *before.Uptime
	}
	isOnlineNow, since := isOnline(s.status.Conditions)
	isOpenNow := isOnlineNow && (s.status.Window == nil || s.status.Window.OpensAt == nil) && !s.mayWaitForHigherWindow()
	next := v1alpha1.MemberUptime{
		Online: s.nextStretches(was.Online, since, isOnlineNow),
		Open:   s.nextStretches(was.Open, s.Now, isOpenNow), // it may have waited before
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

// nextStretches returns the stretches after this moment, of something that has lasted since a time
// if it is so now.
func (s *statusBuilder) nextStretches(before []v1alpha1.MemberStretch, since time.Time, is bool) []v1alpha1.MemberStretch {
	now := storedtime.Truncate(s.Now)
	list := slices.Clone(before)
	dropTimeAhead(list, now)
	switch {
	case len(list) == 0 && !is:
		return nil
	case len(list) == 0:
		return append(list, v1alpha1.MemberStretch{From: storedtime.Truncate(since)})
	}
	last := &list[len(list)-1]
	if last.Until == nil {
		last.Until = s.lastWatched(last.From)
	}
	switch {
	case is && last.Until != nil:
		list = append(list, v1alpha1.MemberStretch{From: now, SecondsBefore: last.SecondsBefore + int64(last.Length(s.Now)/time.Second)})
	case !is && last.Until == nil:
		last.Until = &now
	}
	return s.dropUnneeded(list)
}

// lastWatched returns when a stretch that lasts was last known to, where that was long before this
// process began to watch: a window may have closed meanwhile, or the member gone offline. Nil where
// somebody has watched it all along, as far as is known.
func (s *statusBuilder) lastWatched(from metav1.Time) *metav1.Time {
	last := s.Member.Status.LastReport
	if s.Report == nil || last == nil || !from.Time.Before(s.WatchedSince) || s.WatchedSince.Sub(last.Time) <= SilenceTimeout(s.Report)+lastReportInterval {
		return nil
	}
	if last.Before(&from) {
		return &from
	}
	return last.DeepCopy()
}

// dropTimeAhead ends at a time what the clock of another hub, being ahead, has recorded after it.
// Without this, time would count that was not, and none of a stretch that began ahead.
func dropTimeAhead(list []v1alpha1.MemberStretch, now metav1.Time) {
	dropped := int64(0)
	for i := range list {
		s := &list[i]
		s.SecondsBefore = max(0, s.SecondsBefore-dropped)
		if s.Until != nil && s.Until.After(now.Time) {
			dropped += int64((s.Until.Sub(s.From.Time) - s.Length(now.Time)) / time.Second)
			s.Until = now.DeepCopy()
		}
		if s.From.After(now.Time) {
			s.From = now
		}
	}
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
