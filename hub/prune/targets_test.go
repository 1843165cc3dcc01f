package prune_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func newCandidateRow(namespace, name string, origin v1alpha1.ImageOrigin) v1alpha1.PruneCandidate {
	return v1alpha1.PruneCandidate{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Revision: "r-" + name, Origin: origin, Bytes: 10, UnreferencedSince: toStoredTime(now)}
}

// newReviewedClusters has two clusters in three parts, and an unknown one.
func newReviewedClusters() []v1alpha1.ReportedCluster {
	return []v1alpha1.ReportedCluster{
		{Cluster: "b", ClusterUID: "uid-b", Candidates: []v1alpha1.PruneCandidate{newCandidateRow("farm", "z", v1alpha1.OriginPlan)}},
		{Cluster: "b", ClusterUID: "uid-b", Candidates: []v1alpha1.PruneCandidate{newCandidateRow("farm", "ubuntu-1", v1alpha1.OriginPlan), newCandidateRow("lab", "own", "")}},
		{Cluster: "a", ClusterUID: "uid-a", Candidates: []v1alpha1.PruneCandidate{newCandidateRow("farm", "ubuntu-1", v1alpha1.OriginPlan), newCandidateRow("lab", "ubuntu-2", v1alpha1.OriginTemplate)}},
		{Cluster: "c", ClusterUID: "uid-c", Unknown: v1alpha1.ReasonOffline, Candidates: []v1alpha1.PruneCandidate{newCandidateRow("farm", "ubuntu-1", v1alpha1.OriginPlan)}},
	}
}

func targetNames(targets []prune.Target) (names []string) {
	for _, t := range targets {
		names = append(names, t.Cluster+"/"+t.Namespace+"/"+t.Name)
	}
	return names
}

func TestSelectTargets(t *testing.T) {
	tests := map[string]struct {
		spec v1alpha1.ImagePruneSpec
		want []string
	}{
		"all planned images": {v1alpha1.ImagePruneSpec{}, []string{"a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z"}},
		"all":                {v1alpha1.ImagePruneSpec{IncludeOthers: true}, []string{"a/farm/ubuntu-1", "a/lab/ubuntu-2", "b/farm/ubuntu-1", "b/farm/z", "b/lab/own"}},
		"a cluster":          {v1alpha1.ImagePruneSpec{Clusters: []string{"a"}}, []string{"a/farm/ubuntu-1"}},
		"an unknown cluster": {
			v1alpha1.ImagePruneSpec{Clusters: []string{"x"}}, nil,
		},
		"an image":                           {v1alpha1.ImagePruneSpec{Images: []string{"farm/z"}}, []string{"b/farm/z"}},
		"a pattern":                          {v1alpha1.ImagePruneSpec{Images: []string{"*/ubuntu-*"}, IncludeOthers: true}, []string{"a/farm/ubuntu-1", "a/lab/ubuntu-2", "b/farm/ubuntu-1"}},
		"a star matches no slash":            {v1alpha1.ImagePruneSpec{Images: []string{"f*1", "farm*"}}, nil},
		"both":                               {v1alpha1.ImagePruneSpec{Clusters: []string{"b"}, Images: []string{"farm/ubuntu-*"}}, []string{"b/farm/ubuntu-1"}},
		"not planned, without includeOthers": {v1alpha1.ImagePruneSpec{Images: []string{"lab/own"}}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, targetNames(prune.SelectTargets(&test.spec, newReviewedClusters())))
		})
	}
	all := prune.SelectTargets(&v1alpha1.ImagePruneSpec{}, newReviewedClusters())
	require.Equal(t, prune.Target{Cluster: "a", ClusterUID: "uid-a", PruneCandidate: newCandidateRow("farm", "ubuntu-1", v1alpha1.OriginPlan)}, all[0])
}

func TestPlannedPrunes(t *testing.T) {
	p := newPrune(withRunning)
	p.Spec.Undo = true
	planned := prune.PlannedPrunes(p, prune.SelectTargets(&p.Spec, newReviewedClusters()))
	require.Equal(t, []v1alpha1.PlannedPrune{{
		Namespace: "farm", Name: "ubuntu-1", ImageUID: "uid-ubuntu-1", Revision: "r-ubuntu-1", UID: "prune-uid", UndoWindow: metav1.Duration{Duration: 24 * time.Hour}, Undo: true,
		UnreferencedSince: now.Unix(),
	}}, planned["a"])
	require.Len(t, planned["b"], 2)
	all := newPrune(withRunning)
	all.Spec.IncludeOthers, all.Spec.UndoWindow = true, nil
	planned = prune.PlannedPrunes(all, prune.SelectTargets(&all.Spec, newReviewedClusters()))
	require.True(t, planned["a"][0].Others)
	require.Equal(t, 24*time.Hour, planned["a"][0].UndoWindow.Duration, "the default, not zero")

	for name, change := range map[string]func(*v1alpha1.ImagePrune){
		"not started":   func(p *v1alpha1.ImagePrune) { p.Status = v1alpha1.ImagePruneStatus{} },
		"pending":       func(p *v1alpha1.ImagePrune) { p.Status.Phase = v1alpha1.ImagePrunePending },
		"complete":      func(p *v1alpha1.ImagePrune) { p.Status.Phase = v1alpha1.ImagePruneComplete },
		"failed":        func(p *v1alpha1.ImagePrune) { p.Status.Phase = v1alpha1.ImagePruneFailed },
		"being deleted": func(p *v1alpha1.ImagePrune) { p.DeletionTimestamp = toStoredTime(now) },
	} {
		p := newPrune(withRunning)
		change(p)
		require.Empty(t, prune.PlannedPrunes(p, prune.SelectTargets(&p.Spec, newReviewedClusters())), name)
	}
}

// Targets are candidates of the report; plans hold each image once, within their limit.
func TestPropertyTargetsAndPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clusters := judgeAll(drawSpec(t), drawClusters(t))
		if rapid.Bool().Draw(t, "large") {
			clusters = append(clusters, newLargeCluster("large", rapid.IntRange(490, 600).Draw(t, "candidates"), 0, 0))
		}
		p := newPrune(withRunning)
		p.Spec.IncludeOthers = rapid.Bool().Draw(t, "others")
		p.Spec.Clusters = rapid.SampledFrom([][]string{nil, {"c0", "large"}, {"c1", "c2"}}).Draw(t, "in")
		p.Spec.Images = rapid.SampledFrom([][]string{nil, {"farm/*"}, {"*/ubuntu-*", "lab/debian-1"}, {"*/image-*"}}).Draw(t, "images")
		targets := prune.SelectTargets(&p.Spec, clusters)
		pages, _, err := prune.Paginate("u", clusters)
		require.NoError(t, err)
		var read []v1alpha1.ReportedCluster
		for _, page := range roundTrip(t, pages) {
			read = append(read, page...)
		}
		require.Equal(t, toJSON(t, targets), toJSON(t, prune.SelectTargets(&p.Spec, read)), "the pages give the same targets")

		want := []string{}
		for _, c := range clusters {
			for _, i := range c.Candidates {
				in := len(p.Spec.Clusters) == 0 || slices.Contains(p.Spec.Clusters, c.Cluster)
				named := len(p.Spec.Images) == 0 || slices.ContainsFunc(p.Spec.Images, func(pattern string) bool { return matchesStars(pattern, i.Namespace+"/"+i.Name) })
				if in && named && (i.Origin == v1alpha1.OriginPlan || p.Spec.IncludeOthers) {
					want = append(want, fmt.Sprintf("%s/%s/%s %s %s", c.Cluster, i.Namespace, i.Name, i.UID, i.Revision))
				}
			}
		}
		got, chosen := []string{}, map[string]bool{}
		perCluster := map[string]int{}
		for _, target := range targets {
			got = append(got, fmt.Sprintf("%s/%s/%s %s %s", target.Cluster, target.Namespace, target.Name, target.UID, target.Revision))
			chosen[got[len(got)-1]] = true
			perCluster[target.Cluster]++
		}
		require.True(t, slices.IsSorted(targetNames(targets)))
		require.ElementsMatch(t, want, got)

		planned := prune.PlannedPrunes(p, targets)
		require.Len(t, planned, len(perCluster))
		for cluster, entries := range planned {
			require.Len(t, entries, min(perCluster[cluster], v1alpha1.MaxPlannedPrunes))
			seen := map[string]bool{}
			for _, e := range entries {
				require.False(t, seen[e.Namespace+"/"+e.Name])
				seen[e.Namespace+"/"+e.Name] = true
				require.Contains(t, chosen, fmt.Sprintf("%s/%s/%s %s %s", cluster, e.Namespace, e.Name, e.ImageUID, e.Revision))
				require.Equal(t, p.UID, e.UID)
			}
		}
	})
}

var pruneConditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionFinished, v1alpha1.ConditionSucceeded,
}

func newPrune(change ...func(*v1alpha1.ImagePrune)) *v1alpha1.ImagePrune {
	p := &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: "tidy", UID: "prune-uid", Generation: 2},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef: v1alpha1.PruneReportRef{Name: "spring", Digest: "abc"}, ApprovedBy: "ann",
			UndoWindow: &metav1.Duration{Duration: 24 * time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
		},
	}
	for _, do := range change {
		do(p)
	}
	return p
}

func withRunning(p *v1alpha1.ImagePrune) {
	p.Status.Phase, p.Status.StartedAt = v1alpha1.ImagePruneRunning, toStoredTime(now.Add(-time.Hour))
}
