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
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Annotations that make a StorageClass the default, KubeVirt's first: CDI asks
// for them in this order (CDI 1.65).
const (
	defaultVirtClassAnnotation = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
)

// findCapacityBlocker tells what keeps an image from being imported for want of room, by what was
// read of it no longer ago than age; nil for nothing that is known of.
func (r *Reconciler) findCapacityBlocker(ctx context.Context, img *v1alpha1.VMDiskImage, age time.Duration) (*image.Blocker, error) {
	if r.Room == nil {
		return nil, nil
	}
	class := img.Spec.StorageClass
	if class == "" {
		var err error
		if class, err = r.findDefaultStorageClass(ctx); err != nil {
			return nil, err
		}
	}
	b := capacity.FindShortage(img, class, r.Room.AvailabilityFor(ctx, img.Namespace, class, age))
	r.capacityWaiters.setWaiting(image.KeyOf(img), b != nil)
	return b, nil
}

// LacksCapacity tells whether an image that is about to get a slot lacks room by now,
// and has it looked at where it does: it leaves the queue then.
func (r *Reconciler) LacksCapacity(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error) {
	b, err := r.findCapacityBlocker(ctx, img, capacity.MaxAgeAtAdmission)
	if b != nil {
		r.Enqueue(image.KeyOf(img))
	}
	return b != nil, err
}

// findDefaultStorageClass is the one that CDI takes where none is named; empty for
// none. Of several the youngest counts, as with Kubernetes.
func (r *Reconciler) findDefaultStorageClass(ctx context.Context) (string, error) {
	var classes storagev1.StorageClassList
	if err := r.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("listing StorageClasses: %w", err)
	}
	for _, annotation := range []string{defaultVirtClassAnnotation, defaultClassAnnotation} {
		var found *storagev1.StorageClass
		for i := range classes.Items {
			class := &classes.Items[i]
			if class.Annotations[annotation] == "true" && (found == nil || isYounger(class, found)) {
				found = class
			}
		}
		if found != nil {
			return found.Name, nil
		}
	}
	return "", nil
}

func isYounger(a, b *storagev1.StorageClass) bool {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order > 0
	}
	return a.Name < b.Name
}

// capacityWaiters are the images that were last found to lack room.
type capacityWaiters struct {
	mu   sync.Mutex
	keys map[types.UID]v1alpha1.ImageKey
}

func (l *capacityWaiters) setWaiting(key v1alpha1.ImageKey, lacks bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[types.UID]v1alpha1.ImageKey{}
	}
	if lacks {
		l.keys[key.UID] = key
	} else {
		delete(l.keys, key.UID)
	}
}

func (l *capacityWaiters) list() []v1alpha1.ImageKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.keys))
}

// pollCapacity has the images that lack room looked at when there is another. It
// asks only while there are such.
func (r *Reconciler) pollCapacity(ctx context.Context) error {
	last := 0
	_ = wait.PollUntilContextCancel(ctx, capacity.MaxAgeWhileWaiting, false, func(ctx context.Context) (bool, error) {
		keys := r.capacityWaiters.list()
		if len(keys) == 0 {
			return false, nil
		}
		now := r.Room.Version(ctx, capacity.MaxAgeWhileWaiting/2)
		if now == last {
			return false, nil
		}
		last = now
		for _, key := range keys {
			r.Enqueue(key)
		}
		return false, nil
	})
	return nil
}
