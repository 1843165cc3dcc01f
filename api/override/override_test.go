package override_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func selecting(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func TestLaterOverridesWinByField(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterSelector: &metav1.LabelSelector{}, URL: ptr.To("https://${labels.site}.example.com/${cluster.name}.qcow2"), StorageClass: ptr.To("ceph")},
		{ClusterSelector: selecting("edge", "true"), StorageClass: ptr.To("lvm"), DiskSize: ptr.To(resource.MustParse("7Gi")), Checksum: ptr.To("")},
		{ClusterNames: []string{"bergen"}, DiskSize: ptr.To(resource.MustParse("9Gi"))},
	}
	for name, tc := range map[string]struct {
		cluster     string
		labels      map[string]string
		wantFrom    map[string]int
		wantURL     string
		wantStorage string
		wantSize    string
		wantMissing []string
	}{
		"all": {
			cluster: "kiel", labels: map[string]string{"site": "north"},
			wantFrom: map[string]int{"url": 0, "storageClass": 0}, wantURL: "https://north.example.com/kiel.qcow2", wantStorage: "ceph", wantSize: "1Gi",
		},
		"by field": {
			cluster: "bergen", labels: map[string]string{"site": "north", "edge": "true"},
			wantFrom: map[string]int{"url": 0, "storageClass": 1, "checksum": 1, "diskSize": 2}, wantURL: "https://north.example.com/bergen.qcow2", wantStorage: "lvm", wantSize: "9Gi",
		},
		"missing label": {
			cluster: "kiel", labels: map[string]string{"site": ""},
			wantFrom: map[string]int{"url": 0, "storageClass": 0}, wantURL: "https://${labels.site}.example.com/kiel.qcow2", wantStorage: "ceph", wantSize: "1Gi",
			wantMissing: []string{"site"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			img.Spec.Template.DiskSize = resource.MustParse("1Gi")
			overrides, err := override.Parse(img)
			require.NoError(t, err)
			got := overrides.For(tc.cluster, tc.labels)
			assert.Equal(t, tc.wantFrom, got.From)
			assert.Equal(t, tc.wantURL, got.Spec.URL)
			assert.Equal(t, tc.wantStorage, got.Spec.StorageClass)
			assert.Equal(t, tc.wantSize, got.Spec.DiskSize.String())
			assert.Equal(t, tc.wantMissing, got.MissingLabels)
			assert.Equal(t, got.Spec.Revision(), got.Revision)
			assert.Equal(t, got.Spec.SourceDigest(), got.Digest)
			assert.Same(t, got, overrides.For(tc.cluster, tc.labels), "clusters that get the same share it")
		})
	}
}

func TestNoOverrideIsTheTemplate(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	got := overrides.For("kiel", nil)
	assert.True(t, got.Spec.Equal(&img.Spec.Template))
	assert.Empty(t, got.From)
}

func TestInvalidSelectorIsNamed(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Spec.Overrides = []v1alpha1.ImageOverride{{ClusterSelector: selecting("a b", "c")}}
	_, err := override.Parse(img)
	require.ErrorContains(t, err, "spec.overrides[0].clusterSelector")
}
