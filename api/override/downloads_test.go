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

func TestDownloadsByHost(t *testing.T) {
	const sum = "md5:00000000000000000000000000000000"
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Spec.Template.SourceType, img.Spec.Template.URL, img.Spec.Template.Checksum = v1alpha1.SourceHTTP, "https://images.example.com/a", sum
	img.Spec.Template.DiskSize = resource.MustParse("10Gi")
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterNames: []string{"mirror"}, URL: ptr.To("https://mirror.example.com/a")},
		{ClusterNames: []string{"other"}, URL: ptr.To("https://other.example.com/a"), Checksum: ptr.To("")},
		{ClusterNames: []string{"blank"}, SourceType: ptr.To(v1alpha1.SourceBlank), URL: ptr.To(""), Checksum: ptr.To("")},
		{ClusterNames: []string{"invalid"}, SourceType: ptr.To(v1alpha1.SourceBlank)},
		{ClusterNames: []string{"label"}, URL: ptr.To("https://${labels.site}.example.com/a")},
		{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "large"}}, DiskSize: ptr.To(resource.MustParse("20Gi"))},
	}
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	d := override.NewDownloads(&img.Spec.Template, 3<<30)
	for _, cluster := range []string{"plain", "mirror", "other", "blank", "invalid", "label"} {
		d.Add(overrides.For(cluster, nil))
	}
	d.Add(overrides.For("other", map[string]string{"disk": "large"}))
	assert.Equal(t, []override.Download{
		{Host: "other.example.com", Clusters: 2, Bytes: 30 << 30, AtMost: true},
		{Host: "images.example.com", Clusters: 1, Bytes: 3 << 30},
		{Host: "mirror.example.com", Clusters: 1, Bytes: 3 << 30},
	}, d.ListByHost(), "a mirror of the same checksum has the same size; what cannot begin downloads nothing")
	assert.Equal(t, override.Download{Clusters: 4, Bytes: 36 << 30, AtMost: true}, d.Total())

	assert.Empty(t, overrides.For("plain", nil).WhyUnusable())
	assert.Equal(t, "its MemberCluster has no label site, which spec.overrides[4].url names: set it there, or have the override select other clusters", overrides.For("label", nil).WhyUnusable())
	assert.Contains(t, overrides.For("invalid", nil).WhyUnusable(), "spec.overrides[3] makes no valid image of the template")
}
