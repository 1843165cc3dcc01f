package hubclient

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// staleWatchTimeout is how long a watch may take to tell what a request was answered with.
const staleWatchTimeout = 15 * time.Second

// ErrWatchStale ends a connection whose watches do not tell what happens any more. What
// is at its other end is reachable, and is to be connected again at once.
var ErrWatchStale = errors.New("its watches do not tell what is there, as after a restore from a backup")

// watchStaleness compares what the watches of one connection have told with what the
// probe is answered. After an API server was restored from a backup its
// resourceVersions have gone back, and a watch that goes on from the one it knew
// is sent nothing until they have caught up with it, which may take as long as
// the backup is old. Only a connection that reads anew recovers from that.
type watchStaleness struct {
	// cachedVersion is the root's resourceVersion in the cache, since when it has been
	// there beside another one in the API server.
	cachedVersion string
	since         time.Time
}

// isStale judges by the cached resourceVersion, read before the live one was; both
// are empty where there is no report.
func (h *watchStaleness) isStale(cached, live string, now time.Time) bool {
	if cached == live {
		*h = watchStaleness{}
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(live, cached); err == nil && order < 0 {
		return true // what was answered later is older
	}
	if h.since.IsZero() || h.cachedVersion != cached {
		*h = watchStaleness{cachedVersion: cached, since: now}
	}
	return now.Sub(h.since) >= staleWatchTimeout
}
