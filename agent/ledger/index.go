package ledger

import (
	"cmp"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// QueueState is how an image takes part in the queue.
type QueueState int

const (
	// Out: not in the queue.
	NotQueued QueueState = iota
	// Ready: may be admitted.
	Admissible
	// Pending: it is not known yet whether it may be admitted. It holds up those
	// behind it for up to Grace, or they would pass it.
	Pending
	// Skipped: waits in its place for something of its own (a backoff, a missing
	// Secret) and is passed meanwhile.
	Skipped
)

// PendingGracePeriod is how long a Pending image holds up those behind it.
const PendingGracePeriod = 10 * time.Second

// QueuedImage is an image in the queue.
type QueuedImage struct {
	Image    v1alpha1.ImageKey
	Revision string
	Key      v1alpha1.OrderingKey
	Priority int32
	State    QueueState
	// Since is when it took this standing.
	Since time.Time
	// Host that the revision is imported from, and Group the group of sources that it
	// belongs to, which the Index knows; empty for none.
	Host, SourceGroup string
}

// Queue is the queue of a cluster in memory: who is next, and who is where. All
// of it is worked out anew from the images after a restart. It is safe for
// concurrent use.
//
// The order is a sorted slice: finding a place is a binary search, and at
// 10,000 images an insertion moves 80 KB, which takes microseconds.
type Queue struct {
	mu              sync.Mutex
	images          map[types.UID]*QueuedImage
	order           []*QueuedImage // Ready and Pending, sorted
	maxPriority     int32
	lastKeyTime     metav1.Time
	lastKeySequence int64

	sourceGroupOf   func(host string) string
	withheldReasons map[types.UID]v1alpha1.Reason
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{images: map[types.UID]*QueuedImage{}, sourceGroupOf: func(string) string { return "" }}
}

// compareImages orders two items; UID decides between keys that two leaders gave at
// the same time.
func (x *Queue) compareImages(a, b *QueuedImage) int {
	return cmp.Or(
		cmp.Compare(min(b.Priority, x.maxPriority), min(a.Priority, x.maxPriority)),
		a.Key.Time.Compare(b.Key.Time.Time),
		cmp.Compare(a.Key.Sequence, b.Key.Sequence),
		cmp.Compare(a.Image.UID, b.Image.UID),
	)
}

// ObserveKey keeps later keys behind one that was given before.
func (x *Queue) ObserveKey(key v1alpha1.OrderingKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastKeySequence = max(x.lastKeySequence, key.Sequence)
	if key.Time.After(x.lastKeyTime.Time) {
		x.lastKeyTime = key.Time
	}
}

// NewKeyAtEnd gives the key of what has just arrived: behind everything that was
// there before, whatever the clocks say. With a zero time, it is that of a
// return to the queue.
func (x *Queue) NewKeyAtEnd(created metav1.Time) v1alpha1.OrderingKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	if created.After(x.lastKeyTime.Time) {
		x.lastKeyTime = created
	}
	x.lastKeySequence++
	return v1alpha1.OrderingKey{Time: x.lastKeyTime, Sequence: x.lastKeySequence}
}

// NewKeyByCreation gives the key of what arrived while no agent ran: by its creation
// time. Call it in the order in which the images are taken to have arrived.
func (x *Queue) NewKeyByCreation(created metav1.Time) v1alpha1.OrderingKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastKeySequence++
	if created.After(x.lastKeyTime.Time) {
		x.lastKeyTime = created
	}
	return v1alpha1.OrderingKey{Time: created, Sequence: x.lastKeySequence}
}

// QueueChange is what a change of one image did to the queue.
type QueueChange struct {
	// Head: who is first may be another now.
	HeadChanged bool
	// Advanced are the images whose place has fallen below another power of ten.
	Advanced []v1alpha1.ImageKey
}

// Set puts an image where its standing says.
func (x *Queue) Set(item QueuedImage) QueueChange {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.images[item.Image.UID]
	if old != nil && old.State == item.State && equalKeys(old.Key, item.Key) &&
		old.Priority == item.Priority && old.Revision == item.Revision {
		return QueueChange{}
	}
	if old != nil && old.State == item.State && old.Revision == item.Revision {
		item.Since = old.Since
	}
	left := x.removeLocked(item.Image.UID)
	if item.State == NotQueued {
		return x.changeAfterRemoval(left)
	}
	it := &item
	it.SourceGroup = x.sourceGroupOf(it.Host)
	x.images[item.Image.UID] = it
	if item.State == Skipped {
		return x.changeAfterRemoval(left)
	}
	i, _ := slices.BinarySearchFunc(x.order, it, x.compareImages)
	x.order = slices.Insert(x.order, i, it)
	return QueueChange{HeadChanged: i < maxHeadDepth || (left >= 0 && left < maxHeadDepth)}
}

// maxHeadDepth is how far from the front a change can matter to an admission.
const maxHeadDepth = v1alpha1.MaxSlots

// Remove takes an image out.
func (x *Queue) Remove(uid types.UID) QueueChange {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.changeAfterRemoval(x.removeLocked(uid))
}

// removeLocked returns the place that the image had; -1 for none.
func (x *Queue) removeLocked(uid types.UID) int {
	it := x.images[uid]
	if it == nil {
		return -1
	}
	delete(x.images, uid)
	i, found := slices.BinarySearchFunc(x.order, it, x.compareImages)
	if !found {
		return -1
	}
	x.order = slices.Delete(x.order, i, i+1)
	return i
}

// changeAfterRemoval tells what follows when the image at a place has left: of those behind
// it, the ones at 0, 9, 99 and so on have just come there.
func (x *Queue) changeAfterRemoval(left int) QueueChange {
	if left < 0 {
		return QueueChange{}
	}
	c := QueueChange{HeadChanged: left < maxHeadDepth}
	for top := 1; top <= len(x.order); top *= 10 {
		if left < top {
			c.Advanced = append(c.Advanced, x.order[top-1].Image)
		}
	}
	return c
}

// ListKeys returns the images of some standings, of all where none is named.
func (x *Queue) ListKeys(standings ...QueueState) []v1alpha1.ImageKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	var keys []v1alpha1.ImageKey
	for _, it := range x.images {
		if len(standings) == 0 || slices.Contains(standings, it.State) {
			keys = append(keys, it.Image)
		}
	}
	return keys
}

func equalKeys(a, b v1alpha1.OrderingKey) bool {
	return a.Sequence == b.Sequence && a.Time.Time.Equal(b.Time.Time)
}

// Get returns the item of an image.
func (x *Queue) Get(uid types.UID) (QueuedImage, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	it := x.images[uid]
	if it == nil {
		return QueuedImage{}, false
	}
	return *it, true
}

// PeekHead returns the first n that may be admitted, in order. It stops at one that
// is Pending, and then tells how long that one can still hold up the others. Of a
// group that is in most it returns no more than that says: those beyond are passed.
func (x *Queue) PeekHead(n int, now time.Time, most map[string]int) (head []QueuedImage, wait time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	taken := map[string]int{}
	for _, it := range x.order {
		if len(head) >= n {
			break
		}
		if most, limited := most[it.SourceGroup]; limited && taken[it.SourceGroup] >= most {
			continue
		}
		if it.State == Pending {
			if left := PendingGracePeriod - now.Sub(it.Since); left > 0 {
				return head, left
			}
			continue
		}
		taken[it.SourceGroup]++
		head = append(head, *it)
	}
	return head, 0
}

// ListAdmissible returns the first n that are Ready, in order, whoever holds them up, but for
// those that are left out.
func (x *Queue) ListAdmissible(n int, but map[types.UID]bool) []QueuedImage {
	x.mu.Lock()
	defer x.mu.Unlock()
	var front []QueuedImage
	for _, it := range x.order {
		if len(front) >= n {
			break
		}
		if it.State == Admissible && !but[it.Image.UID] {
			front = append(front, *it)
		}
	}
	return front
}

// SetSourceGroups says which group of sources a host belongs to, empty for none.
func (x *Queue) SetSourceGroups(of func(host string) string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sourceGroupOf = of
	for _, it := range x.images {
		it.SourceGroup = of(it.Host)
	}
}

// SetWithheldReasons takes note of why images wait that could run but for the fleet-wide budget,
// and returns those in the queue for which that is another reason than before.
func (x *Queue) SetWithheldReasons(reasons map[types.UID]v1alpha1.Reason) (changed []v1alpha1.ImageKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.withheldReasons
	x.withheldReasons = reasons
	for uid := range before {
		if it := x.images[uid]; it != nil && reasons[uid] == "" {
			changed = append(changed, it.Image)
		}
	}
	for uid, reason := range reasons {
		if it := x.images[uid]; it != nil && before[uid] != reason {
			changed = append(changed, it.Image)
		}
	}
	return changed
}

// WithheldReason is the reason that was taken note of for an image, empty for none.
func (x *Queue) WithheldReason(uid types.UID) v1alpha1.Reason {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.withheldReasons[uid]
}

// Position returns how many will go before an image, as the queue stands.
func (x *Queue) Position(uid types.UID) (int32, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	it := x.images[uid]
	if it == nil {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(x.order, it, x.compareImages)
	return int32(i), found
}

// SetMaxPriority caps what a priority is worth and sorts anew where that
// changes anything.
func (x *Queue) SetMaxPriority(most int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if most == x.maxPriority {
		return
	}
	x.maxPriority = most
	slices.SortFunc(x.order, x.compareImages)
}

// QueueStats counts the queue.
type QueueStats struct {
	Admissible, Pending, Skipped int
	// OldestArrival is when the one that has waited longest in the queue arrived;
	// zero for an empty queue.
	OldestArrival time.Time
}

// Stats counts the queue; it looks at every image in it.
func (x *Queue) Stats() QueueStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	var s QueueStats
	for _, it := range x.images {
		switch it.State {
		case Admissible:
			s.Admissible++
		case Pending:
			s.Pending++
		case Skipped:
			s.Skipped++
		}
		if s.OldestArrival.IsZero() || it.Key.Time.Time.Before(s.OldestArrival) {
			s.OldestArrival = it.Key.Time.Time
		}
	}
	return s
}
