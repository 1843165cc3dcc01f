// Package image carries out what package agent/image decides for each
// VMDiskImage.
package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets;configmaps;namespaces,verbs=get

// HolderFunc lists who needs an image: by its name, or by a pin of it. With live, it
// reads past every cache.
type HolderFunc func(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error)

// WishFunc tells what the ClusterPlan in force says about the stay of an image. With
// live, it reads past every cache.
type WishFunc func(ctx context.Context, img types.NamespacedName, live bool) (image.PlannedState, error)

// Reconciler looks after VMDiskImages.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live      client.Reader
	Events    events.EventRecorder
	Queue     *ledger.Queue
	Kinds     *apidiscovery.KindTracker
	Metrics   *metrics.Metrics
	Preflight *preflight.Prober
	// Policy in force; nil where there has never been a valid one.
	Policy func() *policy.Policy
	// PolicyKnown tells whether Policy has been read: nothing is decided before.
	PolicyKnown func() bool
	// EnqueueLedger has the ledger looked at.
	EnqueueLedger func()
	// ListHolders of images; nil where nothing can hold one.
	ListHolders HolderFunc
	// Room of the cluster's storage; nil where nobody asks for it.
	Room *capacity.Reader
	// Wish of the plan; nil where there are no plans.
	Wish WishFunc
	// Ages of the slots.
	Ages *clock.AgeTracker
	// Namespace of the agent, and of the SyncLedger.
	Namespace string

	arrivals        arrivalTracker
	ownWrites       writeTracker
	capacityWaiters capacityWaiters
	enqueued        chan event.GenericEvent
}

// errImageChanged: the image is not any more as the cache showed it. The event of
// that change brings it back.
var errImageChanged = errors.New("the image has changed meanwhile")

// Reconcile takes one image one step further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() || !r.PolicyKnown() {
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	img := &v1alpha1.VMDiskImage{}
	if err := r.Get(ctx, req.NamespacedName, img); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if img.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(img, v1alpha1.FinalizerImage) {
		return ctrl.Result{}, nil
	}
	if !r.ownWrites.isCacheCurrent(img) {
		return ctrl.Result{RequeueAfter: cacheLagTimeout}, nil
	}
	view, err := r.gather(ctx, img)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := image.Decide(view)
	if d.NeedsLiveRead {
		view, err = r.gatherLive(ctx, view)
		if errors.Is(err, errImageChanged) {
			return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
		d = image.Decide(view)
	}
	err = r.apply(ctx, img, d)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	return ctrl.Result{RequeueAfter: d.RequeueAfter}, err
}

// conflictRetryDelay is the wait after a write that met another one, should the event
// of that one have come before.
const conflictRetryDelay = 50 * time.Millisecond

// apply carries out a decision. Children are deleted only once the status that
// lets go of them is stored, against the resourceVersion it was decided on.
func (r *Reconciler) apply(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	if d.RemoveFinalizer {
		return r.patchFinalizer(ctx, img, controllerutil.RemoveFinalizer)
	}
	if d.ProbeSource { // it answers while the rest is stored
		r.startPreflight(ctx, img, d.Status.LastAttempt+1)
	}
	if d.AddFinalizer {
		// The event of this write brings the image back for its first status, and
		// by then a source that is near has answered: one status the less.
		if err := r.patchFinalizer(ctx, img, controllerutil.AddFinalizer); err != nil {
			return err
		}
		r.ownWrites.recordWrite(img)
		return nil
	}
	if d.CreateSnapshot != nil {
		if err := r.Create(ctx, d.CreateSnapshot); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating VolumeSnapshot %s of VMDiskImage %s/%s: %w", d.CreateSnapshot.Name, img.Namespace, img.Name, err)
		}
	}
	before := img.Status.DeepCopy()
	if !equality.Semantic.DeepEqual(img.Status, d.Status) {
		img.Status = d.Status
		if err := r.Status().Update(ctx, img); err != nil {
			return fmt.Errorf("storing status of VMDiskImage %s/%s: %w", img.Namespace, img.Name, err)
		}
		r.ownWrites.recordWrite(img)
		r.recordEvents(img, before, d)
	}
	if !d.ProbeSource {
		r.Preflight.Forget(img.UID)
	}
	for _, target := range d.Delete {
		if err := r.deleteChild(ctx, img, target); err != nil {
			return err
		}
	}
	if d.DeleteImage {
		return r.deleteUnreferenced(ctx, img, d)
	}
	return nil
}

// deleteUnreferenced deletes an image as it was decided on: a machine that came
// to name it since finds it Terminating, and keeps it.
func (r *Reconciler) deleteUnreferenced(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	err := r.Delete(ctx, img, client.Preconditions{UID: &img.UID, ResourceVersion: &img.ResourceVersion})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting VMDiskImage %s/%s, which nothing references: %w", img.Namespace, img.Name, err))
	}
	since := img.Status.References.UnreferencedSince.UTC().Format(time.RFC3339)
	tell := func(reason, format string, args ...any) {
		r.Events.Eventf(img, nil, corev1.EventTypeNormal, reason, "Delete", format, args...)
	}
	switch {
	case d.Pruned:
		r.Metrics.CountPrunedImage()
		tell("Pruned", "deleted: the undo window of the hub's ImagePrune with UID %s has ended, and no VirtualMachine has referenced it since %s", img.Status.Prune.UID, since)
	case d.ExpiredByPlan:
		tell("Retired", "deleted: the ClusterPlan has retired it, and no VirtualMachine has referenced it since %s", since)
	default:
		tell("Unreferenced", "deleted: no VirtualMachine has referenced it since %s, for longer than spec.deleteUnreferencedAfter, %s",
			since, img.Spec.DeleteUnreferencedAfter.Duration)
	}
	return nil
}

func (r *Reconciler) patchFinalizer(ctx context.Context, img *v1alpha1.VMDiskImage, set func(client.Object, string) bool) error {
	base := img.DeepCopy()
	if !set(img, v1alpha1.FinalizerImage) {
		return nil
	}
	if err := r.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("setting the finalizer of VMDiskImage %s/%s: %w", img.Namespace, img.Name, err))
	}
	return nil
}

// startPreflight asks the source of an image before an attempt, in the background.
func (r *Reconciler) startPreflight(ctx context.Context, img *v1alpha1.VMDiskImage, attempt int32) {
	key := image.KeyOf(img)
	url, _ := image.PreflightURL(img.Spec)
	r.Preflight.ProbeAsync(context.WithoutCancel(ctx), img.UID, url, attempt, func() { r.Enqueue(key) })
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
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting %s %s of VMDiskImage %s/%s: %w", t.Kind, t.Name, img.Namespace, img.Name, err)
	}
	return nil
}

// recordEvents counts and reports what a stored status says for the first time.
func (r *Reconciler) recordEvents(img *v1alpha1.VMDiskImage, before *v1alpha1.VMDiskImageStatus, d image.Decision) {
	for _, ended := range d.EndedAttempts {
		if ended.Outcome == v1alpha1.OutcomeSucceeded {
			var took time.Duration
			if !ended.Slot.StartedAt.IsZero() {
				took = time.Since(ended.Slot.StartedAt.Time)
			}
			r.Metrics.RecordSuccess(ended.DownloadedBytes, took)
			r.Events.Eventf(img, nil, corev1.EventTypeNormal, "Imported", "Import", "attempt %d succeeded", ended.Slot.Attempt)
			continue
		}
		r.Metrics.RecordFailure(ended.Failure.Reason, ended.DownloadedBytes)
		r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(ended.Failure.Reason), "Import", "attempt %d failed: %s", ended.Slot.Attempt, ended.Failure.Message)
	}
	if countResyncs(&img.Status) > countResyncs(before) {
		r.Metrics.CountResync()
		r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(v1alpha1.ReasonStorageLost), "Resync", "storage of a finished image is gone: it is made again")
	}
	r.recordPruneEvent(img, before.Prune)
	// That an import has begun was told with its slot.
	if before.Phase != img.Status.Phase && len(d.EndedAttempts) == 0 && img.Status.Reason != v1alpha1.ReasonImporting {
		kind := corev1.EventTypeNormal
		if img.Status.Phase == v1alpha1.PhaseFailed {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(img, nil, kind, string(img.Status.Reason), "Reconcile", "%s: %s", img.Status.Phase, img.Status.Message)
	}
}

// recordPruneEvent tells of a prune that ends without the image's end. That one begins, the
// phase tells.
func (r *Reconciler) recordPruneEvent(img *v1alpha1.VMDiskImage, before *v1alpha1.PruneStatus) {
	p := img.Status.Prune
	if p == nil || !p.State.IsFinal() || (before != nil && before.UID == p.UID && before.State == p.State) {
		return
	}
	if p.State == v1alpha1.PruneSkipped {
		r.Metrics.CountSkippedPrune(p.Reason)
	}
	r.Events.Eventf(img, nil, corev1.EventTypeNormal, "Prune"+string(p.State), "Prune", "stays, in spite of the hub's ImagePrune with UID %s: %s: %s", p.UID, p.Reason, p.Message)
}

func countResyncs(st *v1alpha1.VMDiskImageStatus) (n int32) {
	for i := range st.Revisions {
		if st.Revisions[i].Revision == st.Revision {
			n = st.Revisions[i].Resyncs
		}
	}
	return n
}

// Enqueue has one image looked at again.
func (r *Reconciler) Enqueue(key v1alpha1.ImageKey) {
	r.enqueued <- newEnqueueEvent(key)
}

func newEnqueueEvent(key v1alpha1.ImageKey) event.GenericEvent {
	return event.GenericEvent{Object: &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: key.UID}}}
}

// EnqueueUnready has all images looked at again that wait in the queue or, which
// no queue knows, for a snapshot, and some others.
func (r *Reconciler) EnqueueUnready(ctx context.Context, others ...v1alpha1.ImageKey) {
	go func() {
		keys := append(r.Queue.ListKeys(), others...)
		var images v1alpha1.VMDiskImageList
		if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing the VMDiskImages that wait for a snapshot: they go by the former policy until their time is up")
		}
		for i := range images.Items {
			if image.AwaitsSnapshot(&images.Items[i]) {
				keys = append(keys, image.KeyOf(&images.Items[i]))
			}
		}
		r.enqueueEach(ctx, keys)
	}()
}

// EnqueueAll has images looked at again, and does not wait until they are.
func (r *Reconciler) EnqueueAll(ctx context.Context, keys ...v1alpha1.ImageKey) {
	go r.enqueueEach(ctx, keys)
}

func (r *Reconciler) enqueueEach(ctx context.Context, keys []v1alpha1.ImageKey) {
	for _, key := range keys {
		select {
		case <-ctx.Done():
			return
		default:
			r.Enqueue(key)
		}
	}
}

func namespacedName(key v1alpha1.ImageKey) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}
