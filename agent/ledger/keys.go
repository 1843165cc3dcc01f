package ledger

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ObserveKey makes later keys sort behind a stored one.
func (q *Queue) ObserveKey(key v1alpha1.OrderingKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastKeySequence = max(q.lastKeySequence, key.Sequence)
	q.advanceLastKeyTime(key.Time)
}

// NewKeyAtEnd returns the key of an image that has just arrived, or returns to
// the queue (created is zero).
//
// Invariant: it sorts behind all earlier keys, whatever the clocks say.
func (q *Queue) NewKeyAtEnd(created metav1.Time) v1alpha1.OrderingKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLastKeyTime(created)
	q.lastKeySequence++
	return v1alpha1.OrderingKey{Time: q.lastKeyTime, Sequence: q.lastKeySequence}
}

// NewKeyByCreation returns the key of an image that arrived while no agent ran: it
// sorts by creation time. Call it in the order in which the images are assumed to
// have arrived.
func (q *Queue) NewKeyByCreation(created metav1.Time) v1alpha1.OrderingKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLastKeyTime(created)
	q.lastKeySequence++
	return v1alpha1.OrderingKey{Time: created, Sequence: q.lastKeySequence}
}

func (q *Queue) advanceLastKeyTime(t metav1.Time) {
	if t.After(q.lastKeyTime.Time) {
		q.lastKeyTime = t
	}
}

func equalKeys(a, b v1alpha1.OrderingKey) bool {
	return a.Sequence == b.Sequence && a.Time.Time.Equal(b.Time.Time)
}
