package approval

import (
	"maps"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxMissingLabels is how many labels an answer names; the sentence has them, too.
const maxMissingLabels = 20

// DescribeEffective says what a cluster is to have, and where each field comes from. Credentials
// are left out.
func DescribeEffective(e *override.Effective) *readapi.EffectiveImage {
	texts := fieldTexts(&e.Spec)
	described := &readapi.EffectiveImage{
		Source: DescribeSource(&e.Spec), Revision: e.Revision, Digest: e.Digest, Fields: []readapi.EffectiveField{}, Waits: e.WhyUnusable(),
	}
	for _, label := range e.MissingLabels[:min(len(e.MissingLabels), maxMissingLabels)] {
		described.MissingLabels = append(described.MissingLabels, v1alpha1.SanitizeText(label, maxShownValue))
	}
	names := slices.Sorted(maps.Keys(texts))
	for name := range e.From {
		if _, isSet := texts[name]; !isSet {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		from := readapi.FromTemplate
		if index, ok := e.From[name]; ok {
			from = strings.TrimPrefix(override.Name(index), "spec.")
		}
		described.Fields = append(described.Fields, readapi.EffectiveField{Field: name, Value: texts[name], From: from})
	}
	return described
}

// OverridesOf names the overrides that fields come from, as in overrides[2].
func OverridesOf(e *override.Effective) (names []string) {
	for _, index := range slices.Compact(slices.Sorted(maps.Values(e.From))) {
		names = append(names, strings.TrimPrefix(override.Name(index), "spec."))
	}
	return names
}
