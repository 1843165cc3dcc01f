// Package image reconciles VMDiskImages. Package agent/image decides.
package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/podevents"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=configmaps;namespaces,verbs=get

// HolderFunc lists who needs an image, by its name or by a pin. With live, it reads past
// every cache.
type HolderFunc func(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error)

// PlannedStateFunc returns what the ClusterPlan in force says about keeping an image. With
// live, it reads past every cache.
type PlannedStateFunc func(ctx context.Context, img types.NamespacedName, live bool) (image.PlannedState, error)

// Reconciler reconciles VMDiskImages.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live      client.Reader
	Events    events.EventRecorder
	Queue     *ledger.Queue
	Kinds     *apidiscovery.KindTracker
	Metrics   *metrics.Metrics
	Preflight *preflight.Prober
	// Policy in force; nil where there never was a valid one.
	Policy func() *policy.Policy
	// Opening is when a window of the policy lets more imports run; nil for never.
	Opening func() *policy.Opening
	// PolicyKnown: the policy has been read. No image is reconciled before.
	PolicyKnown func() bool
	// EnqueueLedger requeues the SyncLedger.
	EnqueueLedger func()
	// ListHolders of images; nil where nothing can hold one.
	ListHolders HolderFunc
	// Capacity of the cluster's storage; nil where it is not checked.
	Capacity *capacity.Reader
	// PodEvents of importers that do not start; nil where they are not read.
	PodEvents *podevents.Reader
	// PlannedState of images; nil where there are no plans.
	PlannedState PlannedStateFunc
	// AskPrunesConfirmed asks the hub whether the plan's prunes are still requested. What it answers
	// requeues their images.
	AskPrunesConfirmed func()
	// CreationProblem is why the DataVolume of a slot could not be created; nil for none.
	CreationProblem func(v1alpha1.Slot) *importcause.Cause
	// DataSources that images may use.
	DataSources DataSources
	// Ages of the slots.
	Ages *clock.AgeTracker
	// Clones is a cache of all DataVolumes and DataSources; nil where nothing is published.
	Clones client.Reader
	// Namespace of the agent, and of the SyncLedger.
	Namespace string

	arrivals        arrivalTracker
	ownWrites       writeTracker
	publishRefusals refusals
	childRefusals   refusals
	imageRefusals   imageRefusals
	capacityWaiters capacityWaiters
	usableClasses   usableClasses
	trials          trialAnswers
	serverClock     serverClock
	triggers        trigger.Source[reconcile.Request]
	conflicts       trigger.ConflictTracker
}

// firstAnswerDelay bounds how long the first write to an image waits for its source.
const firstAnswerDelay = 100 * time.Millisecond

// errImageChanged: the image differs from the one that the cache showed.
var errImageChanged = errors.New("the image has changed meanwhile")

// Reconcile takes an image one step further: it reads, decides, reads again live if the
// decision is irreversible, and applies the decision.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() || !r.PolicyKnown() {
		return ctrl.Result{RequeueAfter: trigger.ConflictRetryDelay}, nil
	}
	img := &v1alpha1.VMDiskImage{}
	if err := r.Get(ctx, req.NamespacedName, img); err != nil {
		if apierrors.IsNotFound(err) {
			r.conflicts.Forget(req)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !r.ownWrites.isCacheCurrent(img) {
		return ctrl.Result{RequeueAfter: cacheLagTimeout}, nil
	}
	decision, err := r.decide(ctx, img)
	if err == nil && decision.ProbeSource && r.arrivals.delaysFirstWrite(img) {
		r.startPreflight(ctx, img, image.NextAttempt(decision.Status.LastAttempt))
		return ctrl.Result{RequeueAfter: firstAnswerDelay}, nil // an answer requeues it sooner
	}
	if err == nil {
		err = r.apply(ctx, img, decision)
	}
	delay := r.conflicts.Record(req, err, isConflict(err))
	r.recordChildRefusal(img, err, delay == 0)
	if err != nil {
		return trigger.Result(ctx, err, delay, func(err error) bool { return isConflict(err) && delay > 0 })
	}
	return ctrl.Result{RequeueAfter: decision.RequeueAfter}, nil
}

func (r *Reconciler) decide(ctx context.Context, img *v1alpha1.VMDiskImage) (image.Decision, error) {
	view, err := r.gather(ctx, img)
	if err != nil {
		return image.Decision{}, err
	}
	r.updateCapacityWaiter(&view)
	decision := image.Decide(view)
	if !decision.NeedsLiveRead {
		return decision, nil
	}
	if view, err = r.gatherLive(ctx, view); err != nil {
		return image.Decision{}, err
	}
	return image.Decide(view), nil
}

// isConflict: another writer was first, or the clocks differ. The delay is for the case that the
// writer's event came before the write.
func isConflict(err error) bool {
	return apierrors.IsConflict(err) || errors.Is(err, errImageChanged) || errors.Is(err, errServerClockBehind)
}

// Enqueue requeues images. It never blocks.
func (r *Reconciler) Enqueue(keys ...v1alpha1.ImageKey) {
	for _, key := range keys {
		r.triggers.Enqueue(requestFor(key))
	}
}

// EnqueueUnready requeues the images that wait in the queue or for a snapshot, and some
// others. It does not block.
func (r *Reconciler) EnqueueUnready(ctx context.Context, others ...v1alpha1.ImageKey) {
	go func() {
		r.Enqueue(r.Queue.ListKeys()...)
		r.Enqueue(others...)
		var images v1alpha1.VMDiskImageList
		if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "Failed to list VMDiskImages; those that wait for a snapshot keep the former timeout")
			return
		}
		for i := range images.Items {
			if image.AwaitsSnapshot(&images.Items[i]) {
				r.Enqueue(image.KeyOf(&images.Items[i]))
			}
		}
	}()
}

// EnqueueAll requeues all images. It does not block.
func (r *Reconciler) EnqueueAll(ctx context.Context) {
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list VMDiskImages; those that wait for a kind notice it at their next event")
		return
	}
	keys := make([]v1alpha1.ImageKey, len(images.Items))
	for i := range images.Items {
		keys[i] = image.KeyOf(&images.Items[i])
	}
	go r.Enqueue(keys...)
}

func requestFor(key v1alpha1.ImageKey) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}}
}

func describeImage(img *v1alpha1.VMDiskImage) string {
	return fmt.Sprintf("VMDiskImage %s/%s", img.Namespace, img.Name)
}
