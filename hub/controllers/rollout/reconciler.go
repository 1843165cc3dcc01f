package rollout

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pelotech.ot,resources=fleetdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler rolls out FleetDiskImages. It runs in the elected replica.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	State   *FleetState

	requeue     trigger.Source[ctrl.Request]
	statusPacer trigger.StatusPacer
	throttle    trigger.Throttle
}

// Reconcile decides about one FleetDiskImage, publishes what it desires of the members,
// and writes its status.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	img := r.State.copyStoredImage(request.Name)
	switch {
	case img == nil:
		r.statusPacer.Forget(request.Name)
		r.throttle.Forget(request.Name)
		return ctrl.Result{}, nil
	case !r.State.Ready():
		return ctrl.Result{}, nil // becoming ready enqueues it
	}
	return r.throttle.Reconcile(ctx, img.Name, func(ctx context.Context, _ string) (time.Duration, error) {
		after, err := r.reconcile(ctx, img)
		return after, client.IgnoreNotFound(err)
	})
}

func (r *Reconciler) reconcile(ctx context.Context, img *v1alpha1.FleetDiskImage) (after time.Duration, err error) {
	isDeleted := !img.DeletionTimestamp.IsZero()
	if !isDeleted && needsFinalizer(img) != controllerutil.ContainsFinalizer(img, v1alpha1.FinalizerFleetDiskImage) {
		r.State.freezeUndecided(img.Name)
		return 0, r.syncFinalizer(ctx, img)
	}
	start := time.Now()
	d, held, found := r.State.Decide(img.Name, start)
	if !found {
		return 0, nil // its removal enqueues it
	}
	r.Metrics.ObservePlanning(time.Since(start))
	if isDeleted && !held {
		return 0, r.removeFinalizer(ctx, img)
	}
	wait, err := r.updateStatus(ctx, img, &d.Status)
	if err != nil {
		return 0, err
	}
	return trigger.Earliest(d.RequeueAfter, d.EstimateAfter, wait), nil
}

// needsFinalizer reports whether a FleetDiskImage stays until its images are deleted.
func needsFinalizer(img *v1alpha1.FleetDiskImage) bool {
	return img.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// syncFinalizer adds or removes the finalizer by spec.deletionPolicy.
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

// updateStatus writes a status that changes. Changes that are not urgent are paced: wait
// is the time until they may be written.
func (r *Reconciler) updateStatus(ctx context.Context, img *v1alpha1.FleetDiskImage, status *v1alpha1.FleetDiskImageStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&img.Status, status) {
		return 0, nil
	}
	if wait := r.statusPacer.ReserveWrite(img.Name, isUrgent(&img.Status, status), time.Now()); wait > 0 {
		return wait, nil
	}
	before := img.Status
	img.Status = *status.DeepCopy()
	if err := r.Status().Update(ctx, img); err != nil {
		return 0, fmt.Errorf("updating the status of FleetDiskImage %s: %w", img.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && rollout.NeedsPerson(status.Reason) {
		eventType := corev1.EventTypeNormal
		if rollout.NeedsPerson(status.Reason) {
			eventType = corev1.EventTypeWarning
		}
		r.Events.Eventf(img, nil, eventType, status.Reason, "RollOut", "version %s is %s: %s", img.Spec.Version, status.Phase, status.Message)
	}
	return 0, nil
}

// isUrgent reports whether a condition changes, or what another leader's next decision
// would depend on.
func isUrgent(before, after *v1alpha1.FleetDiskImageStatus) bool {
	return before.ObservedGeneration != after.ObservedGeneration || before.Phase != after.Phase || before.ObservedRetry != after.ObservedRetry ||
		!rollout.SameVersions(before.Versions, after.Versions) || trigger.ConditionsChanged(before.Conditions, after.Conditions)
}
