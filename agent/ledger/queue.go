package ledger

import (
	"cmp"
	"maps"
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
	// NotQueued: the image is not in the queue.
	NotQueued QueueState = iota
	// Admissible: the image may be admitted.
	Admissible
	// Pending: whether the image may be admitted is not known yet. It blocks those
	// behind it for at most PendingGracePeriod.
	Pending
	// Skipped: the image waits for something of its own (a backoff, a missing
	// Secret). It keeps its place and is passed over.
	Skipped
)

// PendingGracePeriod is how long a Pending image blocks those behind it.
const PendingGracePeriod = 10 * time.Second

// maxHeadDepth is the last place at which a change can affect an admission, unless
// namespaces have a share.
const maxHeadDepth = v1alpha1.MaxSlots

// QueuedImage is an image in the queue.
type QueuedImage struct {
	Image    v1alpha1.ImageKey
	Revision string
	Key      v1alpha1.OrderingKey
	Priority int32
	State    QueueState
	// Since is when the image entered this state.
	Since time.Time
	// Host that the revision is imported from, and its source group, which the
	// Queue sets; empty for none.
	Host, SourceGroup string
}

// Queue is a cluster's queue of images, in memory. It is rebuilt from the images
// after a restart. It is safe for concurrent use.
//
// The order is a sorted slice: at 10,000 images an insertion moves 80 KB, which
// takes microseconds.
type Queue struct {
	mu              sync.Mutex
	images          map[types.UID]*QueuedImage
	order           []*QueuedImage // Admissible and Pending, sorted
	maxPriority     int32
	lastKeyTime     metav1.Time
	lastKeySequence int64

	// headDepth is the last place at which a change can affect an admission.
	headDepth       int
	sourceGroupOf   func(host string) string
	withheldReasons map[types.UID]v1alpha1.Reason
	// closed: all images wait for a window of the policy. The last one opened at openedAt.
	closed       bool
	openedAt     time.Time
	windowsKnown bool
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{images: map[types.UID]*QueuedImage{}, headDepth: maxHeadDepth, sourceGroupOf: func(string) string { return "" }}
}

// compareImages orders two images. The UID decides between equal keys, which two
// leaders may have given.
func (q *Queue) compareImages(a, b *QueuedImage) int {
	return cmp.Or(
		cmp.Compare(min(b.Priority, q.maxPriority), min(a.Priority, q.maxPriority)),
		a.Key.Time.Compare(b.Key.Time.Time),
		cmp.Compare(a.Key.Sequence, b.Key.Sequence),
		cmp.Compare(a.Image.UID, b.Image.UID),
	)
}

// QueueChange is the effect of a changed image on the queue.
type QueueChange struct {
	// HeadChanged: the images at the head may have changed.
	HeadChanged bool
	// Advanced are the images whose position has fallen below a power of ten.
	Advanced []AdvancedImage
}

// AdvancedImage is an image with its position, which is how many are ahead of it.
type AdvancedImage struct {
	Image    v1alpha1.ImageKey
	Position int
}

// Set adds, moves or removes an image, according to its state.
func (q *Queue) Set(image QueuedImage) QueueChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	old := q.images[image.Image.UID]
	if old != nil && old.State == image.State && equalKeys(old.Key, image.Key) &&
		old.Priority == image.Priority && old.Revision == image.Revision {
		return QueueChange{}
	}
	if old != nil && old.State == image.State && old.Revision == image.Revision {
		image.Since = old.Since
	}
	left := q.removeLocked(image.Image.UID)
	if image.State == NotQueued {
		return q.changeAfterRemoval(left)
	}
	added := &image
	added.SourceGroup = q.sourceGroupOf(added.Host)
	q.images[image.Image.UID] = added
	if image.State == Skipped {
		return q.changeAfterRemoval(left)
	}
	i, _ := slices.BinarySearchFunc(q.order, added, q.compareImages)
	q.order = slices.Insert(q.order, i, added)
	return QueueChange{HeadChanged: i < q.headDepth || (left >= 0 && left < q.headDepth)}
}

// Remove takes an image out of the queue.
func (q *Queue) Remove(uid types.UID) QueueChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changeAfterRemoval(q.removeLocked(uid))
}

// removeLocked returns the position that the image had; -1 for none.
func (q *Queue) removeLocked(uid types.UID) int {
	image := q.images[uid]
	if image == nil {
		return -1
	}
	delete(q.images, uid)
	i, found := slices.BinarySearchFunc(q.order, image, q.compareImages)
	if !found {
		return -1
	}
	q.order = slices.Delete(q.order, i, i+1)
	return i
}

// changeAfterRemoval reports the effect of the image that left position left: the
// images behind it that are at 0, 9, 99, … have just arrived there.
func (q *Queue) changeAfterRemoval(left int) QueueChange {
	if left < 0 {
		return QueueChange{}
	}
	c := QueueChange{HeadChanged: left < q.headDepth}
	for top := 1; top <= len(q.order); top *= 10 {
		if left < top {
			c.Advanced = append(c.Advanced, AdvancedImage{q.order[top-1].Image, top - 1})
		}
	}
	return c
}

// ListKeys returns the images in any of the states; all images without states.
func (q *Queue) ListKeys(states ...QueueState) []v1alpha1.ImageKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	var keys []v1alpha1.ImageKey
	for _, image := range q.images {
		if len(states) == 0 || slices.Contains(states, image.State) {
			keys = append(keys, image.Image)
		}
	}
	return keys
}

// Get returns an image of the queue.
func (q *Queue) Get(uid types.UID) (QueuedImage, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	image := q.images[uid]
	if image == nil {
		return QueuedImage{}, false
	}
	return *image, true
}

// maxPassed bounds the images of a full source group that ListAdmissible returns.
const maxPassed = 256

// ListAdmissible returns the first n Admissible images that their source group has room for,
// in order, without the excluded ones, and those that they and the next one pass, at most
// maxPassed of a group. A group that is not in roomByGroup has room for all. Pending images do not
// block it.
func (q *Queue) ListAdmissible(n int, exclude map[types.UID]bool, roomByGroup map[string]int32) []QueuedImage {
	q.mu.Lock()
	defer q.mu.Unlock()
	var images []QueuedImage
	roomByGroup = maps.Clone(roomByGroup)
	passed := map[string]int{}
	for _, image := range q.order {
		if image.State != Admissible || exclude[image.Image.UID] {
			continue
		}
		room, limited := roomByGroup[image.SourceGroup]
		switch isPassed := limited && room <= 0; {
		case isPassed && passed[image.SourceGroup] == maxPassed:
			continue
		case isPassed:
			passed[image.SourceGroup]++
		case n <= 0:
			return images
		default:
			n--
			if limited {
				roomByGroup[image.SourceGroup]--
			}
		}
		images = append(images, *image)
	}
	return images
}

// SetSourceGroups sets which source group a host belongs to; empty for none.
func (q *Queue) SetSourceGroups(sourceGroupOf func(host string) string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sourceGroupOf = sourceGroupOf
	for _, image := range q.images {
		image.SourceGroup = sourceGroupOf(image.Host)
	}
}

// SetWithheldReasons replaces the reasons why images wait that could run but for the fleet's
// budget, their namespace's share, or a window. It returns the queued images whose reason has
// changed.
func (q *Queue) SetWithheldReasons(reasons map[types.UID]v1alpha1.Reason) (changed []v1alpha1.ImageKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.withheldReasons
	q.withheldReasons = reasons
	for uid := range before {
		if image := q.images[uid]; image != nil && reasons[uid] == "" {
			changed = append(changed, image.Image)
		}
	}
	for uid, reason := range reasons {
		if image := q.images[uid]; image != nil && before[uid] != reason {
			changed = append(changed, image.Image)
		}
	}
	return changed
}

// WithheldReason returns the reason set by SetWithheldReasons; empty for none.
func (q *Queue) WithheldReason(uid types.UID) v1alpha1.Reason {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.withheldReasons[uid]
}

// Position returns how many images are ahead of an image.
func (q *Queue) Position(uid types.UID) (int32, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	image := q.images[uid]
	if image == nil {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(q.order, image, q.compareImages)
	return int32(i), found
}

// SetMaxPriority caps the priorities that the order respects.
func (q *Queue) SetMaxPriority(maxPriority int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if maxPriority == q.maxPriority {
		return
	}
	q.maxPriority = maxPriority
	slices.SortFunc(q.order, q.compareImages)
}

// QueueStats counts the images of the queue by state.
type QueueStats struct {
	Admissible, Pending, Skipped int
	// OldestArrival is when the image that has waited longest arrived, or the window opened
	// for which it had waited; zero for an empty queue. Those that wait for a window do not
	// count.
	OldestArrival time.Time
}

// Stats counts the queue in O(n).
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	var s QueueStats
	for _, image := range q.images {
		switch image.State {
		case Admissible:
			s.Admissible++
		case Pending:
			s.Pending++
		case Skipped:
			s.Skipped++
		}
		if q.closed || q.withheldReasons[image.Image.UID] == v1alpha1.ReasonWaitingForWindow {
			continue
		}
		if s.OldestArrival.IsZero() || image.Key.Time.Time.Before(s.OldestArrival) {
			s.OldestArrival = image.Key.Time.Time
		}
	}
	if !s.OldestArrival.IsZero() && s.OldestArrival.Before(q.openedAt) {
		s.OldestArrival = q.openedAt
	}
	return s
}

// SetClosed says whether the policy has windows, whether all images wait for one, and at what time.
// That time does not count in OldestArrival. A process that starts while one is open does not know since
// when, and counts from its start.
func (q *Queue) SetClosed(hasWindows, closed bool, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !closed && (q.closed || hasWindows && !q.windowsKnown) {
		q.openedAt = now
	}
	q.closed, q.windowsKnown = closed, true
}

// OpenedAt returns when a window opened that all images had waited for; zero where none did
// since this process started.
func (q *Queue) OpenedAt() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.openedAt
}
