package prune

import (
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// PlacementMatcher reads spec.placement: the function tells whether a cluster is asked. The
// error says what is wrong.
func PlacementMatcher(spec *v1alpha1.PruneReportSpec) (func(name string, labels map[string]string) bool, error) {
	if spec.Placement == nil {
		return func(string, map[string]string) bool { return true }, nil
	}
	return rollout.PlacementMatcher(spec.Placement)
}

// namePatterns match names in which * stands for any characters but /. None match all.
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
	return slices.ContainsFunc(p.globs, func(pattern string) bool {
		// The API has no other characters in a pattern that path.Match reads.
		matches, err := path.Match(pattern, name)
		return err == nil && matches
	})
}

// Target is an image that is to be pruned.
type Target struct {
	Cluster    string
	ClusterUID types.UID
	v1alpha1.PruneCandidate
}

// SelectTargets are the candidates of a report that an ImagePrune selects, by cluster,
// namespace and name. Of a cluster no image is named twice.
func SelectTargets(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) []Target {
	in := make(map[string]bool, len(spec.Clusters))
	for _, name := range spec.Clusters {
		in[name] = true
	}
	images := newNamePatterns(spec.Images)
	matches := map[string]bool{} // clusters have the same names, mostly
	var targets []Target
	for i := range clusters {
		c := &clusters[i]
		if c.Unknown != "" || len(in) > 0 && !in[c.Cluster] {
			continue
		}
		for k := range c.Candidates {
			candidate := &c.Candidates[k]
			if candidate.Origin != v1alpha1.OriginPlan && !spec.IncludeOthers {
				continue
			}
			name := candidate.Namespace + "/" + candidate.Name
			matched, seen := matches[name]
			if !seen {
				matched = images.matches(name)
				matches[name] = matched
			}
			if matched {
				targets = append(targets, Target{Cluster: c.Cluster, ClusterUID: c.ClusterUID, PruneCandidate: *candidate.DeepCopy()})
			}
		}
	}
	slices.SortStableFunc(targets, compareTargets)
	return slices.CompactFunc(targets, func(a, b Target) bool { return compareTargets(a, b) == 0 })
}

func compareTargets(a, b Target) int {
	if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
		return c
	}
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// PlannedPrunes is what plans are to carry of an ImagePrune, by cluster: of each the first
// targets that a plan has room for. It is nothing before the status that is stored
// says that it is Running, nor once it has ended or is being deleted. A plan carries
// it only while its member is the cluster of that UID.
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

// unixOrZero is a time in seconds since 1970; without one, longer ago than any.
func unixOrZero(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}
