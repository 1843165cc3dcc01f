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
	"github.com/pelotech/ot-fleet/hub/fleet"
)

var kind = v1alpha1.GroupVersion.WithKind("ClusterReport")

// workers read reports at a time.
const workers = 8

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	ofMembers := predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, is := MemberOf(o.GetNamespace())
		return is
	})
	// Of a MemberCluster, what matters is that it is there, and what its conditions
	// make of its report.
	doubts := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.MemberCluster), e.ObjectNew.(*v1alpha1.MemberCluster)
		return before.UID != after.UID || fleet.Doubt(before) != fleet.Doubt(after)
	}}
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(kind)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		WatchesMetadata(&v1alpha1.ClusterReport{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(ofMembers)).
		// A member that comes when its report is there already gets all of it.
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(r.memberAndReports), builder.WithPredicates(doubts)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
	if err != nil {
		return err
	}
	return mgr.Add(&filler{cache: mgr.GetCache(), store: r.Store})
}

func (r *Reconciler) memberAndReports(ctx context.Context, o client.Object) []reconcile.Request {
	requests := []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetName()}}}
	if r.Store.Root(o.GetName()).Report != nil {
		return requests
	}
	keys, err := stored(ctx, r.Cached, client.InNamespace(v1alpha1.MemberNamespacePrefix+o.GetName()))
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Looking for reports of a member", "member", o.GetName())
	}
	for _, key := range keys {
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}

func stored(ctx context.Context, from client.Reader, in ...client.ListOption) ([]types.NamespacedName, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := from.List(ctx, list, append(in, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing the metadata of ClusterReports: %w", err)
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if _, is := MemberOf(list.Items[i].Namespace); is {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys, nil
}

// filler tells the Store what was there when this replica was elected.
type filler struct {
	cache cache.Cache
	store *Store
}

var _ manager.LeaderElectionRunnable = &filler{}

// NeedLeaderElection is true: the index is the elected replica's.
func (f *filler) NeedLeaderElection() bool { return true }

// Start lists the reports once. It waits for the watch of them, which has only been
// begun by now.
func (f *filler) Start(ctx context.Context) error {
	if !f.cache.WaitForCacheSync(ctx) {
		return errors.New("reading the stored reports: the cache did not sync")
	}
	keys, err := stored(ctx, f.cache)
	if err != nil {
		return err
	}
	f.store.begin(keys)
	return nil
}
