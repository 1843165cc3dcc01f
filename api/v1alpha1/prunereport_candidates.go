package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
)

// CandidatesLeft returns the candidates of the report without those that ImagePrunes of it have pruned.
// Invariant: at least what can go. An image that is gone counts as pruned in each ImagePrune that selects it:
// of those that may share one, only the largest counts.
func (r *PruneReport) CandidatesLeft(prunes []ImagePrune) PruneTotal {
	var largestFirst []*ImagePrune
	for i := range prunes {
		if p := &prunes[i]; p.Status.Targets.Pruned > 0 && p.Spec.ReportRef == (PruneReportRef{Name: r.Name, Digest: r.Status.Digest}) {
			largestFirst = append(largestFirst, p)
		}
	}
	slices.SortFunc(largestFirst, func(a, b *ImagePrune) int {
		return cmp.Or(cmp.Compare(b.Status.Targets.Pruned, a.Status.Targets.Pruned), cmp.Compare(b.Status.PrunedBytes, a.Status.PrunedBytes), strings.Compare(a.Name, b.Name))
	})
	left := r.Status.Candidates
	var counted []*ImagePruneSpec
	for _, p := range largestFirst {
		if !slices.ContainsFunc(counted, p.Spec.maySelectWith) {
			counted = append(counted, &p.Spec)
			left.Count -= p.Status.Targets.Pruned
			left.Bytes -= p.Status.PrunedBytes
		}
	}
	return PruneTotal{Count: max(0, left.Count), Bytes: max(0, left.Bytes)}
}

// maySelectWith reports whether both may select one image of a cluster.
func (s *ImagePruneSpec) maySelectWith(o *ImagePruneSpec) bool {
	return mayShare(s.Clusters, o.Clusters, func(a, b string) bool { return a == b }) && mayShare(s.Images, o.Images, mayMatchOne)
}

// mayShare reports whether an item of a and one of b may be the same. An empty list selects all.
func mayShare(a, b []string, same func(a, b string) bool) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return same(one, other) })
	})
}

// mayMatchOne reports whether two patterns of images may match one image: it goes by what precedes their first *.
func mayMatchOne(a, b string) bool {
	startA, _, anyA := strings.Cut(a, "*")
	startB, _, anyB := strings.Cut(b, "*")
	return a == b || anyB && strings.HasPrefix(startA, startB) || anyA && strings.HasPrefix(startB, startA)
}
