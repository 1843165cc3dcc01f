package v1alpha1_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCandidatesLeft(t *testing.T) {
	prune := func(report, digest string, pruned int32, bytes int64) v1alpha1.ImagePrune {
		return v1alpha1.ImagePrune{
			Spec:   v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: report, Digest: digest}},
			Status: v1alpha1.ImagePruneStatus{Targets: v1alpha1.TargetCounts{Total: 100, Pruned: pruned, Skipped: 1}, PrunedBytes: bytes},
		}
	}
	of := func(p v1alpha1.ImagePrune, clusters, images string) v1alpha1.ImagePrune {
		p.Spec.Clusters, p.Spec.Images = strings.Fields(clusters), strings.Fields(images)
		return p
	}
	for name, test := range map[string]struct {
		prunes []v1alpha1.ImagePrune
		want   v1alpha1.PruneTotal
	}{
		"nothing was pruned":       {nil, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
		"all of it":                {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 112, 2000)}, v1alpha1.PruneTotal{}},
		"parts, by two":            {[]v1alpha1.ImagePrune{of(prune("spring", "5d1f", 10, 100), "", "farm/a"), of(prune("spring", "5d1f", 2, 300), "", "farm/b")}, v1alpha1.PruneTotal{Count: 100, Bytes: 1600}},
		"the same, by two":         {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 112, 2000), prune("spring", "5d1f", 1, 1)}, v1alpha1.PruneTotal{}},
		"parts, and then all":      {[]v1alpha1.ImagePrune{of(prune("spring", "5d1f", 1, 10), "", "farm/a"), of(prune("spring", "5d1f", 2, 30), "", "farm/a farm/b")}, v1alpha1.PruneTotal{Count: 110, Bytes: 1970}},
		"parts that share a part":  {[]v1alpha1.ImagePrune{of(prune("spring", "5d1f", 3, 10), "a b", ""), of(prune("spring", "5d1f", 3, 30), "b c", ""), of(prune("spring", "5d1f", 1, 5), "d", "")}, v1alpha1.PruneTotal{Count: 108, Bytes: 1965}},
		"parts of a shared part":   {[]v1alpha1.ImagePrune{of(prune("spring", "5d1f", 3, 10), "", "farm/u"), of(prune("spring", "5d1f", 2, 30), "", "farm/u*"), of(prune("spring", "5d1f", 1, 5), "", "farm/u-1")}, v1alpha1.PruneTotal{Count: 108, Bytes: 1985}},
		"of clusters and images":   {[]v1alpha1.ImagePrune{of(prune("spring", "5d1f", 3, 10), "a", "farm/a"), of(prune("spring", "5d1f", 2, 30), "b", "farm/a")}, v1alpha1.PruneTotal{Count: 107, Bytes: 1960}},
		"one deleted nothing":      {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 0, 0), of(prune("spring", "5d1f", 2, 30), "b", "")}, v1alpha1.PruneTotal{Count: 110, Bytes: 1970}},
		"of another report":        {[]v1alpha1.ImagePrune{prune("winter", "5d1f", 1, 1)}, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
		"of a report of that name": {[]v1alpha1.ImagePrune{prune("spring", "0c9e", 1, 1)}, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &v1alpha1.PruneReport{}
			r.Name, r.Status.Digest, r.Status.Candidates = "spring", "5d1f", v1alpha1.PruneTotal{Count: 112, Bytes: 2000}
			assert.Equal(t, test.want, r.CandidatesLeft(test.prunes))
		})
	}
}

// What is left is never less than what no ImagePrune has deleted, and exact after one.
func TestCandidatesLeftHidesNone(t *testing.T) {
	clusters, names := []string{"a", "b"}, []string{"farm/u", "farm/u-1", "farm/v", "lab/u"}
	patterns := append([]string{"farm/*", "*/u", "farm/u*", "farm/u-*", "farm/*1"}, names...)
	selects := func(of []string, name string) bool {
		return len(of) == 0 || slices.ContainsFunc(of, func(p string) bool {
			return regexp.MustCompile("^" + strings.ReplaceAll(p, "*", "[^/]*") + "$").MatchString(name)
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		r := &v1alpha1.PruneReport{}
		r.Status.Candidates = v1alpha1.PruneTotal{Count: int32(len(clusters) * len(names)), Bytes: int64(len(clusters) * len(names))}
		gone := map[string]bool{}
		prunes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (p v1alpha1.ImagePrune) {
			p.Spec.Clusters = rapid.SliceOfNDistinct(rapid.SampledFrom(clusters), 0, 1, rapid.ID).Draw(t, "clusters")
			p.Spec.Images = rapid.SliceOfNDistinct(rapid.SampledFrom(patterns), 0, 2, rapid.ID).Draw(t, "images")
			for _, c := range clusters {
				for _, n := range names {
					if selects(p.Spec.Clusters, c) && selects(p.Spec.Images, n) {
						gone[c+n] = true
						p.Status.Targets.Pruned++
						p.Status.PrunedBytes++
					}
				}
			}
			return p
		}), 0, 4).Draw(t, "prunes")
		want := r.Status.Candidates.Count - int32(len(gone))
		left := r.CandidatesLeft(prunes)
		assert.GreaterOrEqual(t, left.Count, want)
		assert.GreaterOrEqual(t, left.Bytes, int64(want))
		if len(prunes) == 1 {
			assert.Equal(t, want, left.Count)
		}
	})
}

// An ImagePrune counts unless a cluster and a pattern of it and of one that counts may select one image.
func TestCandidatesLeftCountsWhatSharesNone(t *testing.T) {
	patterns := []string{"farm/*", "farm/u", "farm/u*", "farm/u-*", "farm/u-1", "farm/v", "farm*/v", "*/u", "lab/u", "lab/*"}
	mayMatchOne := func(a, b string) bool {
		startA, _, isPatternA := strings.Cut(a, "*")
		startB, _, isPatternB := strings.Cut(b, "*")
		return a == b || isPatternB && strings.HasPrefix(startA, startB) || isPatternA && strings.HasPrefix(startB, startA)
	}
	mayShare := func(a, b []string) bool {
		return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(one string) bool {
			return slices.ContainsFunc(b, func(other string) bool { return mayMatchOne(one, other) })
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		r := &v1alpha1.PruneReport{}
		r.Status.Candidates.Count = 10
		prunes := make([]v1alpha1.ImagePrune, rapid.IntRange(2, 6).Draw(t, "prunes"))
		var counted []v1alpha1.ImagePruneSpec
		for i := range prunes {
			spec := &prunes[i].Spec
			spec.Clusters = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "a-b", "c"}), 0, 2, rapid.ID).Draw(t, "clusters")
			spec.Images = rapid.SliceOfNDistinct(rapid.SampledFrom(patterns), 0, 4, rapid.ID).Draw(t, "images")
			prunes[i].Name, prunes[i].Status.Targets.Pruned = strconv.Itoa(i), 1
			if !slices.ContainsFunc(counted, func(c v1alpha1.ImagePruneSpec) bool {
				return mayShare(c.Clusters, spec.Clusters) && mayShare(c.Images, spec.Images)
			}) {
				counted = append(counted, *spec)
			}
		}
		assert.EqualValues(t, 10-len(counted), r.CandidatesLeft(prunes).Count)
	})
}

// Each view of the dashboard asks for it: it costs about as much as to sort the names, where 30 ImagePrunes that
// compared each of theirs with each took a thousand times as long.
func TestCandidatesLeftOfManyNames(t *testing.T) {
	const all, each = 30, 1000
	fastest := func(run func()) time.Duration {
		least := time.Duration(math.MaxInt64)
		for range 3 {
			start := time.Now()
			run()
			least = min(least, time.Since(start))
		}
		return least
	}
	r := &v1alpha1.PruneReport{}
	r.Status.Candidates.Count = 2 * all
	prunes := make([]v1alpha1.ImagePrune, all)
	var names []string
	for i := range each {
		for n := range prunes {
			name := fmt.Sprintf("farm/image-%04d-%d", i, n)
			prunes[n].Spec.Images, names = append(prunes[n].Spec.Images, name), append(names, name)
			prunes[n].Status.Targets.Pruned = 1
		}
	}
	sorting := fastest(func() { slices.Sort(slices.Clone(names)) })
	counting := fastest(func() { assert.EqualValues(t, all, r.CandidatesLeft(prunes).Count) })
	assert.Less(t, counting, 100*sorting)
}
