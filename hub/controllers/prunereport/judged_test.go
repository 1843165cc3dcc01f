//go:build linux

package prunereport

import (
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// Each attempt may have other pages.
func TestPagesOfAbortedAttemptsAreDeleted(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "tries", "tries-cluster")
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if r, ok := o.(*v1alpha1.PruneReport); ok && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return errRefused
		}
		return nil
	})
	r := p.startAnsweredReport("tries", "tries", newUnreferenced("ubuntu"))
	seen := map[string]bool{}
	for _, name := range []string{"debian", "fedora", "windows"} {
		s.writeReport(t, "tries", "tries-cluster", p.writePlan("tries", "tries-cluster"), p.store.Root("tries").Sequence+1, newUnreferenced(name))
		_, err := p.reports.reconcile(t.Context(), "tries")
		require.ErrorIs(t, err, errRefused)
		names := s.pageNames(t, r)
		require.Len(t, names, 1)
		seen[names[0]] = true
	}
	assert.Len(t, seen, 3)
}

// While a report waits for one member, others are read again only where their report or
// their wanted images changed.
func TestSettledMembersAreNotReadAgain(t *testing.T) {
	s := sharedEnv(t)
	p := s.newProcess(t, nil)
	names := []string{"settled", "restless"}
	for _, name := range names {
		s.addMember(t, name, types.UID(name+"-cluster"))
	}
	s.createReport(t, "restless", names...)
	reconcile := func() *v1alpha1.PruneReport {
		_, err := p.reports.reconcile(t.Context(), "restless")
		require.NoError(t, err)
		return s.getReport(t, "restless")
	}
	reconcile()
	answer := func(name string, images ...v1alpha1.ReportedImage) {
		cluster := types.UID(name + "-cluster")
		s.writeReport(t, name, cluster, p.writePlan(name, cluster), p.store.Root(name).Sequence+1, images...)
	}
	for _, name := range names {
		answer(name, newUnreferenced("ubuntu"))
	}
	var mu sync.Mutex
	read, restless := 0, true
	p.reports.Pages = s.newPages(alteredReader{s.Client, func(r *v1alpha1.ClusterReport) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Namespace == v1alpha1.MemberNamespacePrefix+"settled":
			read++
		case restless:
			r.Sequence++
		}
		return nil
	}}, inventory.NewIndex(), report.NewStore())
	for range 2 {
		assert.Equal(t, v1alpha1.PruneReportCollecting, reconcile().Status.Phase)
		assert.Equal(t, 1, read)
	}
	answer("settled", newUnreferenced("ubuntu"), newUnreferenced("debian"))
	reconcile()
	assert.Equal(t, 2, read, "its report changed")

	restless = false
	r := reconcile()
	assert.Equal(t, v1alpha1.PruneReportComplete, r.Status.Phase)
	assert.Equal(t, int64(3), int64(r.Status.Candidates.Count))
	assert.Equal(t, 2, read)
	assert.Empty(t, p.reports.judged)
}

func TestJudgementIsReusedWhileInputsStay(t *testing.T) {
	r := &Reconciler{Rollouts: rollout.NewFleetState(func() bool { return true })}
	ubuntu, root := types.NamespacedName{Namespace: "farm", Name: "ubuntu"}, &v1alpha1.ReportRoot{}
	for name, tt := range map[string]struct {
		change func(c *prune.Cluster, former *judgedMember)
		want   bool
	}{
		"nothing":         {func(*prune.Cluster, *judgedMember) {}, true},
		"another root":    {func(c *prune.Cluster, _ *judgedMember) { c.Root = &v1alpha1.ReportRoot{} }, false},
		"another cluster": {func(c *prune.Cluster, _ *judgedMember) { c.ClusterUID = "another" }, false},
		"it is unknown":   {func(c *prune.Cluster, _ *judgedMember) { c.Unknown = v1alpha1.ReasonNotAnswered }, false},
		"wanted": {func(c *prune.Cluster, _ *judgedMember) {
			c.WantedBy[types.NamespacedName{Namespace: "farm", Name: "debian"}] = "ClusterPlan"
		}, false},
		"not wanted":        {func(c *prune.Cluster, _ *judgedMember) { delete(c.WantedBy, ubuntu) }, false},
		"wanted by another": {func(c *prune.Cluster, _ *judgedMember) { c.WantedBy[ubuntu] = "FleetDiskImage ubuntu" }, false},
		"no longer declared": {func(_ *prune.Cluster, former *judgedMember) {
			former.result.Candidates[0].DeclaredBy = "debian"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			former := &judgedMember{root: root, wantedBy: map[types.NamespacedName]string{ubuntu: "ClusterPlan"}}
			former.result.ClusterUID = "cluster"
			former.result.Candidates = []v1alpha1.PruneCandidate{{Namespace: "farm", Name: "debian"}}
			c := &prune.Cluster{ClusterUID: "cluster", Root: root, WantedBy: map[types.NamespacedName]string{ubuntu: "ClusterPlan"}}
			tt.change(c, former)
			assert.Equal(t, tt.want, r.stillHolds(former, c))
		})
	}
	assert.False(t, r.stillHolds(nil, &prune.Cluster{}))
}

// What is judged of an image that two listed pages have is what rollouts and prunes go by, whatever the order
// in which a root lists them.
func TestImageOnTwoPages(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	for name, tt := range map[string]struct {
		sequenceA, sequenceB int64
		want                 string // the page that counts
	}{
		"the newer":                          {1, 2, "b"},
		"the newer, which is first by name":  {2, 1, "a"},
		"of one sequence, the first by name": {2, 2, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			refs := []v1alpha1.PageRef{{Name: "a", Sequence: tt.sequenceA}, {Name: "b", Sequence: tt.sequenceB}}
			live := fake.NewClientBuilder().WithScheme(scheme)
			for _, ref := range refs {
				img := newUnreferenced("ubuntu")
				img.Revision = "of-" + ref.Name
				live.WithObjects(&v1alpha1.ClusterReport{
					ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + "m", Name: ref.Name},
					ClusterUID: "cluster", Sequence: ref.Sequence, Page: &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{img}},
				})
			}
			c := live.Build()
			r := &Reconciler{
				Pages:    report.New(c, c, nil, metrics.NewReports(prometheus.NewRegistry()), inventory.NewIndex(), report.NewStore()),
				Rollouts: rollout.NewFleetState(func() bool { return true }),
			}
			for range 2 {
				slices.Reverse(refs)
				cluster := prune.Cluster{Name: "m", ClusterUID: "cluster", Root: &v1alpha1.ReportRoot{Pages: refs}}
				require.NoError(t, r.readImages(t.Context(), &cluster))
				require.Len(t, cluster.Images, 1, "%s", cluster.Message)
				assert.Equal(t, "of-"+tt.want, cluster.Images[0].Revision)
			}
		})
	}
}
