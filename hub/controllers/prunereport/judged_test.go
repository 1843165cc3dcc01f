//go:build linux

package prunereport

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/inventory"
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
