// Package approval says what an approval of a wave reaches, what clusters get by it, and what has
// changed since the version before: kubectl ot and the read API say the same.
package approval

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxShownValue bounds the value of a field that is shown.
const maxShownValue = 200

// IsRequired reports whether a wave needs approval.
func IsRequired(img *v1alpha1.FleetDiskImage, wave string) bool {
	w := findWave(img, wave)
	return w != nil && w.RequireApproval
}

func findWave(img *v1alpha1.FleetDiskImage, wave string) *v1alpha1.Wave {
	for i := range img.Spec.Rollout.Waves {
		if w := &img.Spec.Rollout.Waves[i]; w.Name == wave {
			return w
		}
	}
	return nil
}

// FindApproval returns the approval of a version for a wave; nil for none.
func FindApproval(img *v1alpha1.FleetDiskImage, wave, version string) *v1alpha1.Approval {
	for i := range img.Spec.Approvals {
		if a := &img.Spec.Approvals[i]; a.Wave == wave && a.Version == version {
			return a
		}
	}
	return nil
}

// CoveredSources returns what an approval covers, by digest; without sources, it covers the
// template alone.
func CoveredSources(img *v1alpha1.FleetDiskImage, a *v1alpha1.Approval) []string {
	switch {
	case a == nil:
		return nil
	case len(a.Sources) == 0:
		return []string{img.Spec.Template.SourceDigest()}
	default:
		return a.Sources
	}
}

// PendingSources returns the sources that an approval of a wave has to add. sources are those
// that the clusters of the wave get, where that is known: the hub says it of the wave that waits
// now.
func PendingSources(img *v1alpha1.FleetDiskImage, wave string, sources []string) (pending []string) {
	if p := img.Status.PendingApproval; p != nil && p.Wave == wave && img.Status.ObservedGeneration == img.Generation {
		sources = p.Sources
	}
	covered := CoveredSources(img, FindApproval(img, wave, img.Spec.Version))
	for _, source := range sources {
		if !slices.Contains(covered, source) {
			pending = append(pending, source)
		}
	}
	slices.Sort(pending)
	return slices.Compact(pending)
}

// FindComplete returns the approval of a wave; nil also where clusters of the wave wait for another
// one, as the hub says of the wave that waits now.
func FindComplete(img *v1alpha1.FleetDiskImage, wave string) *v1alpha1.Approval {
	if len(PendingSources(img, wave, nil)) > 0 {
		return nil
	}
	return FindApproval(img, wave, img.Spec.Version)
}

// New returns the approval that a person gives of a wave. What an approval before covers stays
// covered, as far as one can name it: else clusters that wait for their turn would wait for
// another approval. Without overrides it names no source, as a hub before them expects.
func New(img *v1alpha1.FleetDiskImage, wave string, pending []string, by string, at time.Time) v1alpha1.Approval {
	a := v1alpha1.Approval{Wave: wave, Version: img.Spec.Version, By: by, At: new(storedtime.Truncate(at))}
	covered := CoveredSources(img, FindApproval(img, wave, img.Spec.Version))
	a.Sources = slices.Clone(pending)
	for _, source := range covered {
		if len(a.Sources) < MaxSources && !slices.Contains(a.Sources, source) {
			a.Sources = append(a.Sources, source)
		}
	}
	template := img.Spec.Template.SourceDigest()
	if len(img.Spec.Overrides) == 0 && !slices.ContainsFunc(a.Sources, func(source string) bool { return source != template }) {
		a.Sources = nil
		return a
	}
	a.Sources = a.Sources[:min(len(a.Sources), MaxSources)]
	slices.Sort(a.Sources)
	return a
}

// MaxSources is how many sources an approval names, as the API has it.
const MaxSources = 256

// DescribeSource says what a source is, without credentials.
func DescribeSource(spec *v1alpha1.VMDiskImageSpec) string {
	source := spec.RedactedSource()
	if d := spec.DataSource; d != nil {
		source += " " + strings.TrimPrefix(d.Namespace+"/"+d.Name, "/")
	}
	return v1alpha1.SanitizeText(source, maxSourceBytes)
}

// maxSourceBytes bounds a source that is shown: a url can have 2 KiB.
const maxSourceBytes = 512

// CountStarting returns how many clusters of a wave start by its approval, and how many of
// these are offline.
func CountStarting(img *v1alpha1.FleetDiskImage, wave string) (clusters, offline int32) {
	for i := range img.Status.Waves {
		if w := &img.Status.Waves[i]; w.Name == wave {
			clusters += w.Clusters.ToApply + w.Clusters.Deferred
			offline += w.Clusters.Deferred
		}
	}
	return clusters, offline
}

// AtATime returns how many clusters of a wave import together, as in 25%; empty: all.
func AtATime(img *v1alpha1.FleetDiskImage, wave string) string {
	limit := img.Spec.Rollout.MaxConcurrency
	if w := findWave(img, wave); w != nil && w.MaxConcurrency != nil {
		limit = w.MaxConcurrency
	}
	if limit == nil {
		return ""
	}
	return limit.String()
}

// MinSuccessTime returns how long a wave must have been done before the next one starts.
func MinSuccessTime(img *v1alpha1.FleetDiskImage, wave string) time.Duration {
	wait := img.Spec.Rollout.MinSuccessTime
	if w := findWave(img, wave); w != nil && w.MinSuccessTime != nil {
		wait = w.MinSuccessTime
	}
	if wait == nil {
		return 0
	}
	return wait.Duration
}

// ChangesSinceVersionBefore returns what differs from the version before, overrides included; nil
// where there was none.
func ChangesSinceVersionBefore(img *v1alpha1.FleetDiskImage) *readapi.VersionChanges {
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		switch {
		case v.Version == img.Spec.Version:
		case v.Template == nil:
			return &readapi.VersionChanges{Since: v.Version, NotRecorded: WhyNotRecorded(v)}
		default:
			fields := append(Diff(v.Template, img.Spec.Template.SourceFields()), DiffOverrides(RecordedItems(v), img.Spec.Overrides)...)
			return &readapi.VersionChanges{Since: v.Version, Fields: fields}
		}
	}
	return nil
}

// RecordedItems are the overrides that a version had, where its template is recorded.
func RecordedItems(v *v1alpha1.VersionStatus) []v1alpha1.ImageOverride {
	if v.Overrides == nil {
		return nil
	}
	return v.Overrides.Items
}

// WhyNotRecorded says why the template of a version is not recorded.
func WhyNotRecorded(v *v1alpha1.VersionStatus) string {
	if v.TemplateOmitted == "" {
		return "the hub was older then"
	}
	return v.TemplateOmitted
}

// Diff returns how a template differs from the one before. Credentials are left out.
func Diff(before, after *v1alpha1.VMDiskImageSpec) (changes []readapi.Change) {
	from, to := fieldTexts(before), fieldTexts(after)
	for _, field := range before.DiffersIn(after) {
		changes = append(changes, readapi.Change{Field: field, From: from[field], To: to[field]})
	}
	return changes
}

// DiffOverrides returns how overrides differ from those before, as in overrides[2].url. Credentials
// are left out.
func DiffOverrides(before, after []v1alpha1.ImageOverride) (changes []readapi.Change) {
	at := func(list []v1alpha1.ImageOverride, i int) *v1alpha1.ImageOverride {
		if i < len(list) {
			return &list[i]
		}
		return &v1alpha1.ImageOverride{}
	}
	for i := range max(len(before), len(after)) {
		// Texts are shortened and without credentials: what differs is found by the whole.
		from, to := at(before, i), at(after, i)
		wasSet, isSet := setFields(from), setFields(to)
		fromTexts, toTexts := fieldTexts(from), fieldTexts(to)
		for _, field := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(wasSet)), slices.Collect(maps.Keys(isSet)))))) {
			if string(wasSet[field]) != string(isSet[field]) {
				changes = append(changes, readapi.Change{Field: fmt.Sprintf("overrides[%d].%s", i, field), From: shownOverride(wasSet, fromTexts, field), To: shownOverride(isSet, toTexts, field)})
			}
		}
	}
	return changes
}

// shownOverride is the text of a field. An empty one removes the template's; none leaves it.
func shownOverride(set map[string]json.RawMessage, texts map[string]string, field string) string {
	if text := texts[field]; text != "" && text != "[]" {
		return text
	}
	if _, ok := set[field]; ok && field != "clusterSelector" {
		return "(removed)"
	}
	return ""
}

func setFields(value any) (fields map[string]json.RawMessage) {
	data, err := json.Marshal(value)
	if err != nil || json.Unmarshal(data, &fields) != nil {
		return nil // the type holds only strings, numbers and quantities
	}
	return fields
}

// fieldTexts returns the fields of a spec or an override for people.
func fieldTexts(value any) map[string]string {
	texts := map[string]string{}
	for name, raw := range setFields(value) {
		text := string(raw)
		var plain string
		if json.Unmarshal(raw, &plain) == nil {
			text = plain
		}
		switch name {
		case "url":
			text = v1alpha1.RedactURL(text)
		case "extraHeaders":
			if text != "[]" {
				text = "(not shown)"
			}
		case "clusterSelector":
			selector := &metav1.LabelSelector{}
			if json.Unmarshal(raw, selector) == nil {
				text = cmp.Or(metav1.FormatLabelSelector(selector), text)
			}
			if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
				text = "all clusters"
			}
		}
		texts[name] = v1alpha1.SanitizeText(text, maxShownValue)
	}
	return texts
}
