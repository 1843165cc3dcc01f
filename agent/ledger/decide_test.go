package ledger_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 890, time.FixedZone("CET", 3600))

func imageKey(name string) v1alpha1.ImageKey {
	return v1alpha1.ImageKey{Namespace: "lab", Name: name, UID: types.UID("uid-of-" + name)}
}

func newSlot(name string, attempt int32) v1alpha1.Slot {
	return v1alpha1.Slot{
		Image:      imageKey(name),
		Revision:   "r1",
		Attempt:    attempt,
		DataVolume: ledger.DataVolumeName(imageKey(name), attempt),
		StartedAt:  storedtime.Truncate(now),
	}
}

func markEnded(s v1alpha1.Slot) v1alpha1.Slot { s.Ended = true; return s }

func newCandidate(name string, attempt int32) ledger.Candidate {
	return ledger.Candidate{Image: imageKey(name), Revision: "r1", Attempt: attempt}
}

func adoptableDataVolume(name string) ledger.UnlistedDataVolume {
	return ledger.UnlistedDataVolume{Slot: newSlot(name, 1), Adoptable: true}
}

func strayDataVolume(name string) ledger.UnlistedDataVolume {
	return ledger.UnlistedDataVolume{Slot: newSlot(name, 1)}
}

func slotList(s ...v1alpha1.Slot) []v1alpha1.Slot { return s }

func ledgerWith(budget int32, s ...v1alpha1.Slot) *v1alpha1.SyncLedgerStatus {
	return &v1alpha1.SyncLedgerStatus{Budget: budget, Slots: s}
}

func factsAbout(s v1alpha1.Slot, f ledger.SlotFacts) map[string]ledger.SlotFacts {
	return map[string]ledger.SlotFacts{ledger.DataVolumeKey(s): f}
}

var (
	succeededFacts = ledger.SlotFacts{Started: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true}
	failedFacts    = ledger.SlotFacts{Started: true, Outcome: v1alpha1.OutcomeFailed, DataVolumeExists: true, ObjectsRemain: true}
	clearedFacts   = ledger.SlotFacts{Started: true, Outcome: v1alpha1.OutcomeFailed}
	runningFacts   = ledger.SlotFacts{Started: true, DataVolumeExists: true, ObjectsRemain: true}
)

func TestDecide(t *testing.T) {
	a, b, c := newSlot("a", 1), newSlot("b", 1), newSlot("c", 1)
	for name, tt := range map[string]struct {
		view ledger.View
		want ledger.Decision
	}{
		"an empty first ledger is written": {
			ledger.View{},
			ledger.Decision{Changed: true},
		},
		"the first ledger admits the head of the queue": {
			ledger.View{Budget: 2, Candidates: []ledger.Candidate{newCandidate("a", 1), newCandidate("b", 1), newCandidate("c", 1)}},
			ledger.Decision{Budget: 2, Slots: slotList(a, b), Admitted: slotList(a, b), Changed: true},
		},
		"no change is not written": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, runningFacts), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(a)},
		},
		"an unchecked slot stays": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a)},
			ledger.Decision{Budget: 1, Slots: slotList(a)},
		},
		"a slot whose DataVolume is missing stays": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{}), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(a)},
		},
		"a lost attempt stays until its outcome is stored": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{Started: true})},
			ledger.Decision{Budget: 1, Slots: slotList(a)},
		},
		"a complete import stays until its outcome is stored": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{Started: true, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true})},
			ledger.Decision{Budget: 1, Slots: slotList(a)},
		},
		"a success is marked first": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, succeededFacts), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a)), Changed: true},
		},
		"a marked success is freed, and its slot taken in the same write": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, markEnded(a)), Facts: factsAbout(a, succeededFacts), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(b), Freed: slotList(markEnded(a)), Admitted: slotList(b), Changed: true},
		},
		"a success without a bound claim is not complete": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{Started: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolumeExists: true, ObjectsRemain: true})},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a)), Changed: true},
		},
		"a success without its image is marked": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{ImageGone: true, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true})},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a)), Changed: true},
		},
		"a failure without objects is marked first": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, clearedFacts), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a)), Changed: true},
		},
		"a marked failure keeps its slot while objects remain": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, markEnded(a)), Facts: factsAbout(a, failedFacts), Candidates: []ledger.Candidate{newCandidate("b", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a))},
		},
		"a Pod alone remains": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, markEnded(a)), Facts: factsAbout(a, ledger.SlotFacts{ImageGone: true, ObjectsRemain: true})},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a))},
		},
		"a marked failure without objects is freed, for its own retry too": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, markEnded(a)), Facts: factsAbout(a, clearedFacts), Candidates: []ledger.Candidate{newCandidate("a", 2)}},
			ledger.Decision{Budget: 1, Slots: slotList(newSlot("a", 2)), Freed: slotList(markEnded(a)), Admitted: slotList(newSlot("a", 2)), Changed: true},
		},
		"the slot of a deleted image is marked": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, a), Facts: factsAbout(a, ledger.SlotFacts{ImageGone: true})},
			ledger.Decision{Budget: 1, Slots: slotList(markEnded(a)), Changed: true},
		},
		"a lower budget frees and admits nothing": {
			ledger.View{Budget: 1, Ledger: ledgerWith(2, a, b), Candidates: []ledger.Candidate{newCandidate("c", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(a, b), Changed: true},
		},
		"a freed slot beyond a lower budget is not taken": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1, markEnded(a), b), Facts: factsAbout(a, succeededFacts), Candidates: []ledger.Candidate{newCandidate("c", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(b), Freed: slotList(markEnded(a)), Changed: true},
		},
		"budget 0 pauses": {
			ledger.View{Budget: 0, Ledger: ledgerWith(1), Candidates: []ledger.Candidate{newCandidate("a", 1)}},
			ledger.Decision{Changed: true},
		},
		"an image with a slot gets no second one": {
			ledger.View{Budget: 3, Ledger: ledgerWith(3, a), Candidates: []ledger.Candidate{newCandidate("a", 2), newCandidate("b", 1)}},
			ledger.Decision{Budget: 3, Slots: slotList(a, b), Admitted: slotList(b), Changed: true},
		},
		"a duplicate candidate gets one slot": {
			ledger.View{Budget: 3, Ledger: ledgerWith(3), Candidates: []ledger.Candidate{newCandidate("a", 1), newCandidate("a", 1)}},
			ledger.Decision{Budget: 3, Slots: slotList(a), Admitted: slotList(a), Changed: true},
		},
		"an adopted image gets no second slot": {
			ledger.View{Budget: 3, Ledger: ledgerWith(3), Unlisted: []ledger.UnlistedDataVolume{adoptableDataVolume("a")}, Candidates: []ledger.Candidate{newCandidate("a", 1)}},
			ledger.Decision{Budget: 3, Slots: slotList(a), Adopted: slotList(a), Changed: true},
		},
		"imports are adopted beyond the budget, which is raised": {
			ledger.View{Budget: 1, Unlisted: []ledger.UnlistedDataVolume{adoptableDataVolume("a"), adoptableDataVolume("b")}, Candidates: []ledger.Candidate{newCandidate("c", 1)}},
			ledger.Decision{Budget: 2, Slots: slotList(a, b), Adopted: slotList(a, b), Changed: true},
		},
		"the next decision lowers the budget": {
			ledger.View{Budget: 1, Ledger: ledgerWith(2, a, b), Candidates: []ledger.Candidate{newCandidate("c", 1)}},
			ledger.Decision{Budget: 1, Slots: slotList(a, b), Changed: true},
		},
		"an import is adopted under budget 0": {
			ledger.View{Budget: 0, Unlisted: []ledger.UnlistedDataVolume{adoptableDataVolume("a")}},
			ledger.Decision{Budget: 1, Slots: slotList(a), Adopted: slotList(a), Changed: true},
		},
		"a stray is not adopted but counts as running": {
			ledger.View{Budget: 2, Ledger: ledgerWith(2), Unlisted: []ledger.UnlistedDataVolume{strayDataVolume("c")}, Candidates: []ledger.Candidate{newCandidate("a", 1), newCandidate("b", 1)}},
			ledger.Decision{Budget: 2, Slots: slotList(a), Admitted: slotList(a), Changed: true},
		},
		"strays alone change nothing": {
			ledger.View{Budget: 1, Ledger: ledgerWith(1), Unlisted: []ledger.UnlistedDataVolume{strayDataVolume("c"), strayDataVolume("d")}, Candidates: []ledger.Candidate{newCandidate("a", 1)}},
			ledger.Decision{Budget: 1},
		},
		"adopted, stray and admitted together": {
			ledger.View{Budget: 4, Ledger: ledgerWith(4, a), Unlisted: []ledger.UnlistedDataVolume{adoptableDataVolume("b"), strayDataVolume("d")}, Candidates: []ledger.Candidate{newCandidate("c", 1), newCandidate("e", 1)}},
			ledger.Decision{Budget: 4, Slots: slotList(a, b, c), Adopted: slotList(b), Admitted: slotList(c), Changed: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.Now = now
			assert.Equal(t, tt.want, ledger.Decide(tt.view))
		})
	}
}

func TestDecideAdoptsAtMostMaxSlots(t *testing.T) {
	var all []ledger.UnlistedDataVolume
	for i := range v1alpha1.MaxSlots + 3 {
		all = append(all, adoptableDataVolume(fmt.Sprintf("image-%d", i)))
	}
	got := ledger.Decide(ledger.View{Budget: 1, Unlisted: all, Candidates: []ledger.Candidate{newCandidate("a", 1)}})
	assert.Len(t, got.Slots, v1alpha1.MaxSlots)
	assert.EqualValues(t, v1alpha1.MaxSlots, got.Budget)
	assert.Empty(t, got.Admitted)
}

func TestDecideDoesNotModifyItsInput(t *testing.T) {
	read := ledgerWith(1, newSlot("a", 1))
	ledger.Decide(ledger.View{Budget: 1, Ledger: read, Facts: factsAbout(newSlot("a", 1), failedFacts)})
	assert.Equal(t, ledgerWith(1, newSlot("a", 1)), read)
}

// TestDecisionSatisfiesSyncLedgerRule draws random Views, reachable or not, and checks each
// decision against the CRD rule of the SyncLedger.
func TestDecisionSatisfiesSyncLedgerRule(t *testing.T) {
	outcomes := []v1alpha1.Outcome{"", v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed}
	rapid.Check(t, func(t *rapid.T) {
		flag := func(what string) bool { return rapid.Bool().Draw(t, what) }
		v := ledger.View{Now: now, Budget: rapid.Int32Range(0, 5).Draw(t, "budget"), Facts: map[string]ledger.SlotFacts{}}
		if flag("ledger") {
			v.Ledger = ledgerWith(rapid.Int32Range(0, 5).Draw(t, "budget before"))
		}
		for i := range rapid.IntRange(0, 9).Draw(t, "images") {
			s := newSlot(fmt.Sprintf("image-%d", i), 1)
			switch rapid.IntRange(0, 2).Draw(t, "is") {
			case 0:
				if v.Ledger == nil {
					break
				}
				s.Ended = flag("ended")
				v.Ledger.Slots = append(v.Ledger.Slots, s)
				if flag("looked") {
					v.Facts[ledger.DataVolumeKey(s)] = ledger.SlotFacts{
						ImageGone: flag("gone"), Started: flag("started"), DataVolumeExists: flag("DataVolume"), ImportComplete: flag("complete"),
						ObjectsRemain: flag("remains"), Outcome: rapid.SampledFrom(outcomes).Draw(t, "outcome"),
					}
				}
			case 1:
				v.Unlisted = append(v.Unlisted, ledger.UnlistedDataVolume{Slot: s, Adoptable: flag("wanted")})
			}
			if flag("candidate") {
				v.Candidates = append(v.Candidates, newCandidate(s.Image.Name, rapid.Int32Range(1, 3).Draw(t, "attempt")))
			}
		}
		got := ledger.Decide(v)

		before := map[string]bool{}
		if v.Ledger != nil {
			for _, s := range v.Ledger.Slots {
				before[s.DataVolume] = true
			}
		}
		shrinks, images := v.Ledger != nil, map[types.UID]bool{}
		for _, s := range got.Slots {
			shrinks = shrinks && before[s.DataVolume]
			require.False(t, images[s.Image.UID], "two slots for one image")
			images[s.Image.UID] = true
		}
		require.True(t, len(got.Slots) <= int(got.Budget) || shrinks, "the API server refuses the write")
		if len(got.Admitted) > 0 {
			require.LessOrEqual(t, len(got.Slots), int(v.Budget), "admitted beyond the policy's budget")
		}
		for _, s := range got.Freed {
			f := v.Facts[ledger.DataVolumeKey(s)]
			require.True(t, f.ImageGone || f.Outcome != "", "freed without an outcome")
			require.True(t, f.ImportComplete || s.Ended && !f.ObjectsRemain, "freed while objects remain")
		}

		again := v
		again.Ledger, again.Unlisted = &v1alpha1.SyncLedgerStatus{Budget: got.Budget, Slots: got.Slots}, nil
		again.Candidates, again.Facts = nil, nil
		again.Budget = got.Budget
		require.False(t, ledger.Decide(again).Changed, "without news nothing is written")
	})
}

func TestShouldCreateDataVolume(t *testing.T) {
	for name, tt := range map[string]struct {
		slot  v1alpha1.Slot
		facts ledger.SlotFacts
		want  bool
	}{
		"no objects":                  {newSlot("a", 1), ledger.SlotFacts{}, true},
		"only a claim or Pod remains": {newSlot("a", 1), ledger.SlotFacts{ObjectsRemain: true}, true},
		"the DataVolume exists":       {newSlot("a", 1), ledger.SlotFacts{DataVolumeExists: true}, false},
		"the DataVolume has existed":  {newSlot("a", 1), ledger.SlotFacts{Started: true}, false},
		"the attempt has failed":      {newSlot("a", 1), clearedFacts, false},
		"the attempt has succeeded":   {newSlot("a", 1), ledger.SlotFacts{Outcome: v1alpha1.OutcomeSucceeded}, false},
		"the image is gone":           {newSlot("a", 1), ledger.SlotFacts{ImageGone: true}, false},
		"the slot is marked as ended": {markEnded(newSlot("a", 1)), ledger.SlotFacts{}, false},
		"marked, with an outcome":     {markEnded(newSlot("a", 1)), failedFacts, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, ledger.ShouldCreateDataVolume(tt.slot, tt.facts))
		})
	}
}

// maxNamedAttempt is the last attempt whose name has at most 53 characters.
const maxNamedAttempt = 99_999_999

func TestDataVolumeName(t *testing.T) {
	long := strings.Repeat("a", 253)
	for name, tt := range map[string]struct {
		image      string
		wantPrefix string
	}{
		"plain":                          {"lab-404", "lab-404-"},
		"dots":                           {"ubuntu.24.04", "ubuntu-24-04-"},
		"253 characters":                 {long, strings.Repeat("a", 30) + "-"},
		"a dash at the cut":              {strings.Repeat("a", 29) + "-" + long[:20], strings.Repeat("a", 29) + "-"},
		"dashes at the cut":              {"a" + strings.Repeat("-", 40) + "b", "a-"},
		"a dot at the cut":               {strings.Repeat("a", 29) + "." + long[:20], strings.Repeat("a", 29) + "-"},
		"one character":                  {"a", "a-"},
		"digits":                         {"404", "404-"},
		"many short labels":              {"0." + strings.Repeat("z.", 100) + "9", "0-z-"},
		"exactly the prefix":             {long[:30], long[:30] + "-"},
		"the name of another DataVolume": {ledger.DataVolumeName(imageKey("lab-404"), 1), "lab-404-"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, attempt := range []int32{1, 10, maxNamedAttempt} {
				got := ledger.DataVolumeName(imageKey(tt.image), attempt)
				assert.LessOrEqual(t, len(got), 53)
				assert.Empty(t, validation.IsDNS1123Label(got))
				assert.True(t, strings.HasPrefix(got, tt.wantPrefix), got)
				assert.NotContains(t, strings.TrimPrefix(got, tt.wantPrefix), "--", got)
				assert.True(t, strings.HasSuffix(got, fmt.Sprintf("-%d", attempt)), got)
				parsed, found := ledger.AttemptOf(imageKey(tt.image), got)
				assert.True(t, found)
				assert.Equal(t, attempt, parsed)
				_, found = ledger.AttemptOf(imageKey("another"), got)
				assert.False(t, found)
			}
		})
	}
	assert.Empty(t, validation.IsDNS1123Label(ledger.DataVolumeName(imageKey(long), math.MaxInt32)), "valid, although longer")
}

func TestDataVolumeNameIsUniquePerAttempt(t *testing.T) {
	image := rapid.Custom(func(t *rapid.T) v1alpha1.ImageKey {
		return v1alpha1.ImageKey{
			Namespace: "ns",
			Name:      rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?`).Draw(t, "name"),
			UID:       types.UID(rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}`).Draw(t, "uid")),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		one, other := image.Draw(t, "one"), image.Draw(t, "other")
		if rapid.Bool().Draw(t, "same name") {
			other.Name = one.Name
		}
		attempt, later := rapid.Int32Range(1, maxNamedAttempt).Draw(t, "attempt"), rapid.Int32Range(1, maxNamedAttempt).Draw(t, "later")
		got := ledger.DataVolumeName(one, attempt)
		require.Empty(t, validation.IsDNS1123Label(got))
		require.LessOrEqual(t, len(got), 53)
		require.Equal(t, got, ledger.DataVolumeName(one, attempt))
		if attempt != later {
			require.NotEqual(t, got, ledger.DataVolumeName(one, later))
		}
		if one.UID != other.UID {
			require.NotEqual(t, got, ledger.DataVolumeName(other, attempt))
			require.NotEqual(t, got, ledger.DataVolumeName(other, later))
		}
	})
}
