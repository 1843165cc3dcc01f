//go:build linux

package prune

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
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// Tries may be many, and each of them has other pages.
func TestPagesOfTriesDoNotPileUp(t *testing.T) {
	s := onStage(t)
	s.join(t, "tries", "tries-cluster")
	p := s.process(t, func(verb string, o client.Object) error {
		if r, is := o.(*v1alpha1.PruneReport); is && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return errRefused
		}
		return nil
	})
	r := p.answered("tries", "tries", unreferenced("ubuntu"))
	seen := map[string]bool{}
	for _, name := range []string{"debian", "fedora", "windows"} {
		s.answers(t, "tries", "tries-cluster", p.plan("tries", "tries-cluster"), p.store.Root("tries").Sequence+1, unreferenced(name))
		_, err := p.reports.look(t.Context(), "tries")
		require.ErrorIs(t, err, errRefused)
		names := s.pagesOf(t, r)
		require.Len(t, names, 1)
		seen[names[0]] = true
	}
	assert.Len(t, seen, 3)
}

// Of a report that waits for one member, the others are read again only where what
// they say, or what is wanted of them, has changed.
func TestMembersAreNotReadAgainForOneThatDoesNotSettle(t *testing.T) {
	s := onStage(t)
	p := s.process(t, nil)
	names := []string{"settled", "restless"}
	for _, name := range names {
		s.join(t, name, types.UID(name+"-cluster"))
	}
	s.asks(t, "restless", names...)
	look := func() *v1alpha1.PruneReport {
		_, err := p.reports.look(t.Context(), "restless")
		require.NoError(t, err)
		return s.stored(t, "restless")
	}
	look()
	answers := func(name string, images ...v1alpha1.ReportedImage) {
		cluster := types.UID(name + "-cluster")
		s.answers(t, name, cluster, p.plan(name, cluster), p.store.Root(name).Sequence+1, images...)
	}
	for _, name := range names {
		answers(name, unreferenced("ubuntu"))
	}
	var mu sync.Mutex
	read, restless := 0, true
	var err error
	p.reports.Pages, err = report.New(s.mgr.GetCache(), altered{s.Client, func(r *v1alpha1.ClusterReport) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Namespace == v1alpha1.MemberNamespacePrefix+"settled":
			read++
		case restless:
			r.Sequence++
		}
		return nil
	}}, fleet.NewIndex(), report.NewStore())
	require.NoError(t, err)
	for range 2 {
		assert.Equal(t, v1alpha1.PruneReportCollecting, look().Status.Phase)
		assert.Equal(t, 1, read)
	}
	answers("settled", unreferenced("ubuntu"), unreferenced("debian"))
	look()
	assert.Equal(t, 2, read, "it says something else")

	restless = false
	r := look()
	assert.Equal(t, v1alpha1.PruneReportComplete, r.Status.Phase)
	assert.Equal(t, int64(3), int64(r.Status.Candidates.Count))
	assert.Equal(t, 2, read)
	assert.Empty(t, p.reports.answers)
}

// What was judged holds as long as all that it rests on.
func TestJudgementHoldsWhileNothingItRestsOnChanges(t *testing.T) {
	r := &Reports{Board: rollout.NewBoard(func() bool { return true })}
	ubuntu, root := types.NamespacedName{Namespace: "farm", Name: "ubuntu"}, &v1alpha1.ReportRoot{}
	for name, tt := range map[string]struct {
		change func(c *prune.Cluster, former *answer)
		want   bool
	}{
		"nothing":           {func(*prune.Cluster, *answer) {}, true},
		"another root":      {func(c *prune.Cluster, _ *answer) { c.Root = &v1alpha1.ReportRoot{} }, false},
		"another cluster":   {func(c *prune.Cluster, _ *answer) { c.ClusterUID = "another" }, false},
		"it is unknown":     {func(c *prune.Cluster, _ *answer) { c.Unknown = v1alpha1.ReasonNotAnswered }, false},
		"wanted":            {func(c *prune.Cluster, _ *answer) { c.Wanted[farm("debian")] = "ClusterPlan" }, false},
		"not wanted":        {func(c *prune.Cluster, _ *answer) { delete(c.Wanted, ubuntu) }, false},
		"wanted by another": {func(c *prune.Cluster, _ *answer) { c.Wanted[ubuntu] = "FleetDiskImage ubuntu" }, false},
		"declared by nobody any more": {func(_ *prune.Cluster, former *answer) {
			former.judged.Candidates[0].DeclaredBy = "debian"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			former := &answer{root: root, wanted: map[types.NamespacedName]string{ubuntu: "ClusterPlan"}}
			former.judged.ClusterUID = "cluster"
			former.judged.Candidates = []v1alpha1.PruneCandidate{{Namespace: "farm", Name: "debian"}}
			c := &prune.Cluster{ClusterUID: "cluster", Root: root, Wanted: map[types.NamespacedName]string{ubuntu: "ClusterPlan"}}
			tt.change(c, former)
			assert.Equal(t, tt.want, r.holds(former, c))
		})
	}
	assert.False(t, r.holds(nil, &prune.Cluster{}))
}
