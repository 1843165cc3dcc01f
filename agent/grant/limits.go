package grant

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Terms are what the policy in force says about how many imports may run.
type Terms struct {
	Concurrency int32
	// FleetLimited: there is a fleet-wide budget, and the cluster needs grants of it.
	FleetLimited bool
	// SafeConcurrency may run without a grant, of no group of sources.
	SafeConcurrency int32
	// SourceGroups are the names of the groups of sources, in the plan's order.
	SourceGroups []string
}

// TermsFromPolicy returns the terms of a policy; nil stands for none that was ever valid.
func TermsFromPolicy(p *policy.Policy) Terms {
	if p == nil {
		return Terms{}
	}
	t := Terms{Concurrency: p.Concurrency, FleetLimited: p.UsesGrants}
	if p.UsesGrants {
		t.SafeConcurrency = p.SafeConcurrency
		for _, source := range p.Sources {
			t.SourceGroups = append(t.SourceGroups, source.Name)
		}
	}
	return t
}

// SourceGroupFunc returns the function that maps a host to its group of sources; empty for
// none.
func SourceGroupFunc(p *policy.Policy) func(host string) string {
	if p == nil || !p.UsesGrants || len(p.Sources) == 0 {
		return func(string) string { return "" }
	}
	return func(host string) string {
		name, _ := p.Sources.GroupOfHost(host)
		return name
	}
}

// Limits are how many imports may run at a time.
type Limits struct {
	Budget int32
	// SourceGroupLimits by group of sources; nil where none is limited.
	SourceGroupLimits map[string]int32
	// ValidUntil is when the limits get lower; 0 for never.
	ValidUntil time.Duration
}

// ComputeLimits computes how many imports may run. The safe share is for imports of no
// group of sources: nobody counts what members take of a group without a grant.
func ComputeLimits(t Terms, s Share) Limits {
	if !t.FleetLimited {
		return Limits{Budget: t.Concurrency}
	}
	l := Limits{Budget: min(t.Concurrency, max(t.SafeConcurrency, s.Slots)), SourceGroupLimits: map[string]int32{}}
	for _, group := range t.SourceGroups {
		l.SourceGroupLimits[group] = 0
		for _, source := range s.Sources {
			if source.Name == group {
				l.SourceGroupLimits[group] = source.Slots
			}
		}
	}
	if s.InForce {
		l.ValidUntil = s.ValidUntil
	}
	return l
}

// Covers: a decision that rests on the earlier limits is within these too.
func (l Limits) Covers(earlier Limits) bool {
	if l.Budget < earlier.Budget || (earlier.SourceGroupLimits == nil) != (l.SourceGroupLimits == nil) {
		return false
	}
	for group, limit := range earlier.SourceGroupLimits {
		if l.SourceGroupLimits[group] < limit {
			return false
		}
	}
	return true
}

// RoomByGroup returns how many more images of each group of sources count as able to run;
// nil where no group is limited. A group whose grant gave less than was requested has room
// for what it gave: the demand goes on to images that pass those of the group.
func RoomByGroup(t Terms, s Share, running []v1alpha1.Slot, groupOf func(host string) string) map[string]int32 {
	if !t.FleetLimited || len(t.SourceGroups) == 0 {
		return nil
	}
	granted := ComputeLimits(t, s).SourceGroupLimits
	runningByGroup, room := countBySourceGroup(running, groupOf), make(map[string]int32, len(t.SourceGroups))
	for _, group := range t.SourceGroups {
		if !slices.Contains(s.FullyGranted, group) {
			room[group] = max(0, granted[group]-runningByGroup[group])
		}
	}
	return room
}

// ComputeDemand computes what a cluster would run without a fleet-wide budget: what runs,
// and as many images of the front of its queue as the policy allows.
//
// Invariant: it asks for one more of each group without room whose images are passed, also
// while others use all slots. Otherwise these could pass for good: each slot that gets free
// is taken before the hub hears of it.
func ComputeDemand(t Terms, running []v1alpha1.Slot, groupOf func(host string) string, front []ledger.QueuedImage, roomByGroup map[string]int32) Demand {
	d := Demand{Wanted: int32(len(running))}
	runningByGroup, waitingByGroup := countBySourceGroup(running, groupOf), map[string]int32{}
	free := t.Concurrency - int32(len(running))
	if free < 0 || t.Concurrency == 0 {
		front = nil
	}
	passed := map[string]int32{}
	for i := range front {
		group := front[i].SourceGroup
		switch room, limited := roomByGroup[group]; {
		case limited && waitingByGroup[group] >= room:
			passed[group]++
			continue
		case free == 0:
			continue
		}
		free--
		waitingByGroup[group]++
	}
	for _, group := range t.SourceGroups {
		if passed[group] > 0 {
			// What nothing else uses is asked for, too.
			more := max(1, min(free, passed[group]))
			free = max(0, free-more)
			waitingByGroup[group] += more
		}
	}
	for _, n := range waitingByGroup {
		d.Wanted += n
	}
	d.Wanted = min(d.Wanted, v1alpha1.MaxSlots)
	for _, group := range t.SourceGroups {
		if wanted := runningByGroup[group] + waitingByGroup[group]; wanted > 0 {
			d.Sources = append(d.Sources, v1alpha1.SourceDemand{Name: group, Running: runningByGroup[group], Wanted: wanted})
		}
	}
	return d
}

func countBySourceGroup(slots []v1alpha1.Slot, groupOf func(host string) string) map[string]int32 {
	n := map[string]int32{}
	for _, slot := range slots {
		n[groupOf(slot.Host)]++
	}
	return n
}

// WithheldReasons returns why images of the front of the queue wait although the policy's
// concurrency has a slot for them, by UID. Images of a group at its limit take none, and wait
// for their group whether or not others use all slots.
func WithheldReasons(t Terms, l Limits, running []v1alpha1.Slot, groupOf func(host string) string, front []ledger.QueuedImage) map[types.UID]v1alpha1.Reason {
	if !t.FleetLimited || t.Concurrency == 0 {
		return nil
	}
	runningByGroup, reasons := countBySourceGroup(running, groupOf), map[types.UID]v1alpha1.Reason{}
	free := int(t.Concurrency) - len(running)
	for i := range front {
		item := &front[i]
		if groupLimit, limited := l.SourceGroupLimits[item.SourceGroup]; limited && runningByGroup[item.SourceGroup] >= groupLimit {
			reasons[item.Image.UID] = v1alpha1.ReasonWaitingForSource
			continue
		}
		if free <= 0 {
			break
		}
		free--
		if len(running) >= int(l.Budget) {
			reasons[item.Image.UID] = v1alpha1.ReasonWaitingForFleet
		}
	}
	return reasons
}

// NewLedgerGrant returns the grant that a ledger is written under; nil where there is no
// fleet-wide budget.
func NewLedgerGrant(t Terms, bootID string, s Share) *v1alpha1.LedgerGrant {
	if !t.FleetLimited {
		return nil
	}
	return &v1alpha1.LedgerGrant{BootID: bootID, Sequence: s.Sequence, Slots: s.Slots, Sources: s.Sources}
}

// MayReport: a process may report this ledger, because no other process has written it
// under a grant.
func MayReport(ledger *v1alpha1.SyncLedgerStatus, bootID string) bool {
	return ledger.Grant == nil || ledger.Grant.BootID == bootID
}

// NewReportedTransfers returns what a report says: the demand, and the grant and slots of
// the ledger. Those are of one write, so a hub that learns that a grant is in use also
// learns the slots that are held.
func NewReportedTransfers(t Terms, ledger *v1alpha1.SyncLedgerStatus, groupOf func(host string) string, demand Demand, nonce string) *v1alpha1.ReportedTransfers {
	r := &v1alpha1.ReportedTransfers{Limited: t.FleetLimited, Nonce: nonce}
	if t.FleetLimited {
		r.Safe = t.SafeConcurrency
	}
	var slots []v1alpha1.Slot
	if ledger != nil {
		slots = ledger.Slots
		if g := ledger.Grant; g != nil {
			r.Grant, r.Slots = g.Sequence, g.Slots
		}
	}
	r.Wanted = max(demand.Wanted, int32(len(slots)))
	runningByGroup := countBySourceGroup(slots, groupOf)
	for _, group := range t.SourceGroups {
		d := v1alpha1.SourceDemand{Name: group, Running: runningByGroup[group], Wanted: runningByGroup[group]}
		for _, source := range demand.Sources {
			if source.Name == group {
				d.Wanted = max(d.Wanted, source.Wanted)
			}
		}
		if d.Wanted > 0 {
			r.Sources = append(r.Sources, d)
		}
	}
	return r
}

// GrantedCondition returns what condition Granted says.
func GrantedCondition(t Terms, s Share, wanted int32) (isTrue bool, reason, message string) {
	safe := fmt.Sprintf("at most %d run without one (safeConcurrency)", t.SafeConcurrency)
	if len(t.SourceGroups) > 0 {
		safe += ", none from " + strings.Join(t.SourceGroups, ", ")
	}
	switch {
	case !t.FleetLimited:
		return true, v1alpha1.ReasonNoFleetBudget, "there is no fleet-wide budget: the policy's concurrency applies"
	case s.InForce:
		message := fmt.Sprintf("grant %d of the hub: %d imports at a time", s.Sequence, s.Slots)
		for _, source := range s.Sources {
			message += fmt.Sprintf(", %d of them from %s", source.Slots, source.Name)
		}
		return true, v1alpha1.ReasonGrantInForce, message + "; " + safe
	case wanted == 0:
		return true, v1alpha1.ReasonNothingWanted, "no grant is requested: there is nothing to import; " + safe
	case s.Expired:
		return false, v1alpha1.ReasonGrantEnded, "the hub's grant has expired and was not renewed; " + safe
	default:
		return false, v1alpha1.ReasonAwaitingGrant, "waiting for the hub's grant; " + safe
	}
}
