package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What is carried is written here, and read past the cache before.
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans;transfergrants,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterreports,verbs=get;list;watch

// SecretCacheOptions are the options of a cache of one Secret: no others may be watched.
func SecretCacheOptions(namespace, name string) cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", name),
		},
	}}
}

// errMailboxNotServed: this cluster does not serve what is to be carried.
var errMailboxNotServed = errors.New("this cluster does not serve the kinds of the mailbox")

// mailboxKinds are the kinds that are.
var mailboxKinds = map[schema.GroupVersionKind]client.Object{
	v1alpha1.GroupVersion.WithKind("ClusterPlan"):   &v1alpha1.ClusterPlan{},
	v1alpha1.GroupVersion.WithKind("TransferGrant"): &v1alpha1.TransferGrant{},
	v1alpha1.GroupVersion.WithKind("ClusterReport"): &v1alpha1.ClusterReport{},
}

// WatchMailbox is Member.Follow for a cache of the mailbox. Call it before served starts.
func WatchMailbox(mailbox cache.Cache, served *apidiscovery.KindTracker) func(context.Context, func()) error {
	for kind := range mailboxKinds {
		served.WhenServed(kind, func(context.Context) error { return nil })
	}
	var mu sync.Mutex
	followed := map[schema.GroupVersionKind]bool{}
	return func(ctx context.Context, do func()) error {
		mu.Lock()
		defer mu.Unlock()
		for kind, object := range mailboxKinds {
			switch {
			case !served.IsServed(kind):
				return fmt.Errorf("%s: %w", kind.Kind, errMailboxNotServed)
			case followed[kind]:
				continue
			}
			if err := apidiscovery.NotifyOnEvents(ctx, mailbox, object, do); err != nil {
				return err
			}
			followed[kind] = true
		}
		return nil
	}
}

// Setup adds the controller and the carrier to a manager. There is one request.
// invitations and credentials are caches of SecretCacheOptions.
func (r *Reconciler) Setup(mgr ctrl.Manager, invitations, credentials cache.Cache) error {
	r.triggers = make(chan event.GenericEvent, 1)
	r.Syncer.Options.SetDefaults()
	r.Syncer.OnConnectionChange = func() {
		select {
		case r.triggers <- event.GenericEvent{}:
		default:
		}
	}
	request := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: registration.JoinSecret}}}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	// What was stored is to be used without anybody's asking for it.
	r.Syncer.OnConnectionChange()
	if err := mgr.Add(r.Syncer); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("dial").
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minHubRetryDelay, maxHubRetryDelay),
		}).
		WatchesRawSource(source.Kind(invitations, client.Object(&corev1.Secret{}), one)).
		WatchesRawSource(source.Kind(credentials, client.Object(&corev1.Secret{}), one)).
		WatchesRawSource(source.Channel(r.triggers, one)).
		Complete(r)
}
