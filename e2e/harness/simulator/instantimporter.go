//go:build linux

package simulator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// InstantImporter replaces CDI, node and storage where the subject is the agent: it creates the
// claim of a DataVolume, Bound, and sets the DataVolume Succeeded, in three writes and at
// once, or after a set duration. Imports fail with ImportWith only; they end in the order of their
// creation, and only as many as AllowFinishes allows. Clones wait for their source only; access to the
// source is not checked. Nothing is deleted.
type InstantImporter struct {
	client         client.WithWatch
	importDuration time.Duration
	importImage    func(context.Context, *cdiv1.DataVolume) error
	cancel         context.CancelFunc
	done           sync.WaitGroup

	mu              sync.Mutex
	changed         *sync.Cond
	pendingImports  []pendingImport
	pendingClones   []pendingImport
	finishesAllowed int
	holdRules       []*holdRule
	finishedCount   int
	stopped         bool
	err             error
}

type pendingImport struct {
	*cdiv1.DataVolume
	firstSeen time.Time
}

// holdRule keeps matching imports from ending.
type holdRule struct{ matches func(*cdiv1.DataVolume) bool }

// concurrentImports is the number of workers. It is high: they must not be the bottleneck.
const concurrentImports = 16

// StartInstantImporter creates the storage classes and serves all DataVolumes of a cluster
// without CDI. An import ends when AllowFinishes allows it and the duration has passed.
func StartInstantImporter(ctx context.Context, o Options, takes time.Duration) (*InstantImporter, error) {
	c, err := client.NewWithWatch(o.Config, client.Options{Scheme: o.Scheme})
	if err != nil {
		return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
	}
	if err := createStorageClasses(ctx, c, o.Snapshots); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	i := &InstantImporter{client: c, importDuration: takes, cancel: cancel}
	i.changed = sync.NewCond(&i.mu)
	err = watchAdded(running, i, &cdiv1.DataVolumeList{}, func(dv *cdiv1.DataVolume) { i.addImport(pendingImport{dv, time.Now()}) })
	if err == nil && o.Snapshots {
		err = watchAdded(running, i, &snapshotv1.VolumeSnapshotList{}, func(s *snapshotv1.VolumeSnapshot) {
			i.retrySnapshotUntilTaken(running, client.ObjectKeyFromObject(s))
		})
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
	}
	for range concurrentImports {
		i.done.Go(func() {
			for dv, more := i.nextFinishable(); more; dv, more = i.nextFinishable() {
				err := i.finishImport(running, dv)
				i.updateAndWake(func() {
					if !dv.isClone() {
						i.finishedCount++
					}
					if err != nil && i.err == nil {
						i.err = err
					}
				})
			}
		})
	}
	return i, nil
}

// watchAdded serves each object of a kind once, existing and new ones, until ctx ends.
func watchAdded[T client.Object](ctx context.Context, i *InstantImporter, list client.ObjectList, serve func(T)) error {
	stop, err := controlplane.WatchObjects(ctx, i.client, list, func(c controlplane.Change[T]) {
		if c.Type == watch.Added {
			serve(c.Object)
		}
	})
	if err == nil {
		i.done.Go(func() { <-ctx.Done(); stop() })
	}
	return err
}

func (i *InstantImporter) updateAndWake(how func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	how()
	i.changed.Broadcast()
}

// AllowFinishes allows n more imports to end.
func (i *InstantImporter) AllowFinishes(n int) { i.updateAndWake(func() { i.finishesAllowed += n }) }

// ImportWith has imports end when do returns, Failed with its error, instead of after a duration.
func (i *InstantImporter) ImportWith(do func(context.Context, *cdiv1.DataVolume) error) {
	i.updateAndWake(func() { i.importImage = do })
}

// HoldImports keeps imports with a matching DataVolume from ending until release is called. A
// held import uses up its allowance and a worker.
func (i *InstantImporter) HoldImports(about func(*cdiv1.DataVolume) bool) (release func()) {
	h := &holdRule{about}
	i.updateAndWake(func() { i.holdRules = append(i.holdRules, h) })
	return func() {
		i.updateAndWake(func() { i.holdRules = slices.DeleteFunc(i.holdRules, func(other *holdRule) bool { return other == h }) })
	}
}

// awaitRelease waits until no rule holds an import.
func (i *InstantImporter) awaitRelease(dv *cdiv1.DataVolume) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.stopped && slices.ContainsFunc(i.holdRules, func(h *holdRule) bool { return h.matches(dv) }) {
		i.changed.Wait()
	}
}

// CountFinished returns how many imports have ended, and the first error.
func (i *InstantImporter) CountFinished() (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.finishedCount, i.err
}

// Stop ends the importer; imports that have not ended stay as they are.
func (i *InstantImporter) Stop() error {
	i.updateAndWake(func() { i.stopped = true })
	i.cancel()
	i.done.Wait()
	return nil
}

// nextFinishable waits for an import that may end; false after Stop.
func (i *InstantImporter) nextFinishable() (pendingImport, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.stopped && len(i.pendingClones) == 0 && (i.finishesAllowed == 0 || len(i.pendingImports) == 0) {
		i.changed.Wait()
	}
	if i.stopped {
		return pendingImport{}, false
	}
	if len(i.pendingClones) > 0 {
		dv := i.pendingClones[0]
		i.pendingClones = i.pendingClones[1:]
		return dv, true
	}
	dv := i.pendingImports[0]
	i.pendingImports = i.pendingImports[1:]
	i.finishesAllowed--
	return dv, true
}

func (i *InstantImporter) addImport(dv pendingImport) {
	i.updateAndWake(func() {
		if dv.isClone() {
			i.pendingClones = append(i.pendingClones, dv)
		} else {
			i.pendingImports = append(i.pendingImports, dv)
		}
	})
}

// finishImport creates the claim of a DataVolume at once, as CDI does, and ends the import after
// the duration.
func (i *InstantImporter) finishImport(ctx context.Context, dv pendingImport) error {
	size := dv.requestedSize()
	if dv.isClone() {
		least, err := i.computeCloneSize(ctx, dv)
		if err != nil {
			return fmt.Errorf("looking for the source of clone %s/%s: %w", dv.Namespace, dv.Name, err)
		}
		if least == nil || !size.IsZero() && size.Cmp(*least) < 0 {
			return i.retryCloneLater(ctx, dv)
		}
		if size.IsZero() {
			size = *least
		}
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: dv.Namespace, Name: dv.Name, Labels: dv.Labels, Annotations: dv.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(dv.DataVolume, cdiv1.SchemeGroupVersion.WithKind("DataVolume"))},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To(ClassCSI),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
			VolumeName:       "instant-" + string(dv.UID),
		},
	}
	if err := i.client.Create(ctx, claim); apierrors.IsNotFound(err) {
		return nil // the namespace is gone
	} else if err != nil {
		return fmt.Errorf("creating claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	err := i.updateStatus(ctx, claim, func() {
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.AccessModes = claim.Spec.AccessModes
		claim.Status.Capacity = claim.Spec.Resources.Requests
	})
	if err != nil {
		return fmt.Errorf("binding claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	var failure error
	if !dv.isClone() {
		if failure = i.runImport(ctx, dv); ctx.Err() != nil {
			return ctx.Err()
		}
		i.awaitRelease(dv.DataVolume)
	}
	err = i.updateStatus(ctx, dv.DataVolume, func() {
		dv.Status.ClaimName = dv.Name
		if failure != nil {
			dv.Status.Phase = cdiv1.Failed
			dv.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Error", Message: failure.Error()}}
			return
		}
		dv.Status.Phase, dv.Status.Progress = cdiv1.Succeeded, "100.0%"
	})
	if err != nil {
		return fmt.Errorf("ending DataVolume %s/%s: %w", dv.Namespace, dv.Name, err)
	}
	return nil
}

// runImport returns when an import has ended, with how it failed.
func (i *InstantImporter) runImport(ctx context.Context, dv pendingImport) error {
	i.mu.Lock()
	do := i.importImage
	i.mu.Unlock()
	if do != nil {
		return do(ctx, dv.DataVolume)
	}
	select {
	case <-time.After(time.Until(dv.firstSeen.Add(i.importDuration))):
	case <-ctx.Done():
	}
	return nil
}

// updateStatus writes a status and retries conflicts. It ignores an object that is gone or
// replaced.
func (i *InstantImporter) updateStatus(ctx context.Context, o client.Object, change func()) error {
	for uid := o.GetUID(); ; {
		change()
		if err := i.client.Status().Update(ctx, o); !apierrors.IsConflict(err) {
			return client.IgnoreNotFound(err)
		}
		if err := i.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil || o.GetUID() != uid {
			return client.IgnoreNotFound(err)
		}
	}
}

// cloneRetryDelay is how long a clone waits before its source is checked again.
const cloneRetryDelay = 50 * time.Millisecond

func (dv pendingImport) isClone() bool {
	return dv.Spec.Source != nil && (dv.Spec.Source.PVC != nil || dv.Spec.Source.Snapshot != nil)
}

// requestedSize returns the requested size; zero for that of the source.
func (dv pendingImport) requestedSize() resource.Quantity {
	switch {
	case dv.Spec.Storage != nil:
		return dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	case dv.Spec.PVC != nil:
		return dv.Spec.PVC.Resources.Requests[corev1.ResourceStorage]
	default:
		return resource.Quantity{}
	}
}

// computeCloneSize returns the least size of a clone; nil while its source is not ready.
func (i *InstantImporter) computeCloneSize(ctx context.Context, dv pendingImport) (*resource.Quantity, error) {
	if from := dv.Spec.Source.PVC; from != nil {
		var claim corev1.PersistentVolumeClaim
		if err := i.client.Get(ctx, client.ObjectKey{Namespace: from.Namespace, Name: from.Name}, &claim); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if claim.Status.Phase != corev1.ClaimBound {
			return nil, nil
		}
		return ptr.To(claim.Spec.Resources.Requests[corev1.ResourceStorage]), nil
	}
	from := dv.Spec.Source.Snapshot
	var snapshot snapshotv1.VolumeSnapshot
	err := i.client.Get(ctx, client.ObjectKey{Namespace: from.Namespace, Name: from.Name}, &snapshot)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil || snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) {
		return nil, err
	}
	return ptr.To(ptr.Deref(snapshot.Status.RestoreSize, resource.Quantity{})), nil
}

// retryCloneLater requeues a clone unless it is deleted.
func (i *InstantImporter) retryCloneLater(ctx context.Context, dv pendingImport) error {
	var now cdiv1.DataVolume
	if err := i.client.Get(ctx, client.ObjectKeyFromObject(dv.DataVolume), &now); err != nil || now.UID != dv.UID {
		return client.IgnoreNotFound(err)
	}
	time.AfterFunc(cloneRetryDelay, func() { i.addImport(pendingImport{&now, dv.firstSeen}) })
	return nil
}

// retrySnapshotUntilTaken sets a VolumeSnapshot ready, in one write, as soon as its claim is bound.
// It ignores those of SnapshotClassNever.
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
