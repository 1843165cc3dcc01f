package ledger

import (
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// NamespaceShare limits the slots of each namespace while images of other namespaces wait.
// The zero value limits nothing.
//
// Images of namespaces below their share go first, then all others, each in the order of
// the queue. So no slot stays free while an image waits, and a namespace is never kept
// behind more than share images of each other namespace that arrive later.
type NamespaceShare struct {
	// Slots of a namespace; 0 for no limit.
	Slots int
	// Held are the slots that each namespace has.
	Held map[string]int
	// Holders are the images that have a slot. They are passed over.
	Holders map[types.UID]bool
}

// NewNamespaceShare returns the share where slots are taken and some of them are freed.
func NewNamespaceShare(share int32, slots, freeable []v1alpha1.Slot) NamespaceShare {
	s := NamespaceShare{Slots: int(share), Held: map[string]int{}, Holders: map[types.UID]bool{}}
	for _, slot := range slots {
		s.Held[slot.Image.Namespace]++
		s.Holders[slot.Image.UID] = true
	}
	for _, slot := range freeable {
		s.Held[slot.Image.Namespace]--
	}
	return s
}

// newTurns returns a turnTaker for one pass over the queue.
func (s NamespaceShare) newTurns() turnTaker { return turnTaker{share: s, taken: map[string]int{}} }

// turnTaker counts the images that are taken from the queue.
type turnTaker struct {
	share NamespaceShare
	taken map[string]int
}

// isBelowShare reports whether a namespace gets a slot before others that wait.
func (t turnTaker) isBelowShare(namespace string) bool {
	return t.share.Slots <= 0 || t.share.Held[namespace]+t.taken[namespace] < t.share.Slots
}

func (t turnTaker) countTaken(namespace string) {
	if t.share.Slots > 0 {
		t.taken[namespace]++
	}
}

// visitInTurn visits images in the order in which they get slots: those of namespaces below
// their share, then all others, each in the given order, and none that holds a slot. visit
// reports whether it has taken the image; stop ends the visits.
func (s NamespaceShare) visitInTurn(order []*QueuedImage, visit func(image *QueuedImage, beyondShare bool) (taken bool), stop func() bool) {
	turns := s.newTurns()
	var beyondShare []*QueuedImage
	for _, image := range order {
		switch {
		case stop():
			return
		case s.Holders[image.Image.UID]:
		case !turns.isBelowShare(image.Image.Namespace):
			beyondShare = append(beyondShare, image)
		case visit(image, false):
			turns.countTaken(image.Image.Namespace)
		}
	}
	for _, image := range beyondShare {
		if stop() {
			return
		}
		visit(image, true)
	}
}

// PeekHead returns the first n images that may be admitted, in the order in which they are,
// at most limits[g] of source group g, without those that hold a slot. A Pending image blocks
// those behind it, unless its namespace has its share; after blockedFor, one of these may be admitted.
//
// Invariant: Pending images block an image for at most PendingGracePeriod from when it became
// Admissible, however many come before it, and however often.
//
// The cost is at most that of two passes over the queue, however many namespaces there are.
func (q *Queue) PeekHead(n int, now time.Time, limits map[string]int, share NamespaceShare) (head []QueuedImage, blockedFor time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	takenOfGroup := map[string]int{}
	isFull := func() bool { return len(head) >= n }
	share.visitInTurn(q.order, func(image *QueuedImage, beyondShare bool) (taken bool) {
		if limit, limited := limits[image.SourceGroup]; limited && takenOfGroup[image.SourceGroup] >= limit {
			return false
		}
		left := PendingGracePeriod - now.Sub(image.Since)
		switch {
		case image.State == Pending:
			if !beyondShare && left > 0 && (blockedFor == 0 || left < blockedFor) {
				blockedFor = left
			}
			return false
		case blockedFor > 0 && left > 0:
			blockedFor = min(blockedFor, left)
			return false
		}
		takenOfGroup[image.SourceGroup]++
		head = append(head, *image)
		return true
	}, isFull)
	if isFull() {
		return head, 0
	}
	return head, blockedFor
}

// ListWaiting returns the first n images that wait for a slot, in the order in which they get
// one, and how many wait. Those that wait for something of their own, and those of a group
// that has used up its part of the budget, are at their place.
func (q *Queue) ListWaiting(n int, share NamespaceShare) (first []QueuedImage, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.order
	if len(q.images) > len(q.order) {
		all = slices.SortedFunc(maps.Values(q.images), q.compareImages)
	}
	for _, image := range all {
		if !share.Holders[image.Image.UID] {
			waiting++
		}
	}
	share.visitInTurn(all, func(image *QueuedImage, _ bool) (taken bool) {
		first = append(first, *image)
		return true
	}, func() bool { return len(first) >= n })
	return first, waiting
}

// SetNamespaceShare says whether namespaces have a share. Then an image may go first from
// any place.
func (q *Queue) SetNamespaceShare(share int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.headDepth = maxHeadDepth
	if share > 0 {
		q.headDepth = math.MaxInt
	}
}

// maxPassedOver bounds the images whose status says that their namespace has its share.
const maxPassedOver = v1alpha1.MaxSlots

// ListPassedOver returns the first images that wait because their namespace has its share
// of the slots: images of other namespaces that are behind them go first.
func (q *Queue) ListPassedOver(share NamespaceShare) map[types.UID]bool {
	if share.Slots <= 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	turns := share.newTurns()
	var passedOver []*QueuedImage
	overtaken := 0
	for _, image := range q.order {
		switch namespace := image.Image.Namespace; {
		case image.State != Admissible || share.Holders[image.Image.UID]:
		case turns.isBelowShare(namespace):
			turns.countTaken(namespace)
			overtaken = len(passedOver)
		case len(passedOver) < maxPassedOver:
			passedOver = append(passedOver, image)
		}
	}
	images := make(map[types.UID]bool, overtaken)
	for _, image := range passedOver[:overtaken] {
		images[image.Image.UID] = true
	}
	return images
}
