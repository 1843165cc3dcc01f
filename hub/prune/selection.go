package prune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// group counts a PruneGroup.
type group struct {
	readapi.PruneGroup
	clusters map[string]bool
	// unknownSince: of one image it is not known since when it is unreferenced.
	unknownSince bool
}

// Selection counts the candidates that an ImagePrune selects, by group. The parts of a report
// are added one after the other: together they may exceed the memory.
type Selection struct {
	now  time.Time
	by   readapi.PruneBy
	spec v1alpha1.ImagePruneSpec

	total    group
	groups   map[string]*group
	clusters map[string]int
	// made by people, and left out.
	leftOut v1alpha1.PruneTotal
	images  *nameMatcher
	// answered are the clusters that the report knows; unanswered has why it does not know others.
	answered   map[string]bool
	unanswered map[string]string
}

// NewSelection returns an empty selection of what spec selects: its images, clusters and
// includeOthers.
func NewSelection(now time.Time, by readapi.PruneBy, spec v1alpha1.ImagePruneSpec) *Selection {
	return &Selection{
		now: now, by: by, spec: spec, total: group{clusters: map[string]bool{}},
		groups: map[string]*group{}, clusters: map[string]int{}, images: newNameMatcher(spec.Images), answered: map[string]bool{}, unanswered: map[string]string{},
	}
}

// Add adds parts of a report. Each candidate is in one part.
func (s *Selection) Add(parts []v1alpha1.ReportedCluster) {
	for i := range parts {
		if parts[i].Unknown == "" {
			s.answered[parts[i].Cluster] = true
		} else {
			s.unanswered[parts[i].Cluster] = parts[i].Unknown
		}
	}
	all := s.spec
	all.IncludeOthers = true
	for _, target := range selectTargets(&all, s.images, parts) {
		if target.Origin != v1alpha1.OriginPlan && !s.spec.IncludeOthers {
			s.leftOut.Count++
			s.leftOut.Bytes += target.Bytes
			continue
		}
		s.clusters[target.Cluster]++
		s.total.add(&target)
		key := s.groupName(&target)
		if s.groups[key] == nil {
			s.groups[key] = &group{PruneGroup: readapi.PruneGroup{Name: key}, clusters: map[string]bool{}}
		}
		s.groups[key].add(&target)
	}
}

func (g *group) add(t *Target) {
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
	since := t.UnreferencedSince
	if since == nil {
		g.unknownSince, g.YoungestUnreferencedSince = true, nil
		return
	}
	if g.OldestUnreferencedSince == nil || since.Before(g.OldestUnreferencedSince) {
		g.OldestUnreferencedSince = since
	}
	if !g.unknownSince && (g.YoungestUnreferencedSince == nil || g.YoungestUnreferencedSince.Before(since)) {
		g.YoungestUnreferencedSince = since
	}
}

// By returns what the groups are of.
func (s *Selection) By() readapi.PruneBy { return s.by }

// Spec returns what selects.
func (s *Selection) Spec() *v1alpha1.ImagePruneSpec { return &s.spec }

// Total returns what is selected, as one group without a name.
func (s *Selection) Total() readapi.PruneGroup { return s.total.PruneGroup }

// LeftOut returns the images that were made by people and stay without includeOthers.
func (s *Selection) LeftOut() v1alpha1.PruneTotal { return s.leftOut }

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

func (s *Selection) groupName(t *Target) string {
	switch {
	case s.by == readapi.PruneByCluster:
		return t.Cluster
	case s.by == readapi.PruneByImage:
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

// Groups returns the groups, those that take most storage in front; ages by their age.
func (s *Selection) Groups() []readapi.PruneGroup {
	order := map[string]int{oldest: 1}
	for i := range ages {
		order[ages[i].name] = len(ages) + 1 - i
	}
	groups := make([]readapi.PruneGroup, 0, len(s.groups))
	for _, g := range s.groups {
		groups = append(groups, g.PruneGroup)
	}
	slices.SortFunc(groups, func(a, b readapi.PruneGroup) int {
		if s.by == readapi.PruneByAge {
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

// Absences says which names of the selection match nothing.
func (s *Selection) Absences() []string {
	var absent []string
	of := ""
	if len(s.spec.Clusters) > 0 {
		of = " of these clusters"
	}
	for _, pattern := range s.spec.Images {
		if !s.images.found[pattern] {
			absent = append(absent, fmt.Sprintf("no candidate%s is named %s", of, pattern))
		}
	}
	for _, name := range s.spec.Clusters {
		switch why, listed := s.unanswered[name]; {
		case s.answered[name]:
		case listed:
			absent = append(absent, fmt.Sprintf("%s did not answer the report: %s", name, why))
		default:
			absent = append(absent, fmt.Sprintf("the report knows nothing of cluster %s", name))
		}
	}
	return absent
}

// Warnings are the Absences, and the clusters that have more images to prune than a plan has
// room for.
func (s *Selection) Warnings() []string {
	var full []string
	for name, images := range s.clusters {
		if images > v1alpha1.MaxPlannedPrunes {
			full = append(full, name)
		}
	}
	warnings := s.Absences()
	if len(full) > 0 {
		slices.Sort(full)
		warnings = append(warnings, fmt.Sprintf("more than %d images of %s are selected, and only the first %d are pruned: create another report afterwards",
			v1alpha1.MaxPlannedPrunes, strings.Join(full, ", "), v1alpha1.MaxPlannedPrunes))
	}
	return warnings
}
