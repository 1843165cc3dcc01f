package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/pelotech/ot-fleet/agent/cachebounds"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// apply carries out a decision. Invariant: children are deleted only after the status that
// no longer references them is stored, against the resourceVersion that was decided on.
//
// Invariant: a VolumeSnapshot is created only after its name is stored. Otherwise each failed write
// of the status would leave one more, and a refused one would keep the outcome of the import from
// being stored, and thereby its slot.
func (r *Reconciler) apply(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	if d.RemoveFinalizer {
		return r.changeFinalizer(ctx, img, d, controllerutil.RemoveFinalizer)
	}
	if d.AskPruneConfirmed {
		r.AskPrunesConfirmed()
	}
	if d.ProbeSource { // in the background, while the rest is stored
		r.startPreflight(ctx, img, image.NextAttempt(d.Status.LastAttempt))
	}
	if d.AddFinalizer {
		// The event of this write requeues the image.
		if err := r.changeFinalizer(ctx, img, d, controllerutil.AddFinalizer); err != nil {
			return err
		}
		r.ownWrites.recordWrite(img)
		return nil
	}
	if err := r.updateStatus(ctx, img, d); err != nil {
		return err
	}
	if !d.ProbeSource {
		r.Preflight.Forget(img.UID)
	}
	var childErrs []error
	if err := r.createSnapshot(ctx, img, d); err != nil {
		childErrs = append(childErrs, err)
	}
	// Whatever is refused, a DataSource, a snapshot or a deletion, keeps no other storage, whose slot others
	// may wait for.
	publishErr := r.applyDataSources(ctx, img, d)
	if errors.Is(publishErr, errImageChanged) {
		// A refusal beside a conflict backs off; together they would be tried again at once, each time.
		return cmp.Or(errors.Join(childErrs...), publishErr)
	}
	for _, target := range d.Delete {
		if err := r.deleteChild(ctx, img, target); err != nil {
			childErrs = append(childErrs, err)
		}
	}
	if len(childErrs) > 0 {
		return errors.Join(joinChildErrors(childErrs), publishErr)
	}
	r.childRefusals.set(img.UID, nil)
	if d.AwaitsServerClock {
		r.recordClockAhead(img, d.DeleteNotBefore)
	}
	if d.DeleteImage {
		if err := r.deleteUnreferenced(ctx, img, d); err != nil {
			return err
		}
	}
	return publishErr
}

func (r *Reconciler) createSnapshot(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	if d.CreateSnapshot == nil {
		return nil
	}
	err := r.Create(ctx, d.CreateSnapshot)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", describeImage(img), &childError{"create", image.KindVolumeSnapshot, d.CreateSnapshot.Name, err})
}

func (r *Reconciler) updateStatus(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	before := img.Status.DeepCopy()
	if equality.Semantic.DeepEqual(img.Status, d.Status) {
		return nil
	}
	img.Status = d.Status
	if err := r.writeImage(img, storeStatus, func() error { return r.Status().Update(ctx, img) }); err != nil {
		return fmt.Errorf("storing the status of %s: %w", describeImage(img), err)
	}
	r.ownWrites.recordWrite(img)
	r.recordEvents(img, before, d)
	return nil
}

// changeFinalizer has the status say, where that is refused for good, that it is.
func (r *Reconciler) changeFinalizer(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision, change func(client.Object, string) bool) error {
	known := r.imageRefusals.finalizer.get(img.UID) != "" // so d.Status says it
	err := r.patchFinalizer(ctx, img, change)
	if err != nil && known {
		err = errors.Join(err, r.updateStatus(ctx, img, d))
	}
	return err
}

func (r *Reconciler) patchFinalizer(ctx context.Context, img *v1alpha1.VMDiskImage, change func(client.Object, string) bool) error {
	if len(img.Finalizers) >= cachebounds.MaxFinalizers {
		live := &v1alpha1.VMDiskImage{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(img), live); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("reading all finalizers of %s: %w", describeImage(img), err))
		}
		if live.UID != img.UID || live.ResourceVersion != img.ResourceVersion {
			return errImageChanged
		}
		img.Finalizers = live.Finalizers
	}
	changed := img.DeepCopy()
	if !change(changed, v1alpha1.FinalizerImage) {
		return nil
	}
	err := r.writeImage(img, changeFinalizer, func() error {
		return r.Patch(ctx, changed, client.MergeFromWithOptions(img, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("patching the finalizer of %s: %w", describeImage(img), err))
	}
	*img = *changed
	return nil
}

// startPreflight probes the source before an attempt, in the background. The answer
// requeues the image.
func (r *Reconciler) startPreflight(ctx context.Context, img *v1alpha1.VMDiskImage, attempt int32) {
	key := image.KeyOf(img)
	url, _ := image.PreflightURL(img.Spec)
	r.Preflight.ProbeAsync(context.WithoutCancel(ctx), preflightSource(img, url, attempt), func() { r.Enqueue(key) })
}

func (r *Reconciler) deleteChild(ctx context.Context, img *v1alpha1.VMDiskImage, t image.DeleteTarget) error {
	meta := metav1.ObjectMeta{Namespace: img.Namespace, Name: t.Name}
	var obj client.Object
	switch t.Kind {
	case image.KindDataVolume:
		obj = &cdiv1.DataVolume{ObjectMeta: meta}
	case image.KindPersistentVolumeClaim:
		obj = &corev1.PersistentVolumeClaim{ObjectMeta: meta}
	case image.KindVolumeSnapshot:
		obj = &snapshotv1.VolumeSnapshot{ObjectMeta: meta}
	}
	options := []client.DeleteOption{client.Preconditions{UID: &t.UID}}
	if t.Foreground {
		options = append(options, client.PropagationPolicy(metav1.DeletePropagationForeground))
	}
	err := r.Delete(ctx, obj, options...)
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	if apierrors.IsConflict(err) {
		switch readErr := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), obj); {
		case apierrors.IsNotFound(readErr), readErr == nil && obj.GetUID() != t.UID:
			return nil // the one to delete is gone
		}
	}
	return fmt.Errorf("%s: %w", describeImage(img), &childError{"delete", t.Kind, t.Name, err})
}

// deleteUnreferenced deletes an image as it was decided on. A VirtualMachine that
// references it since finds it Terminating, and keeps it.
func (r *Reconciler) deleteUnreferenced(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	if err := r.checkServerClock(ctx, img, d.DeleteNotBefore); err != nil {
		return err
	}
	err := r.writeImage(img, deleteImage, func() error {
		return r.Delete(ctx, img, client.Preconditions{UID: &img.UID, ResourceVersion: &img.ResourceVersion})
	})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting %s, which nothing references: %w", describeImage(img), err))
	}
	r.recordDeletion(img, d)
	return nil
}
