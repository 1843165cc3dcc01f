package rollout

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// soon is when to go on that somebody else was faster than.
	soon = 50 * time.Millisecond
	// settle is how long what happens is collected before it is decided on again:
	// a member that comes or goes concerns every FleetDiskImage.
	settle = 100 * time.Millisecond
	// mostBackoff is the longest wait before a request that failed is tried again.
	mostBackoff = 30 * time.Second
)

// Reconciler rolls out one FleetDiskImage at a request. It runs in the elected
// replica.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	Board   *Board

	again   poke.Source[ctrl.Request]
	paces   pace.Paces
	mu      sync.Mutex
	decided map[string]time.Time // when a FleetDiskImage was decided about last
}

// Reconcile decides about one FleetDiskImage, has the plans go by it, and tells
// how far it is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	now := time.Now()
	img := r.Board.image(request.Name)
	switch {
	case img == nil:
		r.forget(request.Name)
		return ctrl.Result{}, nil
	case !r.Board.Ready():
		return ctrl.Result{}, nil // that it is brings the request back
	}
	if wait := r.tooSoon(img.Name, now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if img.DeletionTimestamp.IsZero() && guarded(img) != controllerutil.ContainsFinalizer(img, v1alpha1.FinalizerFleetDiskImage) {
		r.Board.hold(img.Name)
		return result(ctx, r.guard(ctx, img))
	}
	d, held, found := r.Board.Decide(img.Name, now)
	if !found {
		return ctrl.Result{}, nil // that it is gone brings the request back
	}
	r.Metrics.Decided(time.Since(now))
	if !img.DeletionTimestamp.IsZero() && !held {
		return result(ctx, r.release(ctx, img))
	}
	wait, err := r.tell(ctx, img, &d.Status)
	if err != nil {
		return result(ctx, err)
	}
	if d.After == 0 || wait > 0 && wait < d.After {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return ctrl.Result{RequeueAfter: d.After}, nil
}

// result tells that somebody else was faster from what went wrong.
func result(ctx context.Context, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time, or the cache is behind", "error", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil // it is gone
	}
	return ctrl.Result{}, err
}

// tooSoon tells how long to wait before a FleetDiskImage is decided about again;
// 0: it is now.
func (r *Reconciler) tooSoon(name string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := now.Sub(r.decided[name]); since >= 0 && since < settle {
		return settle - since
	}
	if r.decided == nil {
		r.decided = map[string]time.Time{}
	}
	r.decided[name] = now
	return 0
}

func (r *Reconciler) forget(name string) {
	r.paces.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.decided, name)
}

// guarded tells whether a FleetDiskImage is to stay until its images are gone.
func guarded(img *v1alpha1.FleetDiskImage) bool {
	return img.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// guard has a FleetDiskImage stay until its images are gone, or not.
func (r *Reconciler) guard(ctx context.Context, img *v1alpha1.FleetDiskImage) error {
	base := img.DeepCopy()
	if guarded(img) {
		controllerutil.AddFinalizer(img, v1alpha1.FinalizerFleetDiskImage)
	} else {
		controllerutil.RemoveFinalizer(img, v1alpha1.FinalizerFleetDiskImage)
	}
	if err := r.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the finalizer of FleetDiskImage %s by its deletionPolicy: %w", img.Name, err)
	}
	return nil
}

// release lets a FleetDiskImage go.
func (r *Reconciler) release(ctx context.Context, img *v1alpha1.FleetDiskImage) error {
	base := img.DeepCopy()
	if !controllerutil.RemoveFinalizer(img, v1alpha1.FinalizerFleetDiskImage) {
		return nil
	}
	if err := r.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("removing the finalizer of FleetDiskImage %s: %w", img.Name, err)
	}
	return nil
}

// tell writes the status. wait is when to come back for what must not be written
// yet.
func (r *Reconciler) tell(ctx context.Context, img *v1alpha1.FleetDiskImage, status *v1alpha1.FleetDiskImageStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&img.Status, status) {
		return 0, nil
	}
	if wait := r.paces.Wait(img.Name, urgent(&img.Status, status), time.Now()); wait > 0 {
		return wait, nil
	}
	before := img.Status
	img.Status = *status.DeepCopy()
	if err := r.Status().Update(ctx, img); err != nil {
		return 0, fmt.Errorf("storing status of FleetDiskImage %s: %w", img.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && stalled(status) {
		kind := corev1.EventTypeNormal
		if status.Phase == v1alpha1.RolloutFailed || stalled(status) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(img, nil, kind, status.Reason, "RollOut", "version %s is %s: %s", img.Spec.Version, status.Phase, status.Message)
	}
	return 0, nil
}

// stalled tells that a person has to act.
func stalled(status *v1alpha1.FleetDiskImageStatus) bool {
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionStalled)
}

// urgent tells whether a status says something that cannot wait: that a condition
// has changed, or what the next decision would have to go by, had this replica to
// give it to another.
func urgent(before, after *v1alpha1.FleetDiskImageStatus) bool {
	return before.ObservedGeneration != after.ObservedGeneration || before.Phase != after.Phase ||
		!slices.Equal(before.Versions, after.Versions) || pace.Urgent(before.Conditions, after.Conditions)
}
