package ledger_test

import (
	"fmt"
	"math/bits"
	"strings"
)

// The model knows an attempt of an image by a number, its name: image × attempts
// + attempt - 1. A set of names is a bit mask.
const (
	maxImages = 3
	maxNames  = 6
	noWriter  = 255
)

// Life of an image.
const (
	alive uint8 = iota
	deleting
	gone
)

// Outcomes as the model stores them.
const (
	noOutcome uint8 = iota
	succeeded
	failed
)

// Storage of an attempt. Failing imports transfer: CDI starts over by itself.
// Removing and clearing: the DataVolume is gone, its claim and Pods are not; the
// former still transfers.
const (
	absent uint8 = iota
	running
	failing
	complete
	removing
	clearing
)

type imageState struct {
	lifecycle uint8
	// begun and ended are lastAttempt and attemptEnded, outcome is that of ended.
	begun, ended, outcome uint8
	// pendingWrite is a status write that is under way: what it will say, by live reads
	// that are already old. The guard by resourceVersion makes one per image
	// enough: of two, one fails. 0 for none, else kind × 16 + attempt.
	pendingWrite uint8
}

// Kinds of status write.
const (
	writeStarted uint8 = iota + 1
	writeSucceeded
	writeFailed
)

type storageState struct{ state, created uint8 }

type ledgerState struct{ exists, budget, listed, ended uint8 }

// writer is what an agent holds in memory on its way from a read of the ledger to
// the last of the writes that follow from it.
type writer struct {
	pc uint8
	ledgerState
	// fresh: the ledger was not written since; what a resourceVersion tells.
	ledgerUnchanged bool
	// budget asked for by the policy when the ledger was read, and the most that
	// it asked for since.
	policyBudget, maxPolicyBudget uint8
	facts                         [maxNames]uint8
	candidates                    [maxImages]uint8
	position                      uint8
	// unlisted are yet to be judged; wanted and strays are those judged.
	unlisted, adoptable, strays uint8
	// create is what is yet to be created. knownStarted are those of it whose image
	// said already that they were begun.
	create, knownStarted uint8
}

// clusterState is a state of everything. Resource versions are left out: all that
// counts of one is whether it has changed since somebody read it.
type clusterState struct {
	ledgerState
	cached  ledgerState // the parameter of the admission policy
	images  [maxImages]imageState
	volumes [maxNames]storageState
	writers [2]writer
	policy  uint8 // how many changes of the budget there were
	// Faults by hand so far, and what runs unlisted because of one.
	lostVolumes, lostLedgers, excused uint8
}

// scenario bounds a world and says what can happen in it.
type scenario struct {
	images   int
	attempts int // retryLimit + 1
	// writers: 2 are an agent that was paused past its lease, and its successor.
	// With 1, a crash and the start of another are the same.
	writers int
	// budgets that the policy asks for, one after the other, at any time.
	budgets []uint8
	// room, where set, is how many imports may run of the group of sources that the
	// first two images belong to.
	groupLimit uint8
	// stale: the admission policy's copy of the ledger may be old.
	staleAdmissionCache bool
	// deletes: people delete images; forces: also without the finalizer.
	imagesDeleted, finalizersRemoved bool
	// How often somebody deletes a DataVolume, or empties or deletes the ledger.
	volumesDeletedByHand, ledgersLostByHand uint8

	// plantedBugs are the planted ones.
	plantedBugs plantedBug
	// finding, where set, lets all violations pass but those that begin with it.
	onlyViolation string
	// expected are states that must be met, or the scenario shows nothing.
	expected []expectedState
	// skipDeadlockSearch leaves out the search for slots that are lost for ever.
	skipDeadlockSearch bool
}

// expectedState is a state that a scenario is there to show, by name.
type expectedState struct {
	name      string
	isReached func(*clusterState) bool
}

// plantedBug is a planted one.
type plantedBug uint

const (
	writesWithoutCAS plantedBug = 1 << iota
	candidatesFromCache
	freesBeforeOutcome
	freesOnAbsence
	noAdmissionPolicy
	admissionIgnoresEnded
	freesWithoutEndedMark
	removesBeforeEndedMark
	tearsDownBesideLedger
	givesUpUnseen
	incrementsAttempts
	ignoresLowerBudget
	rollsForwardBegun
	listsBeforeLedger
	neverRollsForward
	neverRemoves
	freesSuccessUnmarked
	groupsWithoutRoomStart
)

func (s *scenario) hasBug(b plantedBug) bool { return s.plantedBugs&b != 0 }

func (s *scenario) attemptID(image int, attempt uint8) int {
	return image*s.attempts + int(attempt) - 1
}
func (s *scenario) imageIndex(name int) int      { return name / s.attempts }
func (s *scenario) attemptNumber(name int) uint8 { return uint8(name%s.attempts) + 1 }

func contains(mask uint8, name int) bool { return mask&(1<<name) != 0 }

func countBits(mask uint8) int { return bits.OnesCount8(mask) }

// outcome of an attempt. Those below the last that ended have failed.
func (i imageState) outcomeOf(attempt uint8) uint8 {
	switch {
	case attempt < i.ended:
		return failed
	case attempt == i.ended:
		return i.outcome
	}
	return noOutcome
}

func (s *scenario) attemptEnded(w *clusterState, name int) bool {
	im := w.images[s.imageIndex(name)]
	return im.lifecycle == gone || im.outcomeOf(s.attemptNumber(name)) != noOutcome
}

// dataVolumeExists tells that the DataVolume itself is there.
func (v storageState) dataVolumeExists() bool { return v.state >= running && v.state <= complete }

// isTransferring tells that bytes may come in.
func (v storageState) isTransferring() bool {
	return v.state == running || v.state == failing || v.state == removing
}

// unfinishedDataVolumes are the DataVolumes that a list shows and that are not complete.
func (w *clusterState) unfinishedDataVolumes() (mask uint8) {
	for k, v := range w.volumes {
		if v.state == running || v.state == failing {
			mask |= 1 << k
		}
	}
	return mask
}

func (w *clusterState) transferringAttempts() (mask uint8) {
	for k, v := range w.volumes {
		if v.isTransferring() {
			mask |= 1 << k
		}
	}
	return mask
}

func (s *scenario) initialState() clusterState {
	w := clusterState{}
	if s.writers == 1 {
		w.writers[1].pc = pcNone
	}
	return w
}

// normalize is called after every step: the excuse for what a hand-made loss of the
// ledger left unlisted lasts until it is listed again or transfers no more.
func (s *scenario) normalize(w *clusterState) {
	w.excused &^= w.listed
	w.excused &= w.transferringAttempts()
	for i := range w.writers {
		if x := &w.writers[i]; !x.ledgerUnchanged && !s.hasBug(writesWithoutCAS) {
			x.maxPolicyBudget = 0 // it will not write
		}
	}
	if !s.staleAdmissionCache {
		w.cached = w.ledgerState
		w.cached.budget = 0
	}
}

// checkInvariants checks what must hold in every state, S1 first.
func (s *scenario) checkInvariants(w *clusterState) string {
	if w.transferringAttempts()&^(w.listed|w.excused) != 0 {
		return "S1: an import runs that is in no slot"
	}
	if s.ledgersLostByHand == 0 && countBits(w.transferringAttempts()) > countBits(w.listed) {
		return "S1: more imports run than there are slots"
	}
	if w.ended&^w.listed != 0 {
		return "a slot is marked that does not exist"
	}
	for i := range s.images {
		mask := uint8(1<<s.attempts-1) << (i * s.attempts)
		if countBits(w.listed&mask) > 1 {
			return "an image has two slots"
		}
	}
	return ""
}

// isAtRest is what must stay reachable: no slot is taken and nothing runs.
func (s *scenario) isAtRest(w *clusterState) bool {
	return w.listed == 0 && w.transferringAttempts() == 0
}

func (s *scenario) formatAttempts(mask, marked uint8) string {
	var parts []string
	for k := range s.images * s.attempts {
		if contains(mask, k) {
			part := fmt.Sprintf("%c%d", 'a'+rune(s.imageIndex(k)), s.attemptNumber(k))
			if contains(marked, k) {
				part += "(ended)"
			}
			parts = append(parts, part)
		}
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// formatState shows a state in one line.
func (s *scenario) formatState(w *clusterState) string {
	var b strings.Builder
	if w.exists == 0 {
		b.WriteString("no ledger")
	} else {
		fmt.Fprintf(&b, "ledger %d%s", w.budget, s.formatAttempts(w.listed, w.ended))
	}
	if s.staleAdmissionCache {
		fmt.Fprintf(&b, " cached %s", s.formatAttempts(w.cached.listed, w.cached.ended))
	}
	for i := range s.images {
		im := w.images[i]
		fmt.Fprintf(&b, " | %c", 'a'+rune(i))
		b.WriteString([]string{"", " deleting", " gone"}[im.lifecycle])
		fmt.Fprintf(&b, " begun %d ended %d%s", im.begun, im.ended, []string{"", " Succeeded", " Failed"}[im.outcome])
		for a := range s.attempts {
			if v := w.volumes[i*s.attempts+a]; v.state != absent {
				fmt.Fprintf(&b, " %c%d %s", 'a'+rune(i), a+1,
					[]string{"", "running", "failing", "complete", "removing", "clearing"}[v.state])
			}
		}
	}
	return b.String()
}

func (x writer) encode() [26]byte {
	b := [26]byte{x.pc, x.exists, x.ledgerState.budget, x.listed, x.ended, 0, x.policyBudget, x.maxPolicyBudget, x.position,
		x.unlisted, x.adoptable, x.strays, x.create, x.knownStarted}
	if x.ledgerUnchanged {
		b[5] = 1
	}
	copy(b[14:], x.facts[:])
	copy(b[20:], x.candidates[:])
	return b
}

// canonical puts the two writers in order: which of them is which makes no
// difference to what can happen.
func (w *clusterState) canonical() clusterState {
	c := *w
	if c.writers[0] == c.writers[1] {
		return c
	}
	a, b := c.writers[0].encode(), c.writers[1].encode()
	if string(a[:]) > string(b[:]) {
		c.writers[0], c.writers[1] = c.writers[1], c.writers[0]
	}
	return c
}
