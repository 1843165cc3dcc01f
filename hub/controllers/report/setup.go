package report

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

var clusterReportKind = v1alpha1.GroupVersion.WithKind("ClusterReport")

// maxConcurrentReconciles of reports.
const maxConcurrentReconciles = 8

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	ofMembers := predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, ok := MemberForNamespace(o.GetNamespace())
		return ok
	})
	// Of a MemberCluster, its existence matters, and whether its conditions make its
	// report stale.
	staleReasonChanged := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.MemberCluster), e.ObjectNew.(*v1alpha1.MemberCluster)
		return before.UID != after.UID || memberstatus.StaleReason(before) != memberstatus.StaleReason(after)
	}}
	heartbeats := &trigger.Source[reconcile.Request]{}
	r.Heartbeats.OnChange(func(member string) { heartbeats.Enqueue(trigger.Requests(member)[0]) })
	memberOf := trigger.After(func(o client.Object) (reconcile.Request, time.Duration) {
		member, _ := MemberForNamespace(o.GetNamespace())
		return trigger.Requests(member)[0], mailbox.SyncDelay(o)
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(staleReasonChanged)).
		WatchesMetadata(&v1alpha1.ClusterReport{}, memberOf, builder.WithPredicates(ofMembers)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			member, ok := MemberForNamespace(o.GetName())
			if !ok {
				return nil
			}
			return trigger.Requests(member)
		}), builder.WithPredicates(usabilityChanged())).
		WatchesRawSource(heartbeats).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: trigger.NewRateLimiter()}).
		Complete(r)
	if err != nil {
		return err
	}
	r.filled = make(chan struct{})
	return mgr.Add(&filler{reconciler: r, cache: mgr.GetCache()})
}

// usabilityChanged selects changes of a namespace that make its reports those of its member, or end
// that.
func usabilityChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetLabels()[v1alpha1.LabelMember] != e.ObjectNew.GetLabels()[v1alpha1.LabelMember] ||
			e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
}

// StripMetadata drops from the metadata of ClusterReports what nobody reads: members in
// pull mode write it, and every replica has it in its cache.
func StripMetadata(o any) (any, error) {
	if report, ok := o.(*metav1.PartialObjectMetadata); ok {
		report.Annotations, report.Labels, report.OwnerReferences, report.ManagedFields = nil, nil, nil, nil
	}
	return o, nil
}
