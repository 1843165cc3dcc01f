package prune_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func formatExclusions(x prune.Exclusions) (list []string) {
	for _, s := range x.First {
		list = append(list, s.Cluster+"/"+s.Namespace+"/"+s.Name+" "+s.Reason)
	}
	return list
}

// What spec.images names and is not pruned is listed with its reason.
func TestSelectExclusions(t *testing.T) {
	clusters := newReviewedClusters()
	clusters[0].Kept = []v1alpha1.KeptImages{{Reason: v1alpha1.KeptReferenced, Detail: "2 VirtualMachines", Images: []string{"farm/used", "farm/ubuntu-3"}}}
	for name, tt := range map[string]struct {
		spec v1alpha1.ImagePruneSpec
		want []string
	}{
		"no image is named":            {v1alpha1.ImagePruneSpec{}, nil},
		"a candidate":                  {v1alpha1.ImagePruneSpec{Images: []string{"farm/z"}}, nil},
		"made by people":               {v1alpha1.ImagePruneSpec{Images: []string{"farm/z", "lab/own"}}, []string{"b/lab/own NeedsIncludeOthers"}},
		"made by people, by a pattern": {v1alpha1.ImagePruneSpec{Images: []string{"*/ubuntu-*", "*/o*"}}, []string{"a/lab/ubuntu-2 NeedsIncludeOthers", "b/lab/own NeedsIncludeOthers"}},
		"named twice":                  {v1alpha1.ImagePruneSpec{Images: []string{"lab/own", "lab/*n"}}, []string{"b/lab/own NeedsIncludeOthers"}},
		"with includeOthers":           {v1alpha1.ImagePruneSpec{Images: []string{"lab/own"}, IncludeOthers: true}, nil},
		"in another cluster":           {v1alpha1.ImagePruneSpec{Images: []string{"lab/own"}, Clusters: []string{"a"}}, []string{"/lab/own NotReported"}},
		"kept":                         {v1alpha1.ImagePruneSpec{Images: []string{"farm/used"}}, []string{"b/farm/used Referenced"}},
		"kept, by a pattern":           {v1alpha1.ImagePruneSpec{Images: []string{"farm/us*"}}, nil},
		"unknown":                      {v1alpha1.ImagePruneSpec{Images: []string{"farm/z", "farm/typo", "farm/x-*"}}, []string{"/farm/typo NotReported", "/farm/x-* NotReported"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := prune.SelectExclusions(&tt.spec, clusters)
			assert.Equal(t, tt.want, formatExclusions(got))
			assert.Equal(t, len(tt.want), got.Count)
		})
	}
	kept := prune.SelectExclusions(&v1alpha1.ImagePruneSpec{Images: []string{"farm/used", "farm/typo"}}, clusters).First
	assert.Equal(t, "the report has no image of this name in the selected clusters; 1 of them is unknown to it", kept[0].Message)
	assert.Equal(t, "the report keeps it: 2 VirtualMachines", kept[1].Message)
}

// No name of spec.images is without an answer: it has a target, or is excluded for a reason.
func TestPropertyNoNameIsDropped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clusters := judgeAll(drawSpec(t), drawClusters(t))
		spec := &v1alpha1.ImagePruneSpec{
			IncludeOthers: rapid.Bool().Draw(t, "others"),
			Images:        rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string { i := drawImage(t); return i.Namespace + "/" + i.Name }), 1, 8, rapid.ID).Draw(t, "images"),
		}
		answered := map[string]bool{}
		for _, target := range prune.SelectTargets(spec, clusters) {
			answered[target.Namespace+"/"+target.Name] = true
		}
		x := prune.SelectExclusions(spec, clusters)
		require.Len(t, x.First, min(x.Count, v1alpha1.MaxSkippedTargets))
		for _, s := range x.First {
			require.NotEmpty(t, s.Reason)
			require.NotEmpty(t, s.Message)
			require.LessOrEqual(t, len(s.Message), 256)
			answered[s.Namespace+"/"+s.Name] = true
		}
		for _, name := range spec.Images {
			require.Contains(t, answered, name)
		}
	})
}

func TestExclusionsAreSkipped(t *testing.T) {
	s := newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Spec.Images = []string{"farm/z", "lab/own", "lab/typo"} })
	s.Exclusions = prune.SelectExclusions(&s.Prune.Spec, newReviewedClusters())
	s.reportState(v1alpha1.PrunePruned, "", "b/farm/z")
	d := decideAndCheck(t, s.PruneView)
	assert.Equal(t, v1alpha1.ReasonPartlyPruned, d.Status.Reason)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 3, Pruned: 1, Skipped: 2}, d.Status.Targets)
	assert.Equal(t, s.Exclusions.First, d.Status.Skipped)
	assert.Contains(t, d.Status.Message, "2 were skipped. See status.skipped")
	requireConditions(t, d.Status.Conditions, 2, pruneConditions, partly)

	s.Targets = nil
	d = decideAndCheck(t, s.PruneView)
	assert.Equal(t, v1alpha1.ReasonNothingSelected, d.Status.Reason)
	assert.Equal(t, s.Exclusions.First, d.Status.Skipped)

	names := []string{"farm/z"}
	for i := range 100 {
		names = append(names, fmt.Sprintf("lab/typo-%d", i))
	}
	s = newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Spec.Images = names })
	s.Exclusions = prune.SelectExclusions(&s.Prune.Spec, newReviewedClusters())
	s.reportState(v1alpha1.PruneSkipped, v1alpha1.PruneChanged, "b/farm/z")
	d = decideAndCheck(t, s.PruneView)
	assert.Len(t, d.Status.Skipped, v1alpha1.MaxSkippedTargets, "the status is bounded")
	assert.Equal(t, "z", d.Status.Skipped[0].Name)
	assert.EqualValues(t, 101, d.Status.Targets.Skipped)
}
