package ledger_test

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
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
// away, a read has no effect. TestModelKnowledgeCoversAllSlotFacts shows that these few stand for
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

var factsByKnowledge = map[uint8]ledger.SlotFacts{
	idle:              {Started: true, DataVolumeExists: true, ObjectsRemain: true},
	missing:           {},
	succeededAndThere: {Started: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true},
	overAndThere:      {Started: true, Outcome: v1alpha1.OutcomeFailed, DataVolumeExists: true, ObjectsRemain: true},
	overAndGone:       {Started: true, Outcome: v1alpha1.OutcomeFailed},
}

// readImage is the first half of the facts of a slot.
func (s *scenario) readImage(w *clusterState, x *writer, name int) {
	im, attempt := w.images[s.imageIndex(name)], s.attemptNumber(name)
	outcome := im.outcomeOf(attempt)
	switch {
	case im.lifecycle == gone || outcome == failed:
		x.facts[name] = overAndThere // enough to mark it as ended
		if contains(x.ended, name) || s.hasBug(freesWithoutEndedMark) {
			x.facts[name] = imageOver
		}
	case outcome == succeeded:
		x.facts[name] = imageSucceeded
	case im.begun >= attempt && s.hasBug(rollsForwardBegun):
		x.facts[name] = imageNotBegun
		x.knownStarted |= 1 << name
	case im.begun >= attempt && !s.hasBug(freesBeforeOutcome):
		x.facts[name] = idle
	default:
		x.facts[name] = imageNotBegun
	}
}

// readStorage is the second half.
func (s *scenario) readStorage(w *clusterState, x *writer, name int) {
	v := w.volumes[name]
	remains := v.state != absent
	if s.hasBug(freesOnAbsence) {
		remains = v.dataVolumeExists()
	}
	switch half := x.facts[name]; {
	case half == imageNotBegun && s.hasBug(freesBeforeOutcome) && v.state == complete:
		x.facts[name] = succeededAndThere
	case half == imageNotBegun && (v.dataVolumeExists() || s.hasBug(neverRollsForward)):
		x.facts[name] = idle
		x.knownStarted &^= 1 << name
	case half == imageNotBegun:
		x.facts[name] = missing
	case half == imageSucceeded && v.state == complete:
		x.facts[name] = succeededAndThere
	case remains || !contains(x.ended, name) && !s.hasBug(freesWithoutEndedMark):
		x.facts[name] = overAndThere
	default:
		x.facts[name] = overAndGone
	}
}

// candidateAttempt is the attempt that an image may be given, 0 for none.
func (s *scenario) candidateAttempt(im imageState) uint8 {
	if im.lifecycle != alive || im.begun != im.ended || im.outcome == succeeded || int(im.begun) >= s.attempts {
		return 0
	}
	return im.begun + 1
}

// advanceWriter moves a writer to its next read or write that can make a difference.
func (s *scenario) advanceWriter(x *writer) {
	switch x.pc {
	case pcEarlyCandidates, pcEarlyList:
		return
	case pcFacts:
		for ; int(x.position) < s.images*s.attempts; x.position++ {
			if f := x.facts[x.position]; contains(x.listed, int(x.position)) && (f == unread || f >= imageNotBegun) {
				return
			}
		}
		x.pc, x.position = pcList, 0
		if s.hasBug(listsBeforeLedger) {
			x.pc = pcUnlisted
			x.unlisted &^= x.listed
			s.advanceWriter(x)
		}
	case pcUnlisted:
		if x.unlisted != 0 {
			return
		}
		x.pc = pcCandidates
		fallthrough
	case pcCandidates:
		// Only those are read that can still be admitted.
		kept, heldImages := countBits(x.adoptable|x.strays), uint8(0)
		for k := range s.images * s.attempts {
			if f := x.facts[k]; contains(x.adoptable, k) || contains(x.listed, k) && f != succeededAndThere && f != overAndGone {
				heldImages |= 1 << s.imageIndex(k)
			}
			if f := x.facts[k]; contains(x.listed, k) && f != succeededAndThere && f != overAndGone {
				kept++
			}
		}
		for ; int(x.position) < s.images && !s.hasBug(candidatesFromCache); x.position++ {
			if kept < int(x.policyBudget) && !contains(heldImages, int(x.position)) {
				return
			}
		}
		x.pc, x.position = pcWrite, 0
	case pcCreate:
		if x.create == 0 {
			*x = writer{}
		}
	}
}

// stepWriter is a writer's next one. It changes w and returns what it did, and which
// promise that broke.
func (s *scenario) stepWriter(w *clusterState, who int) (what, violation string) {
	x := &w.writers[who]
	switch x.pc {
	case pcIdle:
		switch {
		case s.hasBug(candidatesFromCache):
			x.pc = pcEarlyCandidates
			for i := range s.images {
				x.candidates[i] = s.candidateAttempt(w.images[i])
			}
			return "reads images from its cache", ""
		case s.hasBug(listsBeforeLedger):
			x.pc, x.unlisted = pcEarlyList, w.unfinishedDataVolumes()
			return "lists DataVolumes", ""
		}
		s.readLedger(w, x)
		return "reads the ledger", ""
	case pcEarlyCandidates, pcEarlyList:
		s.readLedger(w, x)
		return "reads the ledger", ""
	case pcFacts:
		k := int(x.position)
		if x.facts[k] == unread {
			s.readImage(w, x, k)
			what = "reads the image of slot"
		} else {
			s.readStorage(w, x, k)
			what = "reads the storage of slot"
		}
		what += " " + s.formatAttempts(1<<k, 0)
	case pcCandidates:
		x.candidates[x.position] = s.candidateAttempt(w.images[x.position])
		what = "reads a candidate, live"
		x.position++
	case pcList:
		x.unlisted = w.unfinishedDataVolumes() &^ x.listed
		x.pc = pcUnlisted
		what = "lists DataVolumes"
	case pcUnlisted:
		what = s.judgeUnlisted(w, x)
	case pcWrite:
		return s.writeLedger(w, who)
	case pcCreate:
		return s.createDataVolume(w, x)
	}
	s.advanceWriter(x)
	return what, ""
}

func (s *scenario) readLedger(w *clusterState, x *writer) {
	x.pc, x.position, x.ledgerState, x.ledgerUnchanged = pcFacts, 0, w.ledgerState, true
	x.policyBudget = s.budgets[w.policy]
	x.maxPolicyBudget = x.policyBudget
	if s.hasBug(ignoresLowerBudget) {
		x.policyBudget = max(x.policyBudget, w.budget)
	}
	s.advanceWriter(x)
}

// judgeUnlisted looks at a DataVolume that is in no slot: its image, then itself, live.
func (s *scenario) judgeUnlisted(w *clusterState, x *writer) string {
	k := bits.TrailingZeros8(x.unlisted)
	if !contains(x.adoptable|x.strays, k) {
		if s.attemptEnded(w, k) {
			x.strays |= 1 << k
		} else {
			x.adoptable |= 1 << k
		}
		return "reads the image of unlisted " + s.formatAttempts(1<<k, 0)
	}
	x.unlisted &^= 1 << k
	if !contains(w.unfinishedDataVolumes(), k) {
		x.strays &^= 1 << k
		x.adoptable &^= 1 << k
	}
	return "reads unlisted " + s.formatAttempts(1<<k, 0)
}

// writeLedger is the step of the ledger: what queue.Next says, by compare and swap.
func (s *scenario) writeLedger(w *clusterState, who int) (what, violation string) {
	x := &w.writers[who]
	n := s.decideCached(x)
	create, knew := n.create, x.knownStarted
	if n.mustWrite {
		if !x.ledgerUnchanged && !s.hasBug(writesWithoutCAS) {
			*x = writer{}
			return "writes the ledger: conflict", ""
		}
		violation = s.checkLedgerWrite(w, x, n)
		if violation == refusedByRule {
			if !x.ledgerUnchanged {
				// The rule is a second line, behind the compare and swap.
				violation = ""
			}
			*x = writer{}
			return "writes the ledger: refused by its rule", violation
		}
		w.ledgerState = n.ledgerState
		for i := range w.writers {
			w.writers[i].ledgerUnchanged = false
		}
		what = "writes the ledger"
	} else {
		what = "has nothing to write to the ledger"
	}
	*x = writer{pc: pcCreate, create: create, knownStarted: knew & create}
	s.advanceWriter(x)
	return what, violation
}

// groupName of the first two images, where there is one.
const groupName = "group"

func (s *scenario) sourceHost(i int) string {
	if s.groupLimit > 0 && i < 2 {
		return groupName
	}
	return ""
}

// groupedAttempts are the names of those images.
func (s *scenario) groupedAttempts() (mask uint8) {
	for k := range s.images * s.attempts {
		if s.imageIndex(k) < 2 {
			mask |= 1 << k
		}
	}
	return mask
}

const refusedByRule = "the API server refuses what the agent writes"

// checkLedgerWrite is the rule of the SyncLedger, and what must hold of every write to it.
func (s *scenario) checkLedgerWrite(w *clusterState, x *writer, n ledgerWrite) string {
	before, after := w.listed, n.listed
	if countBits(after) > int(n.budget) && (w.exists == 0 || after&^before != 0) {
		return refusedByRule
	}
	for k := range s.images * s.attempts {
		if contains(before&^after, k) && !s.attemptEnded(w, k) {
			return "S4: a slot is freed before its outcome is stored"
		}
	}
	if n.admitted != 0 {
		if countBits(after) > int(x.maxPolicyBudget) {
			return "S1: a slot is taken beyond the budget"
		}
		if countBits(after|w.unfinishedDataVolumes()) > int(x.maxPolicyBudget) {
			return "S1: a slot is taken beyond the budget, with what runs unlisted"
		}
		if group := s.groupedAttempts(); s.groupLimit > 0 && n.admitted&group != 0 && countBits((after|w.unfinishedDataVolumes())&group) > int(s.groupLimit) {
			return "S6: a slot is taken beyond the room of its group"
		}
	}
	return ""
}

func (s *scenario) createDataVolume(w *clusterState, x *writer) (what, violation string) {
	k := bits.TrailingZeros8(x.create)
	x.create &^= 1 << k
	knew := contains(x.knownStarted, k)
	x.knownStarted &^= 1 << k
	s.advanceWriter(x)
	what = "creates " + s.formatAttempts(1<<k, 0)
	allowed := w.cached.exists == 1 && contains(w.cached.listed, k) &&
		(!contains(w.cached.ended, k) || s.hasBug(admissionIgnoresEnded))
	v := &w.volumes[k]
	switch {
	case !allowed && !s.hasBug(noAdmissionPolicy):
		return what + ": refused by the policy", ""
	case v.dataVolumeExists():
		return what + ": it exists", ""
	}
	v.state = running
	v.created = min(v.created+1, 2)
	if knew {
		return what, "S4: an attempt is begun again that was known to be begun"
	}
	// Each deletion by hand may cost one download more of the same attempt.
	if w.lostVolumes == 0 && w.lostLedgers == 0 {
		if w.images[s.imageIndex(k)].outcomeOf(s.attemptNumber(k)) != noOutcome {
			return what, "S4: a DataVolume is created whose outcome is stored"
		}
		if v.created > 1 {
			return what, "S4: an attempt downloads twice"
		}
	}
	return what, ""
}

// ledgerWrite is what queue.Next said, in the model's terms.
type ledgerWrite struct {
	ledgerState
	admitted, create uint8
	mustWrite        bool
}

// decisionCache keeps what queue.Next answered: it is pure, and asked the same often.
type decisionCache struct {
	slots      []v1alpha1.Slot
	attemptIDs map[string]int
	decisions  map[[26]byte]ledgerWrite
}

func (s *scenario) slotFor(name int) v1alpha1.Slot {
	i := s.imageIndex(name)
	key := v1alpha1.ImageKey{Namespace: "ns", Name: fmt.Sprintf("image-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}
	attempt := int32(s.attemptNumber(name))
	return v1alpha1.Slot{Image: key, Revision: "r", Attempt: attempt, DataVolume: ledger.DataVolumeName(key, attempt), Host: s.sourceHost(i)}
}

var decisionCaches = map[[4]int]*decisionCache{}

func (s *scenario) decisionCacheFor() *decisionCache {
	id := [4]int{s.images, s.attempts, int(s.plantedBugs), int(s.groupLimit)}
	m := decisionCaches[id]
	if m == nil {
		m = &decisionCache{attemptIDs: map[string]int{}, decisions: map[[26]byte]ledgerWrite{}}
		for k := range s.images * s.attempts {
			m.slots = append(m.slots, s.slotFor(k))
			m.attemptIDs[ledger.DataVolumeKey(m.slots[k])] = k
		}
		decisionCaches[id] = m
	}
	return m
}

// decideCached asks queue.Next and queue.ShouldCreateDataVolume.
func (s *scenario) decideCached(x *writer) ledgerWrite {
	m := s.decisionCacheFor()
	forget := *x
	forget.ledgerUnchanged, forget.maxPolicyBudget, forget.knownStarted = false, 0, 0
	id := forget.encode()
	if n, known := m.decisions[id]; known {
		return n
	}
	v := ledger.View{Budget: int32(x.policyBudget), Facts: map[string]ledger.SlotFacts{}, SourceGroupOf: func(host string) string { return host }}
	if s.groupLimit > 0 && !s.hasBug(groupsWithoutRoomStart) {
		v.SourceGroupLimits = map[string]int32{groupName: int32(s.groupLimit)}
	}
	if x.exists == 1 {
		v.Ledger = &v1alpha1.SyncLedgerStatus{Budget: int32(x.ledgerState.budget)}
	}
	for k, slot := range m.slots {
		if contains(x.listed, k) {
			f := factsByKnowledge[x.facts[k]]
			slot.Ended = contains(x.ended, k) || s.hasBug(freesWithoutEndedMark) && f.Outcome != "" ||
				s.hasBug(freesSuccessUnmarked) && f.Outcome == v1alpha1.OutcomeSucceeded
			v.Ledger.Slots = append(v.Ledger.Slots, slot)
			v.Facts[ledger.DataVolumeKey(slot)] = f
		}
		if contains(x.adoptable|x.strays, k) {
			v.Unlisted = append(v.Unlisted, ledger.UnlistedDataVolume{Slot: slot, Adoptable: contains(x.adoptable, k)})
		}
	}
	for i, attempt := range x.candidates[:s.images] {
		if attempt > 0 {
			v.Candidates = append(v.Candidates, ledger.Candidate{Image: m.slots[i*s.attempts].Image, Revision: "r", Attempt: int32(attempt), Host: s.sourceHost(i)})
		}
	}
	step := ledger.Decide(v)
	n := ledgerWrite{ledgerState: ledgerState{exists: 1, budget: uint8(step.Budget)}, mustWrite: step.Changed}
	for _, slot := range step.Slots {
		k := m.attemptIDs[ledger.DataVolumeKey(slot)]
		n.listed |= 1 << k
		if slot.Ended {
			n.ended |= 1 << k
		}
		if f, looked := v.Facts[ledger.DataVolumeKey(slot)]; looked && ledger.ShouldCreateDataVolume(slot, f) {
			n.create |= 1 << k
		}
	}
	for _, slot := range step.Admitted {
		k := m.attemptIDs[ledger.DataVolumeKey(slot)]
		n.admitted |= 1 << k
		n.create |= 1 << k
	}
	m.decisions[id] = n
	return n
}
