package registration

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// SecretCacheOptions are the options of a cache of one Secret: the agent may watch no
// others.
func SecretCacheOptions(namespace, name string) cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", name),
		},
	}}
}

// Setup adds the controller to a manager. The caches, of SecretCacheOptions, hold the join
// Secret and the credential Secret.
func (r *Reconciler) Setup(mgr ctrl.Manager, joinSecrets, credentials cache.Cache) error {
	r.Syncer.OnStateChange = func() { r.triggers.Enqueue(r.request()) }
	r.triggers.Enqueue(r.request()) // a stored credential is used without an event
	enqueue := trigger.Always(r.request())
	return ctrl.NewControllerManagedBy(mgr).
		Named("dial").
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minHubRetryDelay, maxHubRetryDelay),
		}).
		WatchesRawSource(source.Kind(joinSecrets, client.Object(&corev1.Secret{}), enqueue)).
		WatchesRawSource(source.Kind(credentials, client.Object(&corev1.Secret{}), enqueue)).
		WatchesRawSource(&r.triggers).
		Complete(r)
}
