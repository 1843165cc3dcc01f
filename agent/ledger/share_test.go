package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageIn is an image whose namespace is the first letter of its name.
func imageIn(name string, sequence int64) ledger.QueuedImage {
	return modified(queuedImage(name, sequence, ledger.Admissible), func(i *ledger.QueuedImage) { i.Image.Namespace = name[:1] })
}

func slotIn(name string) v1alpha1.Slot {
	slot := newSlot(name, 1)
	slot.Image.Namespace = name[:1]
	return slot
}

func candidateIn(name string) ledger.Candidate {
	c := newCandidate(name, 1)
	c.Image.Namespace = name[:1]
	return c
}

func namesOf[T any](items []T, key func(T) v1alpha1.ImageKey) (names []string) {
	for _, item := range items {
		names = append(names, key(item).Name)
	}
	return names
}

func queuedKey(i ledger.QueuedImage) v1alpha1.ImageKey  { return i.Image }
func slotKey(s v1alpha1.Slot) v1alpha1.ImageKey         { return s.Image }
func candidateKey(c ledger.Candidate) v1alpha1.ImageKey { return c.Image }

func TestNamespaceShare(t *testing.T) {
	for name, tt := range map[string]struct {
		share      int32
		queue      []string // in the order of arrival
		slots      []v1alpha1.Slot
		n          int
		want       []string
		passedOver []string
	}{
		"off":                                {0, []string{"a1", "a2", "b1"}, nil, 2, []string{"a1", "a2"}, nil},
		"one namespace fills the rest":       {1, []string{"a1", "a2", "a3"}, nil, 3, []string{"a1", "a2", "a3"}, nil},
		"another one goes first":             {1, []string{"a1", "a2", "a3", "b1"}, nil, 3, []string{"a1", "b1", "a2"}, []string{"a2", "a3"}},
		"slots count":                        {2, []string{"a1", "a2", "b1", "b2"}, slotList(slotIn("a8"), slotIn("a9")), 2, []string{"b1", "b2"}, []string{"a1", "a2"}},
		"a few slots count":                  {2, []string{"a1", "a2", "b1", "c1"}, slotList(slotIn("a9")), 3, []string{"a1", "b1", "c1"}, []string{"a2"}},
		"holders are passed over":            {2, []string{"a9", "a1", "b1"}, slotList(slotIn("a9")), 3, []string{"a1", "b1"}, nil},
		"all have their share":               {1, []string{"b1", "a1"}, slotList(slotIn("a9"), slotIn("b9")), 2, []string{"b1", "a1"}, nil},
		"within a namespace the order stays": {1, []string{"b2", "a1", "b1", "a2"}, nil, 4, []string{"b2", "a1", "b1", "a2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			q := ledger.NewQueue()
			for i, image := range tt.queue {
				q.Set(imageIn(image, int64(i)))
			}
			share := ledger.NewNamespaceShare(tt.share, tt.slots, nil)
			head, wait := q.PeekHead(tt.n, now, nil, share)
			assert.Equal(t, tt.want, namesOf(head, queuedKey))
			assert.Zero(t, wait)
			want := map[types.UID]bool{}
			for _, image := range tt.passedOver {
				want[imageKey(image).UID] = true
			}
			got := q.ListPassedOver(share)
			assert.Len(t, got, len(want))
			for uid := range want {
				assert.True(t, got[uid], "%s", uid)
			}
			decision := ledger.Decide(ledger.View{
				Now: now, Budget: int32(len(tt.slots) + tt.n), NamespaceShare: tt.share, Ledger: &v1alpha1.SyncLedgerStatus{Slots: tt.slots},
				Facts: factsOfAll(tt.slots), Candidates: candidatesOf(tt.queue),
			})
			assert.Equal(t, tt.want, namesOf(decision.Admitted, slotKey))
		})
	}
}

func factsOfAll(slots []v1alpha1.Slot) map[string]ledger.SlotFacts {
	facts := map[string]ledger.SlotFacts{}
	for _, slot := range slots {
		facts[ledger.DataVolumeKey(slot)] = runningFacts
	}
	return facts
}

func candidatesOf(names []string) (candidates []ledger.Candidate) {
	for _, name := range names {
		candidates = append(candidates, candidateIn(name))
	}
	return candidates
}

// TestPendingImageBeyondShareBlocksNobody: what may not be admitted need not be awaited.
func TestPendingImageBeyondShareBlocksNobody(t *testing.T) {
	pending := modified(imageIn("a1", 1), func(i *ledger.QueuedImage) { i.State = ledger.Pending })
	q := queueOf(pending, imageIn("b1", 2))
	head, wait := q.PeekHead(2, now, nil, ledger.NewNamespaceShare(1, slotList(slotIn("a9")), nil))
	assert.Equal(t, []string{"b1"}, namesOf(head, queuedKey))
	assert.Zero(t, wait)
	_, wait = q.PeekHead(2, now, nil, ledger.NewNamespaceShare(2, slotList(slotIn("a9")), nil))
	assert.Equal(t, ledger.PendingGracePeriod, wait)
}

func TestHeadChangesAnywhereWithShare(t *testing.T) {
	q := ledger.NewQueue()
	for i := range v1alpha1.MaxSlots + 1 {
		q.Set(imageIn(fmt.Sprint("a", i), int64(i)))
	}
	assert.False(t, q.Set(imageIn("b1", 1000)).HeadChanged)
	q.SetNamespaceShare(1)
	assert.True(t, q.Set(imageIn("b2", 1001)).HeadChanged)
	q.SetNamespaceShare(0)
	assert.False(t, q.Set(imageIn("b3", 1002)).HeadChanged)
}

// TestDecideKeepsToNamespaceShare: no slot stays free while a candidate waits, no namespace
// gets a slot beyond its share while another one below its share waits, and each namespace
// is first in, first out.
func TestDecideKeepsToNamespaceShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		namespaces := rapid.SampledFrom([]string{"a", "b", "c"})
		v := ledger.View{Now: now, Budget: rapid.Int32Range(0, 8).Draw(t, "budget"), NamespaceShare: rapid.Int32Range(0, 4).Draw(t, "share"), Ledger: &v1alpha1.SyncLedgerStatus{}}
		held := map[string]int{}
		for i := range rapid.IntRange(0, 6).Draw(t, "slots") {
			slot := slotIn(fmt.Sprint(namespaces.Draw(t, "slot"), "s", i))
			v.Ledger.Slots = append(v.Ledger.Slots, slot)
			held[slot.Image.Namespace]++
		}
		v.Facts = factsOfAll(v.Ledger.Slots)
		for i := range rapid.IntRange(0, 10).Draw(t, "candidates") {
			v.Candidates = append(v.Candidates, candidateIn(fmt.Sprint(namespaces.Draw(t, "candidate"), i)))
		}
		admitted := ledger.Decide(v).Admitted
		require.Len(t, admitted, max(0, min(int(v.Budget)-len(v.Ledger.Slots), len(v.Candidates))), "no slot stays free")

		names := namesOf(admitted, slotKey)
		waiting := slices.DeleteFunc(slices.Clone(v.Candidates), func(c ledger.Candidate) bool { return slices.Contains(names, c.Image.Name) })
		for _, slot := range admitted {
			held[slot.Image.Namespace]++
		}
		share := int(v.NamespaceShare)
		for _, c := range waiting {
			for _, slot := range admitted {
				if share > 0 && held[slot.Image.Namespace] > share {
					require.GreaterOrEqual(t, held[c.Image.Namespace], share, "%s waits although %s has more than its share", c.Image.Name, slot.Image.Namespace)
				}
			}
		}
		for _, namespace := range []string{"a", "b", "c"} {
			of := func(name string) bool { return name[:1] != namespace }
			inOrder := slices.DeleteFunc(namesOf(v.Candidates, candidateKey), of)
			got := slices.DeleteFunc(slices.Clone(names), of)
			require.True(t, slices.Equal(inOrder[:len(got)], got), "%v of %v", got, inOrder)
		}
	})
}

// TestPeekHeadAgreesWithDecide: the queue offers those that Decide admits.
func TestPeekHeadAgreesWithDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, v := ledger.NewQueue(), ledger.View{Now: now, NamespaceShare: rapid.Int32Range(0, 3).Draw(t, "share"), Ledger: &v1alpha1.SyncLedgerStatus{}}
		namespaces := rapid.SampledFrom([]string{"a", "b", "c"})
		for i := range rapid.IntRange(0, 4).Draw(t, "slots") {
			v.Ledger.Slots = append(v.Ledger.Slots, slotIn(fmt.Sprint(namespaces.Draw(t, "slot"), "s", i)))
		}
		v.Facts = factsOfAll(v.Ledger.Slots)
		for i := range rapid.IntRange(0, 10).Draw(t, "images") {
			name := fmt.Sprint(namespaces.Draw(t, "image"), i)
			q.Set(imageIn(name, int64(i)))
			v.Candidates = append(v.Candidates, candidateIn(name))
		}
		n := rapid.IntRange(0, 6).Draw(t, "free")
		v.Budget = int32(len(v.Ledger.Slots) + n)
		head, _ := q.PeekHead(n, now, nil, ledger.NewNamespaceShare(v.NamespaceShare, v.Ledger.Slots, nil))
		require.Equal(t, namesOf(ledger.Decide(v).Admitted, slotKey), namesOf(head, queuedKey))
	})
}

// BenchmarkPeekHeadBehindOneNamespace: one namespace has all images but the last.
func BenchmarkPeekHeadBehindOneNamespace(b *testing.B) {
	for _, images := range []int{100, 10_000, 100_000} {
		q := ledger.NewQueue()
		for i := range images - 1 {
			q.Set(imageIn(fmt.Sprint("a", i), int64(i)))
		}
		q.Set(imageIn("b", int64(images)))
		share := ledger.NewNamespaceShare(1, slotList(slotIn("a-slot")), nil)
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			for range b.N {
				if head, _ := q.PeekHead(1, now, nil, share); head[0].Image.Namespace != "b" {
					b.Fatal(head)
				}
			}
		})
	}
}
