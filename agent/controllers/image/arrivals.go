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

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// arrivals gives every revision its place in the queue, in the order in which
// the agent first sees them, until the place stands in the image's status.
type arrivals struct {
	index  *queue.Index
	reader client.Reader
	once   sync.Once

	mu    sync.Mutex
	known map[types.UID]arrival
}

type arrival struct {
	name     types.NamespacedName
	revision string
	key      v1alpha1.OrderingKey
}

// begin gives those their places that came while no agent ran: by creation
// time, and within one second by resourceVersion (comparable by KEP-5504). It
// runs before the first event is handled: those of the initial list come in no
// useful order.
func (a *arrivals) begin(ctx context.Context) {
	a.once.Do(func() {
		var list v1alpha1.VMDiskImageList
		if err := a.reader.List(ctx, &list); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing the images that came while no agent ran; they queue in no particular order")
			return
		}
		slices.SortFunc(list.Items, byAge)
		for i := range list.Items {
			if e := currentEntry(&list.Items[i]); e != nil {
				a.index.Saw(e.OrderingKey)
			}
		}
		for i := range list.Items {
			if img := &list.Items[i]; currentEntry(img) == nil {
				a.put(img, a.index.NewKeyByAge(img.CreationTimestamp))
			}
		}
	})
}

func byAge(a, b v1alpha1.VMDiskImage) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(unseen(a), unseen(b)),
		cmp.Compare(version(a.ResourceVersion), version(b.ResourceVersion)),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

// unseen is 0 for an image that an agent has seen before it went: it came before
// those of the same second that none has, though its finalizer has given it a
// later resourceVersion.
func unseen(img v1alpha1.VMDiskImage) int {
	if slices.Contains(img.Finalizers, v1alpha1.FinalizerImage) {
		return 0
	}
	return 1
}

func version(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// key returns the place of the revision that an image asks for.
func (a *arrivals) key(img *v1alpha1.VMDiskImage) v1alpha1.OrderingKey {
	if e := currentEntry(img); e != nil {
		a.index.Saw(e.OrderingKey)
		a.put(img, e.OrderingKey)
		return e.OrderingKey
	}
	a.mu.Lock()
	known, there := a.known[img.UID]
	a.mu.Unlock()
	if there && known.revision == img.Spec.Revision() {
		return known.key
	}
	key := a.index.NewKey(img.CreationTimestamp)
	a.put(img, key)
	return key
}

func (a *arrivals) put(img *v1alpha1.VMDiskImage, key v1alpha1.OrderingKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[img.UID] = arrival{client.ObjectKeyFromObject(img), img.Spec.Revision(), key}
}

// name finds an image by its UID.
func (a *arrivals) name(uid types.UID) (types.NamespacedName, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, there := a.known[uid]
	return known.name, there
}

func (a *arrivals) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, uid)
}

// currentEntry is what the status holds of the revision that the spec asks for.
func currentEntry(img *v1alpha1.VMDiskImage) *v1alpha1.RevisionStatus {
	revision := img.Spec.Revision()
	for i := range img.Status.Revisions {
		if img.Status.Revisions[i].Revision == revision {
			return &img.Status.Revisions[i]
		}
	}
	return nil
}
