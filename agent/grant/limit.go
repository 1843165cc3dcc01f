package grant

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Terms are what the policy in force says about how much may run.
type Terms struct {
	Concurrency int32
	// Limited: the fleet has a budget, and the cluster goes by grants of it.
	Limited bool
	// Safe is how many may run without one, of no group of sources.
	Safe int32
	// Groups of sources, in the plan's order.
	Groups []string
}

// TermsOf reads them from the policy, nil where there has never been a valid one.
func TermsOf(p *policy.Policy) Terms {
	if p == nil {
		return Terms{}
	}
	t := Terms{Concurrency: p.Concurrency, Limited: p.Limited}
	if p.Limited {
		t.Safe = p.Safe
		for _, source := range p.Sources {
			t.Groups = append(t.Groups, source.Name)
		}
	}
	return t
}

// GroupOf tells which of a policy's groups of sources a host belongs to, empty for
// none.
func GroupOf(p *policy.Policy) func(host string) string {
	if p == nil || !p.Limited || len(p.Sources) == 0 {
		return func(string) string { return "" }
	}
	return func(host string) string {
		name, _ := p.Sources.Group(host)
		return name
	}
}

// Limits are how much may run at a time.
type Limits struct {
	Budget int32
	// Rooms of the groups of sources; nil where none is limited.
	Rooms map[string]int32
	// Until is when they get less; 0 for never.
	Until time.Duration
}

// Limit works out what a cluster may run. The safe share is for what is of no group:
// of those, nobody counts what a member takes without a grant.
func Limit(t Terms, s Share) Limits {
	if !t.Limited {
		return Limits{Budget: t.Concurrency}
	}
	l := Limits{Budget: min(t.Concurrency, max(t.Safe, s.Slots)), Rooms: map[string]int32{}}
	for _, group := range t.Groups {
		l.Rooms[group] = 0
		for _, source := range s.Sources {
			if source.Name == group {
				l.Rooms[group] = source.Slots
			}
		}
	}
	if s.InForce {
		l.Until = s.Until
	}
	return l
}

// Allow tells whether what was worked out under earlier limits is within these.
func (l Limits) Allow(earlier Limits) bool {
	if l.Budget < earlier.Budget || (earlier.Rooms == nil) != (l.Rooms == nil) {
		return false
	}
	for group, room := range earlier.Rooms {
		if l.Rooms[group] < room {
			return false
		}
	}
	return true
}

// Demands works out what a cluster wants: what runs, and those of the front of its
// queue that could run beside it, were there no fleet-wide budget.
func Demands(t Terms, running []v1alpha1.Slot, groupOf func(host string) string, front []queue.Item) Demand {
	d := Demand{Wanted: int32(len(running))}
	run, want := count(running, groupOf), map[string]int32{}
	for _, item := range front {
		if d.Wanted >= t.Concurrency {
			break
		}
		d.Wanted++
		want[item.Group]++
	}
	for _, group := range t.Groups {
		if wanted := run[group] + want[group]; wanted > 0 {
			d.Sources = append(d.Sources, v1alpha1.SourceDemand{Name: group, Running: run[group], Wanted: wanted})
		}
	}
	return d
}

func count(slots []v1alpha1.Slot, groupOf func(host string) string) map[string]int32 {
	n := map[string]int32{}
	for _, slot := range slots {
		n[groupOf(slot.Host)]++
	}
	return n
}

// Withheld tells why those of the front of the queue wait that the policy's
// concurrency has a place for.
func Withheld(t Terms, l Limits, running []v1alpha1.Slot, groupOf func(host string) string, front []queue.Item) map[types.UID]v1alpha1.Reason {
	if !t.Limited {
		return nil
	}
	run, why := count(running, groupOf), map[types.UID]v1alpha1.Reason{}
	for i := range front[:min(len(front), max(0, int(t.Concurrency)-len(running)))] {
		item := &front[i]
		room, limited := l.Rooms[item.Group]
		switch {
		case limited && run[item.Group] >= room:
			why[item.Image.UID] = v1alpha1.ReasonWaitingForSource
		case len(running) >= int(l.Budget):
			why[item.Image.UID] = v1alpha1.ReasonWaitingForFleet
		}
	}
	return why
}

// Taken is what a ledger is written under; nil where the policy knows no fleet-wide
// budget.
func Taken(t Terms, boot string, s Share) *v1alpha1.TakenGrant {
	if !t.Limited {
		return nil
	}
	return &v1alpha1.TakenGrant{BootID: boot, Sequence: s.Sequence, Slots: s.Slots, Sources: s.Sources}
}

// Owns tells whether a ledger may be reported by a process: no other has written it
// under grants.
func Owns(ledger *v1alpha1.SyncLedgerStatus, boot string) bool {
	return ledger.Grant == nil || ledger.Grant.BootID == boot
}

// Transfers is what a report says: what is asked for, and what the ledger, as it was
// read for that report, was written under. That and its slots are of one write: a hub
// that is told that a grant has been taken up has the slots of then, too.
func Transfers(t Terms, ledger *v1alpha1.SyncLedgerStatus, groupOf func(host string) string, want Demand, nonce string) *v1alpha1.ReportedTransfers {
	r := &v1alpha1.ReportedTransfers{Limited: t.Limited, Nonce: nonce}
	if t.Limited {
		r.Safe = t.Safe
	}
	var slots []v1alpha1.Slot
	if ledger != nil {
		slots = ledger.Slots
		if g := ledger.Grant; g != nil {
			r.Grant, r.Slots = g.Sequence, g.Slots
		}
	}
	r.Wanted = max(want.Wanted, int32(len(slots)))
	run := count(slots, groupOf)
	for _, group := range t.Groups {
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

// Condition says, for a person, what the fleet-wide budget lets the cluster run.
func Condition(t Terms, s Share, wanted int32) (holds bool, reason, message string) {
	safe := fmt.Sprintf("at most %d run without one (safeConcurrency)", t.Safe)
	if len(t.Groups) > 0 {
		safe += ", none from " + strings.Join(t.Groups, ", ")
	}
	switch {
	case !t.Limited:
		return true, v1alpha1.ReasonNoFleetBudget, "the policy's concurrency alone counts"
	case s.InForce:
		text := fmt.Sprintf("grant %d of the hub: %d imports at a time", s.Sequence, s.Slots)
		for _, source := range s.Sources {
			text += fmt.Sprintf(", %d of them from %s", source.Slots, source.Name)
		}
		return true, v1alpha1.ReasonGrantInForce, text + "; " + safe
	case wanted == 0:
		return true, v1alpha1.ReasonNothingWanted, "no grant is asked for: there is nothing to import; " + safe
	case s.Ended:
		return false, v1alpha1.ReasonGrantEnded, "the hub's grant has ended and was not renewed; " + safe
	default:
		return false, v1alpha1.ReasonAwaitingGrant, "waiting for the hub's grant; " + safe
	}
}
