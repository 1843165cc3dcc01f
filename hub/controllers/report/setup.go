package report

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(clusterReportKind)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		WatchesMetadata(&v1alpha1.ClusterReport{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(ofMembers)).
		// A member that is created after its report gets the whole report.
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(r.mapToMemberAndReports), builder.WithPredicates(staleReasonChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles}).
		Complete(r)
	if err != nil {
		return err
	}
	return mgr.Add(&initialLister{cache: mgr.GetCache(), store: r.Store})
}

func (r *Reconciler) mapToMemberAndReports(ctx context.Context, o client.Object) []reconcile.Request {
	requests := []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetName()}}}
	if r.Store.Root(o.GetName()).Report != nil {
		return requests
	}
	keys, err := listReportKeys(ctx, r.Cached, client.InNamespace(v1alpha1.MemberNamespacePrefix+o.GetName()))
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the reports of a new member; its report is read after the next event", "member", o.GetName())
	}
	for _, key := range keys {
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}

func listReportKeys(ctx context.Context, from client.Reader, in ...client.ListOption) ([]types.NamespacedName, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(clusterReportKind)
	if err := from.List(ctx, list, append(in, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing the metadata of ClusterReports: %w", err)
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if _, ok := MemberForNamespace(list.Items[i].Namespace); ok {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys, nil
}

// initialLister tells the Store which reports were stored when this replica was elected.
type initialLister struct {
	cache cache.Cache
	store *Store
}

var _ manager.LeaderElectionRunnable = &initialLister{}

// NeedLeaderElection is true: only the elected replica has the index.
func (f *initialLister) NeedLeaderElection() bool { return true }

// Start lists the reports once their cache has synced; the watch is started at about the
// same time.
func (f *initialLister) Start(ctx context.Context) error {
	if !f.cache.WaitForCacheSync(ctx) {
		return errors.New("reading the stored reports: the cache did not sync")
	}
	keys, err := listReportKeys(ctx, f.cache)
	if err != nil {
		return err
	}
	f.store.expectReports(keys)
	return nil
}
