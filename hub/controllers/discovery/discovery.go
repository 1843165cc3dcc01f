// Package discovery creates MemberClusters from labelled kubeconfig Secrets and from
// Clusters of Cluster API. It deletes a MemberCluster that it created together with its
// origin, and leaves others alone.
package discovery

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Options of discovery. Zero values get the default.
type Options struct {
	// Namespace of the hub, whose labelled Secrets are members.
	Namespace string
	// Clusters selects the Clusters of Cluster API that are members; nil selects none.
	Clusters labels.Selector
	// Rules for what Clusters and Secrets decide about their members.
	Rules Rules
	// DeletionGrace is how long a labelled Secret may be missing before its
	// MemberCluster is deleted, or another Secret of this label takes it over, because some
	// tools replace a Secret by deleting it.
	// Default: 1m.
	DeletionGrace time.Duration
	// ClusterAPIPollInterval is how often to check whether Cluster API is installed.
	// Default: 1m.
	ClusterAPIPollInterval time.Duration
}

// Setup adds discovery to the hub's own manager; it runs in the elected replica.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.DeletionGrace <= 0 {
		o.DeletionGrace = time.Minute
	}
	if o.ClusterAPIPollInterval <= 0 {
		o.ClusterAPIPollInterval = time.Minute
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), newSecretMetadata(), memberIndexField, indexedMember); err != nil {
		return fmt.Errorf("indexing the Secrets of members: %w", err)
	}
	s := &secretReconciler{
		Options: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: startup.NewEventRecorder(mgr, "ot-hub"),
		rules: Rules{LabelPrefixes: []string{Everything}}, missingSince: map[string]time.Time{},
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("discovery-secret").
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(s.requestsForSecret), builder.OnlyMetadata).
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(requestForMember), builder.WithPredicates(exceptHeartbeats)).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(trigger.EndConflicts(s)); err != nil {
		return fmt.Errorf("setting up the discovery of Secrets: %w", err)
	}
	if o.Clusters == nil {
		return nil
	}
	c := &clusterReconciler{Options: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: startup.NewEventRecorder(mgr, "ot-hub")}
	clusterEvents := &trigger.Source[reconcile.Request]{}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("discovery-cluster").
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(requestForClusterOf), builder.WithPredicates(exceptStatus)).
		WatchesRawSource(clusterEvents).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(trigger.EndConflicts(c)); err != nil {
		return fmt.Errorf("setting up the discovery of Clusters: %w", err)
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		// Cluster API may be installed after the hub.
		err := wait.PollUntilContextCancel(ctx, o.ClusterAPIPollInterval, true, func(ctx context.Context) (bool, error) {
			_, err := mgr.GetRESTMapper().RESTMapping(clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind).GroupKind(), clusterv1.GroupVersion.Version)
			if err != nil && !meta.IsNoMatchError(err) {
				ctrl.LoggerFrom(ctx).Error(err, "Failed to check whether Cluster API is installed; retrying")
			}
			return err == nil, nil
		})
		if err != nil {
			return nil // ctx ended
		}
		return watchClusters(ctx, mgr, clusterEvents)
	}))
}

// watchClusters enqueues every changed Cluster until ctx ends. It has its own cache: a
// hub that may not list Clusters would block the common cache, and with it all
// controllers.
func watchClusters(ctx context.Context, mgr ctrl.Manager, clusterEvents *trigger.Source[reconcile.Request]) error {
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.Timeout = 0 // a timeout would end the watch
	all, err := cache.New(cfg, cache.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return fmt.Errorf("making a cache of Clusters: %w", err)
	}
	informer, err := all.GetInformer(ctx, &clusterv1.Cluster{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
	}
	enqueue := func(obj any) {
		if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		if cluster, ok := obj.(*clusterv1.Cluster); ok {
			clusterEvents.Enqueue(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	}); err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
	}
	return all.Start(ctx)
}

// Values of v1alpha1.LabelDiscovered.
const (
	originSecret  = "secret"
	originCluster = memberlabels.OriginCluster
)

// exceptHeartbeats passes all but the most frequent changes of a status.
var exceptHeartbeats = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !memberstatus.IsHeartbeat(e.ObjectOld, e.ObjectNew) }}

// exceptStatus passes what decides about the member of a Cluster. A status is written often,
// and each request costs a live read.
var exceptStatus = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld, e.ObjectNew
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		!before.GetDeletionTimestamp().Equal(after.GetDeletionTimestamp()) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations())
}}

func requestForMember(_ context.Context, member client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member.GetName()}}}
}

func requestForClusterOf(_ context.Context, obj client.Object) []reconcile.Request {
	member := obj.(*v1alpha1.MemberCluster)
	ref := member.Spec.Connection.ClusterAPI
	if ref == nil || member.Labels[v1alpha1.LabelDiscovered] != originCluster {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}}
}

// deleteMember deletes a MemberCluster whose origin is gone, unless it is in quarantine now, or
// a person has taken it over: that is read live, and the deletion is of what was read. Its end is a change of the
// MemberCluster, which has it decided again.
func deleteMember(ctx context.Context, live client.Reader, c client.Client, member *v1alpha1.MemberCluster) error {
	current := &v1alpha1.MemberCluster{}
	if err := live.Get(ctx, client.ObjectKeyFromObject(member), current); err != nil {
		return client.IgnoreNotFound(err)
	}
	isTaken := current.Labels[v1alpha1.LabelDiscovered] != member.Labels[v1alpha1.LabelDiscovered] || !equality.Semantic.DeepEqual(current.Spec.Connection, member.Spec.Connection)
	if current.UID != member.UID || !current.DeletionTimestamp.IsZero() || current.Spec.Quarantine != nil || isTaken {
		return nil
	}
	if err := c.Delete(ctx, current, client.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting MemberCluster %s, whose origin was deleted: %w", member.Name, err)
	}
	return nil
}

// recordKept says why a MemberCluster stays without its origin.
func recordKept(recorder events.EventRecorder, member *v1alpha1.MemberCluster, gone string) {
	recorder.Eventf(member, nil, corev1.EventTypeWarning, "KeptInQuarantine", "Discover",
		"%s, but the member stays, because it is in quarantine: end that, or delete the MemberCluster", gone)
}

func (r Rules) newMember(name, as string, connection v1alpha1.MemberConnection, origin map[string]string) *v1alpha1.MemberCluster {
	member := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MemberClusterSpec{Connection: connection},
	}
	r.copyLabels(member, origin)
	metav1.SetMetaDataLabel(&member.ObjectMeta, v1alpha1.LabelDiscovered, as)
	return member
}
