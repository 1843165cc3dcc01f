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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// fillPageSize is how many ClusterReports one answer has while the stored reports are
	// read. Each is at most MaxReportObjectBytes large.
	fillPageSize = 32
	// maxFilledObjects bounds what is held of one member until it is read: a namespace may
	// have more than its root lists.
	maxFilledObjects = v1alpha1.MaxReportPages + 2
)

// filler reads the stored reports of all members when this replica is elected: page by page,
// many objects in one request. The workers of the Reconciler, which read one object per
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

// readStored reads the stored reports of members. The next answer is requested while one is
// processed; no more than these and one member's report are held.
func (r *Reconciler) readStored(ctx context.Context, members map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	pages := make(chan []v1alpha1.ClusterReport)
	group.Go(func() error {
		defer close(pages)
		return r.listReports(ctx, pages)
	})
	group.Go(func() error {
		var namespace string
		stored := map[string]*v1alpha1.ClusterReport{}
		apply := func() error {
			member, ok := MemberForNamespace(namespace)
			if !ok || !members[member] || len(stored) == 0 {
				return nil
			}
			return r.applyListed(ctx, member, stored)
		}
		// Objects of one namespace follow each other.
		for page := range pages {
			for _, o := range page { // a copy: a root that is kept must not keep the whole answer
				if o.Namespace != namespace {
					if err := apply(); err != nil {
						return err
					}
					namespace, stored = o.Namespace, map[string]*v1alpha1.ClusterReport{}
				}
				if len(stored) < maxFilledObjects {
					stored[o.Name] = &o
				}
			}
		}
		return apply()
	})
	return group.Wait()
}

// listReports sends all ClusterReports in the order in which they are stored. It skips an
// answer with an object that cannot be decoded: the schema admits such, and their neighbours
// are read one by one.
func (r *Reconciler) listReports(ctx context.Context, pages chan<- []v1alpha1.ClusterReport) error {
	for next := ""; ; {
		options := &client.ListOptions{Limit: fillPageSize, Continue: next}
		var page v1alpha1.ClusterReportList
		err := r.Live.List(ctx, &page, options)
		next = page.Continue
		if isUndecodable(ctx, err) {
			var metadata metav1.PartialObjectMetadataList
			metadata.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReportList"))
			err = r.Live.List(ctx, &metadata, options)
			page.Items, next = nil, metadata.Continue
		}
		if err != nil {
			return fmt.Errorf("listing ClusterReports: %w", err)
		}
		select {
		case pages <- page.Items:
		case <-ctx.Done():
			return ctx.Err()
		}
		if next == "" {
			return nil
		}
	}
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
