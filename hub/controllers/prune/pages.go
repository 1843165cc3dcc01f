package prune

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

// maxParallelPages is how many pages are read or written at a time.
const maxParallelPages = 8

// writePages stores the pages of a report, under names that tell what is in them:
// a try that was broken off is gone on with.
func (r *ReportReconciler) writePages(ctx context.Context, report *v1alpha1.PruneReport, pages [][]v1alpha1.ReportedCluster, digest string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelPages)
	for n, clusters := range pages {
		group.Go(func() error { return r.writePage(ctx, report, prune.PageName(report.Name, digest, n), clusters) })
	}
	return group.Wait()
}

func (r *ReportReconciler) writePage(ctx context.Context, report *v1alpha1.PruneReport, name string, clusters []v1alpha1.ReportedCluster) error {
	page := &v1alpha1.PruneReportPage{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.LabelPruneReport: string(report.UID)},
			OwnerReferences: []metav1.OwnerReference{newOwnerReference(report)},
		},
		Clusters: clusters,
	}
	err := r.Create(ctx, page)
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
	if samePage(report, stored.Clusters, clusters) {
		return nil
	}
	// Somebody has changed it, or made one of that name.
	if err := r.Delete(ctx, stored, exactPreconditions(stored)); err != nil {
		return fmt.Errorf("deleting PruneReportPage %s, which is not as it is to be: %w", name, err)
	}
	return fmt.Errorf("PruneReportPage %s was not as it is to be, and is made anew", name)
}

func samePage(report *v1alpha1.PruneReport, a, b []v1alpha1.ReportedCluster) bool {
	one := func(clusters []v1alpha1.ReportedCluster) string {
		return prune.Digest(report.UID, [][]v1alpha1.ReportedCluster{clusters})
	}
	return one(a) == one(b)
}

// deleteOtherPages deletes what is left of tries that were not finished: all pages of a
// report but those of a digest.
func (r *ReportReconciler) deleteOtherPages(ctx context.Context, report *v1alpha1.PruneReport, digest string, pages int) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PruneReportPageList"))
	if err := r.Live.List(ctx, list, client.MatchingLabels{v1alpha1.LabelPruneReport: string(report.UID)}); err != nil {
		return fmt.Errorf("listing the pages of PruneReport %s: %w", report.Name, err)
	}
	belongs := map[string]bool{}
	for n := range pages {
		belongs[prune.PageName(report.Name, digest, n)] = true
	}
	for i := range list.Items {
		page := &list.Items[i]
		if belongs[page.Name] || !page.DeletionTimestamp.IsZero() {
			continue
		}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PruneReportPage"))
		if err := r.Delete(ctx, page, exactPreconditions(page)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PruneReportPage %s: %w", page.Name, err)
		}
	}
	return nil
}

// readPages reads of the pages of a report that is complete what can be pruned.
// changed is why they are not as they were reviewed under a digest: then nothing of
// them counts.
func readPages(ctx context.Context, live client.Reader, report *v1alpha1.PruneReport, digest string) (clusters []v1alpha1.ReportedCluster, changed string, err error) {
	count := int(report.Status.Pages)
	if count < 0 || count > v1alpha1.MaxPruneReportPages {
		return nil, fmt.Sprintf("PruneReport %s cannot have %d pages", report.Name, count), nil
	}
	sum := prune.NewDigester(report.UID)
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
			sum.AddPage(page.Clusters)
			for k := range page.Clusters {
				c := &page.Clusters[k]
				clusters = append(clusters, v1alpha1.ReportedCluster{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Unknown: c.Unknown, Candidates: c.Candidates})
			}
		}
	}
	if is := sum.Digest(); is != digest {
		return nil, fmt.Sprintf("the pages of PruneReport %s have digest %s", report.Name, is), nil
	}
	return clusters, "", nil
}

// readPage returns a page as it is stored; nil for none.
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

// newOwnerReference has an object go with a PruneReport. Its deletion is not blocked: that
// would take the right to set finalizers.
func newOwnerReference(report *v1alpha1.PruneReport) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: KindReport, Name: report.Name, UID: report.UID, Controller: ptr.To(true),
	}
}

// exactPreconditions have nothing deleted but what was seen.
func exactPreconditions(o client.Object) client.Preconditions {
	return client.Preconditions{UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion())}
}
