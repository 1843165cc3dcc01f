package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// WaveSource is what some clusters of a wave are to have.
type WaveSource struct {
	// Digest as an approval names it.
	Digest string `json:"digest"`
	// Source is shown without credentials; From are the overrides that it comes from, as in
	// overrides[2]; none for the template alone.
	Source   string   `json:"source,omitempty"`
	From     []string `json:"from,omitempty"`
	Clusters int      `json:"clusters"`

	effective *override.Effective
}

// listWaveSources returns what the clusters of a wave are to have, by digest, and how many of them
// can have nothing: a label is missing, or the spec is invalid.
func listWaveSources(img *v1alpha1.FleetDiskImage, members []v1alpha1.MemberCluster, wave string) (sources []WaveSource, unusable int, err error) {
	overrides, err := override.Parse(img)
	if err != nil {
		return nil, 0, err
	}
	placement, err := NewPlacement(&img.Spec.Placement)
	if err != nil {
		return nil, 0, err
	}
	waveOf, err := newWaveFinder(img)
	if err != nil {
		return nil, 0, err
	}
	byDigest := map[string]*WaveSource{}
	for i := range members {
		m := &members[i]
		if !placement.Selects(m) || waveOf(m) != wave {
			continue
		}
		e := overrides.For(m.Name, m.Labels)
		if !e.IsUsable() {
			unusable++
			continue
		}
		if byDigest[e.Digest] == nil {
			byDigest[e.Digest] = &WaveSource{Digest: e.Digest, Source: approval.DescribeSource(&e.Spec), From: approval.OverridesOf(e), effective: e}
		}
		byDigest[e.Digest].Clusters++
	}
	for _, digest := range slices.Sorted(maps.Keys(byDigest)) {
		sources = append(sources, *byDigest[digest])
	}
	return sources, unusable, nil
}

// newWaveFinder returns what tells the wave of a cluster: the first that selects it.
func newWaveFinder(img *v1alpha1.FleetDiskImage) (func(*v1alpha1.MemberCluster) string, error) {
	selectors := make([]labels.Selector, len(img.Spec.Rollout.Waves))
	for i := range img.Spec.Rollout.Waves {
		w := &img.Spec.Rollout.Waves[i]
		var err error
		if selectors[i], err = v1alpha1.ParseSelector(&w.ClusterSelector); err != nil {
			return nil, fmt.Errorf("clusterSelector of wave %s: %w", w.Name, err)
		}
	}
	return func(m *v1alpha1.MemberCluster) string {
		for i, selector := range selectors {
			if selector.Matches(labels.Set(m.Labels)) {
				return img.Spec.Rollout.Waves[i].Name
			}
		}
		return v1alpha1.WaveRest
	}, nil
}

// describe says what is approved of.
func (s *WaveSource) describe() string {
	if s.effective == nil {
		return fmt.Sprintf("source %s, which no cluster has by its labels as they are now", s.Digest)
	}
	return fmt.Sprintf("%s: %s, from %s", render.Count(s.Clusters, "cluster"), s.Source, cmp.Or(strings.Join(s.From, " and "), "the template"))
}
