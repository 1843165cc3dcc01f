package ledger_test

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The next read or write of a writer, in the order of the controller.
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
	pcNone // no writer
)

// What a writer knows about a slot. The last three are half read: the image only.
// Facts that can no longer change the decision are not read, as reads have no effect.
// TestModelKnowledgeCoversAllSlotFacts shows that these represent all
// ledger.SlotFacts.
const (
	unread uint8 = iota
	idle
	missing
	succeededAndComplete
	endedWithObjects
	endedWithoutObjects
	imageNotStarted
	imageSucceeded
	imageEnded
)

var factsByKnowledge = map[uint8]ledger.SlotFacts{
	idle:                 {Started: true, DataVolumeExists: true, ObjectsRemain: true},
	missing:              {},
	succeededAndComplete: {Started: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true},
	endedWithObjects:     {Started: true, Outcome: v1alpha1.OutcomeFailed, DataVolumeExists: true, ObjectsRemain: true},
	endedWithoutObjects:  {Started: true, Outcome: v1alpha1.OutcomeFailed},
}

// readImage reads the first half of the facts of a slot.
func (s *scenario) readImage(c *clusterState, wr *writer, id int) {
	im, attempt := c.images[s.imageIndex(id)], s.attemptNumber(id)
	outcome := im.outcomeOf(attempt)
	switch {
	case im.lifecycle == gone || im.lifecycle == released && !s.hasBug(waitsForReleased) || outcome == failed:
		wr.facts[id] = endedWithObjects // enough to mark it as ended
		if contains(wr.ended, id) || s.hasBug(freesWithoutEndedMark) {
			wr.facts[id] = imageEnded
		}
	case outcome == succeeded:
		wr.facts[id] = imageSucceeded
	case im.started >= attempt && s.hasBug(rollsForwardStarted):
		wr.facts[id] = imageNotStarted
		wr.knownStarted |= 1 << id
	case im.started >= attempt && !s.hasBug(freesBeforeOutcome):
		wr.facts[id] = idle
	default:
		wr.facts[id] = imageNotStarted
	}
}

// readCachedImage reads the first half of the facts of a slot from a cache, which shows an
// outcome. It returns false where the agent reads live instead.
func (s *scenario) readCachedImage(c *clusterState, wr *writer, id int, shown uint8) bool {
	ended := contains(wr.ended, id)
	switch {
	case shown == noOutcome && s.hasBug(createsByCachedImage) && !ended:
		wr.facts[id] = imageNotStarted
		if c.images[s.imageIndex(id)].started >= s.attemptNumber(id) {
			wr.knownStarted |= 1 << id
		}
	case shown == noOutcome && !ended:
		wr.facts[id] = idle // only the slot of a DataVolume that the cache shows, too
	case shown == succeeded && ended:
		wr.facts[id] = imageSucceeded
	case shown != noOutcome && !ended:
		wr.facts[id] = endedWithObjects // enough to mark it as ended
	default:
		return false
	}
	return true
}

// readStorage reads the second half.
func (s *scenario) readStorage(c *clusterState, wr *writer, id int) {
	v := c.volumes[id]
	remains := v.state != absent
	if s.hasBug(freesOnAbsence) {
		remains = v.dataVolumeExists()
	}
	switch half := wr.facts[id]; {
	case half == imageNotStarted && s.hasBug(freesBeforeOutcome) && v.state == complete:
		wr.facts[id] = succeededAndComplete
	case half == imageNotStarted && (v.dataVolumeExists() || s.hasBug(neverRollsForward)):
		wr.facts[id] = idle
		wr.knownStarted &^= 1 << id
	case half == imageNotStarted:
		wr.facts[id] = missing
	case half == imageSucceeded && (v.state == complete || s.hasBug(storageFromCache)):
		wr.facts[id] = succeededAndComplete
	case remains || !contains(wr.ended, id) && !s.hasBug(freesWithoutEndedMark):
		wr.facts[id] = endedWithObjects
	default:
		wr.facts[id] = endedWithoutObjects
	}
}

// candidateAttempt is the attempt that an image may be admitted for; 0 for none.
func (s *scenario) candidateAttempt(im imageState) uint8 {
	if im.lifecycle != alive || im.started != im.ended || im.outcome == succeeded || int(im.started) >= s.attempts {
		return 0
	}
	return im.started + 1
}

// advanceWriter moves a writer to its next read or write that can have an effect.
func (s *scenario) advanceWriter(wr *writer) {
	switch wr.pc {
	case pcEarlyCandidates, pcEarlyList:
		return
	case pcFacts:
		for ; int(wr.position) < s.images*s.attempts; wr.position++ {
			if f := wr.facts[wr.position]; contains(wr.listed, int(wr.position)) && (f == unread || f >= imageNotStarted) {
				return
			}
		}
		wr.pc, wr.position = pcList, 0
		if s.hasBug(listsBeforeLedger) {
			wr.pc = pcUnlisted
			wr.unlisted &^= wr.listed
			s.advanceWriter(wr)
		}
	case pcUnlisted:
		if wr.unlisted != 0 {
			return
		}
		wr.pc = pcCandidates
		fallthrough
	case pcCandidates:
		// Only candidates that can still be admitted are read.
		kept, heldImages := countBits(wr.adoptable|wr.strays), uint8(0)
		for k := range s.images * s.attempts {
			if f := wr.facts[k]; contains(wr.adoptable, k) || contains(wr.listed, k) && f != succeededAndComplete && f != endedWithoutObjects {
				heldImages |= 1 << s.imageIndex(k)
			}
			if f := wr.facts[k]; contains(wr.listed, k) && f != succeededAndComplete && f != endedWithoutObjects {
				kept++
			}
		}
		for ; int(wr.position) < s.images && !s.hasBug(candidatesFromCache); wr.position++ {
			if kept < int(wr.policyBudget) && !contains(heldImages, int(wr.position)) {
				return
			}
		}
		wr.pc, wr.position = pcWrite, 0
	case pcCreate:
		if wr.create == 0 {
			*wr = writer{}
		}
	}
}

// stepWriter takes a writer's next step. It changes c, and returns a description and
// the violated promise.
func (s *scenario) stepWriter(c *clusterState, who int) (what, violation string) {
	wr := &c.writers[who]
	switch wr.pc {
	case pcIdle:
		switch {
		case s.hasBug(candidatesFromCache):
			wr.pc = pcEarlyCandidates
			for i := range s.images {
				wr.candidates[i] = s.candidateAttempt(c.images[i])
			}
			return "reads images from its cache", ""
		case s.hasBug(listsBeforeLedger):
			wr.pc, wr.unlisted = pcEarlyList, c.unfinishedDataVolumes()
			return "lists DataVolumes", ""
		}
		s.readLedger(c, wr)
		return "reads the ledger", ""
	case pcEarlyCandidates, pcEarlyList:
		s.readLedger(c, wr)
		return "reads the ledger", ""
	case pcFacts:
		k := int(wr.position)
		if wr.facts[k] == unread {
			s.readImage(c, wr, k)
			what = "reads the image of slot"
		} else {
			s.readStorage(c, wr, k)
			what = "reads the storage of slot"
		}
		what += " " + s.formatAttempts(1<<k, 0)
	case pcCandidates:
		wr.candidates[wr.position] = s.candidateAttempt(c.images[wr.position])
		what = "reads a candidate, live"
		wr.position++
	case pcList:
		wr.unlisted = c.unfinishedDataVolumes() &^ wr.listed
		wr.pc = pcUnlisted
		what = "lists DataVolumes"
	case pcUnlisted:
		what = s.checkUnlisted(c, wr)
	case pcWrite:
		return s.writeLedger(c, who)
	case pcCreate:
		return s.createDataVolume(c, wr)
	}
	s.advanceWriter(wr)
	return what, ""
}

func (s *scenario) readLedger(c *clusterState, wr *writer) {
	wr.pc, wr.position, wr.ledgerState, wr.ledgerUnchanged = pcFacts, 0, c.ledgerState, true
	wr.policyBudget = s.budgets[c.policy]
	wr.maxPolicyBudget = wr.policyBudget
	if s.hasBug(ignoresLowerBudget) {
		wr.policyBudget = max(wr.policyBudget, c.budget)
	}
	s.advanceWriter(wr)
}

// checkUnlisted reads an unlisted DataVolume live: its image first, then itself.
func (s *scenario) checkUnlisted(c *clusterState, wr *writer) string {
	k := bits.TrailingZeros8(wr.unlisted)
	if !contains(wr.adoptable|wr.strays, k) {
		if s.attemptEnded(c, k) {
			wr.strays |= 1 << k
		} else {
			wr.adoptable |= 1 << k
		}
		return "reads the image of unlisted " + s.formatAttempts(1<<k, 0)
	}
	wr.unlisted &^= 1 << k
	if !contains(c.unfinishedDataVolumes(), k) {
		wr.strays &^= 1 << k
		wr.adoptable &^= 1 << k
	}
	return "reads unlisted " + s.formatAttempts(1<<k, 0)
}

// writeLedger writes what ledger.Decide says, with compare and swap.
func (s *scenario) writeLedger(c *clusterState, who int) (what, violation string) {
	wr := &c.writers[who]
	n := s.decideCached(wr)
	create, known := n.create, wr.knownStarted
	if n.mustWrite {
		if now := s.budgets[c.policy]; s.byClock && wr.policyBudget != now && !s.hasBug(ignoresClosedWindow) {
			*wr = writer{pc: pcFacts, ledgerState: wr.ledgerState, ledgerUnchanged: wr.ledgerUnchanged, policyBudget: now, maxPolicyBudget: now}
			s.advanceWriter(wr)
			return "does not write, since a window has opened or closed, and decides again", ""
		}
		if !wr.ledgerUnchanged && !s.hasBug(writesWithoutCAS) {
			*wr = writer{}
			return "writes the ledger: conflict", ""
		}
		violation = s.checkLedgerWrite(c, wr, n)
		if violation == refusedByRule {
			if !wr.ledgerUnchanged {
				// A stale write conflicts anyway.
				violation = ""
			}
			*wr = writer{}
			return "writes the ledger: refused by its rule", violation
		}
		c.ledgerState = n.ledgerState
		for i := range c.writers {
			c.writers[i].ledgerUnchanged = false
		}
		what = "writes the ledger"
	} else {
		what = "has nothing to write to the ledger"
	}
	*wr = writer{pc: pcCreate, create: create, knownStarted: known & create}
	s.advanceWriter(wr)
	return what, violation
}

// groupName is the source group of the first two images.
const groupName = "group"

func (s *scenario) sourceHost(i int) string {
	if s.groupLimit > 0 && i < 2 {
		return groupName
	}
	return ""
}

// groupedAttempts are the attempts of those images.
func (s *scenario) groupedAttempts() (mask uint8) {
	for k := range s.images * s.attempts {
		if s.imageIndex(k) < 2 {
			mask |= 1 << k
		}
	}
	return mask
}

const refusedByRule = "the API server refuses a write of the agent"

// checkLedgerWrite checks the CRD rule of the SyncLedger, and the invariants of its
// writes.
func (s *scenario) checkLedgerWrite(c *clusterState, wr *writer, n ledgerWrite) string {
	before, after := c.listed, n.listed
	if countBits(after) > int(n.budget) && (c.exists == 0 || after&^before != 0) {
		return refusedByRule
	}
	for k := range s.images * s.attempts {
		if contains(before&^after, k) && !s.attemptEnded(c, k) {
			return "S4: a slot is freed before its outcome is stored"
		}
	}
	if n.admitted != 0 {
		allowed := int(wr.maxPolicyBudget)
		if s.byClock {
			allowed = int(s.budgets[c.policy])
		}
		if countBits(after) > allowed {
			return "S1: a slot is taken beyond the budget"
		}
		if countBits(after|c.unfinishedDataVolumes()) > allowed {
			return "S1: a slot is taken beyond the budget, counting unlisted imports"
		}
		if group := s.groupedAttempts(); s.groupLimit > 0 && n.admitted&group != 0 && countBits((after|c.unfinishedDataVolumes())&group) > int(s.groupLimit) {
			return "S6: a slot is taken beyond the limit of its source group"
		}
	}
	return ""
}

func (s *scenario) createDataVolume(c *clusterState, wr *writer) (what, violation string) {
	k := bits.TrailingZeros8(wr.create)
	wr.create &^= 1 << k
	known := contains(wr.knownStarted, k)
	wr.knownStarted &^= 1 << k
	s.advanceWriter(wr)
	what = "creates " + s.formatAttempts(1<<k, 0)
	allowed := c.cached.exists == 1 && contains(c.cached.listed, k) &&
		(!contains(c.cached.ended, k) || s.hasBug(admissionIgnoresEnded))
	v := &c.volumes[k]
	switch {
	case !allowed && !s.hasBug(noAdmissionPolicy):
		return what + ": refused by the policy", ""
	case v.dataVolumeExists():
		return what + ": it exists", ""
	}
	v.state = running
	v.created = min(v.created+1, 2)
	if known {
		return what, "S4: an attempt that was known to be started is started again"
	}
	// Each manual deletion may cost one more download of the same attempt.
	if c.lostVolumes == 0 && c.lostLedgers == 0 {
		if c.images[s.imageIndex(k)].outcomeOf(s.attemptNumber(k)) != noOutcome {
			return what, "S4: the DataVolume of an attempt with an outcome is created"
		}
		if v.created > 1 {
			return what, "S4: an attempt downloads twice"
		}
	}
	return what, ""
}

// ledgerWrite is a ledger.Decision as the model encodes it.
type ledgerWrite struct {
	ledgerState
	admitted, create uint8
	mustWrite        bool
}

// decisionCache caches ledger.Decide, which is pure and gets the same View often.
type decisionCache struct {
	slots      []v1alpha1.Slot
	attemptIDs map[string]int
	decisions  map[[26]byte]ledgerWrite
}

func (s *scenario) slotFor(id int) v1alpha1.Slot {
	i := s.imageIndex(id)
	key := v1alpha1.ImageKey{Namespace: "ns", Name: fmt.Sprintf("image-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}
	attempt := int32(s.attemptNumber(id))
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

// decideCached calls ledger.Decide and ledger.ShouldCreateDataVolume.
func (s *scenario) decideCached(wr *writer) ledgerWrite {
	cache := s.decisionCacheFor()
	input := *wr
	input.ledgerUnchanged, input.maxPolicyBudget, input.knownStarted = false, 0, 0
	key := input.encode()
	if n, ok := cache.decisions[key]; ok {
		return n
	}
	v := ledger.View{Budget: int32(wr.policyBudget), Facts: map[string]ledger.SlotFacts{}, SourceGroupOf: func(host string) string { return host }}
	if s.groupLimit > 0 && !s.hasBug(ignoresGroupLimit) {
		v.SourceGroupLimits = map[string]int32{groupName: int32(s.groupLimit)}
	}
	if wr.exists == 1 {
		v.Ledger = &v1alpha1.SyncLedgerStatus{Budget: int32(wr.ledgerState.budget)}
	}
	for k, slot := range cache.slots {
		if contains(wr.listed, k) {
			f := factsByKnowledge[wr.facts[k]]
			slot.Ended = contains(wr.ended, k) || s.hasBug(freesWithoutEndedMark) && f.Outcome != "" ||
				s.hasBug(freesUnmarkedSuccess) && f.Outcome == v1alpha1.OutcomeSucceeded
			v.Ledger.Slots = append(v.Ledger.Slots, slot)
			v.Facts[ledger.DataVolumeKey(slot)] = f
		}
		if contains(wr.adoptable|wr.strays, k) {
			v.Unlisted = append(v.Unlisted, ledger.UnlistedDataVolume{Slot: slot, Adoptable: contains(wr.adoptable, k)})
		}
	}
	for i, attempt := range wr.candidates[:s.images] {
		if attempt > 0 {
			v.Candidates = append(v.Candidates, ledger.Candidate{Image: cache.slots[i*s.attempts].Image, Revision: "r", Attempt: int32(attempt), Host: s.sourceHost(i)})
		}
	}
	d := ledger.Decide(v)
	n := ledgerWrite{ledgerState: ledgerState{exists: 1, budget: uint8(d.Budget)}, mustWrite: d.Changed}
	for _, slot := range d.Slots {
		k := cache.attemptIDs[ledger.DataVolumeKey(slot)]
		n.listed |= 1 << k
		if slot.Ended {
			n.ended |= 1 << k
		}
		if f, checked := v.Facts[ledger.DataVolumeKey(slot)]; checked && ledger.ShouldCreateDataVolume(slot, f) {
			n.create |= 1 << k
		}
	}
	for _, slot := range d.Admitted {
		k := cache.attemptIDs[ledger.DataVolumeKey(slot)]
		n.admitted |= 1 << k
		n.create |= 1 << k
	}
	cache.decisions[key] = n
	return n
}
