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

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
)

const (
	// maxConcurrentReconciles is higher than the number of members that can hang at once:
	// a hanging member occupies a worker until its requests time out, repeatedly until
	// the probe has found it.
	maxConcurrentReconciles = 256
	// maxWholeReads: a replica that takes hundreds of members over reads all copies of so many at once. Each
	// read waits some 100 ms for the API server's cache, and is small, but for a hostile member's.
	maxWholeReads = 16
	// Bounds of the exponential backoff after an error.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr mcmanager.Manager) error {
	r.wholeReads = make(chan struct{}, maxWholeReads)
	// A member that was just connected may have nothing that an event could come from.
	inMember := &trigger.Source[mcreconcile.Request]{}
	r.Members.OnChange(func(name string) { inMember.Enqueue(requestFor(name)) })
	r.Members.OnMailboxEvent(func(name string, e hubclient.Event) {
		inMember.EnqueueAfter(requestFor(name), syncDelay(e))
	})
	local := mgr.GetLocalManager()
	onHub := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []mcreconcile.Request {
		if member, ok := report.MemberForNamespace(o.GetNamespace()); ok {
			return []mcreconcile.Request{requestFor(member)}
		}
		return nil
	})
	named := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o *v1alpha1.MemberCluster) []mcreconcile.Request {
		return []mcreconcile.Request{requestFor(o.Name)}
	})
	return mcbuilder.ControllerManagedBy(everyReplicaManager{mgr}).
		Named("relay").
		WatchesRawSource(source.TypedKind(local.GetCache(), metadataOf("ClusterPlan"), onHub)).
		WatchesRawSource(source.TypedKind(local.GetCache(), metadataOf("TransferGrant"), onHub)).
		WatchesRawSource(source.TypedKind(local.GetCache(), metadataOf("ClusterReport"), onHub, deletedOnly())).
		WatchesRawSource(source.TypedKind(local.GetCache(), client.Object(&v1alpha1.MemberLink{}), onHub, linkSpecChanged())).
		WatchesRawSource(source.TypedKind(local.GetCache(), &v1alpha1.MemberCluster{}, named, identityChanged())).
		WatchesRawSource(inMember).
		WithOptions(mccontroller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			NeedLeaderElection:      ptr.To(false),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[mcreconcile.Request](minBackoff, maxBackoff),
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

// syncDelay is how long a sync waits for other events. A heartbeat waits for those of other members.
func syncDelay(e hubclient.Event) time.Duration {
	before, _ := e.Before.(*v1alpha1.ClusterReport)
	if after, ok := e.Object.(*v1alpha1.ClusterReport); ok && !e.Deleted && mailbox.IsHeartbeat(before, after) {
		return trigger.UntilTick(0, shard.HeartbeatTick)
	}
	return mailbox.SyncDelay(e.Object)
}

// metadataOf a kind is what is watched: the contents are those of the whole fleet.
func metadataOf(kind string) client.Object {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return o
}

// linkSpecChanged selects changes of the spec, not of the status that the relay writes.
func linkSpecChanged() predicate.Predicate { return predicate.GenerationChangedPredicate{} }

// everyReplicaManager runs what is added to it in every replica. The library's
// controllers have this option but do not pass it to the manager.
type everyReplicaManager struct{ mcmanager.Manager }

// Add implements mcmanager.Manager.
func (e everyReplicaManager) Add(r mcmanager.Runnable) error {
	return e.Manager.Add(everyReplicaRunnable{r})
}

type everyReplicaRunnable struct{ mcmanager.Runnable }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everyReplicaRunnable) NeedLeaderElection() bool { return false }

// requestFor returns the only request of a member: every event syncs the whole mailbox.
func requestFor(member string) mcreconcile.Request {
	return mcreconcile.Request{ClusterName: multicluster.ClusterName(member)}
}

// deletedOnly selects deletions of copies; the relay's own writes need no sync.
func deletedOnly() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// identityChanged selects changes of which cluster a member is.
func identityChanged() predicate.TypedPredicate[*v1alpha1.MemberCluster] {
	return predicate.TypedFuncs[*v1alpha1.MemberCluster]{
		UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.MemberCluster]) bool {
			accepted := func(m *v1alpha1.MemberCluster) string { return m.Annotations[v1alpha1.AnnotationAcceptCluster] }
			return e.ObjectOld.Status.ClusterUID != e.ObjectNew.Status.ClusterUID || accepted(e.ObjectOld) != accepted(e.ObjectNew) ||
				(e.ObjectOld.Spec.Quarantine == nil) != (e.ObjectNew.Spec.Quarantine == nil) ||
				e.ObjectOld.DeletionTimestamp.IsZero() != e.ObjectNew.DeletionTimestamp.IsZero()
		},
	}
}
