package image

import (
	"context"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const maxConcurrentReconciles = 4

// Setup adds the controller to a manager. disks is a cache of the objects with the label of a
// machine's UID, clones one of all DataVolumes and DataSources (StripClone).
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager, disks, clones cache.Cache) error {
	r.arrivals = arrivalTracker{queue: r.Queue, reader: mgr.GetCache(), byUID: map[types.UID]arrivalRecord{}}
	child := handler.EnqueueRequestsFromMapFunc(r.mapChildToImage)
	disk := handler.EnqueueRequestsFromMapFunc(r.mapDiskToImage)
	limiter := trigger.NewLatencyLimiter()
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("image").
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		Watches(&v1alpha1.VMDiskImage{}, handler.EnqueueRequestsFromMapFunc(r.mapToSiblings), builder.WithPredicates(publisherChangedPredicate())).
		Watches(&v1alpha1.SyncLedger{}, slotEventHandler()).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(mapVMToImages), builder.WithPredicates(holdChangedPredicate())).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&corev1.Pod{}, child).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapToSkippedImages)).
		WatchesRawSource(source.Kind(disks, client.Object(&corev1.PersistentVolumeClaim{}), disk, diskChangedPredicate())).
		WatchesRawSource(&r.triggers).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: limiter}).
		Build(limiter.Limit(r))
	if err != nil {
		return err
	}
	for _, obj := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj, image.ImageUIDIndex, indexImageUID); err != nil {
			return err
		}
	}
	if err := disks.IndexField(ctx, &corev1.PersistentVolumeClaim{}, vm.ClonedFromIndex, indexClonedFrom); err != nil {
		return err
	}
	r.Kinds.WhenServed(image.DataVolumeGVK, func(ctx context.Context) error {
		if err := disks.IndexField(ctx, &cdiv1.DataVolume{}, vm.ClonedFromIndex, indexClonedFrom); err != nil {
			return err
		}
		return apidiscovery.Watch(ctx, c, disks, &cdiv1.DataVolume{}, disk, diskChangedPredicate())
	})
	r.Kinds.WhenServed(image.DataVolumeGVK, r.watchWhenServed(mgr, c, func() client.Object { return &cdiv1.DataVolume{} }, child))
	r.Kinds.WhenServed(image.VolumeSnapshotGVK, r.watchWhenServed(mgr, c, func() client.Object { return &snapshotv1.VolumeSnapshot{} }, child))
	if err := r.setupPublishing(mgr, c, clones); err != nil {
		return err
	}
	if err := r.watchDataSources(ctx, mgr, c); err != nil {
		return err
	}
	if r.Capacity != nil {
		if err := mgr.Add(r.newCapacityPoller()); err != nil {
			return err
		}
	}
	return r.setupLateSnapshotController(mgr)
}

// watchWhenServed watches a kind once it is served, and requeues the images that wait.
func (r *Reconciler) watchWhenServed(mgr ctrl.Manager, c controller.Controller, obj func() client.Object, child handler.EventHandler) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj(), image.ImageUIDIndex, indexImageUID); err != nil {
			return err
		}
		if err := apidiscovery.Watch(ctx, c, mgr.GetCache(), obj(), child); err != nil {
			return err
		}
		r.EnqueueUnready(ctx)
		return nil
	}
}

func indexImageUID(o client.Object) []string {
	if uid := o.GetLabels()[v1alpha1.LabelImageUID]; uid != "" {
		return []string{uid}
	}
	return nil
}

func indexClonedFrom(o client.Object) []string {
	if uid := vm.ClonedImageUID(o); uid != "" {
		return []string{string(uid)}
	}
	return nil
}
