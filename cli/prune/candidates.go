package prune

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

// By says what the candidates of a report are grouped by.
type By string

// Groupings of candidates.
const (
	ByImage   By = "image"
	ByCluster By = "cluster"
	ByAge     By = "age"
)

// ParseBy parses --by.
func ParseBy(text string) (By, error) {
	if by := By(text); slices.Contains([]By{ByImage, ByCluster, ByAge}, by) {
		return by, nil
	}
	return "", fmt.Errorf("--by %s: must be image, cluster or age", text)
}

// Group is what one row of a review is about.
type Group struct {
	// Name of the image as namespace/name, of the cluster, or the range of ages.
	Name     string `json:"name"`
	Clusters int    `json:"clusters"`
	Images   int    `json:"images"`
	Bytes    int64  `json:"bytes"`
	// Others of the images were made by people, not by a plan.
	Others int `json:"others,omitempty"`
	// DeclaredBy is the FleetDiskImage that the images are versions of.
	DeclaredBy string `json:"declaredBy,omitempty"`
	// OldestUnreferencedSince is when the last machine left the image that is unreferenced
	// for longest.
	OldestUnreferencedSince *metav1.Time `json:"oldestUnreferencedSince,omitempty"`
}

// group counts a Group.
type group struct {
	Group
	clusters map[string]bool
}

// Selection counts the candidates that an ImagePrune selects, by group. The parts of a report
// are added one after the other: together they may exceed the memory.
type Selection struct {
	now  time.Time
	by   By
	spec v1alpha1.ImagePruneSpec

	total    group
	groups   map[string]*group
	clusters map[string]int
	// made by people, and left out.
	leftOut v1alpha1.PruneTotal
	matched map[string]bool
	// answered are the clusters that the report knows.
	answered map[string]bool
}

// NewSelection returns an empty selection of what spec selects: its images, clusters and
// includeOthers.
func NewSelection(now time.Time, by By, spec v1alpha1.ImagePruneSpec) *Selection {
	return &Selection{
		now: now, by: by, spec: spec, total: group{clusters: map[string]bool{}},
		groups: map[string]*group{}, clusters: map[string]int{}, matched: map[string]bool{}, answered: map[string]bool{},
	}
}

// Add adds parts of a report. Each candidate is in one part.
func (s *Selection) Add(parts []v1alpha1.ReportedCluster) {
	for i := range parts {
		if parts[i].Unknown == "" {
			s.answered[parts[i].Cluster] = true
		}
	}
	all := s.spec
	all.IncludeOthers = true
	for _, target := range hubprune.SelectTargets(&all, parts) {
		name := target.Namespace + "/" + target.Name
		for _, pattern := range s.spec.Images {
			if matches, err := path.Match(pattern, name); err == nil && matches {
				s.matched[pattern] = true
			}
		}
		if target.Origin != v1alpha1.OriginPlan && !s.spec.IncludeOthers {
			s.leftOut.Count++
			s.leftOut.Bytes += target.Bytes
			continue
		}
		s.clusters[target.Cluster]++
		s.total.add(&target)
		key := s.groupName(&target)
		if s.groups[key] == nil {
			s.groups[key] = &group{Group: Group{Name: key}, clusters: map[string]bool{}}
		}
		s.groups[key].add(&target)
	}
}

func (g *group) add(t *hubprune.Target) {
	if g.Images == 0 {
		g.DeclaredBy = t.DeclaredBy
	}
	if g.DeclaredBy != t.DeclaredBy {
		g.DeclaredBy = "" // of several
	}
	g.Images++
	g.Bytes += t.Bytes
	g.clusters[t.Cluster] = true
	g.Clusters = len(g.clusters)
	if t.Origin != v1alpha1.OriginPlan {
		g.Others++
	}
	if since := t.UnreferencedSince; since != nil && (g.OldestUnreferencedSince == nil || since.Before(g.OldestUnreferencedSince)) {
		g.OldestUnreferencedSince = since
	}
}

const day = 24 * time.Hour

// ages are the groups of ByAge; each ends before its duration.
var ages = []struct {
	name string
	end  time.Duration
}{{"less than 7d", 7 * day}, {"7d to 30d", 30 * day}, {"30d to 90d", 90 * day}, {"90d to 365d", 365 * day}}

const (
	oldest     = "365d and more"
	unknownAge = "unknown since when"
)

func (s *Selection) groupName(t *hubprune.Target) string {
	switch {
	case s.by == ByCluster:
		return t.Cluster
	case s.by == ByImage:
		return t.Namespace + "/" + t.Name
	case t.UnreferencedSince == nil:
		return unknownAge
	}
	for _, age := range ages {
		if s.now.Sub(t.UnreferencedSince.Time) < age.end {
			return age.name
		}
	}
	return oldest
}

// sortedGroups returns the groups, those that take most storage in front; ages by their age.
func (s *Selection) sortedGroups() []Group {
	order := map[string]int{oldest: 1}
	for i := range ages {
		order[ages[i].name] = len(ages) + 1 - i
	}
	groups := make([]Group, 0, len(s.groups))
	for _, g := range s.groups {
		groups = append(groups, g.Group)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		if s.by == ByAge {
			return cmp.Compare(rankAge(order, a.Name), rankAge(order, b.Name))
		}
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Name, b.Name))
	})
	return groups
}

func rankAge(order map[string]int, name string) int {
	if at := order[name]; at > 0 {
		return at
	}
	return len(order) + 1
}

// absences says which names of the selection match nothing.
func (s *Selection) absences() []string {
	var absent []string
	for _, pattern := range s.spec.Images {
		if !s.matched[pattern] {
			absent = append(absent, fmt.Sprintf("no candidate is named %s", pattern))
		}
	}
	for _, name := range s.spec.Clusters {
		if !s.answered[name] {
			absent = append(absent, fmt.Sprintf("the report knows nothing of cluster %s", name))
		}
	}
	return absent
}

// overfull returns the clusters that have more images to prune than a plan has room for.
func (s *Selection) overfull() []string {
	var full []string
	for name, images := range s.clusters {
		if images > v1alpha1.MaxPlannedPrunes {
			full = append(full, name)
		}
	}
	slices.Sort(full)
	return full
}
