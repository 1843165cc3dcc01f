package queue_test

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Where a writer is on its way. The order is that of the controller.
const (
	pcIdle uint8 = iota
	pcEarlyCandidates
	pcEarlyList
	pcFacts
	pcList
	pcUnlisted
	pcCandidates
	pcWrite
	pcCreate
	pcNone // there is no such writer
)

// What a writer knows of a slot. The last three are half read: the image's side
// only. What cannot change the decision any more is not read; that takes nothing
// away, a read has no effect. TestFactsOfTheModel shows that these few stand for
// all that queue.Facts can hold.
const (
	unread uint8 = iota
	idle
	missing
	succeededAndThere
	overAndThere
	overAndGone
	imageNotBegun
	imageSucceeded
	imageOver
)

var factsOf = map[uint8]queue.Facts{
	idle:              {Begun: true, DataVolume: true, Remains: true},
	missing:           {},
	succeededAndThere: {Begun: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolume: true, Complete: true, Remains: true},
	overAndThere:      {Begun: true, Outcome: v1alpha1.OutcomeFailed, DataVolume: true, Remains: true},
	overAndGone:       {Begun: true, Outcome: v1alpha1.OutcomeFailed},
}

// readImage is the first half of the facts of a slot.
func (s *scenario) readImage(w *world, x *writer, name int) {
	im, attempt := w.images[s.imageOf(name)], s.attemptOf(name)
	outcome := im.outcomeOf(attempt)
	switch {
	case im.life == gone || outcome == failed:
		x.facts[name] = overAndThere // enough to mark it as ended
		if has(x.ended, name) || s.has(freesWithoutEndedMark) {
			x.facts[name] = imageOver
		}
	case outcome == succeeded:
		x.facts[name] = imageSucceeded
	case im.begun >= attempt && s.has(rollsForwardBegun):
		x.facts[name] = imageNotBegun
		x.knewBegun |= 1 << name
	case im.begun >= attempt && !s.has(freesBeforeOutcome):
		x.facts[name] = idle
	default:
		x.facts[name] = imageNotBegun
	}
}

// readStorage is the second half.
func (s *scenario) readStorage(w *world, x *writer, name int) {
	v := w.volumes[name]
	remains := v.state != absent
	if s.has(freesOnAbsence) {
		remains = v.object()
	}
	switch half := x.facts[name]; {
	case half == imageNotBegun && s.has(freesBeforeOutcome) && v.state == complete:
		x.facts[name] = succeededAndThere
	case half == imageNotBegun && (v.object() || s.has(neverRollsForward)):
		x.facts[name] = idle
		x.knewBegun &^= 1 << name
	case half == imageNotBegun:
		x.facts[name] = missing
	case half == imageSucceeded && v.state == complete:
		x.facts[name] = succeededAndThere
	case remains || !has(x.ended, name) && !s.has(freesWithoutEndedMark):
		x.facts[name] = overAndThere
	default:
		x.facts[name] = overAndGone
	}
}

// candidate is the attempt that an image may be given, 0 for none.
func (s *scenario) candidate(im image) uint8 {
	if im.life != alive || im.begun != im.ended || im.outcome == succeeded || int(im.begun) >= s.attempts {
		return 0
	}
	return im.begun + 1
}

// advance moves a writer to its next read or write that can make a difference.
func (s *scenario) advance(x *writer) {
	switch x.pc {
	case pcEarlyCandidates, pcEarlyList:
		return
	case pcFacts:
		for ; int(x.at) < s.images*s.attempts; x.at++ {
			if f := x.facts[x.at]; has(x.listed, int(x.at)) && (f == unread || f >= imageNotBegun) {
				return
			}
		}
		x.pc, x.at = pcList, 0
		if s.has(listsBeforeLedger) {
			x.pc = pcUnlisted
			x.unlisted &^= x.listed
			s.advance(x)
		}
	case pcUnlisted:
		if x.unlisted != 0 {
			return
		}
		x.pc = pcCandidates
		fallthrough
	case pcCandidates:
		// Only those are read that can still be admitted.
		kept, heldImages := count(x.wanted|x.strays), uint8(0)
		for k := range s.images * s.attempts {
			if f := x.facts[k]; has(x.wanted, k) || has(x.listed, k) && f != succeededAndThere && f != overAndGone {
				heldImages |= 1 << s.imageOf(k)
			}
			if f := x.facts[k]; has(x.listed, k) && f != succeededAndThere && f != overAndGone {
				kept++
			}
		}
		for ; int(x.at) < s.images && !s.has(candidatesFromCache); x.at++ {
			if kept < int(x.asked) && !has(heldImages, int(x.at)) {
				return
			}
		}
		x.pc, x.at = pcWrite, 0
	case pcCreate:
		if x.create == 0 {
			*x = writer{}
		}
	}
}

// step is a writer's next one. It changes w and returns what it did, and which
// promise that broke.
func (s *scenario) step(w *world, who int) (what, violation string) {
	x := &w.writers[who]
	switch x.pc {
	case pcIdle:
		switch {
		case s.has(candidatesFromCache):
			x.pc = pcEarlyCandidates
			for i := range s.images {
				x.candidates[i] = s.candidate(w.images[i])
			}
			return "reads images from its cache", ""
		case s.has(listsBeforeLedger):
			x.pc, x.unlisted = pcEarlyList, w.unfinished()
			return "lists DataVolumes", ""
		}
		s.readLedger(w, x)
		return "reads the ledger", ""
	case pcEarlyCandidates, pcEarlyList:
		s.readLedger(w, x)
		return "reads the ledger", ""
	case pcFacts:
		k := int(x.at)
		if x.facts[k] == unread {
			s.readImage(w, x, k)
			what = "reads the image of slot"
		} else {
			s.readStorage(w, x, k)
			what = "reads the storage of slot"
		}
		what += " " + s.text(1<<k, 0)
	case pcCandidates:
		x.candidates[x.at] = s.candidate(w.images[x.at])
		what = "reads a candidate, live"
		x.at++
	case pcList:
		x.unlisted = w.unfinished() &^ x.listed
		x.pc = pcUnlisted
		what = "lists DataVolumes"
	case pcUnlisted:
		what = s.judge(w, x)
	case pcWrite:
		return s.write(w, who)
	case pcCreate:
		return s.create(w, x)
	}
	s.advance(x)
	return what, ""
}

func (s *scenario) readLedger(w *world, x *writer) {
	x.pc, x.at, x.ledger, x.fresh = pcFacts, 0, w.ledger, true
	x.asked = s.budgets[w.policy]
	x.most = x.asked
	if s.has(ignoresLowerBudget) {
		x.asked = max(x.asked, w.budget)
	}
	s.advance(x)
}

// judge looks at a DataVolume that is in no slot: its image, then itself, live.
func (s *scenario) judge(w *world, x *writer) string {
	k := bits.TrailingZeros8(x.unlisted)
	if !has(x.wanted|x.strays, k) {
		if s.over(w, k) {
			x.strays |= 1 << k
		} else {
			x.wanted |= 1 << k
		}
		return "reads the image of unlisted " + s.text(1<<k, 0)
	}
	x.unlisted &^= 1 << k
	if !has(w.unfinished(), k) {
		x.strays &^= 1 << k
		x.wanted &^= 1 << k
	}
	return "reads unlisted " + s.text(1<<k, 0)
}

// write is the step of the ledger: what queue.Next says, by compare and swap.
func (s *scenario) write(w *world, who int) (what, violation string) {
	x := &w.writers[who]
	n := s.next(x)
	create, knew := n.create, x.knewBegun
	if n.changed {
		if !x.fresh && !s.has(writesWithoutCAS) {
			*x = writer{}
			return "writes the ledger: conflict", ""
		}
		violation = s.accepts(w, x, n)
		if violation == refused {
			if !x.fresh {
				// The rule is a second line, behind the compare and swap.
				violation = ""
			}
			*x = writer{}
			return "writes the ledger: refused by its rule", violation
		}
		w.ledger = n.ledger
		for i := range w.writers {
			w.writers[i].fresh = false
		}
		what = "writes the ledger"
	} else {
		what = "has nothing to write to the ledger"
	}
	*x = writer{pc: pcCreate, create: create, knewBegun: knew & create}
	s.advance(x)
	return what, violation
}

// group of the first two images, where there is one.
const group = "group"

func (s *scenario) hostOf(i int) string {
	if s.room > 0 && i < 2 {
		return group
	}
	return ""
}

// grouped are the names of those images.
func (s *scenario) grouped() (mask uint8) {
	for k := range s.images * s.attempts {
		if s.imageOf(k) < 2 {
			mask |= 1 << k
		}
	}
	return mask
}

const refused = "the API server refuses what the agent writes"

// accepts is the rule of the SyncLedger, and what must hold of every write to it.
func (s *scenario) accepts(w *world, x *writer, n nextLedger) string {
	before, after := w.listed, n.listed
	if count(after) > int(n.budget) && (w.exists == 0 || after&^before != 0) {
		return refused
	}
	for k := range s.images * s.attempts {
		if has(before&^after, k) && !s.over(w, k) {
			return "S4: a slot is freed before its outcome is stored"
		}
	}
	if n.admitted != 0 {
		if count(after) > int(x.most) {
			return "S1: a slot is taken beyond the budget"
		}
		if count(after|w.unfinished()) > int(x.most) {
			return "S1: a slot is taken beyond the budget, with what runs unlisted"
		}
		if group := s.grouped(); s.room > 0 && n.admitted&group != 0 && count((after|w.unfinished())&group) > int(s.room) {
			return "S6: a slot is taken beyond the room of its group"
		}
	}
	return ""
}

func (s *scenario) create(w *world, x *writer) (what, violation string) {
	k := bits.TrailingZeros8(x.create)
	x.create &^= 1 << k
	knew := has(x.knewBegun, k)
	x.knewBegun &^= 1 << k
	s.advance(x)
	what = "creates " + s.text(1<<k, 0)
	allowed := w.cached.exists == 1 && has(w.cached.listed, k) &&
		(!has(w.cached.ended, k) || s.has(admissionIgnoresEnded))
	v := &w.volumes[k]
	switch {
	case !allowed && !s.has(noAdmissionPolicy):
		return what + ": refused by the policy", ""
	case v.object():
		return what + ": it exists", ""
	}
	v.state = running
	v.created = min(v.created+1, 2)
	if knew {
		return what, "S4: an attempt is begun again that was known to be begun"
	}
	// Each deletion by hand may cost one download more of the same attempt.
	if w.lostVolumes == 0 && w.lostLedgers == 0 {
		if w.images[s.imageOf(k)].outcomeOf(s.attemptOf(k)) != noOutcome {
			return what, "S4: a DataVolume is created whose outcome is stored"
		}
		if v.created > 1 {
			return what, "S4: an attempt downloads twice"
		}
	}
	return what, ""
}

// nextLedger is what queue.Next said, in the model's terms.
type nextLedger struct {
	ledger
	admitted, create uint8
	changed          bool
}

// machine keeps what queue.Next answered: it is pure, and asked the same often.
type machine struct {
	slots []v1alpha1.Slot
	names map[string]int
	memo  map[[26]byte]nextLedger
}

func (s *scenario) slot(name int) v1alpha1.Slot {
	i := s.imageOf(name)
	key := v1alpha1.ImageKey{Namespace: "ns", Name: fmt.Sprintf("image-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}
	attempt := int32(s.attemptOf(name))
	return v1alpha1.Slot{Image: key, Revision: "r", Attempt: attempt, DataVolume: queue.DataVolumeName(key, attempt), Host: s.hostOf(i)}
}

var machines = map[[4]int]*machine{}

func (s *scenario) machine() *machine {
	id := [4]int{s.images, s.attempts, int(s.bug), int(s.room)}
	m := machines[id]
	if m == nil {
		m = &machine{names: map[string]int{}, memo: map[[26]byte]nextLedger{}}
		for k := range s.images * s.attempts {
			m.slots = append(m.slots, s.slot(k))
			m.names[queue.DataVolumeKey(m.slots[k])] = k
		}
		machines[id] = m
	}
	return m
}

// next asks queue.Next and queue.ShouldCreate.
func (s *scenario) next(x *writer) nextLedger {
	m := s.machine()
	forget := *x
	forget.fresh, forget.most, forget.knewBegun = false, 0, 0
	id := forget.bytes()
	if n, known := m.memo[id]; known {
		return n
	}
	v := queue.View{Budget: int32(x.asked), Facts: map[string]queue.Facts{}, GroupOf: func(host string) string { return host }}
	if s.room > 0 && !s.has(groupsWithoutRoomStart) {
		v.Rooms = map[string]int32{group: int32(s.room)}
	}
	if x.exists == 1 {
		v.Ledger = &v1alpha1.SyncLedgerStatus{Budget: int32(x.ledger.budget)}
	}
	for k, slot := range m.slots {
		if has(x.listed, k) {
			f := factsOf[x.facts[k]]
			slot.Ended = has(x.ended, k) || s.has(freesWithoutEndedMark) && f.Outcome != "" ||
				s.has(freesSuccessUnmarked) && f.Outcome == v1alpha1.OutcomeSucceeded
			v.Ledger.Slots = append(v.Ledger.Slots, slot)
			v.Facts[queue.DataVolumeKey(slot)] = f
		}
		if has(x.wanted|x.strays, k) {
			v.Unlisted = append(v.Unlisted, queue.Unlisted{Slot: slot, Wanted: has(x.wanted, k)})
		}
	}
	for i, attempt := range x.candidates[:s.images] {
		if attempt > 0 {
			v.Candidates = append(v.Candidates, queue.Candidate{Image: m.slots[i*s.attempts].Image, Revision: "r", Attempt: int32(attempt), Host: s.hostOf(i)})
		}
	}
	step := queue.Next(v)
	n := nextLedger{ledger: ledger{exists: 1, budget: uint8(step.Budget)}, changed: step.Changed}
	for _, slot := range step.Slots {
		k := m.names[queue.DataVolumeKey(slot)]
		n.listed |= 1 << k
		if slot.Ended {
			n.ended |= 1 << k
		}
		if f, looked := v.Facts[queue.DataVolumeKey(slot)]; looked && queue.ShouldCreate(slot, f) {
			n.create |= 1 << k
		}
	}
	for _, slot := range step.Admitted {
		k := m.names[queue.DataVolumeKey(slot)]
		n.admitted |= 1 << k
		n.create |= 1 << k
	}
	m.memo[id] = n
	return n
}
