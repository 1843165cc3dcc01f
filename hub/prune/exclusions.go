package prune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Exclusions are what spec.images of an ImagePrune names, and what is not pruned because of
// the reviewed report or of the spec.
type Exclusions struct {
	// First are the first of them, by cluster, namespace and name; at most
	// MaxSkippedTargets.
	First []v1alpha1.TargetSummary
	// Count of all.
	Count int
}

// SelectExclusions returns what spec.images names and SelectTargets leaves out: images
// that no plan created, by name or pattern; images that the report keeps, by name (a
// pattern selects among candidates); and names and patterns without any image.
func SelectExclusions(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) Exclusions {
	if len(spec.Images) == 0 {
		return Exclusions{}
	}
	inClusters := make(map[string]bool, len(spec.Clusters))
	for _, name := range spec.Clusters {
		inClusters[name] = true
	}
	x := exclusionBuilder{nameMatcher: newNameMatcher(spec.Images)}
	for i := range clusters {
		c := &clusters[i]
		if len(inClusters) > 0 && !inClusters[c.Cluster] {
			continue
		}
		if c.Unknown != "" {
			x.unknownClusters++
			continue
		}
		for k := range c.Candidates {
			candidate := &c.Candidates[k]
			name := candidate.Namespace + "/" + candidate.Name
			if x.matches(name) && candidate.Origin != v1alpha1.OriginPlan && !spec.IncludeOthers {
				x.add(c.Cluster, name, v1alpha1.PruneNeedsIncludeOthers, needsOthersMessage)
			}
		}
		for k := range c.Kept {
			kept := &c.Kept[k]
			for _, name := range kept.Images {
				if x.matches(name) && x.patterns.exact[name] {
					x.add(c.Cluster, name, string(kept.Reason), keptMessage(kept))
				}
			}
		}
	}
	for _, pattern := range spec.Images {
		if !x.found[pattern] {
			x.add("", pattern, v1alpha1.PruneNotReported, x.notReportedMessage(pattern))
		}
	}
	slices.SortFunc(x.list, compareSummaries)
	x.list = slices.CompactFunc(x.list, func(a, b v1alpha1.TargetSummary) bool { return compareSummaries(a, b) == 0 })
	return Exclusions{First: slices.Clone(x.list[:min(len(x.list), v1alpha1.MaxSkippedTargets)]), Count: len(x.list)}
}

const needsOthersMessage = "no plan created it, but people, CI or the template of a VirtualMachine: create an ImagePrune with includeOthers: true to prune it"

func keptMessage(kept *v1alpha1.KeptImages) string {
	message := "the report keeps it"
	if kept.Detail != "" {
		message += ": " + kept.Detail
	}
	return v1alpha1.SanitizeText(message, maxSummaryLength)
}

// exclusionBuilder collects Exclusions.
type exclusionBuilder struct {
	*nameMatcher
	unknownClusters int
	list            []v1alpha1.TargetSummary
}

func (x *exclusionBuilder) add(cluster, image, reason, message string) {
	namespace, name, _ := strings.Cut(image, "/")
	x.list = append(x.list, v1alpha1.TargetSummary{Cluster: cluster, Namespace: namespace, Name: name, State: v1alpha1.PruneSkipped, Reason: reason, Message: message})
}

func (x *exclusionBuilder) notReportedMessage(pattern string) string {
	what := "no image of this name"
	if strings.Contains(pattern, "*") {
		what = "no image that this pattern matches"
	}
	message := "the report has " + what + " in the selected clusters"
	if n := x.unknownClusters; n > 0 {
		message += fmt.Sprintf("; %s unknown to it", pluralize(n, "of them is", "of them are"))
	}
	return message
}

func compareSummaries(a, b v1alpha1.TargetSummary) int {
	return slices.Compare([]string{a.Cluster, a.Namespace, a.Name}, []string{b.Cluster, b.Namespace, b.Name})
}
