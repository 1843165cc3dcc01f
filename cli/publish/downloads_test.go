package publish_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/publish"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

// newOverridden is ubuntu 2.0.3 in all clusters, with another storage class in the south and a
// mirror in oslo.
func newOverridden(change func(*v1alpha1.FleetDiskImage)) *v1alpha1.FleetDiskImage {
	return newStored(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Placement = v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}}
		img.Spec.Template.SourceType, img.Spec.Template.URL, img.Spec.Template.Checksum = v1alpha1.SourceHTTP, "https://images.example.com/ubuntu/2.0.3", ""
		img.Spec.Overrides = []v1alpha1.ImageOverride{
			{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"region": "south"}}, StorageClass: ptr.To("lvm")},
			{ClusterNames: []string{"oslo"}, URL: ptr.To("https://mirror.example.com/ubuntu/2.0.3?token=hunter2")},
		}
		if change != nil {
			change(img)
		}
	})
}

func manifestOf(t *testing.T, img *v1alpha1.FleetDiskImage) []byte {
	t.Helper()
	spec := img.Spec.DeepCopy()
	spec.Approvals = nil
	text, err := json.Marshal(map[string]any{"kind": "FleetDiskImage", "spec": spec})
	require.NoError(t, err)
	return text
}

func TestDownloadsOfAChange(t *testing.T) {
	everywhere := &metav1.LabelSelector{}
	for name, tc := range map[string]struct {
		change        func(*v1alpha1.FleetDiskImage)
		wantDownloads []override.Download
		wantNote      string
		wantWaiting   string
	}{
		"nothing": {},
		"another version": {
			change: func(img *v1alpha1.FleetDiskImage) { img.Spec.Version = "2.1.0" },
			wantDownloads: []override.Download{
				{Host: "images.example.com", Clusters: 2, Bytes: 2 << 30, AtMost: true}, {Host: "mirror.example.com", Clusters: 1, Bytes: 1 << 30, AtMost: true},
			},
		},
		"a mirror for one": {
			change: func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Overrides = append(img.Spec.Overrides, v1alpha1.ImageOverride{ClusterNames: []string{"kiel"}, URL: ptr.To("https://kiel.example.com/ubuntu")})
			},
			wantDownloads: []override.Download{{Host: "kiel.example.com", Clusters: 1, Bytes: 1 << 30, AtMost: true}},
		},
		"another storage class in the south": {
			change:        func(img *v1alpha1.FleetDiskImage) { img.Spec.Overrides[0].StorageClass = ptr.To("ceph") },
			wantDownloads: []override.Download{{Host: "images.example.com", Clusters: 1, Bytes: 1 << 30, AtMost: true}},
		},
		"another template url": {
			change:        func(img *v1alpha1.FleetDiskImage) { img.Spec.Template.URL = "https://images.example.com/other" },
			wantDownloads: []override.Download{{Host: "images.example.com", Clusters: 2, Bytes: 2 << 30, AtMost: true}},
			wantNote:      "the new url does not reach 1 cluster (oslo): spec.overrides[1].url is as before and comes first there, https://mirror.example.com/ubuntu/2.0.3?…",
		},
		"a secret and headers": {
			change: func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Overrides = append(img.Spec.Overrides, v1alpha1.ImageOverride{ClusterSelector: everywhere, SecretRef: ptr.To("farm"), ExtraHeaders: &[]string{"X-Key: hunter2"}})
			},
			wantNote: "in 3 clusters only the way to the source or the snapshots change: that waits for their wave, and nothing is downloaded",
		},
		"a priority": {change: func(img *v1alpha1.FleetDiskImage) { img.Spec.Overrides[0].Priority = ptr.To[int32](3) }},
		"more clusters": {
			change:        func(img *v1alpha1.FleetDiskImage) { img.Spec.TargetNamespace = "elsewhere" },
			wantDownloads: []override.Download{{Host: "images.example.com", Clusters: 2, Bytes: 2 << 30, AtMost: true}, {Host: "mirror.example.com", Clusters: 1, Bytes: 1 << 30, AtMost: true}},
		},
		"an override that makes no image": {
			change: func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Overrides[0].SourceType = ptr.To(v1alpha1.SourceRegistry)
			},
			wantWaiting: "kiel: spec.overrides[0] makes no valid image of the template: url must start with docker://",
		},
		"a label that is missing": {
			change: func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Overrides[1].URL = ptr.To("https://${labels.site}.example.com/ubuntu")
			},
			wantWaiting: "oslo: its MemberCluster has no label site",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := publish.NewPlan(publish.Request{Name: "ubuntu", Manifest: manifestOf(t, newOverridden(tc.change))}, newOverridden(nil), fleet)
			require.NoError(t, err)
			assert.Equal(t, 3, p.Clusters)
			assert.ElementsMatch(t, tc.wantDownloads, p.Downloads)
			var bytes int64
			for _, d := range tc.wantDownloads {
				bytes += d.Bytes
			}
			assert.Equal(t, bytes, p.Bytes)
			notes := strings.Join(p.Notes, "\n")
			assert.Contains(t, notes, tc.wantNote)
			var waiting []string
			for _, w := range p.Waiting {
				waiting = append(waiting, w.Cluster+": "+w.Why)
			}
			assert.Contains(t, strings.Join(waiting, "\n"), tc.wantWaiting)
			assert.Equal(t, tc.wantWaiting == "", len(waiting) == 0)
			p.DryRun = "client"
			assert.Equal(t, tc.wantWaiting == "", p.Code() == exit.Yes, "a dry run of what cannot begin has failed")
			text, err := json.Marshal(p)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "hunter2")
		})
	}
}

// What a flag does not name stays, overrides included: also those that kubectl ot has applied.
func TestOverridesStay(t *testing.T) {
	request := publish.Request{Name: "ubuntu", Version: "2.1.0", URL: "https://images.example.com/ubuntu/2.1.0"}
	p, err := publish.NewPlan(request, newOverridden(nil), fleet)
	require.NoError(t, err)
	assert.Nil(t, field(t, p, "overrides"), "another's are left to them")
	assert.Len(t, p.Downloads, 2, "and count")
	p, err = publish.NewPlan(request, newOverridden(func(img *v1alpha1.FleetDiskImage) {
		img.ManagedFields[0].FieldsV1.SetRawBytes([]byte(`{"f:spec":{"f:version":{},"f:overrides":{},"f:template":{"f:url":{}}}}`))
	}), fleet)
	require.NoError(t, err)
	assert.Len(t, field(t, p, "overrides"), 2)
	assert.NotContains(t, p.Fields(), "spec.overrides", "they do not change")
	p, err = publish.NewPlan(publish.Request{Name: "ubuntu", Manifest: manifestOf(t, newOverridden(func(img *v1alpha1.FleetDiskImage) { img.Spec.Overrides = img.Spec.Overrides[:1] }))}, newOverridden(nil), fleet)
	require.NoError(t, err)
	assert.Contains(t, p.Fields(), "spec.overrides")

	p, err = publish.NewPlan(publish.Request{Name: "ubuntu", Manifest: manifestOf(t, newOverridden(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Version, img.Spec.Overrides[1].URL = "2.1.0", ptr.To("https://mirror.example.com/ubuntu/2.1.0")
	}))}, newOverridden(nil), fleet)
	require.NoError(t, err)
	assert.NotContains(t, strings.Join(p.Notes, "; "), "only the version changes", "the mirror has another file")
}

func TestDryRunChecksTheTemplate(t *testing.T) {
	p, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.URL = "https://user:hunter2@images.example.com/a" }), nil, fleet)
	require.NoError(t, err)
	err = p.CheckTemplate()
	require.ErrorContains(t, err, "spec.template of FleetDiskImage ubuntu is invalid: url must not carry a user name or password")
	assert.NotContains(t, err.Error(), "hunter2")
	p, err = publish.NewPlan(newRequest(nil), nil, fleet)
	require.NoError(t, err)
	require.NoError(t, p.CheckTemplate())
}

func TestDryRunScreenOfOverrides(t *testing.T) {
	request := publish.Request{Name: "ubuntu", Manifest: manifestOf(t, newOverridden(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Version, img.Spec.Template.URL = "2.1.0", "https://images.example.com/ubuntu/2.1.0"
		img.Spec.Overrides[0].SourceType = ptr.To(v1alpha1.SourceRegistry)
	}))}
	p, err := publish.NewPlan(request, newOverridden(nil), fleet)
	require.NoError(t, err)
	p.DryRun = "client"
	rendertest.Golden(t, "dry-run-overrides", now, p)
}
