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

// NewKeyAtEnd returns the key of an image that returns to the queue.
//
// Invariant: it sorts behind all earlier keys, whatever the clocks say.
func (q *Queue) NewKeyAtEnd() v1alpha1.OrderingKey { return q.NewKeyOnArrival(metav1.Time{}, 0) }

// NewKeyOnArrival returns the key of an image that has just arrived: it sorts behind all
// earlier keys. version is the image's resourceVersion before any write of an agent; 0 for
// unknown.
func (q *Queue) NewKeyOnArrival(created metav1.Time, version uint64) v1alpha1.OrderingKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLastKeyTime(created)
	q.lastKeySequence = max(q.lastKeySequence+1, arrivalSequence(version))
	return v1alpha1.OrderingKey{Time: q.lastKeyTime, Sequence: q.lastKeySequence}
}

// NewKeyByCreation returns the key of an image that no agent has placed yet: it sorts by
// creation time, and within one second by version, also among images that an earlier
// agent has placed.
func (q *Queue) NewKeyByCreation(created metav1.Time, version uint64) v1alpha1.OrderingKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLastKeyTime(created)
	sequence := arrivalSequence(version)
	if sequence == 0 {
		sequence = q.lastKeySequence + 1
	}
	q.lastKeySequence = max(q.lastKeySequence, sequence)
	return v1alpha1.OrderingKey{Time: created, Sequence: sequence}
}

const (
	// keysPerVersion is how many keys there can be of images that return to the queue for
	// each write to the API server, which raises the resourceVersion.
	keysPerVersion = 1 << 20
	maxVersion     = 1 << 42
)

// arrivalSequence is the sequence of an image that arrives with a resourceVersion: these
// are comparable (KEP-5504), and the order of arrival survives a crash with them, whichever
// places are stored first. 0 where that is unknown.
func arrivalSequence(version uint64) int64 {
	if version > maxVersion {
		return 0
	}
	return int64(version) * keysPerVersion
}

func (q *Queue) advanceLastKeyTime(t metav1.Time) {
	if t.After(q.lastKeyTime.Time) {
		q.lastKeyTime = t
	}
}

func equalKeys(a, b v1alpha1.OrderingKey) bool {
	return a.Sequence == b.Sequence && a.Time.Time.Equal(b.Time.Time)
}
