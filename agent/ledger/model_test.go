package ledger_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	everyImageSucceeds = expectedState{"every image succeeds", func(w *clusterState) bool {
		for _, im := range w.images {
			if im.begun > 0 && im.outcome != succeeded {
				return false
			}
		}
		return w.images[0].outcome == succeeded && w.listed == 0
	}}
	retriesExhausted = expectedState{"an image fails for good", func(w *clusterState) bool {
		return w.images[0].ended >= 2 && w.images[0].outcome == failed && w.listed == 0
	}}
	twoImportsRun         = expectedState{"two imports run at once", func(w *clusterState) bool { return countBits(w.transferringAttempts()) > 1 }}
	runsOverLoweredBudget = expectedState{"more run than the lowered budget allows", func(w *clusterState) bool { return countBits(w.listed) > int(w.budget) }}
	ungroupedImageRuns    = expectedState{"the third image runs beside one of the first two", func(w *clusterState) bool {
		return countBits(w.transferringAttempts()) == 2 && contains(w.transferringAttempts(), 2)
	}}
	deletedImageFreesSlot = expectedState{"an image is gone, and its slot free", func(w *clusterState) bool {
		return w.images[0].lifecycle == gone && w.images[0].begun > 0 && w.listed == 0
	}}
	lostImportIsAdopted = expectedState{"a lost import is listed again", func(w *clusterState) bool {
		return w.lostLedgers > 0 && w.transferringAttempts()&w.listed != 0 && w.excused == 0
	}}
	admissionCacheIsStale = expectedState{"the policy's cache is old while an import runs", func(w *clusterState) bool { return w.cached.listed != w.listed && w.transferringAttempts() != 0 }}
)

// TestSlotProtocolIsSafe explores everything that two agents at once can do with the
// ledger, in scenarios that are each small and together hold every fault.
func TestSlotProtocolIsSafe(t *testing.T) {
	for name, tt := range map[string]struct {
		scenario
		long bool
	}{
		"three attempts":                  {scenario: scenario{images: 1, attempts: 3, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds, retriesExhausted}}},
		"two images, two attempts":        {scenario: scenario{images: 2, attempts: 2, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds, retriesExhausted}}},
		"three images":                    {scenario: scenario{images: 3, attempts: 1, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds}}},
		"budget raised":                   {scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1, 2}, expected: []expectedState{twoImportsRun}}},
		"budget lowered":                  {scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{2, 1}, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}}},
		"budget 1, 2, 1, 0":               {scenario: scenario{images: 2, attempts: 2, writers: 1, budgets: []uint8{1, 2, 1, 0}, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}}},
		"a group of sources":              {scenario: scenario{images: 3, attempts: 1, writers: 1, budgets: []uint8{2, 3, 1}, groupLimit: 1, expected: []expectedState{ungroupedImageRuns, everyImageSucceeds}}},
		"long: a group, two writers":      {long: true, scenario: scenario{images: 3, attempts: 1, writers: 2, budgets: []uint8{2}, groupLimit: 1, skipDeadlockSearch: true, expected: []expectedState{ungroupedImageRuns}}},
		"images deleted":                  {scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{deletedImageFreesSlot}}},
		"image deleted between attempts":  {scenario: scenario{images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{deletedImageFreesSlot, retriesExhausted}}},
		"long: budget 1, 2, 1":            {long: true, scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1, 2, 1}}},
		"long: budget 2, 1, 0":            {long: true, scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{2, 1, 0}}},
		"long: budget 1, 2, 1, 0":         {long: true, scenario: scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1, 2, 1, 0}, skipDeadlockSearch: true}},
		"long: budget 2 and two attempts": {long: true, scenario: scenario{images: 2, attempts: 2, writers: 2, budgets: []uint8{2}, skipDeadlockSearch: true}},
		"long: attempts and deletes":      {long: true, scenario: scenario{images: 2, attempts: 2, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, skipDeadlockSearch: true}},
		"long: three images":              {long: true, scenario: scenario{images: 3, attempts: 2, writers: 2, budgets: []uint8{1}}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.long && os.Getenv("OT_FLEET_LONG") != "1" {
				t.Skip("set OT_FLEET_LONG=1")
			}
			requireNoViolation(t, &tt.scenario)
		})
	}
}

func requireNoViolation(t *testing.T, s *scenario) {
	t.Helper()
	got := explore(t, s)
	require.Empty(t, got.violation, formatTrace(got.trace))
	require.Empty(t, got.unreached, "never met")
}

// TestStaleAdmissionCacheNeedsPausedWriter shows the residual of S1: a writer that was paused past
// its lease and an admission policy with an old ledger, both at once. Neither is
// enough alone: TestSlotProtocolIsSafe has the former.
func TestStaleAdmissionCacheNeedsPausedWriter(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 2, writers: 1, budgets: []uint8{1, 2, 1, 0}, staleAdmissionCache: true, expected: []expectedState{admissionCacheIsStale, twoImportsRun, runsOverLoweredBudget}})
	})
	t.Run("alone, images deleted", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 1, writers: 1, budgets: []uint8{1, 2}, staleAdmissionCache: true, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{admissionCacheIsStale, deletedImageFreesSlot}})
	})
	t.Run("with a paused writer", func(t *testing.T) {
		got := explore(t, &scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, staleAdmissionCache: true, onlyViolation: "S1"})
		require.Contains(t, got.violation, "S1")
		t.Log(formatTrace(got.trace))
	})
}

// TestDataVolumeDeletedByHandCostsOneDownload: a person's deletion costs at most one download
// more of the same attempt, S1 holds.
func TestDataVolumeDeletedByHandCostsOneDownload(t *testing.T) {
	t.Run("no writer is paused", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 2, writers: 1, budgets: []uint8{1}, volumesDeletedByHand: 2})
	})
	t.Run("and a paused writer", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, volumesDeletedByHand: 1})
	})
}

// TestLostLedgerIsRebuiltFromDataVolumes: a person empties or deletes the ledger, or takes one slot from
// it. What transferred then is excused until it is listed again, or is seen to
// be over and deleted. Nothing new gets a slot before the unfinished DataVolumes
// are counted; only one whose DataVolume is deleted already, and whose Pod
// lingers, is not seen.
func TestLostLedgerIsRebuiltFromDataVolumes(t *testing.T) {
	t.Run("two images", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, ledgersLostByHand: 1, expected: []expectedState{lostImportIsAdopted}})
	})
	t.Run("two attempts, lost twice", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, ledgersLostByHand: 2, expected: []expectedState{lostImportIsAdopted}})
	})
	t.Run("two run", func(t *testing.T) {
		requireNoViolation(t, &scenario{images: 2, attempts: 1, writers: 1, budgets: []uint8{2, 1}, ledgersLostByHand: 2, expected: []expectedState{lostImportIsAdopted, twoImportsRun, runsOverLoweredBudget}})
	})
}

// TestPlantedBugs takes away one guard after the other.
func TestPlantedBugs(t *testing.T) {
	one := scenario{images: 1, attempts: 2, writers: 2, budgets: []uint8{1}}
	two := scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}}
	with := func(s scenario, change func(*scenario)) scenario { change(&s); return s }
	deletes := func(s *scenario) { s.imagesDeleted = true }
	const progress = "a state from which no slot comes free"
	for name, tt := range map[string]struct {
		scenario
		bug  plantedBug
		want string
	}{
		"the ledger is written without compare and swap":  {two, writesWithoutCAS, "S1"},
		"candidates are taken from the cache":             {one, candidatesFromCache, "S4"},
		"a slot is freed before the outcome is stored":    {one, freesBeforeOutcome, "S4"},
		"a slot is freed when the DataVolume is gone":     {two, freesOnAbsence, "S1"},
		"there is no admission policy":                    {two, noAdmissionPolicy, "S1"},
		"the admission policy does not look at ended, S1": {two, admissionIgnoresEnded, "S1"},
		"the admission policy does not look at ended, S4": {two, admissionIgnoresEnded, "S4"},
		"a failed slot is freed without the mark, S1":     {two, freesWithoutEndedMark, "S1"},
		// Success is read, a person deletes the DataVolume, a paused writer creates it
		// again, the slot is freed.
		"a success is freed without the mark, S1":            {with(two, func(s *scenario) { s.volumesDeletedByHand = 1 }), freesSuccessUnmarked, "S1"},
		"what is left is removed before the mark":            {one, removesBeforeEndedMark, "S4"},
		"a deleted image is torn down beside the ledger":     {with(one, deletes), tearsDownBesideLedger, "S4"},
		"an attempt is given up whose creation is under way": {with(one, deletes), givesUpUnseen, "S4"},
		"attempts are incremented":                           {one, incrementsAttempts, "S4"},
		"a lower budget is ignored": {with(two, func(s *scenario) { s.images, s.writers, s.budgets = 3, 1, []uint8{2, 1} }),
			ignoresLowerBudget, "S1: a slot is taken beyond the budget"},
		"a group's limit is ignored": {with(two, func(s *scenario) { s.images, s.writers, s.budgets, s.groupLimit = 3, 1, []uint8{2}, 1 }),
			groupsWithoutRoomStart, "S6: a slot is taken beyond the room of its group"},
		"an attempt that was begun is begun again":  {with(one, func(s *scenario) { s.volumesDeletedByHand = 1 }), rollsForwardBegun, "S4"},
		"DataVolumes are listed before the ledger":  {with(two, func(s *scenario) { s.ledgersLostByHand = 1 }), listsBeforeLedger, "S1"},
		"a slot without its DataVolume is left":     {one, neverRollsForward, progress},
		"an ended slot's DataVolume is not removed": {one, neverRemoves, progress},
	} {
		t.Run(name, func(t *testing.T) {
			s := tt.scenario
			s.plantedBugs, s.onlyViolation = tt.bug, tt.want
			got := explore(t, &s)
			require.Contains(t, got.violation, tt.want)
			t.Logf("found in %d steps%s", len(got.trace), formatTrace(got.trace))

			s.plantedBugs = 0
			requireNoViolation(t, &s)
		})
	}
}

// TestLateCreationStaysWithinItsSlot: an outcome that is stored for an attempt that
// nobody has seen begin, and storage that is removed before the mark, cost
// downloads (TestPlantedBugs), but no import beyond the slots.
func TestLateCreationStaysWithinItsSlot(t *testing.T) {
	requireNoViolation(t, &scenario{
		images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, imagesDeleted: true,
		plantedBugs: removesBeforeEndedMark | givesUpUnseen, onlyViolation: "S1", expected: []expectedState{deletedImageFreesSlot},
	})
}

// TestModelKnowledgeCoversAllSlotFacts: the model's few kinds of knowledge stand for all facts
// that there can be, to Next and to ShouldCreateDataVolume alike.
func TestModelKnowledgeCoversAllSlotFacts(t *testing.T) {
	s := scenario{images: 1, attempts: 1}
	for n := range 1 << 6 {
		for _, outcome := range []v1alpha1.Outcome{"", v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed} {
			slot, bit := s.slotFor(0), func(i int) bool { return n&(1<<i) != 0 }
			slot.Ended = bit(0)
			f := ledger.SlotFacts{ImageGone: bit(1), Started: bit(2), DataVolumeExists: bit(3), ImportComplete: bit(4), ObjectsRemain: bit(5), Outcome: outcome}
			var kind uint8
			switch {
			case !f.ImageGone && outcome == "" && !f.Started && !f.DataVolumeExists:
				kind = missing
			case !f.ImageGone && outcome == "":
				kind = idle
			case !f.ImageGone && outcome == v1alpha1.OutcomeSucceeded && f.ImportComplete:
				kind = succeededAndThere
			case f.ObjectsRemain || !slot.Ended:
				kind = overAndThere
			default:
				kind = overAndGone
			}
			next := func(f ledger.SlotFacts) (ledger.Decision, bool) {
				return ledger.Decide(ledger.View{
					Budget: 1,
					Ledger: &v1alpha1.SyncLedgerStatus{Budget: 1, Slots: []v1alpha1.Slot{slot}},
					Facts:  map[string]ledger.SlotFacts{ledger.DataVolumeKey(slot): f},
				}), ledger.ShouldCreateDataVolume(slot, f)
			}
			wantStep, wantCreate := next(f)
			gotStep, gotCreate := next(factsByKnowledge[kind])
			what := fmt.Sprintf("ended %t, %+v", slot.Ended, f)
			assert.Equal(t, wantStep, gotStep, what)
			assert.Equal(t, wantCreate, gotCreate, what)
		}
	}
}
