package queue_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 890, time.FixedZone("CET", 3600))

func key(name string) v1alpha1.ImageKey {
	return v1alpha1.ImageKey{Namespace: "lab", Name: name, UID: types.UID("uid-of-" + name)}
}

func slot(name string, attempt int32) v1alpha1.Slot {
	return v1alpha1.Slot{
		Image:      key(name),
		Revision:   "r1",
		Attempt:    attempt,
		DataVolume: queue.DataVolumeName(key(name), attempt),
		StartedAt:  metav1.NewTime(now.UTC().Truncate(time.Second)),
	}
}

func ended(s v1alpha1.Slot) v1alpha1.Slot { s.Ended = true; return s }

func candidate(name string, attempt int32) queue.Candidate {
	return queue.Candidate{Image: key(name), Revision: "r1", Attempt: attempt}
}

func lost(name string) queue.Unlisted { return queue.Unlisted{Slot: slot(name, 1), Wanted: true} }

func stray(name string) queue.Unlisted { return queue.Unlisted{Slot: slot(name, 1)} }

func slots(s ...v1alpha1.Slot) []v1alpha1.Slot { return s }

func holding(budget int32, s ...v1alpha1.Slot) *v1alpha1.SyncLedgerStatus {
	return &v1alpha1.SyncLedgerStatus{Budget: budget, Slots: s}
}

func about(s v1alpha1.Slot, f queue.Facts) map[string]queue.Facts {
	return map[string]queue.Facts{queue.DataVolumeKey(s): f}
}

var (
	factSucceeded = queue.Facts{Begun: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolume: true, Complete: true, Remains: true}
	factFailed    = queue.Facts{Begun: true, Outcome: v1alpha1.OutcomeFailed, DataVolume: true, Remains: true}
	factCleared   = queue.Facts{Begun: true, Outcome: v1alpha1.OutcomeFailed}
	factRuns      = queue.Facts{Begun: true, DataVolume: true, Remains: true}
)

func TestNext(t *testing.T) {
	a, b, c := slot("a", 1), slot("b", 1), slot("c", 1)
	for name, tt := range map[string]struct {
		view queue.View
		want queue.Step
	}{
		"the first ledger is written even when empty": {
			queue.View{},
			queue.Step{Changed: true},
		},
		"the first ledger takes the head of the queue at once": {
			queue.View{Budget: 2, Candidates: []queue.Candidate{candidate("a", 1), candidate("b", 1), candidate("c", 1)}},
			queue.Step{Budget: 2, Slots: slots(a, b), Admitted: slots(a, b), Changed: true},
		},
		"nothing to do is not written": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, factRuns), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(a)},
		},
		"a slot that was not looked at stays": {
			queue.View{Budget: 1, Ledger: holding(1, a)},
			queue.Step{Budget: 1, Slots: slots(a)},
		},
		"a slot whose DataVolume is missing stays": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{}), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(a)},
		},
		"one that was begun and is lost stays until that is an outcome": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{Begun: true})},
			queue.Step{Budget: 1, Slots: slots(a)},
		},
		"an import that is complete stays until that is an outcome": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{Begun: true, DataVolume: true, Complete: true, Remains: true})},
			queue.Step{Budget: 1, Slots: slots(a)},
		},
		"a success is marked first": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, factSucceeded), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(ended(a)), Changed: true},
		},
		"a marked success is freed, and the next takes its slot in the same write": {
			queue.View{Budget: 1, Ledger: holding(1, ended(a)), Facts: about(a, factSucceeded), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(b), Released: slots(ended(a)), Admitted: slots(b), Changed: true},
		},
		"a success whose claim is not bound is not one": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{Begun: true, Outcome: v1alpha1.OutcomeSucceeded, DataVolume: true, Remains: true})},
			queue.Step{Budget: 1, Slots: slots(ended(a)), Changed: true},
		},
		"a success whose image is gone is to be removed": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{ImageGone: true, DataVolume: true, Complete: true, Remains: true})},
			queue.Step{Budget: 1, Slots: slots(ended(a)), Changed: true},
		},
		"a failure is marked first, though nothing of it is left": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, factCleared), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(ended(a)), Changed: true},
		},
		"a marked failure keeps its slot while anything of it is left": {
			queue.View{Budget: 1, Ledger: holding(1, ended(a)), Facts: about(a, factFailed), Candidates: []queue.Candidate{candidate("b", 1)}},
			queue.Step{Budget: 1, Slots: slots(ended(a))},
		},
		"its Pod alone is something": {
			queue.View{Budget: 1, Ledger: holding(1, ended(a)), Facts: about(a, queue.Facts{ImageGone: true, Remains: true})},
			queue.Step{Budget: 1, Slots: slots(ended(a))},
		},
		"a marked failure with nothing left is freed, for its own retry too": {
			queue.View{Budget: 1, Ledger: holding(1, ended(a)), Facts: about(a, factCleared), Candidates: []queue.Candidate{candidate("a", 2)}},
			queue.Step{Budget: 1, Slots: slots(slot("a", 2)), Released: slots(ended(a)), Admitted: slots(slot("a", 2)), Changed: true},
		},
		"the slot of an image that is gone is marked": {
			queue.View{Budget: 1, Ledger: holding(1, a), Facts: about(a, queue.Facts{ImageGone: true})},
			queue.Step{Budget: 1, Slots: slots(ended(a)), Changed: true},
		},
		"a lower budget frees nothing and starts nothing": {
			queue.View{Budget: 1, Ledger: holding(2, a, b), Candidates: []queue.Candidate{candidate("c", 1)}},
			queue.Step{Budget: 1, Slots: slots(a, b), Changed: true},
		},
		"nor does one free slot below what runs": {
			queue.View{Budget: 1, Ledger: holding(1, ended(a), b), Facts: about(a, factSucceeded), Candidates: []queue.Candidate{candidate("c", 1)}},
			queue.Step{Budget: 1, Slots: slots(b), Released: slots(ended(a)), Changed: true},
		},
		"budget 0 pauses": {
			queue.View{Budget: 0, Ledger: holding(1), Candidates: []queue.Candidate{candidate("a", 1)}},
			queue.Step{Changed: true},
		},
		"an image that holds a slot gets no second one": {
			queue.View{Budget: 3, Ledger: holding(3, a), Candidates: []queue.Candidate{candidate("a", 2), candidate("b", 1)}},
			queue.Step{Budget: 3, Slots: slots(a, b), Admitted: slots(b), Changed: true},
		},
		"nor does one that is asked for twice": {
			queue.View{Budget: 3, Ledger: holding(3), Candidates: []queue.Candidate{candidate("a", 1), candidate("a", 1)}},
			queue.Step{Budget: 3, Slots: slots(a), Admitted: slots(a), Changed: true},
		},
		"nor one whose lost slot is listed again": {
			queue.View{Budget: 3, Ledger: holding(3), Unlisted: []queue.Unlisted{lost("a")}, Candidates: []queue.Candidate{candidate("a", 1)}},
			queue.Step{Budget: 3, Slots: slots(a), Adopted: slots(a), Changed: true},
		},
		"what runs is listed beyond the budget, with a budget that fits": {
			queue.View{Budget: 1, Unlisted: []queue.Unlisted{lost("a"), lost("b")}, Candidates: []queue.Candidate{candidate("c", 1)}},
			queue.Step{Budget: 2, Slots: slots(a, b), Adopted: slots(a, b), Changed: true},
		},
		"and the next step lowers it": {
			queue.View{Budget: 1, Ledger: holding(2, a, b), Candidates: []queue.Candidate{candidate("c", 1)}},
			queue.Step{Budget: 1, Slots: slots(a, b), Changed: true},
		},
		"it is listed under budget 0 too": {
			queue.View{Budget: 0, Unlisted: []queue.Unlisted{lost("a")}},
			queue.Step{Budget: 1, Slots: slots(a), Adopted: slots(a), Changed: true},
		},
		"a stray is not listed but counts as running": {
			queue.View{Budget: 2, Ledger: holding(2), Unlisted: []queue.Unlisted{stray("c")}, Candidates: []queue.Candidate{candidate("a", 1), candidate("b", 1)}},
			queue.Step{Budget: 2, Slots: slots(a), Admitted: slots(a), Changed: true},
		},
		"strays alone change nothing": {
			queue.View{Budget: 1, Ledger: holding(1), Unlisted: []queue.Unlisted{stray("c"), stray("d")}, Candidates: []queue.Candidate{candidate("a", 1)}},
			queue.Step{Budget: 1},
		},
		"lost, stray and new together": {
			queue.View{Budget: 4, Ledger: holding(4, a), Unlisted: []queue.Unlisted{lost("b"), stray("d")}, Candidates: []queue.Candidate{candidate("c", 1), candidate("e", 1)}},
			queue.Step{Budget: 4, Slots: slots(a, b, c), Adopted: slots(b), Admitted: slots(c), Changed: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.Now = now
			assert.Equal(t, tt.want, queue.Next(tt.view))
		})
	}
}

func TestNextAdoptsNoMoreThanTheLedgerHolds(t *testing.T) {
	var all []queue.Unlisted
	for i := range v1alpha1.MaxSlots + 3 {
		all = append(all, lost(fmt.Sprintf("image-%d", i)))
	}
	got := queue.Next(queue.View{Budget: 1, Unlisted: all, Candidates: []queue.Candidate{candidate("a", 1)}})
	assert.Len(t, got.Slots, v1alpha1.MaxSlots)
	assert.EqualValues(t, v1alpha1.MaxSlots, got.Budget)
	assert.Empty(t, got.Admitted)
}

func TestNextLeavesTheLedgerThatWasReadAlone(t *testing.T) {
	read := holding(1, slot("a", 1))
	queue.Next(queue.View{Budget: 1, Ledger: read, Facts: about(slot("a", 1), factFailed)})
	assert.Equal(t, holding(1, slot("a", 1)), read)
}

// TestNextIsAcceptedByTheAPIServer draws views of any kind, also ones that no
// protocol leads to, and holds each step against the rule of SyncLedgerStatus.
func TestNextIsAcceptedByTheAPIServer(t *testing.T) {
	outcomes := []v1alpha1.Outcome{"", v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed}
	rapid.Check(t, func(t *rapid.T) {
		flag := func(what string) bool { return rapid.Bool().Draw(t, what) }
		v := queue.View{Now: now, Budget: rapid.Int32Range(0, 5).Draw(t, "budget"), Facts: map[string]queue.Facts{}}
		if flag("ledger") {
			v.Ledger = holding(rapid.Int32Range(0, 5).Draw(t, "budget before"))
		}
		for i := range rapid.IntRange(0, 9).Draw(t, "images") {
			s := slot(fmt.Sprintf("image-%d", i), 1)
			switch rapid.IntRange(0, 2).Draw(t, "is") {
			case 0:
				if v.Ledger == nil {
					break
				}
				s.Ended = flag("ended")
				v.Ledger.Slots = append(v.Ledger.Slots, s)
				if flag("looked") {
					v.Facts[queue.DataVolumeKey(s)] = queue.Facts{
						ImageGone: flag("gone"), Begun: flag("begun"), DataVolume: flag("DataVolume"), Complete: flag("complete"),
						Remains: flag("remains"), Outcome: rapid.SampledFrom(outcomes).Draw(t, "outcome"),
					}
				}
			case 1:
				v.Unlisted = append(v.Unlisted, queue.Unlisted{Slot: s, Wanted: flag("wanted")})
			}
			if flag("candidate") {
				v.Candidates = append(v.Candidates, candidate(s.Image.Name, rapid.Int32Range(1, 3).Draw(t, "attempt")))
			}
		}
		got := queue.Next(v)

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
		require.True(t, len(got.Slots) <= int(got.Budget) || shrinks, "the API server refuses it")
		if len(got.Admitted) > 0 {
			require.LessOrEqual(t, len(got.Slots), int(v.Budget), "admitted beyond the policy's budget")
		}
		for _, s := range got.Released {
			f := v.Facts[queue.DataVolumeKey(s)]
			require.True(t, f.ImageGone || f.Outcome != "", "freed without an outcome")
			require.True(t, f.Complete || s.Ended && !f.Remains, "freed while something is left")
		}

		again := v
		again.Ledger, again.Unlisted = &v1alpha1.SyncLedgerStatus{Budget: got.Budget, Slots: got.Slots}, nil
		again.Candidates, again.Facts = nil, nil
		again.Budget = got.Budget
		require.False(t, queue.Next(again).Changed, "with nothing new, nothing is written")
	})
}

func TestShouldCreate(t *testing.T) {
	for name, tt := range map[string]struct {
		slot  v1alpha1.Slot
		facts queue.Facts
		want  bool
	}{
		"nothing is there yet":              {slot("a", 1), queue.Facts{}, true},
		"only a claim or Pod lingers":       {slot("a", 1), queue.Facts{Remains: true}, true},
		"it is there":                       {slot("a", 1), queue.Facts{DataVolume: true}, false},
		"it has been there":                 {slot("a", 1), queue.Facts{Begun: true}, false},
		"it has failed":                     {slot("a", 1), factCleared, false},
		"it has succeeded":                  {slot("a", 1), queue.Facts{Outcome: v1alpha1.OutcomeSucceeded}, false},
		"the image is gone":                 {slot("a", 1), queue.Facts{ImageGone: true}, false},
		"the slot is marked as ended":       {ended(slot("a", 1)), queue.Facts{}, false},
		"marked, and the image knows of it": {ended(slot("a", 1)), factFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, queue.ShouldCreate(tt.slot, tt.facts))
		})
	}
}

// mostAttempts is where a name would grow beyond 53 characters.
const mostAttempts = 99_999_999

func TestDataVolumeName(t *testing.T) {
	long := strings.Repeat("a", 253)
	for name, tt := range map[string]struct {
		image      string
		wantPrefix string
	}{
		"plain":                      {"lab-404", "lab-404-"},
		"dots":                       {"ubuntu.24.04", "ubuntu-24-04-"},
		"253 characters":             {long, strings.Repeat("a", 30) + "-"},
		"a dash where it is cut":     {strings.Repeat("a", 29) + "-" + long[:20], strings.Repeat("a", 29) + "-"},
		"dashes where it is cut":     {"a" + strings.Repeat("-", 40) + "b", "a-"},
		"a dot where it is cut":      {strings.Repeat("a", 29) + "." + long[:20], strings.Repeat("a", 29) + "-"},
		"one character":              {"a", "a-"},
		"digits":                     {"404", "404-"},
		"the least and the most":     {"0." + strings.Repeat("z.", 100) + "9", "0-z-"},
		"exactly what fits":          {long[:30], long[:30] + "-"},
		"the name of another's name": {queue.DataVolumeName(key("lab-404"), 1), "lab-404-"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, attempt := range []int32{1, 10, mostAttempts} {
				got := queue.DataVolumeName(key(tt.image), attempt)
				assert.LessOrEqual(t, len(got), 53)
				assert.Empty(t, validation.IsDNS1123Label(got))
				assert.True(t, strings.HasPrefix(got, tt.wantPrefix), got)
				assert.NotContains(t, strings.TrimPrefix(got, tt.wantPrefix), "--", got)
				assert.True(t, strings.HasSuffix(got, fmt.Sprintf("-%d", attempt)), got)
			}
		})
	}
	assert.Empty(t, validation.IsDNS1123Label(queue.DataVolumeName(key(long), math.MaxInt32)), "valid still, if longer")
}

func TestDataVolumeNameIsOfOneAttempt(t *testing.T) {
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
		attempt, later := rapid.Int32Range(1, mostAttempts).Draw(t, "attempt"), rapid.Int32Range(1, mostAttempts).Draw(t, "later")
		got := queue.DataVolumeName(one, attempt)
		require.Empty(t, validation.IsDNS1123Label(got))
		require.LessOrEqual(t, len(got), 53)
		require.Equal(t, got, queue.DataVolumeName(one, attempt))
		if attempt != later {
			require.NotEqual(t, got, queue.DataVolumeName(one, later))
		}
		if one.UID != other.UID {
			require.NotEqual(t, got, queue.DataVolumeName(other, attempt))
			require.NotEqual(t, got, queue.DataVolumeName(other, later))
		}
	})
}
