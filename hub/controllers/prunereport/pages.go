package prunereport

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// maxParallelPages bounds how many pages are read or written at once.
const maxParallelPages = 8

// writePages stores the pages of a report. A page's name holds the digest of all, so an
// aborted attempt is continued.
func (r *Reconciler) writePages(ctx context.Context, report *v1alpha1.PruneReport, pages [][]v1alpha1.ReportedCluster, digest string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelPages)
	for n, clusters := range pages {
		group.Go(func() error { return r.writePage(ctx, report, prune.PageName(report.Name, digest, n), clusters) })
	}
	return group.Wait()
}

func (r *Reconciler) writePage(ctx context.Context, report *v1alpha1.PruneReport, name string, clusters []v1alpha1.ReportedCluster) error {
	page := &v1alpha1.PruneReportPage{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.LabelPruneReport: string(report.UID)},
			OwnerReferences: []metav1.OwnerReference{prune.NewOwnerReference(report)},
		},
		Clusters: clusters,
	}
	// Pages share memory, and are written at the same time: each answer is decoded into a copy.
	err := r.Create(ctx, page.DeepCopy())
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating PruneReportPage %s: %w", name, err)
	}
	if err == nil {
		return nil
	}
	stored := &v1alpha1.PruneReportPage{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, stored); err != nil {
		return fmt.Errorf("reading PruneReportPage %s: %w", name, err)
	}
	if prune.PageDigest(report.UID, stored.Clusters) == prune.PageDigest(report.UID, clusters) {
		return nil
	}
	if err := r.Delete(ctx, stored, exactPreconditions(stored)); err != nil {
		return fmt.Errorf("deleting PruneReportPage %s, which has other content: %w", name, err)
	}
	return fmt.Errorf("PruneReportPage %s had other content and was deleted; creating it again", name)
}

// deleteOtherPages deletes the pages of aborted attempts: all pages of a report but
// those of a digest.
func (r *Reconciler) deleteOtherPages(ctx context.Context, report *v1alpha1.PruneReport, digest string, pages int) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PruneReportPageList"))
	if err := r.Live.List(ctx, list, client.MatchingLabels{v1alpha1.LabelPruneReport: string(report.UID)}); err != nil {
		return fmt.Errorf("listing the pages of PruneReport %s: %w", report.Name, err)
	}
	current := map[string]bool{}
	for n := range pages {
		current[prune.PageName(report.Name, digest, n)] = true
	}
	for i := range list.Items {
		page := &list.Items[i]
		if current[page.Name] || !page.DeletionTimestamp.IsZero() {
			continue
		}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PruneReportPage"))
		if err := r.Delete(ctx, page, exactPreconditions(page)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PruneReportPage %s: %w", page.Name, err)
		}
	}
	return nil
}

// ReadPages reads the candidates of a complete report. changed is why the pages are not
// those that were reviewed under digest; then there are no clusters.
func ReadPages(ctx context.Context, live client.Reader, report *v1alpha1.PruneReport, digest string) (clusters []v1alpha1.ReportedCluster, changed string, err error) {
	count := int(report.Status.Pages)
	if count < 0 || count > v1alpha1.MaxPruneReportPages {
		return nil, fmt.Sprintf("PruneReport %s cannot have %d pages", report.Name, count), nil
	}
	digester := prune.NewDigester(report.UID)
	for first := 0; first < count; first += maxParallelPages {
		pages := make([]*v1alpha1.PruneReportPage, min(maxParallelPages, count-first))
		group, ctx := errgroup.WithContext(ctx)
		for i := range pages {
			group.Go(func() (err error) {
				pages[i], err = readPage(ctx, live, prune.PageName(report.Name, digest, first+i))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, "", err
		}
		for i, page := range pages {
			if page == nil {
				return nil, fmt.Sprintf("PruneReportPage %s is missing", prune.PageName(report.Name, digest, first+i)), nil
			}
			digester.AddPage(page.Clusters)
			for k := range page.Clusters {
				c := &page.Clusters[k]
				clusters = append(clusters, v1alpha1.ReportedCluster{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Unknown: c.Unknown, Candidates: c.Candidates})
			}
		}
	}
	if got := digester.Digest(); got != digest {
		return nil, fmt.Sprintf("the pages of PruneReport %s have digest %s", report.Name, got), nil
	}
	return clusters, "", nil
}

// readPage returns nil where there is no such page.
func readPage(ctx context.Context, live client.Reader, name string) (*v1alpha1.PruneReportPage, error) {
	page := &v1alpha1.PruneReportPage{}
	switch err := live.Get(ctx, client.ObjectKey{Name: name}, page); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading PruneReportPage %s: %w", name, err)
	}
	return page, nil
}

// exactPreconditions delete only the version that was read.
func exactPreconditions(o client.Object) client.Preconditions {
	return client.Preconditions{UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion())}
}
