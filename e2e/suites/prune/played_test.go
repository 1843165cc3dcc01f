//go:build linux

package prune_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// reportedImage is an image of a plan that a member tells of, unreferenced since a time by
// its own clock.
func reportedImage(name string, since *metav1.Time) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Origin: v1alpha1.OriginPlan, Revision: "1", ServingRevision: "1",
		Phase: v1alpha1.PhaseSucceeded, Bytes: gibibyte, UnreferencedSince: since,
	}
}

// TestReportsWithClockSkew shows that an image's unused time is measured by its own
// cluster's clock: a clock a day ahead makes nothing old, one behind nothing recent.
func TestReportsWithClockSkew(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	skews := []time.Duration{day, -day}
	lights := shared.startFakes(t, "clock", len(skews), func(i int, m *fakemember.Member) {
		m.SetClockSkew(skews[i])
		now := time.Now().Add(skews[i])
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{
			reportedImage("clock-old", unreferencedSince(now, 2*time.Hour)), reportedImage("clock-recent", unreferencedSince(now, time.Minute)), reportedImage("clock-unknown", nil),
		}))
	})
	r := newPruneReport("clock", "clock-", lights[0].Name, lights[1].Name)
	r.Spec.UnreferencedFor = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, r)
	said := shared.clustersInReport(t, shared.awaitReportComplete(t, r))
	for _, m := range lights {
		require.Contains(t, said, m.Name)
		assert.Equal(t, []string{"clock-old"}, candidateNames(said[m.Name]), m.Name)
		assert.Equal(t, map[string]string{"clock-recent": "TooRecent", "clock-unknown": "TooRecent"}, trimDetails(keptReasons(said[m.Name])), m.Name)
	}
}

// A cluster that has not answered is unknown, why is said, and nothing of it is a
// candidate; it is waited for until the deadline, and no longer than it is asked.
func TestUnresponsiveClustersInReport(t *testing.T) {
	testenv.RunInTurn(t, 2)
	t.Parallel()
	const ring = "answer-ring"
	lights := shared.startFakes(t, "answer", 3, func(i int, m *fakemember.Member) {
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{reportedImage("answer-a", unreferencedSince(time.Now(), time.Hour))}))
		if i == 1 {
			m.ActAsOldAgent()
		}
	})
	answers, old, deaf := lights[0].Name, lights[1].Name, lights[2].Name
	lights[2].IgnorePlans()
	for _, m := range lights {
		shared.setLabel(t, m.Name, ring, "in")
	}

	awaitBoth := func(r *v1alpha1.PruneReport) {
		t.Helper()
		shared.awaitReport(t, r, "two are waited for", func(r *v1alpha1.PruneReport) bool {
			return r.Status.Phase == v1alpha1.PruneReportCollecting && r.Status.Clusters == v1alpha1.AnswerCounts{Total: 3, Answered: 1, Unknown: 2}
		})
	}

	// Until the deadline they are waited for. That it passes once the others have answered is
	// this test's doing: how long their answers take depends on the machine.
	r := newPruneReport("answer-deadline", "answer-", answers, old, deaf)
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, r)
	awaitBoth(r)
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(r), r))
		require.Equal(t, v1alpha1.PruneReportCollecting, r.Status.Phase)
		r.Status.StartedAt = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))
		return shared.Status().Update(t.Context(), r)
	}))
	r = shared.awaitReportComplete(t, r)
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 3, Answered: 1, Unknown: 2}, r.Status.Clusters)
	unknown := map[string]string{}
	for _, c := range r.Status.UnknownClusters {
		unknown[c.Cluster] = c.Reason
	}
	assert.Equal(t, map[string]string{old: v1alpha1.ReasonAgentTooOld, deaf: v1alpha1.ReasonNotAnswered}, unknown)
	said := shared.clustersInReport(t, r)
	for _, name := range []string{old, deaf} {
		require.Contains(t, said, name)
		assert.Equal(t, unknown[name], said[name].Unknown)
		assert.Empty(t, said[name].Candidates, name)
		assert.Empty(t, said[name].Kept, name)
	}
	assert.Equal(t, []string{"answer-a"}, candidateNames(said[answers]))
	assert.Equal(t, int32(1), r.Status.Candidates.Count)
	assert.GreaterOrEqual(t, r.Status.CompletedAt.Sub(r.Status.StartedAt.Time), time.Hour)

	// One that is no longer placed is no longer waited for.
	r = newPruneReport("answer-relabelled", "answer-")
	r.Spec.Placement = &v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{ring: "in"}}}
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, r)
	awaitBoth(r)
	shared.setLabel(t, deaf, ring, "out")
	shared.setLabel(t, old, ring, "out")
	r = shared.awaitReportComplete(t, r)
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 1, Answered: 1}, r.Status.Clusters)
	said = shared.clustersInReport(t, r)
	assert.Len(t, said, 1)
	assert.Equal(t, []string{"answer-a"}, candidateNames(said[answers]))
	require.NoError(t, shared.Delete(t.Context(), r))
}

func (f *testFleet) setLabel(t *testing.T, cluster, label, value string) {
	t.Helper()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}
	require.NoError(t, f.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, label, value))))
}

// A report that is larger than an object of the API server has several pages, in the
// order of the clusters, and names each image once.
func TestReportSplitsIntoPages(t *testing.T) {
	t.Parallel()
	const perPage, pages = v1alpha1.MaxReportedImages, 8
	lights := shared.startFakes(t, "many", 2, func(_ int, m *fakemember.Member) {
		for page := range pages {
			images := make([]v1alpha1.ReportedImage, perPage)
			for i := range images {
				images[i] = reportedImage(fmt.Sprintf("many-%d-%03d-of-an-image-whose-name-is-rather-long", page, i), unreferencedSince(time.Now(), time.Hour))
			}
			require.NoError(t, m.SetImages(t.Context(), fmt.Sprintf("page-%03b", page), images))
		}
	})
	r := shared.createCompleteReport(t, "many-", lights[0].Name, lights[1].Name)
	assert.Greater(t, r.Status.Pages, int32(1))
	assert.Equal(t, v1alpha1.PruneTotal{Count: 2 * pages * perPage, Bytes: 2 * pages * perPage * gibibyte}, r.Status.Candidates)
	seen := map[string]bool{}
	last := ""
	for _, page := range shared.listReportPages(t, r) {
		for _, c := range page.Clusters {
			for i := range c.Candidates {
				key := c.Cluster + "/" + c.Candidates[i].Name
				assert.Less(t, last, key)
				seen[key], last = true, key
			}
		}
	}
	assert.Len(t, seen, 2*pages*perPage)
	text := awaitText(t, "/fleet/v1/prunereports/rows?format=csv&verdict=candidate&cluster="+lights[1].Name+"&report="+r.Name)
	rows := 0
	for _, c := range text {
		if c == '\n' {
			rows++
		}
	}
	assert.Equal(t, 1+pages*perPage, rows)

	// At a time, at most as many images of a cluster are pruned as fit into its plan.
	p := withUndoWindow(newImagePrune("many", r), time.Hour)
	p.Spec.Clusters = []string{lights[0].Name}
	shared.CreateForTest(t, p)
	const tooMany = pages*perPage - v1alpha1.MaxPlannedPrunes
	shared.awaitPrune(t, p, "as many as fit are planned", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: pages * perPage, Waiting: v1alpha1.MaxPlannedPrunes, Skipped: tooMany}
	})
	require.NoError(t, shared.Delete(t.Context(), p))
}
