package imageprune

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const (
	// minInterval batches the reports of many members.
	minInterval = 100 * time.Millisecond
	// idleFactor and maxInterval keep one ImagePrune from occupying the worker.
	idleFactor  = 5
	maxInterval = 5 * time.Second
)

var (
	pruneChanged  = trigger.Changed(func(p *v1alpha1.ImagePrune) string { return string(p.Status.Phase) })
	reportChanged = trigger.Changed(func(r *v1alpha1.PruneReport) string { return string(r.Status.Phase) + r.Status.Digest })
	memberChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.MemberCluster)
		after, okAfter := e.ObjectNew.(*v1alpha1.MemberCluster)
		return !okBefore || !okAfter || identityOrAvailabilityChanged(before, after)
	}}
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.throttle = trigger.Throttle{MinInterval: minInterval, IdleFactor: idleFactor, MaxInterval: maxInterval}
	enqueue := func(name string) { r.requeue.Enqueue(trigger.Requests(name)[0]) }
	r.Tracker.OnExpected(prunetracker.KindPrune, enqueue)
	r.Tracker.OnReportedChange(enqueue)
	r.Roots.OnSynced(func() {
		for _, name := range r.Tracker.ActivePrunes() {
			enqueue(name)
		}
	})
	toActive := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, member client.Object) []reconcile.Request {
		return trigger.Requests(r.Tracker.ActivePrunesIn(member.GetName())...)
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("imageprune").
		For(&v1alpha1.ImagePrune{}, builder.WithPredicates(pruneChanged)).
		Watches(&v1alpha1.PruneReport{}, handler.EnqueueRequestsFromMapFunc(r.prunesOfReport), builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.MemberCluster{}, toActive, builder.WithPredicates(memberChanged)).
		WatchesRawSource(&r.requeue).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1, // see Reconciler
			RateLimiter:             trigger.NewRateLimiter(),
		}).
		Complete(r)
}

// identityOrAvailabilityChanged ignores all other changes of a MemberCluster.
func identityOrAvailabilityChanged(before, after *v1alpha1.MemberCluster) bool {
	offlineBefore, _ := rollout.Availability(before)
	offlineAfter, _ := rollout.Availability(after)
	return before.UID != after.UID || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Status.ClusterUID != after.Status.ClusterUID || offlineBefore != offlineAfter ||
		before.Annotations[v1alpha1.AnnotationAcceptCluster] != after.Annotations[v1alpha1.AnnotationAcceptCluster]
}

// prunesOfReport returns requests for the unfinished ImagePrunes that name a report.
func (r *Reconciler) prunesOfReport(ctx context.Context, report client.Object) []reconcile.Request {
	var list v1alpha1.ImagePruneList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list ImagePrunes; not enqueueing those of the PruneReport", "report", report.GetName())
		return nil
	}
	var names []string
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.ReportRef.Name == report.GetName() && !p.Status.Phase.IsFinal() {
			names = append(names, p.Name)
		}
	}
	return trigger.Requests(names...)
}
