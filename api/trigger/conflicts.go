package trigger

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// maxConflicts is how many conflicts in a row another read of the object may solve.
const maxConflicts = 5

// ConflictTracker tells conflicts that another read solves from those that last, as where a webhook
// denies a request with the code of a conflict: retried at once, they would be retried without end.
// The zero value is ready to use.
type ConflictTracker struct {
	mu     sync.Mutex
	inARow map[reconcile.Request]int
}

// Record counts the conflicts that the API server answers in a row, and reports whether err is one
// too many, and so an error as any other. Every other answer ends the row, except isStale: the
// object has changed since it was read, which says nothing about requests.
func (t *ConflictTracker) Record(request reconcile.Request, err error, isStale bool) (lasts bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case apierrors.IsConflict(err):
		if t.inARow == nil {
			t.inARow = map[reconcile.Request]int{}
		}
		t.inARow[request] = min(t.inARow[request]+1, maxConflicts+1)
		return t.inARow[request] > maxConflicts
	case !isStale:
		delete(t.inARow, request)
	}
	return false
}

// IsExhausted reports whether one more conflict of a request is one too many.
func (t *ConflictTracker) IsExhausted(request reconcile.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inARow[request] >= maxConflicts
}
