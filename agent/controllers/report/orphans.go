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

// orphans is what is known of storage that belongs to no image.
type orphans struct {
	found report.Orphans
	// gone are images that a live read has told to be gone, as far as there are
	// objects of theirs: none comes back.
	gone map[v1alpha1.ImageKey]bool
	// at is when they were last looked for.
	at time.Time
}

const (
	// confirmations are how many images are read live for one report.
	confirmations = 16
	// orphansPatience is how long the report waits for what it says of orphans: a kind
	// that cannot be listed is not to have the cluster look as if it were offline.
	orphansPatience = 5 * time.Second
)

// findOrphans looks for storage that belongs to no image where there may be other than
// before, and with every heartbeat. It tells whether there is more to be read.
func (r *Reconciler) findOrphans(ctx context.Context) (again bool) {
	last := r.orphans.found
	if !r.Kinds.Known() || (!r.news.storageChanged() && !last.Held && len(last.Suspects) == 0 && time.Since(r.orphans.at) < r.Heartbeat) {
		return false
	}
	r.news.takeStorage()
	r.orphans.at = time.Now()
	ctx, cancel := context.WithTimeout(ctx, orphansPatience)
	defer cancel()
	found, again, err := r.lookForOrphans(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Looking for storage that belongs to no image; what was found before is reported, and the next heartbeat looks again")
		return false
	}
	r.orphans.found, r.orphans.gone = found, found.Gone
	r.Metrics.Orphans(found.Count, found.Bytes)
	return again
}

// lookForOrphans compares what the caches show, the objects before the images, and
// reads the image of each that seems to have none. It tells whether there are more of
// those than were read.
func (r *Reconciler) lookForOrphans(ctx context.Context) (found report.Orphans, more bool, err error) {
	var images v1alpha1.VMDiskImageList
	objects, err := r.storage(ctx)
	if err != nil {
		return found, false, err
	}
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		return found, false, fmt.Errorf("listing VMDiskImages: %w", err)
	}
	ledger, err := r.ledger(ctx)
	if err != nil {
		return found, false, err
	}
	look := report.Storage{Objects: objects, Images: map[types.UID]bool{}, Gone: map[v1alpha1.ImageKey]bool{}}
	for i := range images.Items {
		look.Images[images.Items[i].UID] = true
	}
	for img := range r.orphans.gone {
		look.Gone[img] = true
	}
	if ledger != nil && ledger.Status != nil {
		look.Slots = ledger.Status.Slots
	}
	found = report.FindOrphans(look)
	if len(found.Suspects) == 0 {
		return found, false, nil
	}
	for _, img := range found.Suspects[:min(len(found.Suspects), confirmations)] {
		gone, err := r.isGone(ctx, img)
		if err != nil {
			return found, false, err
		}
		look.Gone[img] = gone
	}
	return report.FindOrphans(look), len(found.Suspects) > confirmations, nil
}

// storage lists what carries the UID of an image. Kinds that the cluster does not
// serve have no objects.
func (r *Reconciler) storage(ctx context.Context) (image.Lists, error) {
	var (
		dvs       cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		snapshots snapshotv1.VolumeSnapshotList
	)
	for _, l := range []struct {
		list client.ObjectList
		kind *schema.GroupVersionKind
	}{{&dvs, &image.DataVolumeKind}, {&claims, nil}, {&snapshots, &image.VolumeSnapshotKind}} {
		if l.kind != nil && !r.Kinds.Serves(*l.kind) {
			continue
		}
		if err := r.List(ctx, l.list, client.HasLabels{v1alpha1.LabelImageUID}, client.UnsafeDisableDeepCopy); err != nil {
			return image.Lists{}, fmt.Errorf("listing what is there of images: %w", err)
		}
	}
	return image.Lists{DataVolumes: dvs.Items, Claims: claims.Items, Snapshots: snapshots.Items}, nil
}

// isGone tells, live, whether there is no such image. None can have a name that is
// not valid.
func (r *Reconciler) isGone(ctx context.Context, key v1alpha1.ImageKey) (bool, error) {
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
