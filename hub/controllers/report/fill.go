package report

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxConcurrentFills is how many members' stored reports are held at once.
	maxConcurrentFills = 2
	// maxFilledObjects bounds what is read of one member at once: a namespace may have more than its root
	// lists. Each is at most MaxReportObjectBytes large.
	maxFilledObjects = v1alpha1.MaxReportPages + 2
)

// filler reads the stored reports of all members when this replica is elected, each with one request. The
// workers of the Reconciler, which read one object per
// request, wait for it, and then read what it could not or what has changed.
type filler struct {
	reconciler *Reconciler
	cache      cache.Cache
}

var _ manager.LeaderElectionRunnable = &filler{}

// NeedLeaderElection is true: only the elected replica has the index.
func (f *filler) NeedLeaderElection() bool { return true }

// Start tells the Store which members exist, and reads their reports.
func (f *filler) Start(ctx context.Context) error {
	defer close(f.reconciler.filled)
	if !f.cache.WaitForCacheSync(ctx) {
		return errors.New("reading the stored reports: the cache did not sync")
	}
	// A heartbeat that was published before is not one that this process has received.
	f.reconciler.Heartbeats.WaitForSync(ctx)
	var list v1alpha1.MemberClusterList
	if err := f.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing MemberClusters: %w", err)
	}
	var namespaces corev1.NamespaceList
	if err := f.cache.List(ctx, &namespaces, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the namespaces of members: %w", err)
	}
	usable := make(map[string]bool, len(namespaces.Items))
	for i := range namespaces.Items {
		if member, ok := MemberForNamespace(namespaces.Items[i].Name); ok {
			usable[member] = IsNamespaceUsable(&namespaces.Items[i], member)
		}
	}
	members := make(map[string]bool, len(list.Items))
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
		members[names[i]] = usable[names[i]]
	}
	f.reconciler.Store.expectMembers(names)
	if err := f.reconciler.readStored(ctx, members); err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Info("Failed to list the stored reports; reading the others one by one", "error", err.Error())
	}
	return nil
}

// readStored reads the stored reports of members that are usable.
func (r *Reconciler) readStored(ctx context.Context, usable map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentFills)
	for member, ok := range usable {
		if ok {
			group.Go(func() error { return r.readStoredOf(ctx, member) })
		}
	}
	return group.Wait()
}

// readStoredOf reads the stored report of a member from the API server's cache, without a continue token:
// those expire where a fill takes long. It skips a report with an object that cannot be decoded, since the
// schema admits such, and one with too many: they are read one by one.
func (r *Reconciler) readStoredOf(ctx context.Context, member string) error {
	known, err := r.listStored(ctx, member)
	if err != nil || len(known) == 0 || len(known) > maxFilledObjects {
		return err
	}
	var list v1alpha1.ClusterReportList
	fromCache := &client.ListOptions{Namespace: v1alpha1.MemberNamespacePrefix + member, Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	switch err := r.Live.List(ctx, &list, fromCache); {
	case mailbox.IsUndecodable(ctx, err):
		return nil
	case err != nil:
		return fmt.Errorf("listing the ClusterReports of member %s: %w", member, err)
	}
	listed := map[string]*v1alpha1.ClusterReport{}
	for _, o := range list.Items { // a copy: a root that is kept must not keep the whole answer
		if len(listed) < maxFilledObjects {
			listed[o.Name] = &o
		}
	}
	if len(listed) == 0 {
		return nil
	}
	return r.applyListed(ctx, member, listed)
}

// applyListed applies the report of a member as it was listed. Reconcile compares it with
// what the cache knows, and only then is it complete.
func (r *Reconciler) applyListed(ctx context.Context, member string, listed map[string]*v1alpha1.ClusterReport) error {
	stored := make(map[string]*metav1.PartialObjectMetadata, len(listed))
	for name, o := range listed {
		o.ManagedFields = nil
		stored[name] = &metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta}
	}
	return r.applyReport(ctx, member, r.reportOf(member), stored, func(_ context.Context, _, name string) (*v1alpha1.ClusterReport, error) {
		return listed[name], nil
	})
}

// awaitFill waits until the stored reports are read, if they are.
func (r *Reconciler) awaitFill(ctx context.Context) {
	if r.filled == nil {
		return
	}
	select {
	case <-r.filled:
	case <-ctx.Done():
	}
}
