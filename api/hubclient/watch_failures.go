package hubclient

import (
	"errors"
	"net"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxWatchFailures is how many lists and watches of one kind may fail, each less than
	// failureWindow after the one before. A watch is retried forever, and the probe,
	// which reads one object, does not notice.
	maxWatchFailures = 3
	failureWindow    = time.Minute
	// minWatchDuration is how long a watch lasts at least that delivers nothing.
	minWatchDuration = time.Second
)

// errShortWatch means that a watch ends at once.
var errShortWatch = errors.New("a watch ends at once")

// WatchError means that lists or watches of a connection fail, though single objects can
// be read.
type WatchError struct{ err error }

// Error implements error.
func (e *WatchError) Error() string { return "its lists and watches fail: " + e.err.Error() }

func (e *WatchError) Unwrap() error { return e.err }

// watchFailures counts the failed lists and watches of a connection, by kind: when an API
// server restarts, those of all kinds fail together.
type watchFailures struct {
	mu     sync.Mutex
	synced bool
	kinds  map[string]failuresInARow
}

type failuresInARow struct {
	count   int
	expired bool
	last    time.Time
}

// markSynced has single failures count as such from now on. Before, the first one ends
// the connection: nothing is lost by that.
func (f *watchFailures) markSynced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced, f.kinds = true, nil
}

// add reports whether a failure is one too many. The first one with 410 Expired does not
// count: that is how a watch ends whose changes are compacted, and the next list mends it.
// A server that cannot be dialed does not count once all is synced: the probe notices
// that, and an outage that it misses loses nothing.
func (f *watchFailures) add(kind string, err error, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if dial := (*net.OpError)(nil); f.synced && errors.As(err, &dial) && dial.Op == "dial" {
		return false
	}
	row := f.kinds[kind]
	if now.Sub(row.last) > failureWindow {
		row = failuresInARow{}
	}
	row.last = now
	counts := true
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		counts, row.expired = row.expired, true
	}
	if counts {
		row.count++
	}
	if f.kinds == nil {
		f.kinds = map[string]failuresInARow{}
	}
	f.kinds[kind] = row
	return counts && (!f.synced || row.count >= maxWatchFailures)
}

// reportWatchFailure ends the connection after too many failures of a kind, and at once if
// the credential may not list or watch it. It returns the reason; nil if the connection goes on.
func (c *Connection) reportWatchFailure(kind string, err error) error {
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if !c.failures.add(kind, err, time.Now()) && !refused {
		return nil
	}
	if !refused {
		err = &WatchError{err}
	}
	select {
	case c.watchErrors <- err:
	default:
	}
	return err
}
