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

// Instant stands in for CDI, the node and the storage at once, where only what
// the agent costs is of interest: it gives a DataVolume its claim, Bound, and
// has it Succeeded, in three writes and no time, or a set one. It knows no
// failures and deletes nothing. Imports end in the order of their creation, and
// only as many as were allowed to. Clones, of claims and of snapshots, take no
// time and no allowance, but wait for their source; nobody asks whether who made
// one may read it.
type Instant struct {
	client client.Client
	takes  time.Duration
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond
	waiting  []begun
	clones   []begun
	allowed  int
	held     []*hold
	finished int
	stopped  bool
	err      error
}

// begun is an import, and when it was first seen.
type begun struct {
	*cdiv1.DataVolume
	at time.Time
}

// hold keeps those imports from ending that it is about.
type hold struct{ about func(*cdiv1.DataVolume) bool }

// instantWorkers end imports at a time: they are not to be what is measured.
const instantWorkers = 16

// StartInstant serves all DataVolumes of a cluster that runs no CDI, and makes
// the storage classes. Nothing ends before Allow, nor before it was there for as
// long as imports take.
func StartInstant(ctx context.Context, o Options, takes time.Duration) (*Instant, error) {
	c, err := client.NewWithWatch(o.Config, client.Options{Scheme: o.Scheme})
	if err != nil {
		return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
	}
	if err := createClasses(ctx, c, o.Snapshots); err != nil {
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
	i := &Instant{client: c, takes: takes, cancel: cancel}
	i.changed = sync.NewCond(&i.mu)
	if o.Snapshots {
		if err := i.serveSnapshots(running, c); err != nil {
			cancel()
			w.Stop()
			return nil, fmt.Errorf("setting up the instant CDI of %s: %w", o.Name, err)
		}
	}
	for n := range list.Items {
		i.add(begun{&list.Items[n], time.Now()})
	}
	i.done.Add(1 + instantWorkers)
	go func() {
		defer i.done.Done()
		defer w.Stop()
		for e := range w.ResultChan() {
			if dv, is := e.Object.(*cdiv1.DataVolume); is && e.Type == watch.Added {
				i.add(begun{dv, time.Now()})
			}
		}
	}()
	for range instantWorkers {
		go func() {
			defer i.done.Done()
			for dv, more := i.next(); more; dv, more = i.next() {
				err := i.finish(running, dv)
				i.change(func() {
					if !dv.isClone() {
						i.finished++
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

func (i *Instant) change(how func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	how()
	i.changed.Broadcast()
}

// Allow lets n more imports end.
func (i *Instant) Allow(n int) { i.change(func() { i.allowed += n }) }

// Hold keeps imports from ending whose DataVolume is as said, until the function
// it returns is called. They have been allowed to, and not more of them than the
// workers may be held at a time.
func (i *Instant) Hold(about func(*cdiv1.DataVolume) bool) (release func()) {
	h := &hold{about}
	i.change(func() { i.held = append(i.held, h) })
	return func() {
		i.change(func() { i.held = slices.DeleteFunc(i.held, func(other *hold) bool { return other == h }) })
	}
}

// awaitRelease waits while an import is held.
func (i *Instant) awaitRelease(dv *cdiv1.DataVolume) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.stopped && slices.ContainsFunc(i.held, func(h *hold) bool { return h.about(dv) }) {
		i.changed.Wait()
	}
}

// Finished counts the imports that have ended. The error is that of the first
// that could not.
func (i *Instant) Finished() (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.finished, i.err
}

// Stop ends it; what has not ended yet never will.
func (i *Instant) Stop() error {
	i.change(func() { i.stopped = true })
	i.cancel()
	i.done.Wait()
	return nil
}

// next waits for one that may end; false when there will be none.
func (i *Instant) next() (begun, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.stopped && len(i.clones) == 0 && (i.allowed == 0 || len(i.waiting) == 0) {
		i.changed.Wait()
	}
	if i.stopped {
		return begun{}, false
	}
	if len(i.clones) > 0 {
		dv := i.clones[0]
		i.clones = i.clones[1:]
		return dv, true
	}
	dv := i.waiting[0]
	i.waiting = i.waiting[1:]
	i.allowed--
	return dv, true
}

func (i *Instant) add(dv begun) {
	i.change(func() {
		if dv.isClone() {
			i.clones = append(i.clones, dv)
		} else {
			i.waiting = append(i.waiting, dv)
		}
	})
}

// finish gives a DataVolume its claim at once, as CDI does, and ends it when it
// has been there for as long as imports take.
func (i *Instant) finish(ctx context.Context, dv begun) error {
	size := dv.size()
	if dv.isClone() {
		least, err := i.sourceSize(ctx, dv)
		if err != nil {
			return fmt.Errorf("looking for the source of clone %s/%s: %w", dv.Namespace, dv.Name, err)
		}
		if least == nil || !size.IsZero() && size.Cmp(*least) < 0 {
			return i.later(ctx, dv)
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
	err := i.tell(ctx, claim, func() {
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.AccessModes = claim.Spec.AccessModes
		claim.Status.Capacity = claim.Spec.Resources.Requests
	})
	if err != nil {
		return fmt.Errorf("binding claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if !dv.isClone() {
		select {
		case <-time.After(time.Until(dv.at.Add(i.takes))):
		case <-ctx.Done():
			return ctx.Err()
		}
		i.awaitRelease(dv.DataVolume)
	}
	err = i.tell(ctx, dv.DataVolume, func() {
		dv.Status.Phase, dv.Status.Progress, dv.Status.ClaimName = cdiv1.Succeeded, "100.0%", dv.Name
	})
	if err != nil {
		return fmt.Errorf("ending DataVolume %s/%s: %w", dv.Namespace, dv.Name, err)
	}
	return nil
}

// tell stores a status, also where somebody has written the object meanwhile; one that
// is gone, or another one by now, is told nothing.
func (i *Instant) tell(ctx context.Context, o client.Object, change func()) error {
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
