package queue

import (
	"cmp"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Standing is how an image takes part in the queue.
type Standing int

const (
	// Out: not in the queue.
	Out Standing = iota
	// Ready: may be admitted.
	Ready
	// Pending: it is not known yet whether it may be admitted. It holds up those
	// behind it for up to Grace, or they would pass it.
	Pending
	// Skipped: waits in its place for something of its own (a backoff, a missing
	// Secret) and is passed meanwhile.
	Skipped
)

// Grace is how long a Pending image holds up those behind it.
const Grace = 10 * time.Second

// Item is an image in the queue.
type Item struct {
	Image    v1alpha1.ImageKey
	Revision string
	Key      v1alpha1.OrderingKey
	Priority int32
	Standing Standing
	// Since is when it took this standing.
	Since time.Time
	// Host that the revision is imported from, and Group the group of sources that it
	// belongs to, which the Index knows; empty for none.
	Host, Group string
}

// Index is the queue of a cluster in memory: who is next, and who is where. All
// of it is worked out anew from the images after a restart. It is safe for
// concurrent use.
//
// The order is a sorted slice: finding a place is a binary search, and at
// 10,000 images an insertion moves 80 KB, which takes microseconds.
type Index struct {
	mu          sync.Mutex
	items       map[types.UID]*Item
	order       []*Item // Ready and Pending, sorted
	maxPriority int32
	lastTime    metav1.Time
	lastSeq     int64

	groupOf  func(host string) string
	withheld map[types.UID]v1alpha1.Reason
}

// NewIndex returns an empty queue.
func NewIndex() *Index {
	return &Index{items: map[types.UID]*Item{}, groupOf: func(string) string { return "" }}
}

// compare orders two items; UID decides between keys that two leaders gave at
// the same time.
func (x *Index) compare(a, b *Item) int {
	return cmp.Or(
		cmp.Compare(min(b.Priority, x.maxPriority), min(a.Priority, x.maxPriority)),
		a.Key.Time.Compare(b.Key.Time.Time),
		cmp.Compare(a.Key.Sequence, b.Key.Sequence),
		cmp.Compare(a.Image.UID, b.Image.UID),
	)
}

// Saw keeps later keys behind one that was given before.
func (x *Index) Saw(key v1alpha1.OrderingKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastSeq = max(x.lastSeq, key.Sequence)
	if key.Time.After(x.lastTime.Time) {
		x.lastTime = key.Time
	}
}

// NewKey gives the key of what has just arrived: behind everything that was
// there before, whatever the clocks say. With a zero time, it is that of a
// return to the queue.
func (x *Index) NewKey(created metav1.Time) v1alpha1.OrderingKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	if created.After(x.lastTime.Time) {
		x.lastTime = created
	}
	x.lastSeq++
	return v1alpha1.OrderingKey{Time: x.lastTime, Sequence: x.lastSeq}
}

// NewKeyByAge gives the key of what arrived while no agent ran: by its creation
// time. Call it in the order in which the images are taken to have arrived.
func (x *Index) NewKeyByAge(created metav1.Time) v1alpha1.OrderingKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastSeq++
	if created.After(x.lastTime.Time) {
		x.lastTime = created
	}
	return v1alpha1.OrderingKey{Time: created, Sequence: x.lastSeq}
}

// Change is what a change of one image did to the queue.
type Change struct {
	// Head: who is first may be another now.
	Head bool
	// Passed are the images whose place has fallen below another power of ten.
	Passed []v1alpha1.ImageKey
}

// Set puts an image where its standing says.
func (x *Index) Set(item Item) Change {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.items[item.Image.UID]
	if old != nil && old.Standing == item.Standing && sameKey(old.Key, item.Key) &&
		old.Priority == item.Priority && old.Revision == item.Revision {
		return Change{}
	}
	if old != nil && old.Standing == item.Standing && old.Revision == item.Revision {
		item.Since = old.Since
	}
	left := x.remove(item.Image.UID)
	if item.Standing == Out {
		return x.change(left)
	}
	it := &item
	it.Group = x.groupOf(it.Host)
	x.items[item.Image.UID] = it
	if item.Standing == Skipped {
		return x.change(left)
	}
	i, _ := slices.BinarySearchFunc(x.order, it, x.compare)
	x.order = slices.Insert(x.order, i, it)
	return Change{Head: i < headDepth || (left >= 0 && left < headDepth)}
}

// headDepth is how far from the front a change can matter to an admission.
const headDepth = v1alpha1.MaxSlots

// Remove takes an image out.
func (x *Index) Remove(uid types.UID) Change {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.change(x.remove(uid))
}

// remove returns the place that the image had; -1 for none.
func (x *Index) remove(uid types.UID) int {
	it := x.items[uid]
	if it == nil {
		return -1
	}
	delete(x.items, uid)
	i, found := slices.BinarySearchFunc(x.order, it, x.compare)
	if !found {
		return -1
	}
	x.order = slices.Delete(x.order, i, i+1)
	return i
}

// change tells what follows when the image at a place has left: of those behind
// it, the ones at 0, 9, 99 and so on have just come there.
func (x *Index) change(left int) Change {
	if left < 0 {
		return Change{}
	}
	c := Change{Head: left < headDepth}
	for top := 1; top <= len(x.order); top *= 10 {
		if left < top {
			c.Passed = append(c.Passed, x.order[top-1].Image)
		}
	}
	return c
}

// Keys returns the images of some standings, of all where none is named.
func (x *Index) Keys(standings ...Standing) []v1alpha1.ImageKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	var keys []v1alpha1.ImageKey
	for _, it := range x.items {
		if len(standings) == 0 || slices.Contains(standings, it.Standing) {
			keys = append(keys, it.Image)
		}
	}
	return keys
}

func sameKey(a, b v1alpha1.OrderingKey) bool {
	return a.Sequence == b.Sequence && a.Time.Time.Equal(b.Time.Time)
}

// Get returns the item of an image.
func (x *Index) Get(uid types.UID) (Item, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	it := x.items[uid]
	if it == nil {
		return Item{}, false
	}
	return *it, true
}

// Head returns the first n that may be admitted, in order. It stops at one that
// is Pending, and then tells how long that one can still hold up the others. Of a
// group that is in most it returns no more than that says: those beyond are passed.
func (x *Index) Head(n int, now time.Time, most map[string]int) (head []Item, wait time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	taken := map[string]int{}
	for _, it := range x.order {
		if len(head) >= n {
			break
		}
		if most, limited := most[it.Group]; limited && taken[it.Group] >= most {
			continue
		}
		if it.Standing == Pending {
			if left := Grace - now.Sub(it.Since); left > 0 {
				return head, left
			}
			continue
		}
		taken[it.Group]++
		head = append(head, *it)
	}
	return head, 0
}

// Front returns the first n that are Ready, in order, whoever holds them up, but for
// those that are left out.
func (x *Index) Front(n int, but map[types.UID]bool) []Item {
	x.mu.Lock()
	defer x.mu.Unlock()
	var front []Item
	for _, it := range x.order {
		if len(front) >= n {
			break
		}
		if it.Standing == Ready && !but[it.Image.UID] {
			front = append(front, *it)
		}
	}
	return front
}

// SetGroups says which group of sources a host belongs to, empty for none.
func (x *Index) SetGroups(of func(host string) string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.groupOf = of
	for _, it := range x.items {
		it.Group = of(it.Host)
	}
}

// Withhold takes note of why images wait that could run but for the fleet-wide budget,
// and returns those in the queue for which that is another reason than before.
func (x *Index) Withhold(reasons map[types.UID]v1alpha1.Reason) (changed []v1alpha1.ImageKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.withheld
	x.withheld = reasons
	for uid := range before {
		if it := x.items[uid]; it != nil && reasons[uid] == "" {
			changed = append(changed, it.Image)
		}
	}
	for uid, reason := range reasons {
		if it := x.items[uid]; it != nil && before[uid] != reason {
			changed = append(changed, it.Image)
		}
	}
	return changed
}

// Withheld is the reason that was taken note of for an image, empty for none.
func (x *Index) Withheld(uid types.UID) v1alpha1.Reason {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.withheld[uid]
}

// Position returns how many will go before an image, as the queue stands.
func (x *Index) Position(uid types.UID) (int32, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	it := x.items[uid]
	if it == nil {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(x.order, it, x.compare)
	return int32(i), found
}

// SetMaxPriority caps what a priority is worth and sorts anew where that
// changes anything.
func (x *Index) SetMaxPriority(most int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if most == x.maxPriority {
		return
	}
	x.maxPriority = most
	slices.SortFunc(x.order, x.compare)
}

// Stats counts the queue.
type Stats struct {
	Ready, Pending, Skipped int
	// OldestSince is when the one that has waited longest in the queue arrived;
	// zero for an empty queue.
	OldestSince time.Time
}

// Stats counts the queue; it looks at every image in it.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	var s Stats
	for _, it := range x.items {
		switch it.Standing {
		case Ready:
			s.Ready++
		case Pending:
			s.Pending++
		case Skipped:
			s.Skipped++
		}
		if s.OldestSince.IsZero() || it.Key.Time.Time.Before(s.OldestSince) {
			s.OldestSince = it.Key.Time.Time
		}
	}
	return s
}
