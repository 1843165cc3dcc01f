package relay

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

const (
	// workers carry at a time, each for one member. A member that hangs keeps one
	// of them until its requests time out, and may do so again until the probe has
	// found it out: there are more than members can hang at once.
	workers = 256
	// The wait before a failed relay is tried again doubles between these.
	leastBackoff = 100 * time.Millisecond
	mostBackoff  = 10 * time.Second
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr mcmanager.Manager) error {
	// A member that has just been connected may have nothing that an event could
	// come of.
	inMember := &poke.Source[mcreconcile.Request]{}
	r.Members.OnChange(func(name string) { inMember.Poke(of(name)) })
	r.Members.OnMail(func(name string, _ client.Object) { inMember.Poke(of(name)) })
	local := mgr.GetLocalManager()
	onHub := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []mcreconcile.Request {
		if member, is := report.MemberOf(o.GetNamespace()); is {
			return []mcreconcile.Request{of(member)}
		}
		return nil
	})
	named := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o *v1alpha1.MemberCluster) []mcreconcile.Request {
		return []mcreconcile.Request{of(o.Name)}
	})
	return mcbuilder.ControllerManagedBy(everywhere{mgr}).
		Named("relay").
		WatchesRawSource(source.TypedKind(local.GetCache(), metadata("ClusterPlan"), onHub)).
		WatchesRawSource(source.TypedKind(local.GetCache(), metadata("TransferGrant"), onHub)).
		WatchesRawSource(source.TypedKind(local.GetCache(), metadata("ClusterReport"), onHub, gone())).
		WatchesRawSource(source.TypedKind(local.GetCache(), client.Object(&v1alpha1.MemberLink{}), onHub, assigned())).
		WatchesRawSource(source.TypedKind(local.GetCache(), &v1alpha1.MemberCluster{}, named, identity())).
		WatchesRawSource(inMember).
		WithOptions(mccontroller.Options{
			MaxConcurrentReconciles: workers,
			NeedLeaderElection:      ptr.To(false),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[mcreconcile.Request](leastBackoff, mostBackoff),
		}).
		WithLogConstructor(func(request *mcreconcile.Request) logr.Logger {
			log := mgr.GetLogger().WithValues("controller", "relay")
			if request != nil {
				log = log.WithValues("member", request.ClusterName)
			}
			return log
		}).
		Complete(r)
}

// metadata of a kind is what is watched of it: the content is of the whole fleet.
func metadata(kind string) client.Object {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return o
}

// assigned lets through what is asked of whoever carries, not what it says itself.
func assigned() predicate.Predicate { return predicate.GenerationChangedPredicate{} }

// everywhere runs what is added to it in every replica. The library's controllers
// have the option to need no leader, and do not tell the manager of it.
type everywhere struct{ mcmanager.Manager }

// Add implements mcmanager.Manager.
func (e everywhere) Add(r mcmanager.Runnable) error { return e.Manager.Add(inEveryReplica{r}) }

type inEveryReplica struct{ mcmanager.Runnable }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (inEveryReplica) NeedLeaderElection() bool { return false }

// of is the one request of a member: whatever happens, its whole mailbox is
// looked at.
func of(member string) mcreconcile.Request {
	return mcreconcile.Request{ClusterName: multicluster.ClusterName(member)}
}

// gone lets through that a copy was deleted: the relay's own writes are no reason
// to look again.
func gone() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// identity lets through what changes which cluster a member is taken to be.
func identity() predicate.TypedPredicate[*v1alpha1.MemberCluster] {
	return predicate.TypedFuncs[*v1alpha1.MemberCluster]{
		UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.MemberCluster]) bool {
			accepted := func(m *v1alpha1.MemberCluster) string { return m.Annotations[v1alpha1.AnnotationAcceptCluster] }
			return e.ObjectOld.Status.ClusterUID != e.ObjectNew.Status.ClusterUID || accepted(e.ObjectOld) != accepted(e.ObjectNew) ||
				e.ObjectOld.DeletionTimestamp.IsZero() != e.ObjectNew.DeletionTimestamp.IsZero()
		},
	}
}
