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

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// conflictRetryDelay is when to go on that somebody else was faster than.
	conflictRetryDelay = 50 * time.Millisecond
	// minDecideInterval is how long what happens is collected before it is decided on again:
	// a member that comes or goes concerns every FleetDiskImage.
	minDecideInterval = 100 * time.Millisecond
	// maxBackoff is the longest wait before a request that failed is tried again.
	maxBackoff = 30 * time.Second
)

// Reconciler rolls out one FleetDiskImage at a request. It runs in the elected
// replica.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	State   *FleetState

	requeue     trigger.Source[ctrl.Request]
	statusPaces trigger.StatusPacer
	mu          sync.Mutex
	lastDecided map[string]time.Time // when a FleetDiskImage was decided about last
}

// Reconcile decides about one FleetDiskImage, has the plans go by it, and tells
// how far it is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	now := time.Now()
	img := r.State.copyStoredImage(request.Name)
	switch {
	case img == nil:
		r.forgetImage(request.Name)
		return ctrl.Result{}, nil
	case !r.State.Ready():
		return ctrl.Result{}, nil // that it is brings the request back
	}
	if wait := r.decideDelay(img.Name, now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if img.DeletionTimestamp.IsZero() && needsFinalizer(img) != controllerutil.ContainsFinalizer(img, v1alpha1.FinalizerFleetDiskImage) {
		r.State.freezeUndecided(img.Name)
		return resultFor(ctx, r.syncFinalizer(ctx, img))
	}
	d, held, found := r.State.Decide(img.Name, now)
	if !found {
		return ctrl.Result{}, nil // that it is gone brings the request back
	}
	r.Metrics.ObservePlanning(time.Since(now))
	if !img.DeletionTimestamp.IsZero() && !held {
		return resultFor(ctx, r.removeFinalizer(ctx, img))
	}
	wait, err := r.updateStatus(ctx, img, &d.Status)
	if err != nil {
		return resultFor(ctx, err)
	}
	if d.RequeueAfter == 0 || wait > 0 && wait < d.RequeueAfter {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
}

// resultFor tells that somebody else was faster from what went wrong.
func resultFor(ctx context.Context, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time, or the cache is behind", "error", err.Error())
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil // it is gone
	}
	return ctrl.Result{}, err
}

// decideDelay tells how long to wait before a FleetDiskImage is decided about again;
// 0: it is now.
func (r *Reconciler) decideDelay(name string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := now.Sub(r.lastDecided[name]); since >= 0 && since < minDecideInterval {
		return minDecideInterval - since
	}
	if r.lastDecided == nil {
		r.lastDecided = map[string]time.Time{}
	}
	r.lastDecided[name] = now
	return 0
}

func (r *Reconciler) forgetImage(name string) {
	r.statusPaces.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lastDecided, name)
}

// needsFinalizer tells whether a FleetDiskImage is to stay until its images are gone.
func needsFinalizer(img *v1alpha1.FleetDiskImage) bool {
	return img.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// syncFinalizer has a FleetDiskImage stay until its images are gone, or not.
func (r *Reconciler) syncFinalizer(ctx context.Context, img *v1alpha1.FleetDiskImage) error {
	base := img.DeepCopy()
	if needsFinalizer(img) {
		controllerutil.AddFinalizer(img, v1alpha1.FinalizerFleetDiskImage)
	} else {
		controllerutil.RemoveFinalizer(img, v1alpha1.FinalizerFleetDiskImage)
	}
	if err := r.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the finalizer of FleetDiskImage %s by its deletionPolicy: %w", img.Name, err)
	}
	return nil
}

// removeFinalizer lets a FleetDiskImage go.
func (r *Reconciler) removeFinalizer(ctx context.Context, img *v1alpha1.FleetDiskImage) error {
	base := img.DeepCopy()
	if !controllerutil.RemoveFinalizer(img, v1alpha1.FinalizerFleetDiskImage) {
		return nil
	}
	if err := r.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("removing the finalizer of FleetDiskImage %s: %w", img.Name, err)
	}
	return nil
}

// updateStatus writes the status. wait is when to come back for what must not be written
// yet.
func (r *Reconciler) updateStatus(ctx context.Context, img *v1alpha1.FleetDiskImage, status *v1alpha1.FleetDiskImageStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&img.Status, status) {
		return 0, nil
	}
	if wait := r.statusPaces.ReserveWrite(img.Name, isUrgent(&img.Status, status), time.Now()); wait > 0 {
		return wait, nil
	}
	before := img.Status
	img.Status = *status.DeepCopy()
	if err := r.Status().Update(ctx, img); err != nil {
		return 0, fmt.Errorf("storing status of FleetDiskImage %s: %w", img.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && isStalled(status) {
		kind := corev1.EventTypeNormal
		if status.Phase == v1alpha1.RolloutFailed || isStalled(status) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(img, nil, kind, status.Reason, "RollOut", "version %s is %s: %s", img.Spec.Version, status.Phase, status.Message)
	}
	return 0, nil
}

// isStalled tells that a person has to act.
func isStalled(status *v1alpha1.FleetDiskImageStatus) bool {
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionStalled)
}

// isUrgent tells whether a status says something that cannot wait: that a condition
// has changed, or what the next decision would have to go by, had this replica to
// give it to another.
func isUrgent(before, after *v1alpha1.FleetDiskImageStatus) bool {
	return before.ObservedGeneration != after.ObservedGeneration || before.Phase != after.Phase ||
		!slices.Equal(before.Versions, after.Versions) || trigger.ConditionsChanged(before.Conditions, after.Conditions)
}
