package rollout_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const siteURL = "https://${labels.site}.example.com/disk.qcow2"

// invalidChecksum makes a merged spec invalid in this world.
const invalidChecksum = "md5:invalid"

// worldOverrides are what the overrides of a world are drawn from. By the model, a cluster is
// selected by its name or its wave, which is simpler than selectors are.
var worldOverrides = []v1alpha1.ImageOverride{
	{ClusterSelector: inWave("canary"), StorageClass: ptr.To("fast")},
	{ClusterSelector: inWave("eu"), URL: ptr.To(siteURL)},
	{ClusterNames: []string{"m00", "m01", "m02"}, URL: ptr.To(siteURL)},
	{ClusterNames: []string{"m01", "m03"}, SecretRef: ptr.To("theirs")},
	{ClusterNames: []string{"m00", "m04"}, Priority: ptr.To[int32](7)},
	{ClusterNames: []string{"m02"}, Checksum: ptr.To(invalidChecksum)},
}

func inWave(wave string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"wave": wave}}
}

func (w *world) drawOverrides() {
	w.img.Spec.Overrides = nil
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(worldOverrides)-1), 0, 3, rapid.ID[int]).Draw(w.t, "overrides") {
		w.img.Spec.Overrides = append(w.img.Spec.Overrides, worldOverrides[i])
	}
	w.img.Generation++
}

func (w *world) drawSite() string {
	return rapid.SampledFrom([]string{"north", "north", "south", ""}).Draw(w.t, "site")
}

// drawSources returns what a person approves of: what some clusters get now, or nothing named.
func (w *world) drawSources() (sources []string) {
	for _, name := range slices.Sorted(maps.Keys(w.members)) {
		if rapid.Bool().Draw(w.t, "approves of "+name) {
			sources = append(sources, w.expectedSpec(name, w.members[name].labels).SourceDigest())
		}
	}
	slices.Sort(sources)
	return slices.Compact(sources)
}

// expectedSpec states again what a cluster is to have.
func (w *world) expectedSpec(name string, labels map[string]string) *v1alpha1.VMDiskImageSpec {
	spec := w.img.Spec.Template.DeepCopy()
	for _, o := range w.img.Spec.Overrides {
		if !slices.Contains(o.ClusterNames, name) && (o.ClusterSelector == nil || o.ClusterSelector.MatchLabels["wave"] != labels["wave"]) {
			continue
		}
		spec.StorageClass, spec.SecretRef, spec.Checksum = ptr.Deref(o.StorageClass, spec.StorageClass), ptr.Deref(o.SecretRef, spec.SecretRef), ptr.Deref(o.Checksum, spec.Checksum)
		spec.Priority = ptr.Deref(o.Priority, spec.Priority)
		if o.URL != nil {
			spec.URL = *o.URL
			if site := labels["site"]; site != "" {
				spec.URL = strings.ReplaceAll(spec.URL, "${labels.site}", site)
			}
		}
	}
	return spec
}

// expectedObstacle states again why a cluster cannot begin.
func expectedObstacle(spec *v1alpha1.VMDiskImageSpec, c *rollout.Cluster) string {
	switch {
	case strings.Contains(spec.URL, "${"):
		return v1alpha1.ReasonLabelMissing
	case spec.Checksum == invalidChecksum:
		return v1alpha1.ReasonSourceInvalid
	case len(c.UnknownFields) > 0:
		return v1alpha1.ReasonFieldsUnknown
	default:
		return ""
	}
}

// setEffective gives a cluster what the hub's controller gives it: the spec, what is wrong with
// it, and what its agent does not know of it.
func (w *world) setEffective(c *rollout.Cluster, m *worldMember) {
	overrides, err := override.Parse(w.img)
	require.NoError(w.t, err)
	effective := *overrides.For(c.Name, c.Labels)
	effective.Invalid = ""
	if effective.Spec.Checksum == invalidChecksum {
		effective.Invalid = "checksum is invalid: correct it"
	}
	c.Effective = &effective
	spec := &effective.Spec
	if planned, ok := m.plan[w.currentName()]; ok && planned.Spec.Equal(spec) {
		return
	}
	if m.unknown == "secretRef" && spec.SecretRef != "" || m.unknown == "priority" && spec.Priority != 0 {
		c.UnknownFields = []string{m.unknown}
	}
}

// checkItem: the item of a plan gets another source by a start alone.
func (w *world) checkItem(name string, before *v1alpha1.PlannedImage, after []v1alpha1.PlannedImage) {
	if len(after) == 0 || before != nil && before.Spec.SourceDigest() == after[0].Spec.SourceDigest() {
		return
	}
	start, started := w.pending[name]
	require.True(w.t, started, "%s has not started", name)
	require.Equal(w.t, start.digest, after[0].Spec.SourceDigest(), name)
}

// checkStarts states what no start may do, whatever the rest of the model says.
func (w *world) checkStarts(v rollout.View, d rollout.Decision) {
	for _, p := range d.Placed {
		m := w.members[p.Cluster]
		if r := m.report[w.currentName()]; p.State == v1alpha1.ClusterFailed && m.knowsRetry && r.ItemState == v1alpha1.PlanItemApplied {
			require.Equal(w.t, p.Effective.Digest, m.taken[w.currentName()], "%s fails with what it is to have, not with what it had", p.Cluster)
		}
		if !slices.Contains(d.Start, p.Cluster) {
			continue
		}
		require.False(w.t, w.img.Spec.Rollout.Paused)
		i := slices.IndexFunc(v.Clusters, func(c rollout.Cluster) bool { return c.Name == p.Cluster })
		spec := w.expectedSpec(p.Cluster, v.Clusters[i].Labels)
		require.Equal(w.t, spec.SourceDigest(), p.Effective.Digest)
		require.Empty(w.t, expectedObstacle(spec, &v.Clusters[i]), p.Cluster)
		require.True(w.t, w.expectedApproval(p.Wave, spec), "%s: its source is not approved", p.Cluster)
		for _, former := range d.Placed {
			if slices.Index(modelWaves, former.Wave) < slices.Index(modelWaves, p.Wave) {
				require.NotContains(w.t, []v1alpha1.ClusterState{v1alpha1.ClusterToApply, v1alpha1.ClusterProgressing}, former.State, "%s is before %s", former.Cluster, p.Cluster)
			}
		}
	}
}

// expectedApproval states again whether a wave may start with a source.
func (w *world) expectedApproval(wave string, spec *v1alpha1.VMDiskImageSpec) bool {
	i := slices.Index(modelWaves, wave)
	if i >= len(w.img.Spec.Rollout.Waves) || !w.img.Spec.Rollout.Waves[i].RequireApproval {
		return true
	}
	for _, a := range w.img.Spec.Approvals {
		sources := a.Sources
		if len(sources) == 0 {
			sources = []string{w.img.Spec.Template.SourceDigest()}
		}
		if a.Wave == wave && a.Version == w.img.Spec.Version && slices.Contains(sources, spec.SourceDigest()) {
			return true
		}
	}
	return false
}
