package image

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// setupLateSnapshotController adds a controller that deletes late VolumeSnapshots: their
// creation was delayed until their image was gone, and its sender no longer led by then.
func (r *Reconciler) setupLateSnapshotController(mgr manager.Manager) error {
	c, err := controller.New("late-snapshots", mgr, controller.Options{RateLimiter: trigger.NewRateLimiter(), Reconciler: reconcile.Func(r.reconcileLateSnapshot)})
	if err != nil {
		return err
	}
	r.Kinds.WhenServed(image.VolumeSnapshotGVK, func(ctx context.Context) error {
		return apidiscovery.Watch(ctx, c, mgr.GetCache(), &snapshotv1.VolumeSnapshot{}, &handler.EnqueueRequestForObject{})
	})
	return nil
}

// reconcileLateSnapshot deletes a snapshot only if its image is gone, and the PVC that it
// was to copy was gone before the copy. A finished snapshot stays: a person has removed the
// finalizer of its image.
func (r *Reconciler) reconcileLateSnapshot(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	snapshot := &snapshotv1.VolumeSnapshot{}
	if err := r.Get(ctx, req.NamespacedName, snapshot); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	uid := types.UID(snapshot.Labels[v1alpha1.LabelImageUID])
	if _, known := r.arrivals.nameForUID(uid); known || image.IsSnapshotReady(snapshot) || snapshot.DeletionTimestamp != nil || snapshot.Spec.Source.PersistentVolumeClaimName == nil {
		return ctrl.Result{}, nil
	}
	img, err := apidiscovery.GetExisting(ctx, r.Live, types.NamespacedName{Namespace: snapshot.Namespace, Name: snapshot.Annotations[v1alpha1.AnnotationImageName]}, &v1alpha1.VMDiskImage{})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("looking for the image of VolumeSnapshot %s: %w", req, err)
	}
	if img != nil && img.UID == uid {
		return ctrl.Result{}, nil
	}
	claim := types.NamespacedName{Namespace: snapshot.Namespace, Name: *snapshot.Spec.Source.PersistentVolumeClaimName}
	if existing, err := apidiscovery.GetExisting(ctx, r.Live, claim, &corev1.PersistentVolumeClaim{}); existing != nil || err != nil {
		return ctrl.Result{}, err
	}
	err = r.Delete(ctx, snapshot, client.Preconditions{UID: &snapshot.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return ctrl.Result{}, fmt.Errorf("deleting VolumeSnapshot %s, whose image is gone: %w", req, err)
	}
	return ctrl.Result{}, nil
}
