// Package report reads the hub's copies of the members' reports and maintains the
// inventory of the fleet's images. It runs in the elected replica only: the reports of a
// whole fleet are too large to be held by each replica.
package report

import (
	"context"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch

// pageCacheSize is the number of decoded pages that are kept for details, the most
// recently read ones.
const pageCacheSize = 256

// Reconciler reads reports object by object: the cost of a change depends on the changed
// page, not on the fleet.
type Reconciler struct {
	// Cached has MemberClusters, and only the metadata of ClusterReports: the decoded
	// pages of a fleet are too large.
	Cached client.Reader
	Live   client.Reader
	Index  *inventory.Index
	Store  *Store
	// Readers get everything that is read, the Index included, before the Store counts a
	// report as read.
	Readers []Reader

	// pages has one version of each page; it is read again when its resourceVersion
	// changes.
	pages *lru.Cache[types.NamespacedName, *v1alpha1.ClusterReport]
}

// Reader processes the reports. It must copy what it keeps, and must not block.
type Reader interface {
	// SetRoot sets the root of a member's report; nil if it was deleted.
	SetRoot(member string, root *v1alpha1.ReportRoot)
	SetPage(member, page string, sequence int64, images []v1alpha1.ReportedImage)
	DropPage(member, page string)
	// Forget drops a member that was deleted.
	Forget(member string)
}

// New returns a Reconciler.
func New(cached, live client.Reader, index *inventory.Index, store *Store, readers ...Reader) (*Reconciler, error) {
	pages, err := lru.New[types.NamespacedName, *v1alpha1.ClusterReport](pageCacheSize)
	if err != nil {
		return nil, err
	}
	return &Reconciler{Cached: cached, Live: live, Index: index, Store: store, Readers: append([]Reader{index}, readers...), pages: pages}, nil
}

// Reconcile reads one ClusterReport or, for a request without a namespace, the
// MemberCluster of that name.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if request.Namespace == "" {
		return ctrl.Result{}, r.reconcileMember(ctx, request.Name)
	}
	member, ok := MemberForNamespace(request.Namespace)
	if !ok {
		return ctrl.Result{}, nil
	}
	// Reports in the namespace of a deleted member are ignored.
	known, err := r.memberExists(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !known {
		r.forgetMember(member)
	} else {
		if err := r.applyReport(ctx, member, request.NamespacedName); err != nil {
			return ctrl.Result{}, err
		}
		totals, _ := r.Index.Totals(member)
		r.Store.setIncomplete(member, len(totals.MissingPages) > 0, time.Now())
	}
	r.Store.markRead(request.NamespacedName)
	if known {
		r.Store.notify(member)
	}
	return ctrl.Result{}, nil
}

func (r *Reconciler) memberExists(ctx context.Context, member string) (bool, error) {
	err := r.Cached.Get(ctx, client.ObjectKey{Name: member}, &v1alpha1.MemberCluster{})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading MemberCluster %s: %w", member, err)
	}
	return err == nil, nil
}

func (r *Reconciler) applyReport(ctx context.Context, member string, key types.NamespacedName) error {
	report, err := r.getReport(ctx, key)
	if err != nil {
		return err
	}
	root := key.Name == v1alpha1.MailboxName
	switch {
	case root && (report == nil || report.Root == nil):
		r.forEachReader(func(x Reader) { x.SetRoot(member, nil) })
		r.Store.setRoot(member, nil, time.Now())
	case root:
		r.forEachReader(func(x Reader) { x.SetRoot(member, report.Root) })
		r.Store.setRoot(member, report, time.Now())
	case report == nil || report.Page == nil:
		r.forEachReader(func(x Reader) { x.DropPage(member, key.Name) })
	default:
		r.forEachReader(func(x Reader) { x.SetPage(member, key.Name, report.Sequence, report.Page.Images) })
	}
	return nil
}

func (r *Reconciler) forEachReader(do func(Reader)) {
	for _, x := range r.Readers {
		do(x)
	}
}

func (r *Reconciler) forgetMember(member string) {
	r.forEachReader(func(x Reader) { x.Forget(member) })
}

// getReport returns a stored report; nil if it was deleted. A decoded page with the
// resourceVersion of the cache is not read again.
func (r *Reconciler) getReport(ctx context.Context, key types.NamespacedName) (*v1alpha1.ClusterReport, error) {
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(clusterReportKind)
	switch err := r.Cached.Get(ctx, key, metadata); {
	case apierrors.IsNotFound(err):
		r.pages.Remove(key)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the metadata of ClusterReport %s: %w", key, err)
	}
	if report, found := r.pages.Get(key); found && report.ResourceVersion == metadata.ResourceVersion {
		return report, nil
	}
	report := &v1alpha1.ClusterReport{}
	switch err := r.Live.Get(ctx, key, report); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading ClusterReport %s: %w", key, err)
	}
	report.ManagedFields = nil
	if report.Page != nil {
		r.pages.Add(key, report)
	}
	return report, nil
}

// Page returns the images of a page of a member's report; false if there is no such page.
func (r *Reconciler) Page(ctx context.Context, member, page string) ([]v1alpha1.ReportedImage, bool, error) {
	report, err := r.getReport(ctx, types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: page})
	if err != nil || report == nil || report.Page == nil {
		return nil, false, err
	}
	return report.Page.Images, true, nil
}

// LivePage reads a page of a member's report from the API server; nil if there is none.
// Decisions have to check that it has the sequence that the root lists.
func (r *Reconciler) LivePage(ctx context.Context, member, page string) (*v1alpha1.ClusterReport, error) {
	key := types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: page}
	report := &v1alpha1.ClusterReport{}
	switch err := r.Live.Get(ctx, key, report); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading ClusterReport %s: %w", key, err)
	}
	if report.Page == nil {
		return nil, nil
	}
	return report, nil
}

// reconcileMember adds a member to the index as soon as it exists, with or without a
// report.
func (r *Reconciler) reconcileMember(ctx context.Context, name string) error {
	member := &v1alpha1.MemberCluster{}
	switch err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, member); {
	case apierrors.IsNotFound(err):
		r.forgetMember(name)
		r.Store.setRoot(name, nil, time.Now())
		return nil
	case err != nil:
		return fmt.Errorf("reading MemberCluster %s: %w", name, err)
	}
	r.Index.AddMember(name)
	r.Index.SetStaleReason(name, memberstatus.StaleReason(member))
	return nil
}
