//go:build linux

package simulator

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// serveSnapshots makes every VolumeSnapshot ready as soon as its claim is bound,
// in one write; those of SnapshotClassNever it leaves alone.
func (i *InstantImporter) serveSnapshots(ctx context.Context, c client.WithWatch) error {
	var list snapshotv1.VolumeSnapshotList
	if err := c.List(ctx, &list); err != nil {
		return fmt.Errorf("listing VolumeSnapshots: %w", err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &snapshotv1.VolumeSnapshotList{}, &client.ListOptions{Raw: &options})
		},
	})
	if err != nil {
		return fmt.Errorf("watching VolumeSnapshots: %w", err)
	}
	for n := range list.Items {
		i.retrySnapshotUntilTaken(ctx, client.ObjectKeyFromObject(&list.Items[n]))
	}
	i.done.Go(func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			if s, ok := e.Object.(*snapshotv1.VolumeSnapshot); ok && e.Type == watch.Added {
				i.retrySnapshotUntilTaken(ctx, client.ObjectKeyFromObject(s))
			}
		}
	})
	return nil
}

func (i *InstantImporter) retrySnapshotUntilTaken(ctx context.Context, key client.ObjectKey) {
	taken, err := i.markSnapshotReady(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		i.updateAndWake(func() {
			if i.err == nil {
				i.err = fmt.Errorf("taking snapshot %s: %w", key, err)
			}
		})
	case !taken:
		time.AfterFunc(cloneRetryDelay, func() { i.retrySnapshotUntilTaken(ctx, key) })
	}
}

func (i *InstantImporter) markSnapshotReady(ctx context.Context, key client.ObjectKey) (bool, error) {
	var s snapshotv1.VolumeSnapshot
	if err := i.client.Get(ctx, key, &s); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if s.Status != nil || s.Spec.Source.PersistentVolumeClaimName == nil || ptr.Deref(s.Spec.VolumeSnapshotClassName, "") == SnapshotClassNever {
		return true, nil
	}
	var claim corev1.PersistentVolumeClaim
	if err := i.client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: *s.Spec.Source.PersistentVolumeClaimName}, &claim); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return false, nil
	}
	s.Status = &snapshotv1.VolumeSnapshotStatus{
		BoundVolumeSnapshotContentName: ptr.To("snapcontent-" + string(s.UID)),
		CreationTime:                   ptr.To(metav1.Now()),
		ReadyToUse:                     ptr.To(true),
		RestoreSize:                    ptr.To(claim.Status.Capacity[corev1.ResourceStorage]),
	}
	if err := i.client.Status().Update(ctx, &s); apierrors.IsConflict(err) {
		return false, nil
	} else if err != nil {
		return true, client.IgnoreNotFound(err)
	}
	return true, nil
}
