package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findCapacityBlocker returns why there is no capacity for an image, by figures of at most
// maxAge; nil where none is known to be lacking.
func (r *Reconciler) findCapacityBlocker(ctx context.Context, img *v1alpha1.VMDiskImage, maxAge time.Duration) (*image.Blocker, error) {
	if r.Capacity == nil {
		return nil, nil
	}
	class := img.Spec.StorageClass
	if class == "" {
		var err error
		if class, err = r.findDefaultStorageClass(ctx); err != nil {
			return nil, err
		}
	}
	b := capacity.FindBlocker(img, class, r.Capacity.AvailabilityFor(ctx, img.Namespace, class, maxAge))
	r.capacityWaiters.setWaiting(image.KeyOf(img), b != nil)
	return b, nil
}

// LacksCapacity is asked right before an image is admitted. An image that lacks capacity is
// requeued, which takes it out of the queue.
func (r *Reconciler) LacksCapacity(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error) {
	b, err := r.findCapacityBlocker(ctx, img, capacity.MaxAgeAtAdmission)
	if b != nil {
		r.Enqueue(image.KeyOf(img))
	}
	return b != nil, err
}

// findDefaultStorageClass returns the class that CDI uses where none is named; empty for none.
func (r *Reconciler) findDefaultStorageClass(ctx context.Context) (string, error) {
	var classes storagev1.StorageClassList
	if err := r.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("listing StorageClasses: %w", err)
	}
	return capacity.DefaultStorageClass(classes.Items), nil
}

// capacityWaiters are the images that were last found to lack capacity.
type capacityWaiters struct {
	mu   sync.Mutex
	keys map[types.UID]v1alpha1.ImageKey
}

func (w *capacityWaiters) setWaiting(key v1alpha1.ImageKey, waiting bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		w.keys = map[types.UID]v1alpha1.ImageKey{}
	}
	if waiting {
		w.keys[key.UID] = key
	} else {
		delete(w.keys, key.UID)
	}
}

func (w *capacityWaiters) list() []v1alpha1.ImageKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.keys))
}

// newCapacityPoller requeues the images that lack capacity when it has changed. It reads
// nothing while there are none.
func (r *Reconciler) newCapacityPoller() *trigger.Poller {
	lastVersion := 0
	return &trigger.Poller{Check: func(ctx context.Context) time.Duration {
		if waiting := r.capacityWaiters.list(); len(waiting) > 0 {
			if version := r.Capacity.Version(ctx, capacity.MaxAgeWhileWaiting/2); version != lastVersion {
				lastVersion = version
				r.Enqueue(waiting...)
			}
		}
		return capacity.MaxAgeWhileWaiting
	}}
}
