package hubclient

import (
	"context"
	"errors"
	"net"
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

// watchFailures counts the failed lists and watches of one kind: when an API server restarts, those of all
// kinds fail together.
type watchFailures struct {
	// started says that the kind is listed and its watch was accepted. Before, the first failure ends the
	// connection: nothing is lost by that.
	started bool
	count   int
	expired bool
	last    time.Time
}

// add reports whether a failure is one too many. The first one with 410 Expired does not
// count: that is how a watch ends whose changes are compacted, and the next list mends it.
// A server that cannot be dialed does not count once the kind is started: the probe notices
// that, and an outage that it misses loses nothing.
func (f *watchFailures) add(err error, now time.Time) bool {
	if dial := (*net.OpError)(nil); f.started && errors.As(err, &dial) && dial.Op == "dial" {
		return false
	}
	if now.Sub(f.last) > failureWindow {
		f.count, f.expired = 0, false
	}
	f.last = now
	counts := true
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		counts, f.expired = f.expired, true
	}
	if counts {
		f.count++
	}
	return counts && (!f.started || f.count >= maxWatchFailures)
}

// reportFailure ends the connection after too many failures of a kind, and at once if the credential may
// not list or watch it.
func (w *mailboxWatch) reportFailure(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if !w.failures.add(err, time.Now()) && !refused {
		return
	}
	if !refused {
		err = &WatchError{err}
	}
	select {
	case w.connection.watchErrors <- err:
	default:
	}
	w.setStarted(err)
}
