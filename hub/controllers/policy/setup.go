package policy

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
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
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	// The policy is evaluated once even if there is no ConfigMap, so that this is known.
	requests := &trigger.Source[reconcile.Request]{}
	requests.Enqueue(reconcile.Request{NamespacedName: r.PolicyKey})
	r.InForce.OnChange(func() {
		for _, request := range r.listPreviews(context.Background()) {
			requests.Enqueue(request)
		}
	})
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return client.ObjectKeyFromObject(o) == r.PolicyKey || isPreview(o)
	})
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return append([]reconcile.Request{{NamespacedName: r.PolicyKey}}, r.listPreviews(ctx)...)
	})
	// Of a MemberCluster, name and labels matter, and for previews its own limit.
	memberChanged := predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) || !ptr.Equal(ownConcurrencyOf(e.ObjectOld), ownConcurrencyOf(e.ObjectNew))
		},
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("policy").
		For(&corev1.ConfigMap{}, builder.WithPredicates(ours)).
		Watches(&v1alpha1.MemberCluster{}, all, builder.WithPredicates(memberChanged)).
		WatchesRawSource(requests).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(r)
}

func ownConcurrencyOf(o client.Object) *int32 {
	if member, ok := o.(*v1alpha1.MemberCluster); ok {
		return member.Status.OwnConcurrency
	}
	return nil
}

func (r *Reconciler) listPreviews(ctx context.Context) (requests []reconcile.Request) {
	var previews corev1.ConfigMapList
	if err := r.List(ctx, &previews, client.InNamespace(r.PolicyKey.Namespace), client.HasLabels{v1alpha1.LabelPolicyPreview}); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list policy previews; they are not answered until the next event", "namespace", r.PolicyKey.Namespace)
	}
	for i := range previews.Items {
		if key := client.ObjectKeyFromObject(&previews.Items[i]); key != r.PolicyKey {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}
