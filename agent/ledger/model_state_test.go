package ledger_test

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

// The model identifies an attempt of an image by a number: image × attempts
// + attempt - 1. A set of attempts is a bit mask.
const (
	maxImages   = 3
	maxAttempts = 6 // of all images
)

// Lifecycle of an image.
const (
	alive uint8 = iota
	deleting
	released // being deleted without the agent's finalizer: another one keeps it, and no agent reconciles it
	gone
)

// Outcomes as the model stores them.
const (
	noOutcome uint8 = iota
	succeeded
	failed
)

// Storage of an attempt. A failing import transfers, as CDI restarts it. removing
// and clearing: the DataVolume is gone, its claim and Pods are not; the former still
// transfers.
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
	// started and ended are lastAttempt and attemptEnded, outcome is that of ended.
	started, ended, outcome uint8
	// pendingWrite is a delayed status write, by live reads that are stale by now. One
	// per image suffices: of two, one gets a conflict. 0 for none, else
	// kind × 16 + attempt.
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

// writer is the memory of an agent between its read of the ledger and the last of
// the writes that follow from it.
type writer struct {
	pc uint8
	ledgerState
	// ledgerUnchanged: the ledger was not written since, so a write does not conflict.
	ledgerUnchanged bool
	// policyBudget when the ledger was read, and its maximum since.
	policyBudget, maxPolicyBudget uint8
	facts                         [maxAttempts]uint8
	candidates                    [maxImages]uint8
	position                      uint8
	// unlisted DataVolumes are still to be checked; adoptable and strays were.
	unlisted, adoptable, strays uint8
	// create are the DataVolumes still to be created; knownStarted are those whose
	// image already said that they were started.
	create, knownStarted uint8
}

// clusterState is the whole state. Instead of resourceVersions it has whether an
// object has changed since it was read.
type clusterState struct {
	ledgerState
	cached  ledgerState // the parameter of the admission policy
	images  [maxImages]imageState
	volumes [maxAttempts]storageState
	writers [2]writer
	policy  uint8 // number of changes of the budget so far
	// Numbers of manual faults so far, and the imports that run unlisted due to one.
	lostVolumes, lostLedgers, excused uint8
}

// scenario is a model (modelcheck.Model) of the slot protocol: it bounds the state
// and says what can happen.
type scenario struct {
	images   int
	attempts int // retryLimit + 1
	// writers: 2 are an agent that was paused past its lease, and its successor. With
	// 1, an agent crashes and its successor starts.
	writers int
	// budgets of the policy, one after the other, at any time.
	budgets []uint8
	// byClock: the budgets are those of windows. A writer judges its own by the clock, once
	// more right before it writes.
	byClock bool
	// groupLimit is the limit of the source group of the first two images; 0 for none.
	groupLimit uint8
	// staleAdmissionCache: the admission policy's copy of the ledger may be stale.
	staleAdmissionCache bool
	// imagesDeleted: people delete images; finalizersRemoved: also their finalizers. foreignFinalizers:
	// they remove the agent's, where another controller has one.
	imagesDeleted, finalizersRemoved, foreignFinalizers bool
	// How often people delete a DataVolume, or empty or delete the ledger.
	volumesDeletedByHand, ledgersLostByHand uint8

	plantedBugs plantedBug
	// Options of modelcheck.Explore.
	onlyViolation      string
	expected           []expectedState
	skipDeadlockSearch bool
}

type expectedState = modelcheck.ExpectedState[clusterState]

func (s *scenario) explore(t *testing.T) modelcheck.Result {
	t.Helper()
	return modelcheck.Explore(t, s, modelcheck.Options[clusterState]{
		Expected: s.expected, OnlyViolation: s.onlyViolation, SkipDeadlockSearch: s.skipDeadlockSearch,
	})
}

// plantedBug is a set of removed guards.
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
	failsUnseenAttempts
	incrementsAttempts
	ignoresLowerBudget
	ignoresClosedWindow
	rollsForwardStarted
	listsBeforeLedger
	neverRollsForward
	neverRemoves
	freesUnmarkedSuccess
	ignoresGroupLimit
	createsByCachedImage
	storageFromCache
	waitsForReleased
)

func (s *scenario) hasBug(b plantedBug) bool { return s.plantedBugs&b != 0 }

func (s *scenario) attemptID(image int, attempt uint8) int {
	return image*s.attempts + int(attempt) - 1
}

func (s *scenario) imageIndex(id int) int { return id / s.attempts }

func (s *scenario) attemptNumber(id int) uint8 { return uint8(id%s.attempts) + 1 }

func contains(mask uint8, id int) bool { return mask&(1<<id) != 0 }

func countBits(mask uint8) int { return bits.OnesCount8(mask) }

// outcomeOf returns the outcome of an attempt: attempts before the last ended one
// have failed.
func (i imageState) outcomeOf(attempt uint8) uint8 {
	switch {
	case attempt < i.ended:
		return failed
	case attempt == i.ended:
		return i.outcome
	}
	return noOutcome
}

func (s *scenario) attemptEnded(c *clusterState, id int) bool {
	im := c.images[s.imageIndex(id)]
	return im.lifecycle >= released || im.outcomeOf(s.attemptNumber(id)) != noOutcome
}

func (v storageState) dataVolumeExists() bool { return v.state >= running && v.state <= complete }

// isTransferring reports whether bytes may be downloaded.
func (v storageState) isTransferring() bool {
	return v.state == running || v.state == failing || v.state == removing
}

// unfinishedDataVolumes are those that a list shows as incomplete.
func (c *clusterState) unfinishedDataVolumes() (mask uint8) {
	for k, v := range c.volumes {
		if v.state == running || v.state == failing {
			mask |= 1 << k
		}
	}
	return mask
}

func (c *clusterState) transferringAttempts() (mask uint8) {
	for k, v := range c.volumes {
		if v.isTransferring() {
			mask |= 1 << k
		}
	}
	return mask
}

// InitialState implements modelcheck.Model.
func (s *scenario) InitialState() clusterState {
	c := clusterState{}
	if s.writers == 1 {
		c.writers[1].pc = pcNone
	}
	return c
}

// normalize is called after every step. The excuse for imports that a manual edit of
// the ledger left unlisted lasts until they are listed again or end.
func (s *scenario) normalize(c *clusterState) {
	c.excused &^= c.listed
	c.excused &= c.transferringAttempts()
	for i := range c.writers {
		if wr := &c.writers[i]; !wr.ledgerUnchanged && !s.hasBug(writesWithoutCAS) {
			wr.maxPolicyBudget = 0 // its write conflicts
		}
	}
	if !s.staleAdmissionCache {
		c.cached = c.ledgerState
		c.cached.budget = 0
	}
}

// checkInvariants returns the invariant that a state violates; empty for none.
func (s *scenario) checkInvariants(c *clusterState) string {
	if c.transferringAttempts()&^(c.listed|c.excused) != 0 {
		return "S1: an import runs that is in no slot"
	}
	if s.ledgersLostByHand == 0 && countBits(c.transferringAttempts()) > countBits(c.listed) {
		return "S1: more imports run than there are slots"
	}
	if c.ended&^c.listed != 0 {
		return "a slot is marked that does not exist"
	}
	for i := range s.images {
		mask := uint8(1<<s.attempts-1) << (i * s.attempts)
		if countBits(c.listed&mask) > 1 {
			return "an image has two slots"
		}
	}
	return ""
}

// IsAtRest implements modelcheck.Model: no slot is taken and no import runs.
func (s *scenario) IsAtRest(c *clusterState) bool {
	return c.listed == 0 && c.transferringAttempts() == 0
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

// Format implements modelcheck.Model.
func (s *scenario) Format(c *clusterState) string {
	var b strings.Builder
	if c.exists == 0 {
		b.WriteString("no ledger")
	} else {
		fmt.Fprintf(&b, "ledger %d%s", c.budget, s.formatAttempts(c.listed, c.ended))
	}
	if s.staleAdmissionCache {
		fmt.Fprintf(&b, " cached %s", s.formatAttempts(c.cached.listed, c.cached.ended))
	}
	for i := range s.images {
		im := c.images[i]
		fmt.Fprintf(&b, " | %c", 'a'+rune(i))
		b.WriteString([]string{"", " deleting", " released", " gone"}[im.lifecycle])
		fmt.Fprintf(&b, " started %d ended %d%s", im.started, im.ended, []string{"", " Succeeded", " Failed"}[im.outcome])
		for a := range s.attempts {
			if v := c.volumes[i*s.attempts+a]; v.state != absent {
				fmt.Fprintf(&b, " %c%d %s", 'a'+rune(i), a+1,
					[]string{"", "running", "failing", "complete", "removing", "clearing"}[v.state])
			}
		}
	}
	return b.String()
}

func (wr writer) encode() [26]byte {
	b := [26]byte{wr.pc, wr.exists, wr.ledgerState.budget, wr.listed, wr.ended, 0, wr.policyBudget, wr.maxPolicyBudget, wr.position,
		wr.unlisted, wr.adoptable, wr.strays, wr.create, wr.knownStarted}
	if wr.ledgerUnchanged {
		b[5] = 1
	}
	copy(b[14:], wr.facts[:])
	copy(b[20:], wr.candidates[:])
	return b
}

// Canonical implements modelcheck.Model: it orders the two writers.
func (s *scenario) Canonical(c *clusterState) clusterState {
	if c.writers[0] == c.writers[1] {
		return *c
	}
	ordered := *c
	a, b := c.writers[0].encode(), c.writers[1].encode()
	if string(a[:]) > string(b[:]) {
		ordered.writers[0], ordered.writers[1] = c.writers[1], c.writers[0]
	}
	return ordered
}
