package image

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// arrivalTracker gives every revision its place in the queue, in the order in which the
// agent first sees them, until the image's status holds the place.
//
// Invariant (S3): the first write of an agent to an image stores its place. Until then its
// resourceVersion tells when it arrived, to the next agent too.
type arrivalTracker struct {
	queue  *ledger.Queue
	reader client.Reader
	once   sync.Once

	mu    sync.Mutex
	byUID map[types.UID]arrivalRecord
}

type arrivalRecord struct {
	name     types.NamespacedName
	revision string
	key      v1alpha1.OrderingKey
	// awaited: the first write was delayed for the source's answer.
	awaited bool
}

// orderExistingImages gives images that no agent has placed yet their places: by creation
// time, and within one second by resourceVersion. It runs before the first event of the
// initial list is handled, since that list has no order. All later events come in the order
// of arrival.
func (a *arrivalTracker) orderExistingImages(ctx context.Context) {
	a.once.Do(func() {
		var list v1alpha1.VMDiskImageList
		if err := a.reader.List(ctx, &list); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to list VMDiskImages; those created while no agent ran are queued in no particular order")
			return
		}
		slices.SortFunc(list.Items, compareArrival)
		for i := range list.Items {
			if revision := currentRevision(&list.Items[i]); revision != nil {
				a.queue.ObserveKey(revision.OrderingKey)
			}
		}
		for i := range list.Items {
			if img := &list.Items[i]; currentRevision(img) == nil {
				a.recordArrival(img, a.queue.NewKeyByCreation(img.CreationTimestamp, arrivalVersion(img)))
			}
		}
	})
}

func compareArrival(a, b v1alpha1.VMDiskImage) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(unseenRank(a), unseenRank(b)),
		cmp.Compare(parseResourceVersion(a.ResourceVersion), parseResourceVersion(b.ResourceVersion)),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

// unseenRank is 0 for an image with the finalizer: an earlier agent has seen it, so it
// comes first within its second, though the finalizer raised its resourceVersion.
func unseenRank(img v1alpha1.VMDiskImage) int {
	if slices.Contains(img.Finalizers, v1alpha1.FinalizerImage) {
		return 0
	}
	return 1
}

// arrivalVersion is the resourceVersion with which an image arrived; 0 where that is
// unknown: an agent of an earlier release wrote the finalizer first.
func arrivalVersion(img *v1alpha1.VMDiskImage) uint64 {
	if unseenRank(*img) == 0 {
		return 0
	}
	return parseResourceVersion(img.ResourceVersion)
}

func parseResourceVersion(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// orderingKey returns the place of the current revision.
func (a *arrivalTracker) orderingKey(img *v1alpha1.VMDiskImage) v1alpha1.OrderingKey {
	if revision := currentRevision(img); revision != nil {
		a.queue.ObserveKey(revision.OrderingKey)
		a.recordArrival(img, revision.OrderingKey)
		return revision.OrderingKey
	}
	a.mu.Lock()
	known, ok := a.byUID[img.UID]
	a.mu.Unlock()
	if ok && known.revision == img.Spec.Revision() {
		return known.key
	}
	key := a.queue.NewKeyOnArrival(img.CreationTimestamp, arrivalVersion(img))
	a.recordArrival(img, key)
	return key
}

func (a *arrivalTracker) recordArrival(img *v1alpha1.VMDiskImage, key v1alpha1.OrderingKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byUID[img.UID] = arrivalRecord{name: client.ObjectKeyFromObject(img), revision: img.Spec.Revision(), key: key, awaited: a.byUID[img.UID].awaited}
}

// delaysFirstWrite reports, once per image without a stored place, whether its first write
// waits for the source's answer: a source nearby has answered soon, which saves one write
// of the status.
func (a *arrivalTracker) delaysFirstWrite(img *v1alpha1.VMDiskImage) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.byUID[img.UID]
	if !ok || known.awaited || currentRevision(img) != nil {
		return false
	}
	known.awaited = true
	a.byUID[img.UID] = known
	return true
}

func (a *arrivalTracker) nameForUID(uid types.UID) (types.NamespacedName, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.byUID[uid]
	return known.name, ok
}

func (a *arrivalTracker) forgetImage(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byUID, uid)
}

// currentRevision is the status of the revision that the spec asks for; nil for none.
func currentRevision(img *v1alpha1.VMDiskImage) *v1alpha1.RevisionStatus {
	revision := img.Spec.Revision()
	for i := range img.Status.Revisions {
		if img.Status.Revisions[i].Revision == revision {
			return &img.Status.Revisions[i]
		}
	}
	return nil
}
