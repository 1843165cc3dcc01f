package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	everyImageSucceeds = expectedState{Name: "every image succeeds", IsReached: func(c *clusterState) bool {
		for _, im := range c.images {
			if im.started > 0 && im.outcome != succeeded {
				return false
			}
		}
		return c.images[0].outcome == succeeded && c.listed == 0
	}}
	retriesExhausted = expectedState{Name: "an image fails permanently", IsReached: func(c *clusterState) bool {
		return c.images[0].ended >= 2 && c.images[0].outcome == failed && c.listed == 0
	}}
	twoImportsRun = expectedState{Name: "two imports run at once", IsReached: func(c *clusterState) bool {
		return countBits(c.transferringAttempts()) > 1
	}}
	runsOverLoweredBudget = expectedState{Name: "more imports run than the lowered budget allows", IsReached: func(c *clusterState) bool {
		return countBits(c.listed) > int(c.budget)
	}}
	ungroupedImageRuns = expectedState{Name: "the third image runs beside one of the first two", IsReached: func(c *clusterState) bool {
		return countBits(c.transferringAttempts()) == 2 && contains(c.transferringAttempts(), 2)
	}}
	releasedImageFreesSlot = expectedState{Name: "an image without the agent's finalizer stays, and its slot is free", IsReached: func(c *clusterState) bool {
		return c.images[0].lifecycle == released && c.images[0].started > c.images[0].ended && c.listed == 0
	}}
	deletedImageFreesSlot = expectedState{Name: "an image is gone, and its slot free", IsReached: func(c *clusterState) bool {
		return c.images[0].lifecycle == gone && c.images[0].started > 0 && c.listed == 0
	}}
	lostImportIsAdopted = expectedState{Name: "a lost import is listed again", IsReached: func(c *clusterState) bool {
		return c.lostLedgers > 0 && c.transferringAttempts()&c.listed != 0 && c.excused == 0
	}}
	admissionCacheIsStale = expectedState{Name: "the admission policy's cache is stale while an import runs", IsReached: func(c *clusterState) bool {
		return c.cached.listed != c.listed && c.transferringAttempts() != 0
	}}
)

// TestSlotProtocolIsSafe explores everything that two agents at once can do with the
// ledger. Each scenario is small; together they have every fault.
func TestSlotProtocolIsSafe(t *testing.T) {
	for name, s := range map[string]scenario{
		"three attempts":                        {images: 1, attempts: 3, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds, retriesExhausted}},
		"two images, two attempts":              {images: 2, attempts: 2, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds, retriesExhausted}},
		"three images":                          {images: 3, attempts: 1, writers: 2, budgets: []uint8{1}, expected: []expectedState{everyImageSucceeds}},
		"budget lowered":                        {images: 2, attempts: 1, writers: 2, budgets: []uint8{2, 1}, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}},
		"three images, budget lowered":          {images: 3, attempts: 1, writers: 1, budgets: []uint8{2, 1}, expected: []expectedState{runsOverLoweredBudget}},
		"budget 1, 2, 1, 0":                     {images: 2, attempts: 2, writers: 1, budgets: []uint8{1, 2, 1, 0}, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}},
		"long: windows":                         {images: 2, attempts: 1, writers: 2, budgets: []uint8{2, 0, 1}, byClock: true, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}},
		"windows and retries":                   {images: 2, attempts: 2, writers: 1, budgets: []uint8{0, 2, 0, 1}, byClock: true, expected: []expectedState{twoImportsRun, runsOverLoweredBudget}},
		"a source group":                        {images: 3, attempts: 1, writers: 1, budgets: []uint8{2, 3, 1}, groupLimit: 1, expected: []expectedState{ungroupedImageRuns, everyImageSucceeds}},
		"images deleted":                        {images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{deletedImageFreesSlot}},
		"image deleted between attempts":        {images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{deletedImageFreesSlot, retriesExhausted}},
		"another finalizer stays":               {images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, imagesDeleted: true, foreignFinalizers: true, expected: []expectedState{releasedImageFreesSlot}},
		"another finalizer stays, two attempts": {images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, imagesDeleted: true, foreignFinalizers: true, finalizersRemoved: true, expected: []expectedState{releasedImageFreesSlot, deletedImageFreesSlot}},
		"long: a source group, two writers":     {images: 3, attempts: 1, writers: 2, budgets: []uint8{2}, groupLimit: 1, skipDeadlockSearch: true, expected: []expectedState{ungroupedImageRuns}},
		"long: budget 1, 2, 1":                  {images: 2, attempts: 1, writers: 2, budgets: []uint8{1, 2, 1}},
		"long: budget 2, 1, 0":                  {images: 2, attempts: 1, writers: 2, budgets: []uint8{2, 1, 0}},
		"long: budget 1, 2, 1, 0":               {images: 2, attempts: 1, writers: 2, budgets: []uint8{1, 2, 1, 0}, skipDeadlockSearch: true},
		"long: budget 2 and two attempts":       {images: 2, attempts: 2, writers: 2, budgets: []uint8{2}, skipDeadlockSearch: true},
		"long: attempts and deletions":          {images: 2, attempts: 2, writers: 2, budgets: []uint8{1}, imagesDeleted: true, finalizersRemoved: true, skipDeadlockSearch: true},
		"long: three images with two attempts":  {images: 3, attempts: 2, writers: 2, budgets: []uint8{1}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "long: ") {
				apitest.SkipUnlessLong(t)
			}
			s.requireNoViolation(t)
		})
	}
}

func (s *scenario) requireNoViolation(t *testing.T) {
	t.Helper()
	got := s.explore(t)
	require.Empty(t, got.Violation, got.FormatTrace())
	require.Empty(t, got.Unreached, "expected states that were not reached")
}

// TestStaleAdmissionCacheNeedsPausedWriter shows the residual of S1: a writer that was
// paused past its lease, together with an admission policy whose copy of the ledger is
// stale. Neither is enough alone: TestSlotProtocolIsSafe has the former.
func TestStaleAdmissionCacheNeedsPausedWriter(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		s := scenario{images: 2, attempts: 2, writers: 1, budgets: []uint8{1, 2, 1, 0}, staleAdmissionCache: true, expected: []expectedState{admissionCacheIsStale, twoImportsRun, runsOverLoweredBudget}}
		s.requireNoViolation(t)
	})
	t.Run("alone, images deleted", func(t *testing.T) {
		s := scenario{images: 2, attempts: 1, writers: 1, budgets: []uint8{1, 2}, staleAdmissionCache: true, imagesDeleted: true, finalizersRemoved: true, expected: []expectedState{admissionCacheIsStale, deletedImageFreesSlot}}
		s.requireNoViolation(t)
	})
	t.Run("with a paused writer", func(t *testing.T) {
		s := scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, staleAdmissionCache: true, onlyViolation: "S1"}
		got := s.explore(t)
		require.Contains(t, got.Violation, "S1")
		t.Log(got.FormatTrace())
	})
}

// TestDataVolumeDeletedByHandCostsOneDownload: a manual deletion costs at most one more
// download of the same attempt; S1 holds.
func TestDataVolumeDeletedByHandCostsOneDownload(t *testing.T) {
	for name, s := range map[string]scenario{
		"no paused writer":             {images: 2, attempts: 2, writers: 1, budgets: []uint8{1}, volumesDeletedByHand: 2},
		"a paused writer":              {images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, volumesDeletedByHand: 1},
		"a paused writer, and retries": {images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, volumesDeletedByHand: 1},
	} {
		t.Run(name, s.requireNoViolation)
	}
}

// TestLostLedgerIsRebuiltFromDataVolumes: a person empties or deletes the ledger, or
// removes a slot from it. The imports that run then are excused until they are listed
// again, or end and are deleted. No slot is given before the unfinished DataVolumes are
// counted; only an import whose DataVolume is deleted while its Pod lingers is not
// counted.
func TestLostLedgerIsRebuiltFromDataVolumes(t *testing.T) {
	for name, s := range map[string]scenario{
		"two images":               {images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, ledgersLostByHand: 1, expected: []expectedState{lostImportIsAdopted}},
		"two attempts, lost twice": {images: 1, attempts: 2, writers: 2, budgets: []uint8{1}, ledgersLostByHand: 2, expected: []expectedState{lostImportIsAdopted}},
		"two imports":              {images: 2, attempts: 1, writers: 1, budgets: []uint8{2, 1}, ledgersLostByHand: 1, expected: []expectedState{lostImportIsAdopted, twoImportsRun, runsOverLoweredBudget}},
		"long: lost twice":         {images: 2, attempts: 1, writers: 1, budgets: []uint8{2, 1}, ledgersLostByHand: 2, expected: []expectedState{lostImportIsAdopted, twoImportsRun, runsOverLoweredBudget}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "long: ") {
				apitest.SkipUnlessLong(t)
			}
			s.requireNoViolation(t)
		})
	}
}

// TestPlantedBugs removes one guard after the other. That its scenarios have no
// violation without a bug is shown by the tests above.
func TestPlantedBugs(t *testing.T) {
	oneImage := scenario{images: 1, attempts: 2, writers: 2, budgets: []uint8{1}}
	twoImages := scenario{images: 2, attempts: 1, writers: 2, budgets: []uint8{1}}
	threeImages := scenario{images: 3, attempts: 1, writers: 1, budgets: []uint8{2}}
	with := func(s scenario, change func(*scenario)) scenario { change(&s); return s }
	imagesDeleted := func(s *scenario) { s.imagesDeleted = true }
	volumeDeleted := func(s *scenario) { s.volumesDeletedByHand = 1 }
	for name, tt := range map[string]struct {
		scenario
		bug  plantedBug
		want string
	}{
		"the ledger is written without compare and swap":       {twoImages, writesWithoutCAS, "S1"},
		"candidates are taken from the cache":                  {oneImage, candidatesFromCache, "S4"},
		"a slot is freed before the outcome is stored":         {oneImage, freesBeforeOutcome, "S4"},
		"a slot is freed when the DataVolume is gone":          {twoImages, freesOnAbsence, "S1"},
		"there is no admission policy":                         {twoImages, noAdmissionPolicy, "S1"},
		"the admission policy ignores the ended mark, S1":      {twoImages, admissionIgnoresEnded, "S1"},
		"the admission policy ignores the ended mark, S4":      {twoImages, admissionIgnoresEnded, "S4"},
		"a failed slot is freed without the ended mark":        {twoImages, freesWithoutEndedMark, "S1"},
		"objects are deleted before the ended mark":            {oneImage, removesBeforeEndedMark, "S4"},
		"a deleted image is torn down without the ledger":      {with(oneImage, imagesDeleted), tearsDownBesideLedger, "S4"},
		"an attempt fails while its create request is delayed": {with(oneImage, imagesDeleted), failsUnseenAttempts, "S4"},
		"attempts are incremented":                             {oneImage, incrementsAttempts, "S4"},
		"a lower budget is ignored":                            {with(threeImages, func(s *scenario) { s.budgets = []uint8{2, 1} }), ignoresLowerBudget, "S1: a slot is taken beyond the budget"},
		"a window that has closed is ignored":                  {with(threeImages, func(s *scenario) { s.budgets, s.byClock = []uint8{2, 1}, true }), ignoresClosedWindow, "S1: a slot is taken beyond the budget"},
		"the limit of a source group is ignored":               {with(threeImages, func(s *scenario) { s.groupLimit = 1 }), ignoresGroupLimit, "S6: a slot is taken beyond the limit of its source group"},
		"a started attempt is started again":                   {with(oneImage, volumeDeleted), rollsForwardStarted, "S4"},
		"DataVolumes are listed before the ledger":             {with(twoImages, func(s *scenario) { s.ledgersLostByHand = 1 }), listsBeforeLedger, "S1"},
		"a missing DataVolume is created by a cached image":    {with(oneImage, volumeDeleted), createsByCachedImage, "S4"},
		"a successful slot is freed by cached storage":         {with(twoImages, volumeDeleted), storageFromCache, "S1"},
		"a slot without its DataVolume is left":                {oneImage, neverRollsForward, modelcheck.Deadlock},
		"the DataVolume of an ended slot is not deleted":       {oneImage, neverRemoves, modelcheck.Deadlock},
		"the slot of an image without finalizer is kept":       {with(oneImage, func(s *scenario) { s.imagesDeleted, s.foreignFinalizers = true, true }), waitsForReleased, modelcheck.Deadlock},
		// Success is read, a person deletes the DataVolume, a paused writer creates it
		// again, the slot is freed.
		"a successful slot is freed without the ended mark": {with(twoImages, volumeDeleted), freesUnmarkedSuccess, "S1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := tt.scenario
			s.plantedBugs, s.onlyViolation = tt.bug, tt.want
			got := s.explore(t)
			require.Contains(t, got.Violation, tt.want)
			t.Logf("found in %d steps%s", len(got.Trace), got.FormatTrace())
		})
	}
}

// TestLateCreationStaysWithinItsSlot: storing an outcome for an attempt that no agent
// has seen start, and deleting storage before the ended mark, cost downloads
// (TestPlantedBugs), but S1 holds.
func TestLateCreationStaysWithinItsSlot(t *testing.T) {
	apitest.SkipUnlessLong(t)
	s := scenario{
		images: 2, attempts: 1, writers: 2, budgets: []uint8{1}, imagesDeleted: true,
		plantedBugs: removesBeforeEndedMark | failsUnseenAttempts, onlyViolation: "S1", expected: []expectedState{deletedImageFreesSlot},
	}
	s.requireNoViolation(t)
}

// TestModelKnowledgeCoversAllSlotFacts: the few kinds of knowledge in the model
// represent all SlotFacts, for Decide and ShouldCreateDataVolume.
func TestModelKnowledgeCoversAllSlotFacts(t *testing.T) {
	s := scenario{images: 1, attempts: 1}
	for n := range 1 << 6 {
		for _, outcome := range []v1alpha1.Outcome{"", v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed} {
			slot, bit := s.slotFor(0), func(i int) bool { return n&(1<<i) != 0 }
			slot.Ended = bit(0)
			facts := ledger.SlotFacts{ImageGone: bit(1), Started: bit(2), DataVolumeExists: bit(3), ImportComplete: bit(4), ObjectsRemain: bit(5), Outcome: outcome}
			var knowledge uint8
			switch {
			case !facts.ImageGone && outcome == "" && !facts.Started && !facts.DataVolumeExists:
				knowledge = missing
			case !facts.ImageGone && outcome == "":
				knowledge = idle
			case !facts.ImageGone && outcome == v1alpha1.OutcomeSucceeded && facts.ImportComplete:
				knowledge = succeededAndComplete
			case facts.ObjectsRemain || !slot.Ended:
				knowledge = endedWithObjects
			default:
				knowledge = endedWithoutObjects
			}
			decide := func(facts ledger.SlotFacts) (ledger.Decision, bool) {
				return ledger.Decide(ledger.View{
					Budget: 1,
					Ledger: &v1alpha1.SyncLedgerStatus{Budget: 1, Slots: []v1alpha1.Slot{slot}},
					Facts:  map[string]ledger.SlotFacts{ledger.DataVolumeKey(slot): facts},
				}), ledger.ShouldCreateDataVolume(slot, facts)
			}
			want, wantCreate := decide(facts)
			got, gotCreate := decide(factsByKnowledge[knowledge])
			given := fmt.Sprintf("ended %t, %+v", slot.Ended, facts)
			assert.Equal(t, want, got, given)
			assert.Equal(t, wantCreate, gotCreate, given)
		}
	}
}
