package hubclient

import (
	"errors"
	"time"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// staleWatchTimeout is how long a watch may lag behind a live read.
const staleWatchTimeout = 15 * time.Second

// ErrWatchStale ends a connection whose watches no longer deliver changes. The other
// end is reachable; reconnect at once.
var ErrWatchStale = errors.New("its watches are stale, for example after a restore from a backup")

// watchStaleness compares what the watches of a connection delivered with live reads.
// After an API server is restored from a backup, its resourceVersions go back, and a
// watch that continues from a later one delivers nothing until they have caught up,
// which may take as long as the backup is old. Only reconnecting helps.
type watchStaleness struct {
	// cachedVersion is the root's resourceVersion in the cache; since is when it was
	// first seen to differ from the live one.
	cachedVersion string
	since         time.Time
}

// isStale compares the cached resourceVersion, read first, with the live one; both are
// empty without a report.
func (h *watchStaleness) isStale(cached, live string, now time.Time) bool {
	if cached == live {
		*h = watchStaleness{}
		return false
	}
	if trigger.IsOlderVersion(live, cached) {
		return true // what was answered later is older
	}
	if h.since.IsZero() || h.cachedVersion != cached {
		*h = watchStaleness{cachedVersion: cached, since: now}
	}
	return now.Sub(h.since) >= staleWatchTimeout
}
