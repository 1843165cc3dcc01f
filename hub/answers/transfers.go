package answers

import (
	"slices"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// sourceTally sums up what members import from one group of sources.
type sourceTally struct {
	used, waiting, waitingMembers int
	bytesPerSecond                int64
	rateKnown                     bool
}

// transferTally sums up what members import.
type transferTally struct {
	sources map[string]*sourceTally
	fleet   sourceTally
	// unknown members do not say what they import; partial ones list only the head of their
	// queue.
	unknown int
	partial bool
	// unlisted: members have more imports than they list.
	unlisted bool
}

func (t *transferTally) ensureSource(name string) *sourceTally {
	if name == "" {
		name = v1alpha1.SourceOther
	}
	s := t.sources[name]
	if s == nil {
		s = &sourceTally{}
		t.sources[name] = s
	}
	return s
}

func (t *transferTally) addMember(a inventory.Activity) {
	if a.Unknown != "" || a.Reported == nil {
		t.unknown++
		return
	}
	// A member without imports has a known rate of zero.
	t.fleet.rateKnown = t.fleet.rateKnown || a.Reported.Slots == 0 && len(a.Reported.Active) == 0
	t.unlisted = t.unlisted || int(a.Reported.Slots) > len(a.Reported.Active)
	for i := range a.Reported.Active {
		active := &a.Reported.Active[i]
		s := t.ensureSource(active.Source)
		s.used++
		for _, sum := range []*sourceTally{s, &t.fleet} {
			// A rate of 0 is one that is not known yet.
			sum.bytesPerSecond, sum.rateKnown = sum.bytesPerSecond+active.BytesPerSecond, sum.rateKnown || active.BytesPerSecond > 0
		}
	}
	waits := map[string]bool{}
	for i := range a.Reported.Head {
		s := t.ensureSource(a.Reported.Head[i].Source)
		s.waiting++
		if source := a.Reported.Head[i].Source; !waits[source] {
			waits[source] = true
			s.waitingMembers++
		}
	}
	t.partial = t.partial || int(a.Reported.Queued) > len(a.Reported.Head)
}

// summarizeTransfers adds up what members report. Slots and queues are in every report,
// sources and rates only in activities.
func summarizeTransfers(f *Fleet) readapi.TransferSummary {
	var s readapi.TransferSummary
	t := transferTally{sources: map[string]*sourceTally{}}
	var reserved int64
	for i := range f.Members {
		m := &f.Members[i]
		st := &m.Status
		if m.Spec.Quarantine == nil {
			t.addMember(f.Activities[m.Name])
		} else {
			t.unknown++ // its agent goes on with what it has
		}
		if st.SlotsUsed != nil {
			s.Fleet.Used += int(*st.SlotsUsed)
		}
		if st.Images != nil && st.Images.Queued > 0 {
			s.Queued += int(st.Images.Queued)
			s.QueuedMembers++
		}
		if st.Transfers != nil && st.SilentSince != nil {
			reserved += int64(st.Transfers.Held)
			s.ReservedUntil = storedtime.LaterTime(s.ReservedUntil, st.Transfers.HeldUntil)
		}
		if a := f.Activities[m.Name]; a.Unknown == "" && a.Reported != nil && m.Spec.Quarantine == nil {
			for j := range a.Reported.Head {
				s.OldestQueuedAt = storedtime.EarlierTime(s.OldestQueuedAt, f.Clocks[m.Name].toHub(&a.Reported.Head[j].QueuedAt))
			}
		}
	}
	s.Fleet.UnknownMembers = t.unknown
	s.Fleet.Waiting, s.Fleet.WaitingMembers = s.Queued, s.QueuedMembers
	s.Fleet.BytesPerSecond = t.fleet.rate()
	s.Fleet.Bytes24h, s.Fleet.Trend = f.transferred("")
	limits := sourceLimits(f.Policy)
	if b := f.Policy.budget(); b != nil {
		limit := int64(b.Concurrency)
		s.Fleet.Limit, s.Fleet.Reserved = &limit, &reserved
		if held, known := f.HeldBySource[""]; known {
			s.Fleet.Held = &held
		}
	}
	s.Sources = []readapi.TransferBudget{}
	for _, name := range sourceNames(f.Policy, t.sources) {
		s.Sources = append(s.Sources, t.summarizeSource(f, name, limits))
	}
	return s
}

func (s *sourceTally) rate() *int64 {
	if !s.rateKnown {
		return nil
	}
	rate := s.bytesPerSecond
	return &rate
}

func (t *transferTally) summarizeSource(f *Fleet, name string, limits map[string]int64) readapi.TransferBudget {
	sum := t.sources[name]
	if sum == nil {
		sum = &sourceTally{rateKnown: t.fleet.rateKnown && !t.unlisted}
	}
	b := readapi.TransferBudget{
		Name: name, Used: sum.used, UsedAtLeast: t.unlisted, Waiting: sum.waiting, WaitingMembers: sum.waitingMembers, WaitingAtLeast: t.partial,
		BytesPerSecond: sum.rate(), UnknownMembers: t.unknown,
	}
	if limit, limited := limits[name]; limited {
		b.Limit = &limit
		if held, known := f.HeldBySource[name]; known {
			b.Held = &held
		}
	}
	b.Bytes24h, b.Trend = f.transferred(name)
	return b
}

func (f *Fleet) transferred(source string) (*int64, readapi.Values) {
	if f.Transferred == nil {
		return nil, nil
	}
	return f.Transferred(source)
}

// sourceNames returns the groups of the policy in its order, those that members still
// report of a policy before it, and SourceOther.
func sourceNames(p PolicyInForce, reported map[string]*sourceTally) (names []string) {
	if b := p.budget(); b != nil {
		for _, s := range b.Sources {
			names = append(names, s.Name)
		}
	}
	var more []string
	for name := range reported {
		if name != v1alpha1.SourceOther && !slices.Contains(names, name) {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	more = firstOf(more, v1alpha1.MaxSourceRates)
	return append(append(names, more...), v1alpha1.SourceOther)
}

// sourceLimits returns the fleet-wide limit of each group.
func sourceLimits(p PolicyInForce) map[string]int64 {
	limits := map[string]int64{}
	if b := p.budget(); b != nil {
		for _, s := range b.Sources {
			limits[s.Name] = int64(*s.Concurrency)
		}
	}
	return limits
}
