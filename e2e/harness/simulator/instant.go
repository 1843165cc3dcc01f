//go:build linux

package simulator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// InstantImporter stands in for CDI, the node and the storage at once, where only what
// the agent costs is of interest: it gives a DataVolume its claim, Bound, and
// has it Succeeded, in three writes and no time, or a set one. It knows no
// failures and deletes nothing. Imports end in the order of their creation, and
// only as many as were allowed to. Clones, of claims and of snapshots, take no
// time and no allowance, but wait for their source; nobody asks whether who made
// one may read it.
type InstantImporter struct {
	client         client.Client
	importDuration time.Duration
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

// pendingImport is an import, and when it was first seen.
type pendingImport struct {
	*cdiv1.DataVolume
	firstSeen time.Time
}

// holdRule keeps those imports from ending that it is about.
type holdRule struct{ matches func(*cdiv1.DataVolume) bool }

// concurrentImports end imports at a time: they are not to be what is measured.
const concurrentImports = 16

// StartInstantImporter serves all DataVolumes of a cluster that runs no CDI, and makes
// the storage classes. Nothing ends before Allow, nor before it was there for as
// long as imports take.
func StartInstantImporter(ctx context.Context, o Options, takes time.Duration) (*InstantImporter, error) {
	c, err := client.NewWithWatch(o.Config, client.Options{Scheme: o.Scheme})
	if err != nil {
		return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
	}
	if err := createStorageClasses(ctx, c, o.Snapshots); err != nil {
		return nil, err
	}
	var list cdiv1.DataVolumeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("setting up the instant CDI of %s: listing DataVolumes: %w", o.Name, err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w, err := watchtools.NewRetryWatcherWithContext(running, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &cdiv1.DataVolumeList{}, &client.ListOptions{Raw: &options})
		},
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("setting up the instant CDI of %s: watching DataVolumes: %w", o.Name, err)
	}
	i := &InstantImporter{client: c, importDuration: takes, cancel: cancel}
	i.changed = sync.NewCond(&i.mu)
	if o.Snapshots {
		if err := i.serveSnapshots(running, c); err != nil {
			cancel()
			w.Stop()
			return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
		}
	}
	for n := range list.Items {
		i.addImport(pendingImport{&list.Items[n], time.Now()})
	}
	i.done.Add(1 + concurrentImports)
	go func() {
		defer i.done.Done()
		defer w.Stop()
		for e := range w.ResultChan() {
			if dv, ok := e.Object.(*cdiv1.DataVolume); ok && e.Type == watch.Added {
				i.addImport(pendingImport{dv, time.Now()})
			}
		}
	}()
	for range concurrentImports {
		go func() {
			defer i.done.Done()
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
		}()
	}
	return i, nil
}

func (i *InstantImporter) updateAndWake(how func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	how()
	i.changed.Broadcast()
}

// AllowFinishes lets n more imports end.
func (i *InstantImporter) AllowFinishes(n int) { i.updateAndWake(func() { i.finishesAllowed += n }) }

// HoldImports keeps imports from ending whose DataVolume is as said, until the function
// it returns is called. They have been allowed to, and not more of them than the
// workers may be held at a time.
func (i *InstantImporter) HoldImports(about func(*cdiv1.DataVolume) bool) (release func()) {
	h := &holdRule{about}
	i.updateAndWake(func() { i.holdRules = append(i.holdRules, h) })
	return func() {
		i.updateAndWake(func() { i.holdRules = slices.DeleteFunc(i.holdRules, func(other *holdRule) bool { return other == h }) })
	}
}

// awaitRelease waits while an import is held.
func (i *InstantImporter) awaitRelease(dv *cdiv1.DataVolume) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.stopped && slices.ContainsFunc(i.holdRules, func(h *holdRule) bool { return h.matches(dv) }) {
		i.changed.Wait()
	}
}

// CountFinished counts the imports that have ended. The error is that of the first
// that could not.
func (i *InstantImporter) CountFinished() (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.finishedCount, i.err
}

// Stop ends it; what has not ended yet never will.
func (i *InstantImporter) Stop() error {
	i.updateAndWake(func() { i.stopped = true })
	i.cancel()
	i.done.Wait()
	return nil
}

// nextFinishable waits for one that may end; false when there will be none.
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

// finishImport gives a DataVolume its claim at once, as CDI does, and ends it when it
// has been there for as long as imports take.
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
		return nil // its namespace is gone
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
	if !dv.isClone() {
		select {
		case <-time.After(time.Until(dv.firstSeen.Add(i.importDuration))):
		case <-ctx.Done():
			return ctx.Err()
		}
		i.awaitRelease(dv.DataVolume)
	}
	err = i.updateStatus(ctx, dv.DataVolume, func() {
		dv.Status.Phase, dv.Status.Progress, dv.Status.ClaimName = cdiv1.Succeeded, "100.0%", dv.Name
	})
	if err != nil {
		return fmt.Errorf("ending DataVolume %s/%s: %w", dv.Namespace, dv.Name, err)
	}
	return nil
}

// updateStatus stores a status, also where somebody has written the object meanwhile; one that
// is gone, or another one by now, is told nothing.
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
