//go:build linux

package simulator

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	snapshotContentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	beingDeletedAnnotation   = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// snapshotter does what the csi-snapshotter sidecar does with the contents
// that the real snapshot controller makes.
type snapshotter struct {
	client client.Client
}

func (s *snapshotter) setupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("sim-snapshot").For(&snapshotv1.VolumeSnapshotContent{}).Complete(reconcile.Func(s.reconcile))
}

func (s *snapshotter) reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var content snapshotv1.VolumeSnapshotContent
	if err := s.client.Get(ctx, r.NamespacedName, &content); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case !isSimulatedProvisioner(content.Spec.Driver):
		return reconcile.Result{}, nil
	case content.DeletionTimestamp != nil:
		return reconcile.Result{}, s.removeContentFinalizer(ctx, &content)
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return reconcile.Result{}, s.createSnapshot(ctx, &content)
	default:
		return reconcile.Result{}, nil
	}
}

func (s *snapshotter) createSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	base := content.DeepCopy()
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: ptr.To("snap-" + string(content.UID)),
		CreationTime:   ptr.To(time.Now().UnixNano()),
		ReadyToUse:     ptr.To(ptr.Deref(content.Spec.VolumeSnapshotClassName, "") != SnapshotClassNever),
	}
	if handle := content.Spec.Source.VolumeHandle; handle != nil {
		var volume corev1.PersistentVolume
		if err := s.client.Get(ctx, client.ObjectKey{Name: *handle}, &volume); err != nil {
			return fmt.Errorf("taking snapshot %s of volume %s: %w", content.Name, *handle, err)
		}
		size := volume.Spec.Capacity[corev1.ResourceStorage]
		content.Status.RestoreSize = ptr.To(size.Value())
	}
	if err := s.client.Status().Patch(ctx, content, client.MergeFrom(base)); err != nil {
		return fmt.Errorf("reporting snapshot %s as taken: %w", content.Name, err)
	}
	return nil
}

// removeContentFinalizer lets a content go once the snapshot controller has marked it: until
// then the snapshot still holds it.
func (s *snapshotter) removeContentFinalizer(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	if content.Annotations[beingDeletedAnnotation] == "" {
		return nil
	}
	base := content.DeepCopy()
	if !controllerutil.RemoveFinalizer(content, snapshotContentFinalizer) {
		return nil
	}
	if err := s.client.Patch(ctx, content, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing deleted snapshot content %s: %w", content.Name, err)
	}
	return nil
}
