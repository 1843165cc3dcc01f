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

// orphanState is what is known of storage that belongs to no image.
type orphanState struct {
	found report.Orphans
	// goneImages are images that a live read has told to be gone, as far as there are
	// objects of theirs: none comes back.
	goneImages map[v1alpha1.ImageKey]bool
	// searchedAt is when they were last looked for.
	searchedAt time.Time
}

const (
	// maxLiveImageReads are how many images are read live for one report.
	maxLiveImageReads = 16
	// orphanSearchTimeout is how long the report waits for what it says of orphans: a kind
	// that cannot be listed is not to have the cluster look as if it were offline.
	orphanSearchTimeout = 5 * time.Second
)

// refreshOrphans looks for storage that belongs to no image where there may be other than
// before, and with every heartbeat. It tells whether there is more to be read.
func (r *Reconciler) refreshOrphans(ctx context.Context) (again bool) {
	last := r.orphans.found
	if !r.Kinds.Discovered() || (!r.changes.isStorageDirty() && !last.HasSlots && len(last.Suspects) == 0 && time.Since(r.orphans.searchedAt) < r.Heartbeat) {
		return false
	}
	r.changes.clearStorageDirty()
	r.orphans.searchedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, orphanSearchTimeout)
	defer cancel()
	found, again, err := r.searchOrphans(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Looking for storage that belongs to no image; what was found before is reported, and the next heartbeat looks again")
		return false
	}
	r.orphans.found, r.orphans.goneImages = found, found.GoneImages
	r.Metrics.SetOrphans(found.Count, found.Bytes)
	return again
}

// searchOrphans compares what the caches show, the objects before the images, and
// reads the image of each that seems to have none. It tells whether there are more of
// those than were read.
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
	look := report.StorageSnapshot{Objects: objects, ExistingImages: map[types.UID]bool{}, GoneImages: map[v1alpha1.ImageKey]bool{}}
	for i := range images.Items {
		look.ExistingImages[images.Items[i].UID] = true
	}
	for img := range r.orphans.goneImages {
		look.GoneImages[img] = true
	}
	if ledger != nil && ledger.Status != nil {
		look.Slots = ledger.Status.Slots
	}
	found = report.FindOrphans(look)
	if len(found.Suspects) == 0 {
		return found, false, nil
	}
	for _, img := range found.Suspects[:min(len(found.Suspects), maxLiveImageReads)] {
		gone, err := r.isImageGone(ctx, img)
		if err != nil {
			return found, false, err
		}
		look.GoneImages[img] = gone
	}
	return report.FindOrphans(look), len(found.Suspects) > maxLiveImageReads, nil
}

// listStorage lists what carries the UID of an image. Kinds that the cluster does not
// serve have no objects.
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
			return image.ObjectLists{}, fmt.Errorf("listing what is there of images: %w", err)
		}
	}
	return image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Snapshots: snapshots.Items}, nil
}

// isImageGone tells, live, whether there is no such image. None can have a name that is
// not valid.
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
