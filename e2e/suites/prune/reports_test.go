//go:build linux

package prune_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// newPruneReport is a report on the images with a name prefix in clusters, not created yet.
func newPruneReport(name, prefix string, clusters ...string) *v1alpha1.PruneReport {
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.PruneReportSpec{
			Placement:     &v1alpha1.Placement{ClusterNames: clusters},
			ImageSelector: &v1alpha1.ImageSelector{Namespaces: []string{namespace}, Names: []string{prefix + "*"}},
		},
	}
}

// createCompleteReport creates a report on the images with a name prefix and waits until it
// is complete.
func (f *testFleet) createCompleteReport(t *testing.T, prefix string, clusters ...string) *v1alpha1.PruneReport {
	t.Helper()
	r := newPruneReport(strings.TrimSuffix(prefix, "-"), prefix, clusters...)
	f.CreateForTest(t, r)
	return f.awaitReportComplete(t, r)
}

// awaitReportComplete waits until a PruneReport is complete.
func (f *testFleet) awaitReportComplete(t *testing.T, r *v1alpha1.PruneReport) *v1alpha1.PruneReport {
	t.Helper()
	return f.awaitReport(t, r, "complete", func(r *v1alpha1.PruneReport) bool {
		return r.Status.Phase == v1alpha1.PruneReportComplete && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete)
	})
}

// awaitReport reads a PruneReport until it meets a condition.
func (f *testFleet) awaitReport(t *testing.T, r *v1alpha1.PruneReport, wanted string, holds func(*v1alpha1.PruneReport) bool) *v1alpha1.PruneReport {
	t.Helper()
	got := &v1alpha1.PruneReport{}
	if !testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.PruneReport{}
		return f.Get(t.Context(), client.ObjectKeyFromObject(r), got) == nil && holds(got)
	}) {
		require.Failf(t, "PruneReport "+r.Name+" is not as wanted: "+wanted, "%+v\nthe hub's log is %s", got.Status, f.Hub.LogFile())
	}
	return got
}

// listWrittenPages lists all pages of a PruneReport, including those of abandoned attempts.
func (f *testFleet) listWrittenPages(t *testing.T, r *v1alpha1.PruneReport) []v1alpha1.PruneReportPage {
	t.Helper()
	var list v1alpha1.PruneReportPageList
	require.NoError(t, f.List(t.Context(), &list, client.MatchingLabels{v1alpha1.LabelPruneReport: string(r.UID)}))
	return list.Items
}

// listReportPages lists the pages that a PruneReport consists of, in order.
func (f *testFleet) listReportPages(t *testing.T, r *v1alpha1.PruneReport) []v1alpha1.PruneReportPage {
	t.Helper()
	pages := slices.DeleteFunc(f.listWrittenPages(t, r), func(page v1alpha1.PruneReportPage) bool {
		return !strings.HasPrefix(page.Name, r.Name+"-"+r.Status.Digest+"-")
	})
	number := func(page v1alpha1.PruneReportPage) (n int) {
		_, err := fmt.Sscan(page.Name[strings.LastIndex(page.Name, "-")+1:], &n)
		require.NoError(t, err, page.Name)
		return n
	}
	slices.SortFunc(pages, func(a, b v1alpha1.PruneReportPage) int { return cmp.Compare(number(a), number(b)) })
	require.Len(t, pages, int(r.Status.Pages))
	return pages
}

// clustersInReport merges the pages of a PruneReport by cluster.
func (f *testFleet) clustersInReport(t *testing.T, r *v1alpha1.PruneReport) map[string]*v1alpha1.ReportedCluster {
	t.Helper()
	clusters := map[string]*v1alpha1.ReportedCluster{}
	for _, page := range f.listReportPages(t, r) {
		for i := range page.Clusters {
			part := &page.Clusters[i]
			if whole := clusters[part.Cluster]; whole != nil {
				whole.Candidates = append(whole.Candidates, part.Candidates...)
				whole.Kept = append(whole.Kept, part.Kept...)
				whole.Orphans = append(whole.Orphans, part.Orphans...)
				continue
			}
			clusters[part.Cluster] = part
		}
	}
	return clusters
}

// candidateNames lists the candidates of a cluster.
func candidateNames(c *v1alpha1.ReportedCluster) []string {
	names := []string{}
	for i := range c.Candidates {
		names = append(names, c.Candidates[i].Name)
	}
	return names
}

// keptReasons maps the images that a cluster keeps to the reason.
func keptReasons(c *v1alpha1.ReportedCluster) map[string]string {
	why := map[string]string{}
	for _, k := range c.Kept {
		for _, key := range k.Images {
			why[strings.TrimPrefix(key, namespace+"/")] = strings.TrimSuffix(string(k.Reason)+": "+k.Detail, ": ")
		}
	}
	return why
}

// unreferencedSince is the time from which an image is unreferenced for a duration.
func unreferencedSince(now time.Time, by time.Duration) *metav1.Time {
	return ptr.To(metav1.NewTime(now.Add(-by).Truncate(time.Second)))
}
