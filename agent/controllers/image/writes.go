package image

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// writeTracker remember what this process has stored and the cache does not show yet.
// A decision on an image as it was before could only be refused: its write
// would carry an old resourceVersion.
type writeTracker struct {
	mu     sync.Mutex
	stored map[types.UID]trackedWrite
}

type trackedWrite struct {
	version uint64
	at      time.Time
}

// cacheLagTimeout is how long the cache may take to show a write. One that it shows
// not even then is no more: the cluster was restored from a backup.
const cacheLagTimeout = 10 * time.Second

// recordWrite notes the resourceVersion that a write was answered with.
func (w *writeTracker) recordWrite(img *v1alpha1.VMDiskImage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stored == nil {
		w.stored = map[types.UID]trackedWrite{}
	}
	w.stored[img.UID] = trackedWrite{parseResourceVersion(img.ResourceVersion), time.Now()}
}

// isCacheCurrent tells whether an image, as the cache has it, is at least as new as what
// was stored. Where it is not, the event of that write brings it back.
func (w *writeTracker) isCacheCurrent(img *v1alpha1.VMDiskImage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.stored[img.UID]; parseResourceVersion(img.ResourceVersion) < last.version && time.Since(last.at) < cacheLagTimeout {
		return false
	}
	delete(w.stored, img.UID)
	return true
}

func (w *writeTracker) forgetImage(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stored, uid)
}
