package prune

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// maxConcurrentReports make PruneReports at a time: one may read pages for long.
const maxConcurrentReports = 4

// Setup adds the controllers of PruneReports and of ImagePrunes to a manager, and
// what tells the Register what was stored at the start.
func Setup(mgr ctrl.Manager, reports *ReportReconciler, prunes *PruneReconciler) error {
	if err := reports.setup(mgr); err != nil {
		return err
	}
	if err := prunes.setup(mgr); err != nil {
		return err
	}
	return mgr.Add(&storedObjectsLoader{live: reports.Live, tracker: reports.Tracker, reports: reports, prunes: prunes})
}

func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](conflictRetryDelay, maxBackoff)
}

// requestsFor for objects by their names.
func requestsFor(names ...string) []reconcile.Request {
	list := make([]reconcile.Request, len(names))
	for i, name := range names {
		list[i].NamespacedName = types.NamespacedName{Name: name}
	}
	return list
}

// phaseChanged lets through what gets another spec, phase or digest: that members answer
// is written here, and is no reason to look again.
func phaseChanged[T client.Object](of func(T) string) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(T)
		after, too := e.ObjectNew.(T)
		return !is || !too || before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() || of(before) != of(after)
	}}
}

var (
	reportChanged = phaseChanged(func(x *v1alpha1.PruneReport) string { return string(x.Status.Phase) + x.Status.Digest })
	pruneChanged  = phaseChanged(func(x *v1alpha1.ImagePrune) string { return string(x.Status.Phase) })
)

func (r *ReportReconciler) setup(mgr ctrl.Manager) error {
	asking := func() {
		for _, request := range requestsFor(r.Tracker.ActiveReports()...) {
			r.requeue.Enqueue(request)
		}
	}
	r.Roots.OnChange(func(string) { asking() })
	r.Roots.OnSynced(asking)
	r.Rollouts.OnDesiredChange(func(string) { asking() })

	toAsking := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return requestsFor(r.Tracker.ActiveReports()...)
	})
	// A schedule makes the next report when the last one is there, and deletes those
	// that nobody goes by any more.
	toSchedule := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == KindReport {
			return requestsFor(owner.Name)
		}
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("prunereport").
		For(&v1alpha1.PruneReport{}, builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.PruneReport{}, toSchedule, builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.ImagePrune{}, handler.EnqueueRequestsFromMapFunc(r.scheduleForPrune), builder.WithPredicates(pruneChanged)).
		Watches(&v1alpha1.MemberCluster{}, toAsking).
		Watches(&v1alpha1.ClusterPlan{}, toAsking).
		WatchesRawSource(&r.requeue).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReports, RateLimiter: newRateLimiter()}).
		Complete(r)
}

// scheduleForPrune is the schedule whose report an ImagePrune goes by.
func (r *ReportReconciler) scheduleForPrune(ctx context.Context, o client.Object) []reconcile.Request {
	p, is := o.(*v1alpha1.ImagePrune)
	if !is {
		return nil
	}
	of := &v1alpha1.PruneReport{}
	if err := r.Get(ctx, client.ObjectKey{Name: p.Spec.ReportRef.Name}, of); err != nil {
		return nil
	}
	if owner := metav1.GetControllerOf(of); owner != nil && owner.Kind == KindReport {
		return requestsFor(owner.Name)
	}
	return nil
}

func (r *PruneReconciler) setup(mgr ctrl.Manager) error {
	r.Tracker.OnReportedChange(func(prune string) { r.requeue.Enqueue(requestsFor(prune)[0]) })
	r.Roots.OnSynced(func() {
		for _, request := range requestsFor(r.Tracker.ActivePrunes()...) {
			r.requeue.Enqueue(request)
		}
	})
	// Of a MemberCluster, what matters is that it is there, which cluster it is, and
	// whether it reports.
	clusters := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(*v1alpha1.MemberCluster)
		after, too := e.ObjectNew.(*v1alpha1.MemberCluster)
		return !is || !too || memberChanged(before, after)
	}}
	toRunning := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsFor(r.Tracker.ActivePrunesIn(o.GetName())...)
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("imageprune").
		For(&v1alpha1.ImagePrune{}, builder.WithPredicates(pruneChanged)).
		Watches(&v1alpha1.PruneReport{}, handler.EnqueueRequestsFromMapFunc(r.prunesOfReport), builder.WithPredicates(reportChanged)).
		Watches(&v1alpha1.MemberCluster{}, toRunning, builder.WithPredicates(clusters)).
		WatchesRawSource(&r.requeue).
		// One at a time, see Prunes.
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, RateLimiter: newRateLimiter()}).
		Complete(r)
}

func memberChanged(a, b *v1alpha1.MemberCluster) bool {
	wasOffline, _ := rollout.Availability(a)
	isOffline, _ := rollout.Availability(b)
	return a.UID != b.UID || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		a.Status.ClusterUID != b.Status.ClusterUID || wasOffline != isOffline ||
		a.Annotations[v1alpha1.AnnotationAcceptCluster] != b.Annotations[v1alpha1.AnnotationAcceptCluster]
}

// prunesOfReport are the ImagePrunes that go by a report and have not ended.
func (r *PruneReconciler) prunesOfReport(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1alpha1.ImagePruneList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Listing ImagePrunes to look at those that go by a PruneReport")
		return nil
	}
	var names []string
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.ReportRef.Name == o.GetName() && !p.Status.Phase.IsFinal() {
			names = append(names, p.Name)
		}
	}
	return requestsFor(names...)
}

// storedObjectsLoader tells the Register what was stored when this replica was elected, and has
// all of it looked at.
type storedObjectsLoader struct {
	live    client.Reader
	tracker *Tracker
	reports *ReportReconciler
	prunes  *PruneReconciler
}

var _ manager.LeaderElectionRunnable = &storedObjectsLoader{}

// NeedLeaderElection is true: what was stored before is of no account.
func (e *storedObjectsLoader) NeedLeaderElection() bool { return true }

// listRetryDelay is when to ask once more where the API server did not answer.
const listRetryDelay = time.Second

// Start asks until it is answered.
func (e *storedObjectsLoader) Start(ctx context.Context) error {
	for {
		stored, err := e.listStored(ctx)
		if err == nil {
			e.tracker.ExpectStored(stored)
			e.enqueueStored(stored)
			return nil
		}
		log.FromContext(ctx).Error(err, "Nothing is asked of members before this is known; trying again")
		if trigger.Sleep(ctx, listRetryDelay) != nil {
			return nil // the hub stops
		}
	}
}

// listStored lists what is stored. What has been made since is asked for nothing yet.
func (e *storedObjectsLoader) listStored(ctx context.Context) (stored []Object, err error) {
	for _, kind := range []string{KindReport, KindPrune} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		if err := e.live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing the metadata of %ss: %w", kind, err)
		}
		for i := range list.Items {
			stored = append(stored, Object{kind, list.Items[i].Name})
		}
	}
	return stored, nil
}

// enqueueStored has what is awaited looked at, be it in the cache or not.
func (e *storedObjectsLoader) enqueueStored(stored []Object) {
	for _, o := range stored {
		request := requestsFor(o.Name)[0]
		if o.Kind == KindReport {
			e.reports.requeue.Enqueue(request)
		} else {
			e.prunes.requeue.Enqueue(request)
		}
	}
}

var _ report.Reader = &Tracker{}
