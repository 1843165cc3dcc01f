package image

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// writes remember what this process has stored and the cache does not show yet.
// A decision on an image as it was before could only be refused: its write
// would carry an old resourceVersion.
type writes struct {
	mu     sync.Mutex
	stored map[types.UID]write
}

type write struct {
	version uint64
	at      time.Time
}

// cacheDelay is how long the cache may take to show a write. One that it shows
// not even then is no more: the cluster was restored from a backup.
const cacheDelay = 10 * time.Second

// wrote notes the resourceVersion that a write was answered with.
func (w *writes) wrote(img *v1alpha1.VMDiskImage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stored == nil {
		w.stored = map[types.UID]write{}
	}
	w.stored[img.UID] = write{version(img.ResourceVersion), time.Now()}
}

// shows tells whether an image, as the cache has it, is at least as new as what
// was stored. Where it is not, the event of that write brings it back.
func (w *writes) shows(img *v1alpha1.VMDiskImage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.stored[img.UID]; version(img.ResourceVersion) < last.version && time.Since(last.at) < cacheDelay {
		return false
	}
	delete(w.stored, img.UID)
	return true
}

func (w *writes) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stored, uid)
}
