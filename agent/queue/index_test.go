package queue_test

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func at(second int) metav1.Time {
	return metav1.NewTime(now.UTC().Add(time.Duration(second) * time.Second))
}

func item(name string, sequence int64, standing queue.Standing) queue.Item {
	return queue.Item{Image: key(name), Revision: "r1", Key: v1alpha1.OrderingKey{Time: at(0), Sequence: sequence}, Standing: standing, Since: now}
}

func with(i queue.Item, change func(*queue.Item)) queue.Item { change(&i); return i }

func indexOf(items ...queue.Item) *queue.Index {
	x := queue.NewIndex()
	for _, i := range items {
		x.Set(i)
	}
	return x
}

func headOf(x *queue.Index, n int, when time.Time) (names []string, wait time.Duration) {
	head, wait := x.Head(n, when, nil)
	for _, i := range head {
		names = append(names, i.Image.Name)
	}
	return names, wait
}

func TestIndexHead(t *testing.T) {
	a, b, c := item("a", 1, queue.Ready), item("b", 2, queue.Ready), item("c", 3, queue.Ready)
	pending := func(i *queue.Item) { i.Standing = queue.Pending }
	skipped := func(i *queue.Item) { i.Standing = queue.Skipped }
	priority := func(p int32) func(*queue.Item) { return func(i *queue.Item) { i.Priority = p } }
	for name, tt := range map[string]struct {
		items       []queue.Item
		maxPriority int32
		n           int
		after       time.Duration
		want        []string
		wantWait    time.Duration
	}{
		"empty":                                    {n: 3},
		"first in, first out":                      {items: []queue.Item{c, a, b}, n: 3, want: []string{"a", "b", "c"}},
		"no more than asked for":                   {items: []queue.Item{c, a, b}, n: 2, want: []string{"a", "b"}},
		"none asked for":                           {items: []queue.Item{a}, n: 0},
		"the time goes before the sequence":        {items: []queue.Item{a, with(b, func(i *queue.Item) { i.Key.Time = at(-1) })}, n: 2, want: []string{"b", "a"}},
		"the UID decides between equal keys":       {items: []queue.Item{item("b", 1, queue.Ready), a}, n: 2, want: []string{"a", "b"}},
		"one that is skipped is passed":            {items: []queue.Item{with(a, skipped), b}, n: 2, want: []string{"b"}},
		"one that is pending holds up the rest":    {items: []queue.Item{a, with(b, pending), c}, n: 3, want: []string{"a"}, wantWait: queue.Grace},
		"not those before it":                      {items: []queue.Item{a, with(b, pending)}, n: 1, want: []string{"a"}},
		"for what is left of its grace":            {items: []queue.Item{with(a, pending), b}, n: 3, after: queue.Grace - time.Second, wantWait: time.Second},
		"and no longer":                            {items: []queue.Item{with(a, pending), b}, n: 3, after: queue.Grace, want: []string{"b"}},
		"a clock that ran back holds up longer":    {items: []queue.Item{with(a, pending), b}, n: 3, after: -time.Second, wantWait: queue.Grace + time.Second},
		"a priority counts for nothing by default": {items: []queue.Item{a, with(b, priority(5))}, n: 2, want: []string{"a", "b"}},
		"a priority counts up to the most":         {items: []queue.Item{a, with(b, priority(5)), with(c, priority(9))}, maxPriority: 5, n: 3, want: []string{"b", "c", "a"}},
		"below 0 it always counts":                 {items: []queue.Item{with(a, priority(-1)), b}, n: 2, want: []string{"b", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := indexOf(tt.items...)
			x.SetMaxPriority(tt.maxPriority)
			got, wait := headOf(x, tt.n, now.Add(tt.after))
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.wantWait, wait)
		})
	}
}

func TestIndexSkippedKeepsItsPlace(t *testing.T) {
	a, b := item("a", 1, queue.Ready), item("b", 2, queue.Ready)
	x := indexOf(a, b)
	x.Set(with(a, func(i *queue.Item) { i.Standing = queue.Skipped }))
	place, waits := x.Position(a.Image.UID)
	assert.False(t, waits)
	assert.Zero(t, place)
	x.Set(a)
	got, _ := headOf(x, 2, now)
	assert.Equal(t, []string{"a", "b"}, got, "a retry goes before those that came later")
}

func TestIndexGraceIsNotBegunAnew(t *testing.T) {
	a := item("a", 1, queue.Pending)
	x := indexOf(a, item("b", 2, queue.Ready))
	later := now.Add(queue.Grace / 2)
	again := with(a, func(i *queue.Item) { i.Since, i.Priority = later, -5 })
	x.Set(again)
	got, _ := x.Get(a.Image.UID)
	assert.Equal(t, now, got.Since, "still pending, if of another priority")

	x.Set(with(again, func(i *queue.Item) { i.Revision = "r2" }))
	got, _ = x.Get(a.Image.UID)
	assert.Equal(t, later, got.Since, "another revision is not known to be anything yet")
}

func TestIndexTellsWhetherTheHeadMayHaveChanged(t *testing.T) {
	x := queue.NewIndex()
	assert.True(t, x.Set(item("a", 1, queue.Ready)).Head)
	again := item("a", 1, queue.Ready)
	again.Key.Time = metav1.NewTime(again.Key.Time.In(time.FixedZone("", 7200)))
	assert.Equal(t, queue.Change{}, x.Set(again), "nothing is new, in whatever time zone")
	assert.True(t, x.Set(item("a", 1, queue.Pending)).Head)
	assert.True(t, x.Set(item("a", 1, queue.Skipped)).Head, "those behind it may go")
	assert.Equal(t, queue.Change{}, x.Remove(key("a").UID), "it held up nobody")
	assert.Equal(t, queue.Change{}, x.Remove(key("a").UID))
	for i := range v1alpha1.MaxSlots {
		x.Set(item(fmt.Sprintf("first-%d", i), int64(i), queue.Ready))
	}
	assert.False(t, x.Set(item("last", 1000, queue.Ready)).Head, "no admission reaches as far")
	assert.False(t, x.Remove(key("last").UID).Head)
	assert.True(t, x.Remove(key("first-255").UID).Head)
}

// TestIndexTellsWhoHasPassedAPowerOfTen: when one leaves, those behind it whose
// place was 1, 10 or 100, and is 0, 9 or 99 now.
func TestIndexTellsWhoHasPassedAPowerOfTen(t *testing.T) {
	names := func(keys []v1alpha1.ImageKey) (names []string) {
		for _, k := range keys {
			names = append(names, k.Name)
		}
		return names
	}
	for name, tt := range map[string]struct {
		length int
		leaves string
		want   []string
	}{
		"the first":           {150, "0", []string{"1", "10", "100"}},
		"one in the middle":   {150, "5", []string{"10", "100"}},
		"at the place before": {150, "9", []string{"10", "100"}},
		"at the place itself": {150, "10", []string{"100"}},
		"behind all of them":  {150, "100", nil},
		"the last":            {101, "100", nil},
		"a short queue":       {10, "0", []string{"1"}},
		"just long enough":    {11, "0", []string{"1", "10"}},
		"the only one":        {1, "0", nil},
		"one that is unknown": {20, "99", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, leave := range []func(*queue.Index) queue.Change{
				func(x *queue.Index) queue.Change { return x.Remove(key(tt.leaves).UID) },
				func(x *queue.Index) queue.Change { return x.Set(item(tt.leaves, 999, queue.Skipped)) },
				func(x *queue.Index) queue.Change { return x.Set(item(tt.leaves, 999, queue.Out)) },
			} {
				x := queue.NewIndex()
				for i := range tt.length {
					x.Set(item(fmt.Sprint(i), int64(i), queue.Ready))
				}
				assert.Equal(t, tt.want, names(leave(x).Passed))
			}
		})
	}
}

func TestIndexStats(t *testing.T) {
	assert.Zero(t, queue.NewIndex().Stats())
	early := with(item("c", 1, queue.Skipped), func(i *queue.Item) { i.Key.Time = at(-60) })
	x := indexOf(item("a", 1, queue.Ready), item("b", 2, queue.Pending), early, item("d", 3, queue.Out))
	assert.Equal(t, queue.Stats{Ready: 1, Pending: 1, Skipped: 1, OldestSince: at(-60).Time}, x.Stats())
}

func before(a, b v1alpha1.OrderingKey) bool {
	return cmp.Or(a.Time.Compare(b.Time.Time), cmp.Compare(a.Sequence, b.Sequence)) < 0
}

// TestNewKeyIsBehindAllOthers: clocks may say what they like.
func TestNewKeyIsBehindAllOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := queue.NewIndex()
		var given []v1alpha1.OrderingKey
		for range rapid.IntRange(1, 30).Draw(t, "keys") {
			created := at(rapid.IntRange(-100, 100).Draw(t, "created"))
			var got v1alpha1.OrderingKey
			switch rapid.IntRange(0, 2).Draw(t, "by") {
			case 0:
				got = v1alpha1.OrderingKey{Time: created, Sequence: rapid.Int64Range(0, 100).Draw(t, "sequence")}
				x.Saw(got)
			case 1:
				got = x.NewKeyByAge(created)
				require.Equal(t, created, got.Time)
				for _, k := range given {
					require.Less(t, k.Sequence, got.Sequence, "of the same age, the one that was seen later goes later")
				}
			default:
				got = x.NewKey(created)
				require.False(t, got.Time.Before(&created))
				for _, k := range given {
					require.True(t, before(k, got), "%v is not before %v", k, got)
				}
			}
			given = append(given, got)
		}
	})
}

func TestNewKeyByAgeGoesByCreationTime(t *testing.T) {
	x := queue.NewIndex()
	x.Saw(v1alpha1.OrderingKey{Time: at(50), Sequence: 7})
	wantOrder := []v1alpha1.OrderingKey{x.NewKeyByAge(at(-20)), x.NewKeyByAge(at(-20)), x.NewKeyByAge(at(30)), {Time: at(50), Sequence: 7}, x.NewKey(at(-99))}
	assert.True(t, slices.IsSortedFunc(wantOrder, func(a, b v1alpha1.OrderingKey) int {
		if before(a, b) {
			return -1
		}
		return 1
	}))
}

// naive is the queue as one would write it without a thought for speed.
type naive struct {
	items       map[types.UID]queue.Item
	maxPriority int32
}

func (n *naive) order() (order []queue.Item) {
	for _, i := range n.items {
		if i.Standing == queue.Ready || i.Standing == queue.Pending {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b queue.Item) int {
		pa, pb := min(a.Priority, n.maxPriority), min(b.Priority, n.maxPriority)
		switch {
		case pa != pb:
			return int(pb - pa)
		case before(a.Key, b.Key):
			return -1
		case before(b.Key, a.Key):
			return 1
		}
		return cmp.Compare(a.Image.UID, b.Image.UID)
	})
	return order
}

func (n *naive) head(most int, when time.Time) (head []queue.Item, wait time.Duration) {
	for _, i := range n.order() {
		left := i.Since.Add(queue.Grace).Sub(when)
		switch {
		case len(head) == most:
			return head, 0
		case i.Standing == queue.Ready:
			head = append(head, i)
		case left > 0:
			return head, left
		}
	}
	return head, 0
}

func TestIndexAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, n := queue.NewIndex(), &naive{items: map[types.UID]queue.Item{}}
		clock := now
		names := rapid.StringMatching(`[a-f]`)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i := queue.Item{
					Image:    key(names.Draw(t, "name")),
					Revision: rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "revision"),
					Key:      v1alpha1.OrderingKey{Time: at(rapid.IntRange(0, 2).Draw(t, "time")), Sequence: rapid.Int64Range(0, 3).Draw(t, "sequence")},
					Priority: rapid.Int32Range(-2, 3).Draw(t, "priority"),
					Standing: queue.Standing(rapid.IntRange(int(queue.Out), int(queue.Skipped)).Draw(t, "standing")),
					Since:    clock,
				}
				x.Set(i)
				if old, known := n.items[i.Image.UID]; known && old.Standing == i.Standing && old.Revision == i.Revision {
					i.Since = old.Since
				}
				n.items[i.Image.UID] = i
				if i.Standing == queue.Out {
					delete(n.items, i.Image.UID)
				}
			},
			"remove": func(t *rapid.T) {
				uid := key(names.Draw(t, "name")).UID
				x.Remove(uid)
				delete(n.items, uid)
			},
			"cap priorities": func(t *rapid.T) {
				n.maxPriority = rapid.Int32Range(0, 3).Draw(t, "most")
				x.SetMaxPriority(n.maxPriority)
			},
			"time goes by": func(t *rapid.T) {
				clock = clock.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				order := n.order()
				for i, wantItem := range order {
					place, waits := x.Position(wantItem.Image.UID)
					require.True(t, waits)
					require.EqualValues(t, i, place)
				}
				var wantReady []v1alpha1.ImageKey
				for uid, i := range n.items {
					if i.Standing == queue.Ready {
						wantReady = append(wantReady, n.items[uid].Image)
					}
				}
				require.ElementsMatch(t, wantReady, x.Keys(queue.Ready))
				require.Len(t, x.Keys(), len(n.items))
				for most := range 4 {
					wantHead, wantWait := n.head(most, clock)
					got, wait := x.Head(most, clock, nil)
					require.Equal(t, wantHead, got)
					require.Equal(t, wantWait, wait)
				}
				stats := x.Stats()
				require.Equal(t, len(n.items), stats.Ready+stats.Pending+stats.Skipped)
				for uid, wantItem := range n.items {
					got, there := x.Get(uid)
					require.True(t, there)
					require.Equal(t, wantItem, got)
					_, waits := x.Position(uid)
					require.Equal(t, wantItem.Standing != queue.Skipped, waits)
				}
			},
		})
	})
}

// TestIndexTellsOfEveryChangeOfTheHead: an admission is tried only when Set or
// Remove say so.
func TestIndexTellsOfEveryChangeOfTheHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := queue.NewIndex()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			beforeIt, _ := x.Head(3, now, nil)
			i := item(rapid.StringMatching(`[a-f]`).Draw(t, "name"), rapid.Int64Range(0, 5).Draw(t, "sequence"), queue.Standing(rapid.IntRange(0, 3).Draw(t, "standing")))
			told := false
			if rapid.Bool().Draw(t, "remove") {
				told = x.Remove(i.Image.UID).Head
			} else {
				told = x.Set(i).Head
			}
			after, _ := x.Head(3, now, nil)
			if !told {
				require.Equal(t, beforeIt, after)
			}
		}
	})
}

func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	x := queue.NewIndex()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 200 {
				it := item(fmt.Sprintf("%d-%d", w, i%20), int64(i), queue.Standing(i%4))
				it.Key = x.NewKey(at(i))
				x.Set(it)
				x.Head(3, now, nil)
				x.Position(it.Image.UID)
				x.Keys(queue.Skipped)
				x.Stats()
				x.SetMaxPriority(int32(i % 3))
				x.Remove(key(fmt.Sprintf("%d-%d", w, i%7)).UID)
			}
		})
	}
	all.Wait()
}

// BenchmarkIndex is an image's way through a queue of a steady length: it comes
// last, the head is read, its place is asked for, and the first goes.
func BenchmarkIndex(b *testing.B) {
	for _, length := range []int{100, 10_000} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			names := make([]queue.Item, 2*length)
			for i := range names {
				names[i] = item(fmt.Sprintf("image-%d", i), 0, queue.Ready)
			}
			x := queue.NewIndex()
			come := func(i int) types.UID {
				it := names[i%len(names)]
				it.Key = x.NewKey(at(i))
				x.Set(it)
				return it.Image.UID
			}
			for i := range length {
				come(i)
			}
			b.ReportAllocs()
			for i := length; b.Loop(); i++ {
				last := come(i)
				head, _ := x.Head(4, now, nil)
				x.Position(last)
				x.Remove(head[0].Image.UID)
			}
		})
	}
}
