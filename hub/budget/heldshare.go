package budget

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// attemptLifetime bounds how long an attempt may run after it was last seen to be
// allowed. Only policies of the hub count: a member could report any timeout.
func (a *account) attemptLifetime() time.Duration {
	highest := a.facts.DesiredPolicy.AttemptTimeout
	for _, b := range []*Bounds{a.facts.PlannedPolicy, a.unacknowledged} {
		if b != nil {
			highest = max(highest, b.AttemptTimeout)
		}
	}
	return withEndGrace(highest)
}

// withEndGrace adds what a timed-out attempt may take to end, and a margin for clocks of
// different speed.
func withEndGrace(timeout time.Duration) time.Duration {
	return timeout + timeout/100 + min(timeout, attemptEndGrace)
}

// plannedConcurrency is the concurrency that plans give a member that is not limited by
// grants, may not be limited yet, or may get any grant.
func (a *account) plannedConcurrency() int32 {
	f := &a.facts
	highest := int32(0)
	if f.ReportSequence > 0 && !f.isLimited() {
		// Before the first plan, the policy of the fleet is what it will be.
		highest = f.DesiredPolicy.Concurrency
		if f.PlannedPolicy != nil {
			highest = f.PlannedPolicy.Concurrency
		}
		if f.ReportedPolicy != nil && !f.PlanAcknowledged {
			highest = min(highest, f.ReportedPolicy.Concurrency)
		}
	}
	if a.unacknowledged != nil {
		highest = max(highest, a.unacknowledged.Concurrency)
	}
	if f.Unfenced {
		highest = max(highest, f.DesiredPolicy.Concurrency)
		if f.PlannedPolicy != nil {
			highest = max(highest, f.PlannedPolicy.Concurrency)
		}
	}
	return highest
}

// currentSafe is the share that plans let the member use without a grant.
func (a *account) currentSafe() int32 {
	if a.unacknowledged != nil {
		return max(a.maxSafe, a.unacknowledged.Safe)
	}
	return a.maxSafe
}

// unknownSlots bounds what a member may be running that no report shows, and until when:
// it has a plan, and its reports may be older than what came of that. After a restore
// from a backup the reports and grants of the hub say nothing of what came after the
// backup.
func (a *account) unknownSlots(restored bool) (slots int32, until time.Time) {
	f := &a.facts
	if read := !f.ReportUnread || !restored && !a.reportMissing; f.PlannedPolicy == nil || f.ReportSequence > 0 && read {
		return 0, until
	}
	until = a.learnedUntil
	if restored || until.IsZero() {
		until = storedtime.LaterOf(until, a.trackedSince.Add(maxGrantDuration))
	}
	return f.PlannedPolicy.Concurrency, until
}

// tally adds up a bound on what a member may be running.
type tally struct {
	Share
	// anyGroup are slots that may all be of one source group.
	anyGroup int32
	// until is when the bound falls if nothing is heard of the member; zero for never.
	until time.Time
	now   time.Time
}

// countUntil reports whether something counts that counts until end; until rises to it.
func (t *tally) countUntil(end time.Time) (counts bool) {
	if !t.now.Before(end) {
		return false
	}
	t.until = storedtime.LaterOf(t.until, end)
	return true
}

func (t *tally) addGrants(grants []trackedGrant, claimed bool, lifetime time.Duration) {
	for _, g := range grants {
		if g.claimed == claimed && g.Slots > 0 && t.countUntil(g.expiresAt.Add(lifetime)) {
			t.Share = t.Max(g.Share)
			if g.allSources {
				t.anyGroup = max(t.anyGroup, g.Slots)
			}
		}
	}
}

// spread returns the share with an entry for each group.
func (t *tally) spread(groups []Group) Share {
	h := t.Share
	if len(groups) == 0 {
		h.Sources = nil
		return h
	}
	sources := make(map[string]int32, len(groups))
	for _, g := range groups {
		sources[g.Name] = max(t.anyGroup, h.Sources[g.Name])
	}
	h.Sources = sources
	return h
}

// knownShare bounds what a member may be running by what the hub has planned or granted.
// Its reports only say how much of what it had before still runs.
func (a *account) knownShare(groups []Group, restored bool, now time.Time) (h Share, until time.Time) {
	lifetime, t, f := a.attemptLifetime(), tally{now: now}, &a.facts
	t.addGrants(a.grants, false, lifetime)
	if a.departed && !a.given {
		return t.spread(groups), t.until
	}
	if slots, ends := a.unknownSlots(restored); slots > 0 && t.countUntil(ends.Add(lifetime)) {
		t.Slots = max(t.Slots, slots)
		t.anyGroup = t.Slots
	}
	if f.ReportSequence > 0 && f.Slots > 0 && now.Before(a.reportedAt.Add(lifetime)) {
		began, ends := a.begunShare(now)
		if ends = earlierOf(ends, a.reportedAt.Add(lifetime)); began.Slots > 0 && t.countUntil(ends) {
			t.Share = t.Max(a.runningShare(groups).min(began))
		}
	}
	// A member keeps using what needs no grant. A departed cluster may still run what it
	// had begun.
	planned, safe := a.plannedConcurrency(), a.currentSafe()
	switch {
	case !a.departed:
		if planned > 0 {
			t.until = time.Time{}
		}
		t.Slots = max(t.Slots, planned, safe)
	case max(planned, safe) > 0 && t.countUntil(a.reportedAt.Add(lifetime)):
		t.Slots = max(t.Slots, planned, safe)
	}
	if a.usesUnknownGroups() {
		t.anyGroup = t.Slots
	}
	return t.spread(groups), t.until
}

// usesUnknownGroups reports whether any import of the member may be of any group.
func (a *account) usesUnknownGroups() bool {
	f := &a.facts
	return a.departed || f.Unfenced || f.ReportSequence > 0 && (!f.isLimited() || !f.SourcesCurrent) || a.unacknowledged != nil && !a.unacknowledged.Limited
}

// claimedShare bounds what a member may be running by its own word.
func (a *account) claimedShare(groups []Group, now time.Time) (h Share, until time.Time) {
	lifetime, t, f := a.attemptLifetime(), tally{now: now}, &a.facts
	t.addGrants(a.grants, true, lifetime)
	if f.ReportSequence > 0 && f.Slots > 0 && t.countUntil(a.reportedAt.Add(lifetime)) {
		t.Share = t.Max(a.runningShare(groups))
	}
	own := int32(0)
	if f.isLimited() {
		own = f.Transfers.Safe
	}
	if f.ReportedPolicy != nil && (!f.isLimited() || f.Unfenced) {
		own = max(own, f.ReportedPolicy.Concurrency)
	}
	if own > 0 && (!a.departed || t.countUntil(a.reportedAt.Add(lifetime))) {
		t.Slots = max(t.Slots, own)
	}
	if a.usesUnknownGroups() {
		t.anyGroup = t.Slots
	}
	return t.spread(groups), t.until
}

// runningShare is what the ledger in the report lists.
func (a *account) runningShare(groups []Group) Share {
	f := &a.facts
	running := Share{Slots: f.Slots}
	if f.Transfers != nil && len(groups) > 0 {
		running.Sources = make(map[string]int32, len(f.Transfers.Sources))
		for _, s := range f.Transfers.Sources {
			running.Sources[s.Name] = s.Running
		}
	}
	return running
}

// endedShare is a share that a member had until endedAt. A nil Sources with allSources
// means any group.
type endedShare struct {
	Share
	allSources bool
	endedAt    time.Time
}

func (e endedShare) covers(o endedShare) bool {
	if e.Slots < o.Slots || o.allSources && !e.allSources {
		return false
	}
	for name, n := range o.Sources {
		if !e.allSources && e.Sources[name] < n {
			return false
		}
	}
	return true
}

// recordEnded records under which share the member may begin attempts until now.
func (a *account) recordEnded(restored bool, now time.Time) {
	current := endedShare{endedAt: now}
	for _, g := range a.grants {
		if !g.claimed && now.Before(g.expiresAt) {
			current.Share, current.allSources = current.Max(g.Share), current.allSources || g.allSources
		}
	}
	unknown, _ := a.unknownSlots(restored)
	if n := max(unknown, a.plannedConcurrency()); n > 0 {
		current.Slots, current.allSources = max(current.Slots, n), true
	}
	current.Slots = max(current.Slots, a.currentSafe())
	current.allSources = current.allSources || a.usesUnknownGroups()
	a.addEnded(current)
}

func (a *account) addEnded(e endedShare) {
	lifetime := a.attemptLifetime()
	a.ended = slices.DeleteFunc(a.ended, func(o endedShare) bool {
		return e.covers(o) || lifetime > 0 && !e.endedAt.Before(o.endedAt.Add(lifetime))
	})
	if e.Slots == 0 {
		return
	}
	a.ended = append(a.ended, e)
	if len(a.ended) > maxTrackedGrants {
		first, second := a.ended[0], a.ended[1]
		second.Share, second.allSources = first.Max(second.Share), first.allSources || second.allSources
		a.ended = append([]endedShare{second}, a.ended[2:]...)
	}
}

// begunShare is the highest share under which attempts that still run may have begun, and
// until when they may run.
func (a *account) begunShare(now time.Time) (s endedShare, until time.Time) {
	s, until = a.maxEnded(now)
	if ends := a.unknownEndedAt.Add(a.attemptLifetime()); !a.unknownEndedAt.IsZero() && now.Before(ends) {
		s.Slots, s.allSources, until = v1alpha1.MaxSlots, true, storedtime.LaterOf(until, ends)
	}
	return s, until
}

// maxEnded is the part of begunShare that is known. Only that is stored: otherwise a share
// of unknown size would count anew with each failover.
func (a *account) maxEnded(now time.Time) (s endedShare, until time.Time) {
	lifetime := a.attemptLifetime()
	for _, e := range a.ended {
		if ends := e.endedAt.Add(lifetime); now.Before(ends) {
			s.Share, s.allSources = s.Max(e.Share), s.allSources || e.allSources
			until = storedtime.LaterOf(until, ends)
		}
	}
	return s, until
}

// min returns the part of s that is within o.
func (s Share) min(o endedShare) Share {
	s.Slots = min(s.Slots, o.Slots)
	sources := make(map[string]int32, len(s.Sources))
	for name, n := range s.Sources {
		if o.allSources {
			sources[name] = min(n, o.Slots)
		} else {
			sources[name] = min(n, o.Sources[name])
		}
	}
	s.Sources = sources
	return s
}

func earlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
