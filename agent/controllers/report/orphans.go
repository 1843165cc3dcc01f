package report

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxLiveImageReads bounds the images that are read live for one report.
	maxLiveImageReads = 16
	// orphanSearchTimeout bounds the search: a kind that cannot be listed must not make the
	// cluster look offline.
	orphanSearchTimeout = 5 * time.Second
)

// orphanState is the result of the last search for orphans.
type orphanState struct {
	found report.Orphans
	// goneImages are images that a live read has confirmed to be gone, as long as they have
	// objects. No image comes back.
	goneImages map[v1alpha1.ImageKey]bool
	searchedAt time.Time
}

// refreshOrphans searches for orphans if there may be new ones, and with every heartbeat.
// more is true if images are left to be read live.
func (r *Reconciler) refreshOrphans(ctx context.Context) (more bool) {
	last := r.orphans.found
	if !r.Kinds.Discovered() || (!r.changes.isStorageDirty() && !last.HasSlots && len(last.Suspects) == 0 && time.Since(r.orphans.searchedAt) < r.Heartbeat) {
		return false
	}
	r.changes.clearStorageDirty()
	r.orphans.searchedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, orphanSearchTimeout)
	defer cancel()
	found, more, err := r.searchOrphans(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to search for storage without an image; reporting the former result until the next heartbeat")
		return false
	}
	r.orphans.found, r.orphans.goneImages = found, found.GoneImages
	r.Metrics.SetOrphans(found.Count, found.Bytes)
	return more
}

// searchOrphans finds orphans in the caches, and confirms their images to be gone by live
// reads. Invariant: objects are listed before images.
func (r *Reconciler) searchOrphans(ctx context.Context) (found report.Orphans, more bool, err error) {
	var images v1alpha1.VMDiskImageList
	objects, err := r.listStorage(ctx)
	if err != nil {
		return found, false, err
	}
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		return found, false, fmt.Errorf("listing VMDiskImages: %w", err)
	}
	ledger, err := r.readLedger(ctx)
	if err != nil {
		return found, false, err
	}
	storage := report.StorageSnapshot{Objects: objects, ExistingImages: map[types.UID]bool{}, GoneImages: map[v1alpha1.ImageKey]bool{}}
	for i := range images.Items {
		storage.ExistingImages[images.Items[i].UID] = true
	}
	for img := range r.orphans.goneImages {
		storage.GoneImages[img] = true
	}
	if ledger != nil && ledger.Status != nil {
		storage.Slots = ledger.Status.Slots
	}
	found = report.FindOrphans(storage)
	if len(found.Suspects) == 0 {
		return found, false, nil
	}
	for _, img := range found.Suspects[:min(len(found.Suspects), maxLiveImageReads)] {
		gone, err := r.isImageGone(ctx, img)
		if err != nil {
			return found, false, err
		}
		storage.GoneImages[img] = gone
	}
	return report.FindOrphans(storage), len(found.Suspects) > maxLiveImageReads, nil
}

// listStorage lists the objects that carry the UID of an image. A kind that is not served
// has none.
func (r *Reconciler) listStorage(ctx context.Context) (image.ObjectLists, error) {
	var (
		dvs       cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		snapshots snapshotv1.VolumeSnapshotList
	)
	for _, l := range []struct {
		list client.ObjectList
		kind *schema.GroupVersionKind
	}{{&dvs, &image.DataVolumeGVK}, {&claims, nil}, {&snapshots, &image.VolumeSnapshotGVK}} {
		if l.kind != nil && !r.Kinds.IsServed(*l.kind) {
			continue
		}
		if err := r.List(ctx, l.list, client.HasLabels{v1alpha1.LabelImageUID}, client.UnsafeDisableDeepCopy); err != nil {
			return image.ObjectLists{}, fmt.Errorf("listing the objects of images: %w", err)
		}
	}
	return image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Snapshots: snapshots.Items}, nil
}

// isImageGone reads live whether an image is gone. No image can have an invalid name.
func (r *Reconciler) isImageGone(ctx context.Context, key v1alpha1.ImageKey) (bool, error) {
	if len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		return true, nil
	}
	img := &v1alpha1.VMDiskImage{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading VMDiskImage %s/%s: %w", key.Namespace, key.Name, err)
	}
	return apierrors.IsNotFound(err) || img.UID != key.UID, nil
}
