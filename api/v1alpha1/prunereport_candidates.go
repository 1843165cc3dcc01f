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
	var clusters, images [][]string
	for _, p := range largestFirst {
		clusters, images = append(clusters, p.Spec.Clusters), append(images, p.Spec.Images)
	}
	shareCluster, mayShareImage := findOverlaps(clusters), findOverlaps(images)
	left := r.Status.Candidates
	var counted []int
	for i, p := range largestFirst {
		if !slices.ContainsFunc(counted, func(c int) bool { return shareCluster[i][c] && mayShareImage[i][c] }) {
			counted = append(counted, i)
			left.Count -= p.Status.Targets.Pruned
			left.Bytes -= p.Status.PrunedBytes
		}
	}
	return PruneTotal{Count: max(0, left.Count), Bytes: max(0, left.Bytes)}
}

// selectedName is a name of a selection, or what precedes the first * of a pattern.
type selectedName struct {
	start     string
	isPattern bool
	selection int
}

// covers reports whether s may match what o matches. o does not precede s in the order of findOverlaps.
func (s selectedName) covers(o selectedName) bool {
	return s.start == o.start || s.isPattern && strings.HasPrefix(o.start, s.start)
}

// findOverlaps returns which selections may match one name, by their indexes. An empty selection matches all.
// It is called with up to 1,000 patterns of each ImagePrune: it sorts them instead of comparing each with each.
func findOverlaps(selections [][]string) [][]bool {
	var names []selectedName
	overlap := make([][]bool, len(selections))
	for i, patterns := range selections {
		overlap[i] = make([]bool, len(selections))
		if len(patterns) == 0 {
			patterns = []string{"*"}
		}
		for _, p := range patterns {
			start, _, isPattern := strings.Cut(p, "*")
			names = append(names, selectedName{start, isPattern, i})
		}
	}
	// A pattern precedes all that it covers, and what it does not cover comes before it or after these.
	slices.SortFunc(names, func(a, b selectedName) int {
		switch order := strings.Compare(a.start, b.start); {
		case order != 0 || a.isPattern == b.isPattern:
			return order
		case a.isPattern:
			return -1
		}
		return 1
	})
	// Invariant: each of covering covers the next, and no two are of one selection.
	var covering []selectedName
	for _, name := range names {
		for len(covering) > 0 && !covering[len(covering)-1].covers(name) {
			covering = covering[:len(covering)-1]
		}
		if slices.ContainsFunc(covering, func(c selectedName) bool { return c.selection == name.selection }) {
			continue
		}
		for _, c := range covering {
			overlap[c.selection][name.selection], overlap[name.selection][c.selection] = true, true
		}
		covering = append(covering, name)
	}
	return overlap
}
