package prunereport

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
)

const (
	// maxConcurrentReports is above one because a report may read many pages.
	maxConcurrentReports = 4
	// minInterval batches the answers of many members.
	minInterval = 100 * time.Millisecond
	// idleFactor and maxInterval keep one report from occupying a worker.
	idleFactor  = 5
	maxInterval = 5 * time.Second
)

var (
	reportChanged = trigger.Changed(func(r *v1alpha1.PruneReport) string { return string(r.Status.Phase) + r.Status.Digest })
	pruneChanged  = trigger.Changed(func(p *v1alpha1.ImagePrune) string { return string(p.Status.Phase) })
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.throttle = trigger.Throttle{MinInterval: minInterval, IdleFactor: idleFactor, MaxInterval: maxInterval}
	r.Tracker.OnExpected(prunetracker.KindReport, func(name string) { r.requeue.Enqueue(trigger.Requests(name)[0]) })
	enqueueActive := func() {
		for _, request := range trigger.Requests(r.Tracker.ActiveReports()...) {
			r.requeue.Enqueue(request)
		}
	}
	r.Roots.OnChange(func(string) { enqueueActive() })
	r.Roots.OnHeartbeat(func(string) { enqueueActive() }) // an age is judged by the report's time
	r.Roots.OnSynced(enqueueActive)
	r.Rollouts.OnDesiredChange(func(string) { enqueueActive() })

	toActive := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return trigger.Requests(r.Tracker.ActiveReports()...)
	})
	// A schedule creates the next report once the last one is finished, and deletes
	// reports that no ImagePrune uses any longer.
	toSchedule := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return scheduleOf(o)
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("prunereport").
		For(&v1alpha1.PruneReport{}, builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.PruneReport{}, toSchedule, builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.ImagePrune{}, handler.EnqueueRequestsFromMapFunc(r.scheduleOfPrune), builder.WithPredicates(pruneChanged)).
		Watches(&v1alpha1.MemberCluster{}, toActive).
		Watches(&v1alpha1.ClusterPlan{}, toActive).
		WatchesRawSource(&r.requeue).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReports,
			RateLimiter:             trigger.NewRateLimiter(),
		}).
		Complete(r)
}

// scheduleOf returns the request for the schedule that owns a report.
func scheduleOf(report client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOf(report); owner != nil && owner.Kind == prunetracker.KindReport {
		return trigger.Requests(owner.Name)
	}
	return nil
}

// scheduleOfPrune returns the request for the schedule of the report that an ImagePrune
// names.
func (r *Reconciler) scheduleOfPrune(ctx context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(*v1alpha1.ImagePrune)
	if !ok {
		return nil
	}
	stored := &v1alpha1.PruneReport{}
	if err := r.Get(ctx, client.ObjectKey{Name: p.Spec.ReportRef.Name}, stored); err != nil {
		return nil
	}
	return scheduleOf(stored)
}
