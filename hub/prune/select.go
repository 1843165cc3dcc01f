package prune

import (
	"cmp"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// PlacementMatcher returns a function that reports whether spec.placement selects a
// cluster; without a placement it selects all. The error names the invalid field.
func PlacementMatcher(spec *v1alpha1.PruneReportSpec) (func(name string, labels map[string]string) bool, error) {
	if spec.Placement == nil {
		return func(string, map[string]string) bool { return true }, nil
	}
	return rollout.PlacementMatcher(spec.Placement)
}

// namePatterns match names; * matches any characters but /. nil matches all names.
type namePatterns struct {
	exact map[string]bool
	globs []string
}

func newNamePatterns(list []string) *namePatterns {
	if len(list) == 0 {
		return nil
	}
	p := &namePatterns{exact: make(map[string]bool, len(list))}
	for _, pattern := range list {
		if strings.Contains(pattern, "*") {
			p.globs = append(p.globs, pattern)
		} else {
			p.exact[pattern] = true
		}
	}
	return p
}

func (p *namePatterns) matches(name string) bool {
	if p == nil || p.exact[name] {
		return true
	}
	return slices.ContainsFunc(p.globs, func(pattern string) bool { return matchesGlob(pattern, name) })
}

// matchesGlob reports whether a name matches a pattern. The CRD refuses the special characters of
// path.Match other than *.
func matchesGlob(pattern, name string) bool {
	matches, err := path.Match(pattern, name)
	return err == nil && matches
}

// nameMatcher matches names as namePatterns do, each name once: most occur in many clusters, and
// each costs all patterns.
type nameMatcher struct {
	patterns *namePatterns
	byName   map[string]bool
	// found are the names and patterns that have matched a name.
	found       map[string]bool
	matchesGlob func(pattern, name string) bool
}

func newNameMatcher(list []string) *nameMatcher {
	return &nameMatcher{patterns: newNamePatterns(list), byName: map[string]bool{}, found: map[string]bool{}, matchesGlob: matchesGlob}
}

func (m *nameMatcher) matches(name string) bool {
	if m.patterns == nil {
		return true
	}
	matches, known := m.byName[name]
	if known {
		return matches
	}
	if matches = m.patterns.exact[name]; matches {
		m.found[name] = true
	}
	for _, glob := range m.patterns.globs {
		if matches && m.found[glob] {
			continue
		}
		if m.matchesGlob(glob, name) {
			m.found[glob], matches = true, true
		}
	}
	m.byName[name] = matches
	return matches
}

// Target is an image to prune in one cluster.
type Target struct {
	Cluster    string
	ClusterUID types.UID
	v1alpha1.PruneCandidate
}

// SelectTargets returns the candidates of a report that an ImagePrune selects, by
// cluster, namespace and name, each image of a cluster once.
func SelectTargets(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) []Target {
	return selectTargets(spec, newNameMatcher(spec.Images), clusters)
}

// selectTargets is SelectTargets with a matcher of spec.images.
func selectTargets(spec *v1alpha1.ImagePruneSpec, images *nameMatcher, clusters []v1alpha1.ReportedCluster) []Target {
	inClusters := make(map[string]bool, len(spec.Clusters))
	for _, name := range spec.Clusters {
		inClusters[name] = true
	}
	var targets []Target
	for i := range clusters {
		c := &clusters[i]
		if c.Unknown != "" || len(inClusters) > 0 && !inClusters[c.Cluster] {
			continue
		}
		for k := range c.Candidates {
			candidate := &c.Candidates[k]
			if candidate.Origin != v1alpha1.OriginPlan && !spec.IncludeOthers {
				continue
			}
			if images.matches(candidate.Namespace + "/" + candidate.Name) {
				targets = append(targets, Target{Cluster: c.Cluster, ClusterUID: c.ClusterUID, PruneCandidate: *candidate.DeepCopy()})
			}
		}
	}
	slices.SortStableFunc(targets, compareTargets)
	return slices.CompactFunc(targets, func(a, b Target) bool { return compareTargets(a, b) == 0 })
}

func compareTargets(a, b Target) int {
	return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// AbsentClusters returns the clusters that an ImagePrune names and that the report lacks
// or calls unknown, sorted.
func AbsentClusters(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) []string {
	known := map[string]bool{}
	for i := range clusters {
		if clusters[i].Unknown == "" {
			known[clusters[i].Cluster] = true
		}
	}
	var absent []string
	for _, name := range spec.Clusters {
		if !known[name] {
			absent = append(absent, name)
		}
	}
	slices.Sort(absent)
	return slices.Compact(absent)
}

// PlannedPrunes returns the prunes for the plans of an ImagePrune, by cluster: the first
// targets that a plan has room for. There are none before the stored phase is Running,
// nor after the end or while it is being deleted. A plan holds them only while its member
// is still the cluster of that UID.
func PlannedPrunes(p *v1alpha1.ImagePrune, targets []Target) map[string][]v1alpha1.PlannedPrune {
	planned := map[string][]v1alpha1.PlannedPrune{}
	if p.Status.Phase != v1alpha1.ImagePruneRunning || p.DeletionTimestamp != nil {
		return planned
	}
	for i := range targets {
		t := &targets[i]
		if len(planned[t.Cluster]) == v1alpha1.MaxPlannedPrunes {
			continue
		}
		planned[t.Cluster] = append(planned[t.Cluster], v1alpha1.PlannedPrune{
			Namespace: t.Namespace, Name: t.Name, ImageUID: t.UID, Revision: t.Revision,
			UnreferencedSince: unixOrZero(t.UnreferencedSince), Others: p.Spec.IncludeOthers,
			UID: p.UID, UndoWindow: metav1.Duration{Duration: p.Spec.UndoWindowOrDefault()}, Undo: p.Spec.Undo,
		})
	}
	return planned
}

// unixOrZero returns seconds since 1970; 0 without a time, which is before any.
func unixOrZero(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}
