// Package connection tells the member provider how to connect to each MemberCluster,
// and manages the hub's tokens for members from Cluster API.
package connection

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
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
	// Reports are read before credentials are looked at. Default: those wait for nothing.
	Reports *report.Store
	// Problems collects why members have no credential.
	Problems *CredentialProblems
	// Rotations collects condition CredentialRotated of members.
	Rotations *Rotations
	// RenewAfter is the age at which a token is renewed. Default: a third of its
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

const (
	// tokenLife is the requested lifetime of a token for a member from Cluster API, which
	// can issue another after it; the member's API server may grant less.
	tokenLife = 12 * time.Hour
	// givenTokenLife is that of a token for any other member: after it, a person has to
	// register the member again.
	givenTokenLife = 7 * 24 * time.Hour
)

func (o *Options) setDefaults() {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
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
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.MemberCluster{}, secretIndexField, func(object client.Object) []string {
		name, _ := connectionSecret(object.(*v1alpha1.MemberCluster))
		switch token := TokenSecretName(object.GetName()); name {
		case "", token:
			return []string{token}
		default:
			return []string{name, token}
		}
	}); err != nil {
		return err
	}
	bySecret := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) []reconcile.Request {
		return requestsForSecret(ctx, mgr.GetClient(), secret)
	})
	byLink := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, link client.Object) []reconcile.Request {
		member, ok := strings.CutPrefix(link.GetNamespace(), v1alpha1.MemberNamespacePrefix)
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	})
	secrets := &SecretReader{Cached: mgr.GetCache(), Live: mgr.GetAPIReader(), Namespace: o.Namespace}
	// Changes of the status do not affect the connection.
	specChanged := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			!slices.Equal(before.GetFinalizers(), after.GetFinalizers())
	}}
	c := &connectionReconciler{Options: o, client: mgr.GetClient(), secrets: secrets, applied: map[string]appliedTarget{}}
	requeue := &trigger.Source[reconcile.Request]{}
	o.Replica.OnLeaseChange(func() { c.enqueueAll(requeue) })
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("connection").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(specChanged)).
		Watches(&corev1.Secret{}, bySecret, builder.OnlyMetadata).
		Watches(&v1alpha1.MemberLink{}, byLink, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(requeue).
		// Every replica syncs mailboxes, so every replica connects.
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false), MaxConcurrentReconciles: maxConcurrentReads, RateLimiter: trigger.NewRateLimiter()}).
		Complete(c); err != nil {
		return fmt.Errorf("setting up the connection controller: %w", err)
	}

	k := &credentialReconciler{Options: o, client: mgr.GetClient(), secrets: secrets, live: mgr.GetAPIReader(), events: startup.NewEventRecorder(mgr, "ot-hub")}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("credentials").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(specChanged)).
		Watches(&corev1.Secret{}, bySecret, builder.OnlyMetadata).
		Watches(&v1alpha1.MemberLink{}, byLink, builder.WithPredicates(connectionChanged())).
		// A member that hangs blocks one worker until its request times out.
		WithOptions(controller.Options{MaxConcurrentReconciles: 32, RateLimiter: trigger.NewRateLimiter()}).
		Complete(afterSync{trigger.EndConflicts(k), o.Reports}); err != nil {
		return fmt.Errorf("setting up the credential controller: %w", err)
	}
	return nil
}

// afterSync reconciles once the reports are read, or have not been for long: after an election, reading the
// Secrets of all members and asking them would delay what people and members wait for.
type afterSync struct {
	reconcile.Reconciler
	reports *report.Store
}

func (a afterSync) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if a.reports != nil {
		a.reports.AwaitSync(ctx)
	}
	return a.Reconciler.Reconcile(ctx, request)
}

// connectionChanged selects changes of what a MemberLink says of the connection to its member. Others come
// with each move and each election, for all members.
func connectionChanged() predicate.Predicate { return trigger.SummaryChanged(connectionOf) }

// linkConnection is what a MemberLink says of the connection to its member, and of the cluster that it
// leads to.
type linkConnection struct {
	connection, reportConnection string
	known, reachable             bool
	reason, message              string
	another                      types.UID
}

func connectionOf(link *v1alpha1.MemberLink) linkConnection {
	status := &link.Status
	return linkConnection{status.Connection, status.ReportConnection, status.Known, status.Reachable, status.Reason, status.Message, status.Another}
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
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the MemberClusters of a Secret; their connections are not updated until the next event", "secret", secret.GetName())
		return nil
	}
	for _, member := range list.Items {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: member.Name}})
	}
	return all
}
