// Package connection tells the member provider how to connect to each MemberCluster,
// and manages the hub's tokens for members from Cluster API.
package connection

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters;memberlinks,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=secrets,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Options of both controllers. Zero values get the default.
type Options struct {
	// Namespace of the hub.
	Namespace string
	Members   *memberclient.Provider
	// Replica and Links say which members this replica connects to.
	Replica *shard.Replica
	Links   *shard.Links
	// Problems collects why members have no credential.
	Problems *CredentialProblems
	// TokenLife is the requested lifetime of a token; the member's API server may grant
	// less. Default: 12h.
	TokenLife time.Duration
	// RenewAfter is the age at which a token is renewed. Default: two thirds of its
	// lifetime.
	RenewAfter time.Duration
	// RetryRefused is the delay between two uses of Cluster API's kubeconfig when a
	// member refuses the hub's token. Default: 1m.
	RetryRefused time.Duration
	// RetryFailed is the delay before a failed request to a member is retried. Default:
	// 10s.
	RetryFailed time.Duration
	// RequestTimeout bounds a request to a member. Default: 10s.
	RequestTimeout time.Duration
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&o.TokenLife, 12 * time.Hour},
		{&o.RetryRefused, time.Minute},
		{&o.RetryFailed, 10 * time.Second},
		{&o.RequestTimeout, 10 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
}

// secretIndexField indexes MemberClusters by the Secret with their kubeconfig.
const secretIndexField = "connection.secret"

// kubeconfigKey is the key of the kubeconfig in Secrets that the hub creates.
const kubeconfigKey = "kubeconfig"

// TokenSecretName returns the name of the Secret with the hub's token for a member.
func TokenSecretName(member string) string { return v1alpha1.MemberNamespacePrefix + member + "-token" }

// Setup adds both controllers to the hub's own manager.
func Setup(mgr ctrl.Manager, o Options) error {
	o.setDefaults()
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.MemberCluster{}, secretIndexField, func(obj client.Object) []string {
		if name, _ := connectionSecret(obj.(*v1alpha1.MemberCluster)); name != "" {
			return []string{name}
		}
		return nil
	}); err != nil {
		return err
	}
	ofSecret := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) []reconcile.Request {
		return requestsForSecret(ctx, mgr.GetClient(), secret)
	})
	ofLink := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, link client.Object) []reconcile.Request {
		member, is := strings.CutPrefix(link.GetNamespace(), v1alpha1.MemberNamespacePrefix)
		if !is {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	})
	secrets := &SecretReader{Cached: mgr.GetCache(), Live: mgr.GetAPIReader(), Namespace: o.Namespace}
	// What is known of a member is no reason to look at what reaches it.
	asked := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			!slices.Equal(before.GetFinalizers(), after.GetFinalizers())
	}}
	c := &connectionReconciler{Options: o, client: mgr.GetClient(), secrets: secrets, applied: map[string]appliedTarget{}}
	again := &trigger.Source[reconcile.Request]{}
	o.Replica.OnLeaseChange(func() { c.enqueueAll(again) })
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("connection").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(asked)).
		Watches(&corev1.Secret{}, ofSecret, builder.OnlyMetadata).
		Watches(&v1alpha1.MemberLink{}, ofLink, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(again).
		// Every replica carries, so every replica connects.
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false), MaxConcurrentReconciles: maxConcurrentReads}).
		Complete(c); err != nil {
		return fmt.Errorf("the connections' controller: %w", err)
	}

	k := &credentialReconciler{Options: o, client: mgr.GetClient(), secrets: secrets, live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("ot-hub")}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("credentials").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(asked)).
		Watches(&corev1.Secret{}, ofSecret, builder.OnlyMetadata).
		Watches(&v1alpha1.MemberLink{}, ofLink).
		// Members that hang take a worker each until their requests time out.
		WithOptions(controller.Options{MaxConcurrentReconciles: 32}).
		Complete(k); err != nil {
		return fmt.Errorf("the credentials' controller: %w", err)
	}
	return nil
}

// connectionSecret returns name and key of the Secret, in the hub's namespace, with a
// member's kubeconfig; empty in pull mode.
func connectionSecret(member *v1alpha1.MemberCluster) (name, key string) {
	if member.Spec.Connection.Pull != nil {
		return "", ""
	}
	if ref := member.Spec.Connection.KubeconfigSecretRef; ref != nil {
		key = ref.Key
		if key == "" {
			key = kubeconfigKey
		}
		return ref.Name, key
	}
	return TokenSecretName(member.Name), kubeconfigKey
}

func requestsForSecret(ctx context.Context, reader client.Reader, secret client.Object) (all []reconcile.Request) {
	var list v1alpha1.MemberClusterList
	if err := reader.List(ctx, &list, client.MatchingFields{secretIndexField: secret.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Looking for the MemberClusters of a Secret", "secret", secret.GetName())
		return nil
	}
	for _, member := range list.Items {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: member.Name}})
	}
	return all
}

// maxConcurrentReads bounds concurrent reads of Secrets: when a replica dies, another
// gets all its members at once.
const maxConcurrentReads = 8

// connectionReconciler sets the targets of the members that this replica connects to.
type connectionReconciler struct {
	Options
	client  client.Client
	secrets *SecretReader

	mu sync.Mutex
	// applied is the last target of each member.
	applied map[string]appliedTarget
}

// appliedTarget identifies what a Target was made from.
type appliedTarget struct {
	secret secretVersion
	// generation of the MemberCluster; source and namespace of the Target.
	generation        int64
	source, namespace string
}

// enqueueAll requeues all members when this replica gains or loses the right to sync.
func (c *connectionReconciler) enqueueAll(again *trigger.Source[reconcile.Request]) {
	var list v1alpha1.MemberClusterList
	if err := c.client.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.Log.Error(err, "Listing MemberClusters to look at the connections to them all")
	}
	for i := range list.Items {
		again.Enqueue(reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
}

func (c *connectionReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	member := &v1alpha1.MemberCluster{}
	switch err := c.client.Get(ctx, request.NamespacedName, member); {
	case apierrors.IsNotFound(err):
		c.removeMember(request.Name)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading MemberCluster %s: %w", request.Name, err)
	}
	// While the finalizer is there, somebody cleans up in the member.
	if !member.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(member, v1alpha1.FinalizerMember) {
		c.removeMember(member.Name)
		return reconcile.Result{}, nil
	}

	link, err := c.Links.Get(ctx, member.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !c.Replica.OwnsMember(link) {
		c.removeMember(member.Name)
		return reconcile.Result{}, nil
	}
	name, key := connectionSecret(member)
	if name == "" {
		return reconcile.Result{}, nil // the MemberLink is about to say so
	}
	// Another MemberCluster of the same name has nothing to do with this one.
	next := appliedTarget{generation: member.Generation, source: fmt.Sprintf("%s of %s for %s", key, name, member.UID), namespace: member.Spec.AgentNamespace}
	if next.secret, err = c.secrets.currentVersion(ctx, name); err != nil {
		return reconcile.Result{}, err
	}
	if next.secret != (secretVersion{}) && c.lastApplied(member.Name) == next {
		return reconcile.Result{}, nil
	}
	secret, err := c.secrets.readSecret(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if secret == nil {
		// A Secret may be replaced by deleting it, and a member that goes with its
		// Secret is still to be cleaned up.
		if member.Spec.Connection.ClusterAPI == nil && !c.Members.KeepConnection(member.Name, next.source, next.namespace, fmt.Sprintf(
			"Secret %s/%s is gone, and the hub works with what was in it until it restarts: create it again, or delete the MemberCluster", c.Namespace, name)) {
			c.setUnreachable(member, "Secret %s/%s is not there: create it with the member's kubeconfig in key %s", c.Namespace, name, key)
		}
		// Else the credentials' controller makes it, and says what keeps it from that.
		return reconcile.Result{}, nil
	}
	if member.Spec.Connection.ClusterAPI != nil && !matchesPurpose(secret, member) {
		c.setUnreachable(member, "Secret %s/%s is not for this Cluster and namespace of the agent: waiting for the hub to make another token", c.Namespace, name)
		return reconcile.Result{}, nil
	}
	if len(secret.Data[key]) == 0 {
		c.setUnreachable(member, "Secret %s/%s has no key %s: put the member's kubeconfig there", c.Namespace, name, key)
		return reconcile.Result{}, nil
	}
	cfg, fingerprint, err := hubclient.ParseKubeconfig(secret.Data[key])
	if err != nil {
		c.setUnreachable(member, "Secret %s/%s, key %s: %v", c.Namespace, name, key, err)
		return reconcile.Result{}, nil
	}
	c.Members.SetTarget(member.Name, memberclient.Target{Config: cfg, Namespace: next.namespace, ConfigVersion: fingerprint, Source: next.source})
	next.secret = versionOf(secret)
	c.recordApplied(member.Name, next)
	return reconcile.Result{}, nil
}

func (c *connectionReconciler) lastApplied(member string) appliedTarget {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied[member]
}

// recordApplied stores the applied target; the zero value forgets it.
func (c *connectionReconciler) recordApplied(member string, now appliedTarget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now == (appliedTarget{}) {
		delete(c.applied, member)
		return
	}
	c.applied[member] = now
}

func (c *connectionReconciler) removeMember(member string) {
	c.recordApplied(member, appliedTarget{})
	c.Members.Remove(member)
}

func (c *connectionReconciler) setUnreachable(member *v1alpha1.MemberCluster, format string, args ...any) {
	c.recordApplied(member.Name, appliedTarget{})
	c.Members.SetUnreachable(member.Name, v1alpha1.ReasonCredentialsMissing, fmt.Sprintf(format, args...))
}
