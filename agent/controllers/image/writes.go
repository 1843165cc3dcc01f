package image

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// cacheLagTimeout is how long the cache may take to show a write of this process. A write
// that it does not show by then is lost: the cluster was restored from a backup.
const cacheLagTimeout = 10 * time.Second

// writeTracker remembers the writes of this process that the cache does not show yet. A
// decision on an older image is useless: its write would be refused for its
// resourceVersion.
type writeTracker struct {
	mu     sync.Mutex
	stored map[types.UID]trackedWrite
}

type trackedWrite struct {
	version uint64
	at      time.Time
}

// recordWrite records the resourceVersion of an image that was just written.
func (w *writeTracker) recordWrite(img *v1alpha1.VMDiskImage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stored == nil {
		w.stored = map[types.UID]trackedWrite{}
	}
	w.stored[img.UID] = trackedWrite{parseResourceVersion(img.ResourceVersion), time.Now()}
}

// isCacheCurrent: an image from the cache is at least as new as the last write. If not, the
// event of that write requeues it.
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
