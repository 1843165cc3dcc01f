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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// workers make PruneReports at a time: one may read pages for long.
const workers = 4

// Setup adds the controllers of PruneReports and of ImagePrunes to a manager, and
// what tells the Register what was stored at the start.
func Setup(mgr ctrl.Manager, reports *Reports, prunes *Prunes) error {
	if err := reports.setup(mgr); err != nil {
		return err
	}
	if err := prunes.setup(mgr); err != nil {
		return err
	}
	return mgr.Add(&elected{live: reports.Live, register: reports.Register, reports: reports, prunes: prunes})
}

func limiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](soon, mostBackoff)
}

// requests for objects by their names.
func requests(names ...string) []reconcile.Request {
	list := make([]reconcile.Request, len(names))
	for i, name := range names {
		list[i].NamespacedName = types.NamespacedName{Name: name}
	}
	return list
}

// phases lets through what gets another spec, phase or digest: that members answer
// is written here, and is no reason to look again.
func phases[T client.Object](of func(T) string) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(T)
		after, too := e.ObjectNew.(T)
		return !is || !too || before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() || of(before) != of(after)
	}}
}

var (
	ofReports = phases(func(x *v1alpha1.PruneReport) string { return string(x.Status.Phase) + x.Status.Digest })
	ofPrunes  = phases(func(x *v1alpha1.ImagePrune) string { return string(x.Status.Phase) })
)

func (r *Reports) setup(mgr ctrl.Manager) error {
	asking := func() {
		for _, request := range requests(r.Register.asking()...) {
			r.again.Poke(request)
		}
	}
	r.Roots.OnChange(func(string) { asking() })
	r.Roots.OnFilled(asking)
	r.Board.OnWants(func(string) { asking() })

	toAsking := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return requests(r.Register.asking()...)
	})
	// A schedule makes the next report when the last one is there, and deletes those
	// that nobody goes by any more.
	toSchedule := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == kindReport {
			return requests(owner.Name)
		}
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("prunereport").
		For(&v1alpha1.PruneReport{}, builder.WithPredicates(ofReports)).
		Watches(&v1alpha1.PruneReport{}, toSchedule, builder.WithPredicates(ofReports)).
		Watches(&v1alpha1.ImagePrune{}, handler.EnqueueRequestsFromMapFunc(r.scheduleOf), builder.WithPredicates(ofPrunes)).
		Watches(&v1alpha1.MemberCluster{}, toAsking).
		Watches(&v1alpha1.ClusterPlan{}, toAsking).
		WatchesRawSource(&r.again).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: limiter()}).
		Complete(r)
}

// scheduleOf is the schedule whose report an ImagePrune goes by.
func (r *Reports) scheduleOf(ctx context.Context, o client.Object) []reconcile.Request {
	p, is := o.(*v1alpha1.ImagePrune)
	if !is {
		return nil
	}
	of := &v1alpha1.PruneReport{}
	if err := r.Get(ctx, client.ObjectKey{Name: p.Spec.ReportRef.Name}, of); err != nil {
		return nil
	}
	if owner := metav1.GetControllerOf(of); owner != nil && owner.Kind == kindReport {
		return requests(owner.Name)
	}
	return nil
}

func (r *Prunes) setup(mgr ctrl.Manager) error {
	r.Register.OnTold(func(prune string) { r.again.Poke(requests(prune)[0]) })
	r.Roots.OnFilled(func() {
		for _, request := range requests(r.Register.allRunning()...) {
			r.again.Poke(request)
		}
	})
	// Of a MemberCluster, what matters is that it is there, which cluster it is, and
	// whether it reports.
	clusters := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(*v1alpha1.MemberCluster)
		after, too := e.ObjectNew.(*v1alpha1.MemberCluster)
		return !is || !too || standsOtherwise(before, after)
	}}
	toRunning := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requests(r.Register.running(o.GetName())...)
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("imageprune").
		For(&v1alpha1.ImagePrune{}, builder.WithPredicates(ofPrunes)).
		Watches(&v1alpha1.PruneReport{}, handler.EnqueueRequestsFromMapFunc(r.goingBy), builder.WithPredicates(ofReports)).
		Watches(&v1alpha1.MemberCluster{}, toRunning, builder.WithPredicates(clusters)).
		WatchesRawSource(&r.again).
		// One at a time, see Prunes.
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, RateLimiter: limiter()}).
		Complete(r)
}

func standsOtherwise(a, b *v1alpha1.MemberCluster) bool {
	wasOffline, _ := rollout.Online(a)
	isOffline, _ := rollout.Online(b)
	return a.UID != b.UID || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		a.Status.ClusterUID != b.Status.ClusterUID || wasOffline != isOffline ||
		a.Annotations[v1alpha1.AnnotationAcceptCluster] != b.Annotations[v1alpha1.AnnotationAcceptCluster]
}

// goingBy are the ImagePrunes that go by a report and have not ended.
func (r *Prunes) goingBy(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1alpha1.ImagePruneList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Listing ImagePrunes to look at those that go by a PruneReport")
		return nil
	}
	var names []string
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.ReportRef.Name == o.GetName() && !p.Status.Phase.Ended() {
			names = append(names, p.Name)
		}
	}
	return requests(names...)
}

// elected tells the Register what was stored when this replica was elected, and has
// all of it looked at.
type elected struct {
	live     client.Reader
	register *Register
	reports  *Reports
	prunes   *Prunes
}

var _ manager.LeaderElectionRunnable = &elected{}

// NeedLeaderElection is true: what was stored before is of no account.
func (e *elected) NeedLeaderElection() bool { return true }

// askAgain is when to ask once more where the API server did not answer.
const askAgain = time.Second

// Start asks until it is answered.
func (e *elected) Start(ctx context.Context) error {
	for {
		stored, err := e.ask(ctx)
		if err == nil {
			e.register.await(stored)
			e.poke(stored)
			return nil
		}
		log.FromContext(ctx).Error(err, "Nothing is asked of members before this is known; trying again")
		if pace.Pause(ctx, askAgain) != nil {
			return nil // the hub stops
		}
	}
}

// ask lists what is stored. What has been made since is asked for nothing yet.
func (e *elected) ask(ctx context.Context) (stored []object, err error) {
	for _, kind := range []string{kindReport, kindPrune} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		if err := e.live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing the metadata of %ss: %w", kind, err)
		}
		for i := range list.Items {
			stored = append(stored, object{kind, list.Items[i].Name})
		}
	}
	return stored, nil
}

// poke has what is awaited looked at, be it in the cache or not.
func (e *elected) poke(stored []object) {
	for _, o := range stored {
		request := requests(o.name)[0]
		if o.kind == kindReport {
			e.reports.again.Poke(request)
		} else {
			e.prunes.again.Poke(request)
		}
	}
}

var _ report.Reader = &Register{}
