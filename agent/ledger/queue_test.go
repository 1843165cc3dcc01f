package ledger_test

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

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func secondsAfterNow(second int) metav1.Time {
	return metav1.NewTime(now.UTC().Add(time.Duration(second) * time.Second))
}

func queuedImage(name string, sequence int64, state ledger.QueueState) ledger.QueuedImage {
	return ledger.QueuedImage{Image: imageKey(name), Revision: "r1", Key: v1alpha1.OrderingKey{Time: secondsAfterNow(0), Sequence: sequence}, State: state, Since: now}
}

func modified(i ledger.QueuedImage, change func(*ledger.QueuedImage)) ledger.QueuedImage {
	change(&i)
	return i
}

func queueOf(images ...ledger.QueuedImage) *ledger.Queue {
	q := ledger.NewQueue()
	for _, i := range images {
		q.Set(i)
	}
	return q
}

func peekHeadNames(q *ledger.Queue, n int, when time.Time) (names []string, wait time.Duration) {
	head, wait := q.PeekHead(n, when, nil, ledger.NamespaceShare{})
	for _, i := range head {
		names = append(names, i.Image.Name)
	}
	return names, wait
}

func TestQueuePeekHead(t *testing.T) {
	a, b, c := queuedImage("a", 1, ledger.Admissible), queuedImage("b", 2, ledger.Admissible), queuedImage("c", 3, ledger.Admissible)
	pending := func(i *ledger.QueuedImage) { i.State = ledger.Pending }
	skipped := func(i *ledger.QueuedImage) { i.State = ledger.Skipped }
	priority := func(p int32) func(*ledger.QueuedImage) { return func(i *ledger.QueuedImage) { i.Priority = p } }
	for name, tt := range map[string]struct {
		items       []ledger.QueuedImage
		maxPriority int32
		n           int
		after       time.Duration
		want        []string
		wantWait    time.Duration
	}{
		"empty":                           {n: 3},
		"first in, first out":             {items: []ledger.QueuedImage{c, a, b}, n: 3, want: []string{"a", "b", "c"}},
		"at most n":                       {items: []ledger.QueuedImage{c, a, b}, n: 2, want: []string{"a", "b"}},
		"n is 0":                          {items: []ledger.QueuedImage{a}, n: 0},
		"time before sequence":            {items: []ledger.QueuedImage{a, modified(b, func(i *ledger.QueuedImage) { i.Key.Time = secondsAfterNow(-1) })}, n: 2, want: []string{"b", "a"}},
		"UID between equal keys":          {items: []ledger.QueuedImage{queuedImage("b", 1, ledger.Admissible), a}, n: 2, want: []string{"a", "b"}},
		"a skipped image is passed over":  {items: []ledger.QueuedImage{modified(a, skipped), b}, n: 2, want: []string{"b"}},
		"a pending image blocks the rest": {items: []ledger.QueuedImage{a, modified(b, pending), c}, n: 3, want: []string{"a"}, wantWait: ledger.PendingGracePeriod},
		"a pending image does not block those before it": {items: []ledger.QueuedImage{a, modified(b, pending)}, n: 1, want: []string{"a"}},
		"blocked for the rest of the grace period":       {items: []ledger.QueuedImage{modified(a, pending), b}, n: 3, after: ledger.PendingGracePeriod - time.Second, wantWait: time.Second},
		"not blocked after the grace period":             {items: []ledger.QueuedImage{modified(a, pending), b}, n: 3, after: ledger.PendingGracePeriod, want: []string{"b"}},
		"blocked longer after the clock was set back":    {items: []ledger.QueuedImage{modified(a, pending), b}, n: 3, after: -time.Second, wantWait: ledger.PendingGracePeriod + time.Second},
		"priorities are ignored by default":              {items: []ledger.QueuedImage{a, modified(b, priority(5))}, n: 2, want: []string{"a", "b"}},
		"priorities are capped":                          {items: []ledger.QueuedImage{a, modified(b, priority(5)), modified(c, priority(9))}, maxPriority: 5, n: 3, want: []string{"b", "c", "a"}},
		"negative priorities always count":               {items: []ledger.QueuedImage{modified(a, priority(-1)), b}, n: 2, want: []string{"b", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queueOf(tt.items...)
			q.SetMaxPriority(tt.maxPriority)
			got, wait := peekHeadNames(q, tt.n, now.Add(tt.after))
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.wantWait, wait)
		})
	}
}

func TestSkippedImageKeepsItsPlace(t *testing.T) {
	a, b := queuedImage("a", 1, ledger.Admissible), queuedImage("b", 2, ledger.Admissible)
	q := queueOf(a, b)
	q.Set(modified(a, func(i *ledger.QueuedImage) { i.State = ledger.Skipped }))
	place, waits := q.Position(a.Image.UID)
	assert.False(t, waits)
	assert.Zero(t, place)
	q.Set(a)
	got, _ := peekHeadNames(q, 2, now)
	assert.Equal(t, []string{"a", "b"}, got, "a retry is ahead of later arrivals")
}

func TestPendingGracePeriodDoesNotRestart(t *testing.T) {
	a := queuedImage("a", 1, ledger.Pending)
	q := queueOf(a, queuedImage("b", 2, ledger.Admissible))
	later := now.Add(ledger.PendingGracePeriod / 2)
	again := modified(a, func(i *ledger.QueuedImage) { i.Since, i.Priority = later, -5 })
	q.Set(again)
	got, _ := q.Get(a.Image.UID)
	assert.Equal(t, now, got.Since, "still pending, with another priority")

	q.Set(modified(again, func(i *ledger.QueuedImage) { i.Revision = "r2" }))
	got, _ = q.Get(a.Image.UID)
	assert.Equal(t, later, got.Since, "another revision starts a new grace period")
}

// TestPendingImagesBlockForTheGracePeriodOnly: whoever lets images of theirs become Pending
// again and again, at the head of the queue, holds up an image once.
func TestPendingImagesBlockForTheGracePeriodOnly(t *testing.T) {
	victim := queuedImage("victim", 9, ledger.Admissible)
	q := queueOf(victim)
	for step := range 4 {
		when := now.Add(time.Duration(step) * ledger.PendingGracePeriod / 3)
		for i := range int64(3) {
			name := fmt.Sprintf("hostile-%d", i)
			q.Remove(imageKey(name).UID)
			q.Set(modified(queuedImage(name, i, ledger.Pending), func(i *ledger.QueuedImage) { i.Since = when }))
		}
		got, wait := peekHeadNames(q, 3, when)
		if step < 3 {
			assert.Empty(t, got, "its place is behind theirs")
			assert.Equal(t, now.Add(ledger.PendingGracePeriod).Sub(when), wait, "until it has waited itself")
			continue
		}
		assert.Equal(t, []string{"victim"}, got)
		assert.Equal(t, ledger.PendingGracePeriod, wait)
	}
}

func TestQueueReportsChangedHead(t *testing.T) {
	q := ledger.NewQueue()
	assert.True(t, q.Set(queuedImage("a", 1, ledger.Admissible)).HeadChanged)
	again := queuedImage("a", 1, ledger.Admissible)
	again.Key.Time = metav1.NewTime(again.Key.Time.In(time.FixedZone("", 7200)))
	assert.Equal(t, ledger.QueueChange{}, q.Set(again), "no change, in any time zone")
	assert.True(t, q.Set(queuedImage("a", 1, ledger.Pending)).HeadChanged)
	assert.True(t, q.Set(queuedImage("a", 1, ledger.Skipped)).HeadChanged, "those behind it are no longer blocked")
	assert.Equal(t, ledger.QueueChange{}, q.Remove(imageKey("a").UID), "a skipped image blocks nobody")
	assert.Equal(t, ledger.QueueChange{}, q.Remove(imageKey("a").UID))
	for i := range v1alpha1.MaxSlots {
		q.Set(queuedImage(fmt.Sprintf("first-%d", i), int64(i), ledger.Admissible))
	}
	assert.False(t, q.Set(queuedImage("last", 1000, ledger.Admissible)).HeadChanged, "beyond every admission")
	assert.False(t, q.Remove(imageKey("last").UID).HeadChanged)
	assert.True(t, q.Remove(imageKey("first-255").UID).HeadChanged)
}

// TestQueueReportsImagesThatPassPowersOfTen: when an image leaves, those that advance from
// position 1, 10 or 100.
func TestQueueReportsImagesThatPassPowersOfTen(t *testing.T) {
	format := func(advanced []ledger.AdvancedImage) (texts []string) {
		for _, a := range advanced {
			texts = append(texts, fmt.Sprintf("%s at %d", a.Image.Name, a.Position))
		}
		return texts
	}
	for name, tt := range map[string]struct {
		length int
		leaves string
		want   []string
	}{
		"the first":           {150, "0", []string{"1 at 0", "10 at 9", "100 at 99"}},
		"one in the middle":   {150, "5", []string{"10 at 9", "100 at 99"}},
		"the position before": {150, "9", []string{"10 at 9", "100 at 99"}},
		"the position itself": {150, "10", []string{"100 at 99"}},
		"behind all of them":  {150, "100", nil},
		"the last":            {101, "100", nil},
		"a short queue":       {10, "0", []string{"1 at 0"}},
		"just long enough":    {11, "0", []string{"1 at 0", "10 at 9"}},
		"the only one":        {1, "0", nil},
		"an unknown image":    {20, "99", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, leave := range []func(*ledger.Queue) ledger.QueueChange{
				func(q *ledger.Queue) ledger.QueueChange { return q.Remove(imageKey(tt.leaves).UID) },
				func(q *ledger.Queue) ledger.QueueChange { return q.Set(queuedImage(tt.leaves, 999, ledger.Skipped)) },
				func(q *ledger.Queue) ledger.QueueChange { return q.Set(queuedImage(tt.leaves, 999, ledger.NotQueued)) },
			} {
				q := ledger.NewQueue()
				for i := range tt.length {
					q.Set(queuedImage(fmt.Sprint(i), int64(i), ledger.Admissible))
				}
				assert.Equal(t, tt.want, format(leave(q).Advanced))
			}
		})
	}
}

func TestQueueStats(t *testing.T) {
	assert.Zero(t, ledger.NewQueue().Stats())
	early := modified(queuedImage("c", 1, ledger.Skipped), func(i *ledger.QueuedImage) { i.Key.Time = secondsAfterNow(-60) })
	q := queueOf(queuedImage("a", 1, ledger.Admissible), queuedImage("b", 2, ledger.Pending), early, queuedImage("d", 3, ledger.NotQueued))
	assert.Equal(t, ledger.QueueStats{Admissible: 1, Pending: 1, Skipped: 1, OldestArrival: secondsAfterNow(-60).Time}, q.Stats())
}

func keyLess(a, b v1alpha1.OrderingKey) bool {
	return cmp.Or(a.Time.Compare(b.Time.Time), cmp.Compare(a.Sequence, b.Sequence)) < 0
}

// TestNewKeyAtEndSortsBehindAllOthers uses random creation times.
func TestNewKeyAtEndSortsBehindAllOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ledger.NewQueue()
		var given []v1alpha1.OrderingKey
		for range rapid.IntRange(1, 30).Draw(t, "keys") {
			created := secondsAfterNow(rapid.IntRange(-100, 100).Draw(t, "created"))
			var got v1alpha1.OrderingKey
			switch rapid.IntRange(0, 2).Draw(t, "by") {
			case 0:
				got = v1alpha1.OrderingKey{Time: created, Sequence: rapid.Int64Range(0, 100).Draw(t, "sequence")}
				q.ObserveKey(got)
			case 1:
				got = q.NewKeyByCreation(created, 0)
				require.Equal(t, created, got.Time)
				for _, k := range given {
					require.Less(t, k.Sequence, got.Sequence, "equal creation times are ordered by observation")
				}
			default:
				got = q.NewKeyOnArrival(created, 0)
				require.False(t, got.Time.Before(&created))
				for _, k := range given {
					require.True(t, keyLess(k, got), "%v is not before %v", k, got)
				}
			}
			given = append(given, got)
		}
	})
}

func TestNewKeyByCreationSortsByCreationTime(t *testing.T) {
	q := ledger.NewQueue()
	q.ObserveKey(v1alpha1.OrderingKey{Time: secondsAfterNow(50), Sequence: 7})
	wantOrder := []v1alpha1.OrderingKey{q.NewKeyByCreation(secondsAfterNow(-20), 0), q.NewKeyByCreation(secondsAfterNow(-20), 0), q.NewKeyByCreation(secondsAfterNow(30), 0), {Time: secondsAfterNow(50), Sequence: 7}, q.NewKeyOnArrival(secondsAfterNow(-99), 0)}
	assert.True(t, slices.IsSortedFunc(wantOrder, func(a, b v1alpha1.OrderingKey) int {
		if keyLess(a, b) {
			return -1
		}
		return 1
	}))
}

// naiveQueue is the simplest implementation of the queue.
type naiveQueue struct {
	images      map[types.UID]ledger.QueuedImage
	maxPriority int32
}

func (n *naiveQueue) sortedImages() (order []ledger.QueuedImage) {
	for _, i := range n.images {
		if i.State == ledger.Admissible || i.State == ledger.Pending {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b ledger.QueuedImage) int {
		pa, pb := min(a.Priority, n.maxPriority), min(b.Priority, n.maxPriority)
		switch {
		case pa != pb:
			return int(pb - pa)
		case keyLess(a.Key, b.Key):
			return -1
		case keyLess(b.Key, a.Key):
			return 1
		}
		return cmp.Compare(a.Image.UID, b.Image.UID)
	})
	return order
}

func (n *naiveQueue) peekHead(most int, when time.Time) (head []ledger.QueuedImage, wait time.Duration) {
	for _, i := range n.sortedImages() {
		left := i.Since.Add(ledger.PendingGracePeriod).Sub(when)
		blocks := i.State == ledger.Pending && left > 0
		isBlocked := i.State == ledger.Admissible && wait > 0 && left > 0
		switch {
		case len(head) == most:
			return head, 0
		case blocks && wait == 0:
			wait = left
		case blocks || isBlocked:
			wait = min(wait, left)
		case i.State == ledger.Admissible:
			head = append(head, i)
		}
	}
	if len(head) == most {
		return head, 0
	}
	return head, wait
}

func TestQueueMatchesNaiveQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, n := ledger.NewQueue(), &naiveQueue{images: map[types.UID]ledger.QueuedImage{}}
		clock := now
		names := rapid.StringMatching(`[a-f]`)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i := ledger.QueuedImage{
					Image:    imageKey(names.Draw(t, "name")),
					Revision: rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "revision"),
					Key:      v1alpha1.OrderingKey{Time: secondsAfterNow(rapid.IntRange(0, 2).Draw(t, "time")), Sequence: rapid.Int64Range(0, 3).Draw(t, "sequence")},
					Priority: rapid.Int32Range(-2, 3).Draw(t, "priority"),
					State:    ledger.QueueState(rapid.IntRange(int(ledger.NotQueued), int(ledger.Skipped)).Draw(t, "standing")),
					Since:    clock,
				}
				q.Set(i)
				if old, known := n.images[i.Image.UID]; known && old.State == i.State && old.Revision == i.Revision {
					i.Since = old.Since
				}
				n.images[i.Image.UID] = i
				if i.State == ledger.NotQueued {
					delete(n.images, i.Image.UID)
				}
			},
			"remove": func(t *rapid.T) {
				uid := imageKey(names.Draw(t, "name")).UID
				q.Remove(uid)
				delete(n.images, uid)
			},
			"cap priorities": func(t *rapid.T) {
				n.maxPriority = rapid.Int32Range(0, 3).Draw(t, "most")
				q.SetMaxPriority(n.maxPriority)
			},
			"time passes": func(t *rapid.T) {
				clock = clock.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				order := n.sortedImages()
				for i, wantItem := range order {
					place, waits := q.Position(wantItem.Image.UID)
					require.True(t, waits)
					require.EqualValues(t, i, place)
				}
				var wantReady []v1alpha1.ImageKey
				for uid, i := range n.images {
					if i.State == ledger.Admissible {
						wantReady = append(wantReady, n.images[uid].Image)
					}
				}
				require.ElementsMatch(t, wantReady, q.ListKeys(ledger.Admissible))
				require.Len(t, q.ListKeys(), len(n.images))
				for most := range 4 {
					wantHead, wantWait := n.peekHead(most, clock)
					got, wait := q.PeekHead(most, clock, nil, ledger.NamespaceShare{})
					require.Equal(t, wantHead, got)
					require.Equal(t, wantWait, wait)
				}
				stats := q.Stats()
				require.Equal(t, len(n.images), stats.Admissible+stats.Pending+stats.Skipped)
				for uid, wantItem := range n.images {
					got, there := q.Get(uid)
					require.True(t, there)
					require.Equal(t, wantItem, got)
					_, waits := q.Position(uid)
					require.Equal(t, wantItem.State != ledger.Skipped, waits)
				}
			},
		})
	})
}

// TestQueueReportsEveryHeadChange: admissions rely on the reports of Set and Remove.
func TestQueueReportsEveryHeadChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ledger.NewQueue()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			beforeIt, _ := q.PeekHead(3, now, nil, ledger.NamespaceShare{})
			i := queuedImage(rapid.StringMatching(`[a-f]`).Draw(t, "name"), rapid.Int64Range(0, 5).Draw(t, "sequence"), ledger.QueueState(rapid.IntRange(0, 3).Draw(t, "standing")))
			told := false
			if rapid.Bool().Draw(t, "remove") {
				told = q.Remove(i.Image.UID).HeadChanged
			} else {
				told = q.Set(i).HeadChanged
			}
			after, _ := q.PeekHead(3, now, nil, ledger.NamespaceShare{})
			if !told {
				require.Equal(t, beforeIt, after)
			}
		}
	})
}

func TestQueueIsSafeForConcurrentUse(t *testing.T) {
	q := ledger.NewQueue()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 200 {
				it := queuedImage(fmt.Sprintf("%d-%d", w, i%20), int64(i), ledger.QueueState(i%4))
				it.Key = q.NewKeyOnArrival(secondsAfterNow(i), 0)
				q.Set(it)
				q.PeekHead(3, now, nil, ledger.NamespaceShare{})
				q.Position(it.Image.UID)
				q.ListKeys(ledger.Skipped)
				q.Stats()
				q.SetMaxPriority(int32(i % 3))
				q.Remove(imageKey(fmt.Sprintf("%d-%d", w, i%7)).UID)
			}
		})
	}
	all.Wait()
}

// BenchmarkQueue adds an image to a queue of constant length, reads the head and its
// position, and removes the first.
func BenchmarkQueue(b *testing.B) {
	for _, length := range []int{100, 10_000} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			names := make([]ledger.QueuedImage, 2*length)
			for i := range names {
				names[i] = queuedImage(fmt.Sprintf("image-%d", i), 0, ledger.Admissible)
			}
			q := ledger.NewQueue()
			come := func(i int) types.UID {
				it := names[i%len(names)]
				it.Key = q.NewKeyOnArrival(secondsAfterNow(i), 0)
				q.Set(it)
				return it.Image.UID
			}
			for i := range length {
				come(i)
			}
			b.ReportAllocs()
			for i := length; b.Loop(); i++ {
				last := come(i)
				head, _ := q.PeekHead(4, now, nil, ledger.NamespaceShare{})
				q.Position(last)
				q.Remove(head[0].Image.UID)
			}
		})
	}
}
