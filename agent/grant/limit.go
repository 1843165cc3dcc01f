package grant

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Terms are what the policy in force says about how much may run.
type Terms struct {
	Concurrency int32
	// Limited: the fleet has a budget, and the cluster goes by grants of it.
	FleetLimited bool
	// SafeConcurrency is how many may run without one, of no group of sources.
	SafeConcurrency int32
	// SourceGroups of sources, in the plan's order.
	SourceGroups []string
}

// TermsFromPolicy reads them from the policy, nil where there has never been a valid one.
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

// SourceGroupFunc tells which of a policy's groups of sources a host belongs to, empty for
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

// Limits are how much may run at a time.
type Limits struct {
	Budget int32
	// SourceGroupLimits of the groups of sources; nil where none is limited.
	SourceGroupLimits map[string]int32
	// ValidUntil is when they get less; 0 for never.
	ValidUntil time.Duration
}

// ComputeLimits works out what a cluster may run. The safe share is for what is of no group:
// of those, nobody counts what a member takes without a grant.
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

// Covers tells whether what was worked out under earlier limits is within these.
func (l Limits) Covers(earlier Limits) bool {
	if l.Budget < earlier.Budget || (earlier.SourceGroupLimits == nil) != (l.SourceGroupLimits == nil) {
		return false
	}
	for group, room := range earlier.SourceGroupLimits {
		if l.SourceGroupLimits[group] < room {
			return false
		}
	}
	return true
}

// ComputeDemand works out what a cluster wants: what runs, and those of the front of its
// queue that could run beside it, were there no fleet-wide budget.
func ComputeDemand(t Terms, running []v1alpha1.Slot, groupOf func(host string) string, front []ledger.QueuedImage) Demand {
	d := Demand{Wanted: int32(len(running))}
	run, want := countBySourceGroup(running, groupOf), map[string]int32{}
	for _, item := range front {
		if d.Wanted >= t.Concurrency {
			break
		}
		d.Wanted++
		want[item.SourceGroup]++
	}
	for _, group := range t.SourceGroups {
		if wanted := run[group] + want[group]; wanted > 0 {
			d.Sources = append(d.Sources, v1alpha1.SourceDemand{Name: group, Running: run[group], Wanted: wanted})
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

// WithheldReasons tells why those of the front of the queue wait that the policy's
// concurrency has a place for.
func WithheldReasons(t Terms, l Limits, running []v1alpha1.Slot, groupOf func(host string) string, front []ledger.QueuedImage) map[types.UID]v1alpha1.Reason {
	if !t.FleetLimited {
		return nil
	}
	run, why := countBySourceGroup(running, groupOf), map[types.UID]v1alpha1.Reason{}
	for i := range front[:min(len(front), max(0, int(t.Concurrency)-len(running)))] {
		item := &front[i]
		room, limited := l.SourceGroupLimits[item.SourceGroup]
		switch {
		case limited && run[item.SourceGroup] >= room:
			why[item.Image.UID] = v1alpha1.ReasonWaitingForSource
		case len(running) >= int(l.Budget):
			why[item.Image.UID] = v1alpha1.ReasonWaitingForFleet
		}
	}
	return why
}

// NewTakenGrant is what a ledger is written under; nil where the policy knows no fleet-wide
// budget.
func NewTakenGrant(t Terms, boot string, s Share) *v1alpha1.LedgerGrant {
	if !t.FleetLimited {
		return nil
	}
	return &v1alpha1.LedgerGrant{BootID: boot, Sequence: s.Sequence, Slots: s.Slots, Sources: s.Sources}
}

// IsLedgerOwner tells whether a ledger may be reported by a process: no other has written it
// under grants.
func IsLedgerOwner(ledger *v1alpha1.SyncLedgerStatus, boot string) bool {
	return ledger.Grant == nil || ledger.Grant.BootID == boot
}

// NewReportedTransfers is what a report says: what is asked for, and what the ledger, as it was
// read for that report, was written under. That and its slots are of one write: a hub
// that is told that a grant has been taken up has the slots of then, too.
func NewReportedTransfers(t Terms, ledger *v1alpha1.SyncLedgerStatus, groupOf func(host string) string, want Demand, nonce string) *v1alpha1.ReportedTransfers {
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
	r.Wanted = max(want.Wanted, int32(len(slots)))
	run := countBySourceGroup(slots, groupOf)
	for _, group := range t.SourceGroups {
		d := v1alpha1.SourceDemand{Name: group, Running: run[group], Wanted: run[group]}
		for _, wanted := range want.Sources {
			if wanted.Name == group {
				d.Wanted = max(d.Wanted, wanted.Wanted)
			}
		}
		if d.Wanted > 0 {
			r.Sources = append(r.Sources, d)
		}
	}
	return r
}

// GrantedCondition says, for a person, what the fleet-wide budget lets the cluster run.
func GrantedCondition(t Terms, s Share, wanted int32) (holds bool, reason, message string) {
	safe := fmt.Sprintf("at most %d run without one (safeConcurrency)", t.SafeConcurrency)
	if len(t.SourceGroups) > 0 {
		safe += ", none from " + strings.Join(t.SourceGroups, ", ")
	}
	switch {
	case !t.FleetLimited:
		return true, v1alpha1.ReasonNoFleetBudget, "the policy's concurrency alone counts"
	case s.InForce:
		text := fmt.Sprintf("grant %d of the hub: %d imports at a time", s.Sequence, s.Slots)
		for _, source := range s.Sources {
			text += fmt.Sprintf(", %d of them from %s", source.Slots, source.Name)
		}
		return true, v1alpha1.ReasonGrantInForce, text + "; " + safe
	case wanted == 0:
		return true, v1alpha1.ReasonNothingWanted, "no grant is asked for: there is nothing to import; " + safe
	case s.Expired:
		return false, v1alpha1.ReasonGrantEnded, "the hub's grant has ended and was not renewed; " + safe
	default:
		return false, v1alpha1.ReasonAwaitingGrant, "waiting for the hub's grant; " + safe
	}
}
