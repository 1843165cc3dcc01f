package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
)

// maxBudgetEdges bounds how many openings and closings are looked at for the next one that
// raises the budget.
const maxBudgetEdges = 512

// maxBudgetAhead bounds how far ahead a fall is looked for that no grant reaches.
const maxBudgetAhead = 35 * 24 * time.Hour

// parseWindows reads the windows of the whole fleet.
func parseWindows(data map[string]string) (windows apipolicy.Windows, errs []apipolicy.KeyError) {
	windows, err := apipolicy.ParseWindows(data[apipolicy.KeyWindows])
	if err != nil {
		return nil, []apipolicy.KeyError{{Key: apipolicy.KeyWindows, Message: err.Error()}}
	}
	if _, set := data[KeyFleetConcurrency]; set {
		return windows, nil
	}
	for i, w := range windows {
		if w.FleetConcurrency != nil {
			errs = append(errs, apipolicy.KeyError{Key: fmt.Sprintf("%s[%d].%s", apipolicy.KeyWindows, i, KeyFleetConcurrency),
				Message: "there is no fleet-wide budget: set key fleetConcurrency too, which applies outside the windows"})
		}
	}
	return windows, errs
}

// decodeWindows returns the windows of an override, which are a list, or text as at the top.
func decodeWindows(path string, raw json.RawMessage) (text string, errs []apipolicy.KeyError) {
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	windows, err := apipolicy.ParseWindows(text)
	if err != nil {
		return "", []apipolicy.KeyError{{Key: path, Message: err.Error()}}
	}
	for i, w := range windows {
		if w.FleetConcurrency != nil {
			errs = append(errs, apipolicy.KeyError{Key: fmt.Sprintf("%s[%d].%s", path, i, KeyFleetConcurrency), Message: "it is for the whole fleet: set it in windows at the top of the ConfigMap"})
		}
	}
	return windows.String(), errs
}

// knownBudget is the budget from a time on, until another one may be in force or come closer.
type knownBudget struct {
	from, until time.Time
	budget      Budget
}

// Budget returns the fleet-wide budget in force at a time; nil for none. It is asked for with
// each decision about a member: what was found is remembered.
func (p *Policy) Budget(now time.Time) *Budget {
	if p.budget == nil {
		return nil
	}
	known := p.lastBudget.Load()
	if known == nil || now.Before(known.from) || !now.Before(known.until) {
		known = p.findBudget(now)
		p.lastBudget.Store(known)
	}
	b := known.budget
	return &b
}

func (p *Policy) findBudget(now time.Time) *knownBudget {
	b := *p.budget
	plain := apipolicy.Numbers{FleetConcurrency: b.Concurrency}
	inForce, edge := p.fleetWindows.At(now, plain)
	until := earliest(edge, now.Add(maxGrantDuration))
	b.Concurrency, b.Least = inForce.FleetConcurrency, p.leastFleetConcurrency()
	mayFall, mayRise := b.Concurrency > b.Least, b.Concurrency < p.mostFleetConcurrency()
	edges := 0
	for at, then := range p.fleetWindows.Changes(now, plain) {
		// No grant is valid for longer than maxGrantDuration, and this is known for as long: a
		// later fall is not one of FallsAt. Invariant: each earlier one is found.
		ahead := at.Sub(now)
		isReached := ahead <= 2*maxGrantDuration
		if edges++; mayFall && !isReached && (edges > maxBudgetEdges || ahead > maxBudgetAhead) {
			b.LowerFrom, mayFall = at, false
		}
		if !mayFall && (!mayRise || edges > maxBudgetEdges) {
			break
		}
		switch {
		case then.FleetConcurrency < b.Concurrency && mayFall:
			b.LowerFrom, mayFall = at, false
			if isReached {
				b.FallsAt = at
			}
		case then.FleetConcurrency > b.Concurrency && mayRise:
			b.RisesAt, b.RisesTo, mayRise = at, then.FleetConcurrency, false
		}
	}
	if b.IsClosed() {
		b.LowerFrom = p.findBudget(b.RisesAt).budget.LowerFrom
	}
	return &knownBudget{now, until, b}
}

// ChangesAt returns when another budget comes into force; zero for never.
func (b *Budget) ChangesAt() time.Time {
	if b.RisesAt.IsZero() || !b.FallsAt.IsZero() && b.FallsAt.Before(b.RisesAt) {
		return b.FallsAt
	}
	return b.RisesAt
}

// fleetConcurrencies returns the plain fleetConcurrency, and those of the windows.
func (p *Policy) fleetConcurrencies() []int32 {
	all := []int32{p.budget.Concurrency}
	for _, w := range p.fleetWindows {
		all = append(all, *w.FleetConcurrency)
	}
	return all
}

func (p *Policy) leastFleetConcurrency() int32 { return slices.Min(p.fleetConcurrencies()) }

func (p *Policy) mostFleetConcurrency() int32 { return slices.Max(p.fleetConcurrencies()) }

// InForce returns what the plan of a member says at a time of a policy that ForMember
// returned, and until when. An agent that knows windows judges them itself: its plan has
// them, and never changes by time alone.
func InForce(data map[string]string, knowsWindows bool, now time.Time) (inForce map[string]string, until time.Time) {
	if _, set := data[apipolicy.KeyWindows]; !set || knowsWindows {
		return data, time.Time{}
	}
	p, _, errs := apipolicy.Parse(data)
	if len(errs) > 0 {
		return data, time.Time{}
	}
	p, until = p.At(now)
	return p.ToData(), until
}

// OpensAt returns when a member with a policy of ForMember may import that may not now, by its
// windows or those of the fleet-wide budget; zero where it may, or where nothing is known.
func (p *Policy) OpensAt(data map[string]string, now time.Time) (at time.Time) {
	planned, _, errs := apipolicy.Parse(data)
	if len(errs) == 0 && len(planned.Windows) > 0 && ConcurrencyAt(data, now) == 0 {
		if opening, found := apipolicy.NextOpening(nil, &planned, now); found {
			at = opening.At
		}
	}
	if b := p.Budget(now); b.IsClosed() && b.RisesAt.After(at) {
		at = b.RisesAt
	}
	return at
}

// IsClosed reports whether nothing may be imported now, and something once a window opens.
func (b *Budget) IsClosed() bool { return b != nil && b.Concurrency == 0 && !b.RisesAt.IsZero() }

// IsInForceSometime reports whether a plan has a policy that ForMember returned: with its
// windows, or with the concurrency that applies inside or outside of one.
func IsInForceSometime(planned, data map[string]string) bool {
	if Equal(planned, data) {
		return true
	}
	p, _, bad := apipolicy.Parse(planned)
	q, _, worse := apipolicy.Parse(data)
	if len(bad)+len(worse) > 0 || len(p.Windows) > 0 {
		return false
	}
	windows := q.Windows
	q.Windows = nil
	if p.Equal(q) {
		return true
	}
	return slices.ContainsFunc(windows, func(w apipolicy.Window) bool {
		q.Concurrency = *w.Concurrency
		return p.Equal(q)
	})
}

// ConcurrencyAt returns the concurrency of a parsed policy at a time. Without a policy it is
// 0: nothing is downloaded.
func ConcurrencyAt(data map[string]string, now time.Time) int64 {
	data, _ = InForce(data, false, now)
	return plainConcurrency(data)
}
