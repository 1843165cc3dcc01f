package override_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var everywhere = &metav1.LabelSelector{}

func TestInvalidMergedSpecs(t *testing.T) {
	sum := "sha256:" + strings.Repeat("0", 64)
	registry := ptr.To(v1alpha1.SourceRegistry)
	for name, tc := range map[string]struct {
		template    func(*v1alpha1.VMDiskImageSpec)
		overrides   []v1alpha1.ImageOverride
		labels      map[string]string
		wantInvalid string
	}{
		"nothing is overridden": {template: func(s *v1alpha1.VMDiskImageSpec) { s.URL = "ftp://older.example.com/than-the-rule" }},
		"another storage class": {overrides: []v1alpha1.ImageOverride{{StorageClass: ptr.To("ceph")}}},
		"a checksum that stays with a registry": {
			template:    func(s *v1alpha1.VMDiskImageSpec) { s.Checksum = sum },
			overrides:   []v1alpha1.ImageOverride{{StorageClass: ptr.To("ceph")}, {SourceType: registry, URL: ptr.To("docker://zot.example.com/ubuntu")}},
			wantInvalid: "spec.overrides[0] and spec.overrides[1] make no valid image of the template: checksum works with sourceType http only (CDI 1.65 or later) (checksum is from the template, sourceType is from spec.overrides[1]); correct the override, where an empty text or list removes a field of the template",
		},
		"a checksum that is removed with it": {
			template:  func(s *v1alpha1.VMDiskImageSpec) { s.Checksum = sum },
			overrides: []v1alpha1.ImageOverride{{SourceType: registry, URL: ptr.To("docker://zot.example.com/ubuntu"), Checksum: ptr.To("")}},
		},
		"a registry without its scheme": {
			overrides:   []v1alpha1.ImageOverride{{SourceType: registry}},
			wantInvalid: "spec.overrides[0] makes no valid image of the template: url must start with docker:// or oci-archive:// for sourceType registry (sourceType is from spec.overrides[0], url is from the template)",
		},
		"no source": {
			overrides:   []v1alpha1.ImageOverride{{URL: ptr.To("")}},
			wantInvalid: "url is required: say where the image is downloaded from",
		},
		"a header of another source": {
			overrides:   []v1alpha1.ImageOverride{{SourceType: ptr.To(v1alpha1.SourceS3), ExtraHeaders: &[]string{"Authorization: hunter2"}}},
			wantInvalid: "extraHeaders and secretExtraHeaders work with sourceType http only (extraHeaders is from spec.overrides[0], sourceType is from spec.overrides[0])",
		},
		"a label that makes no host": {
			overrides:   []v1alpha1.ImageOverride{{URL: ptr.To("https://[${labels.site}]/a")}},
			labels:      map[string]string{"site": "north"},
			wantInvalid: "url is not a valid URL",
		},
		"a label that makes a host": {
			overrides: []v1alpha1.ImageOverride{{URL: ptr.To("https://${labels.site}.example.com/a")}},
			labels:    map[string]string{"site": "north"},
		},
		"a missing label": {overrides: []v1alpha1.ImageOverride{{URL: ptr.To("https://[${labels.site}]/a")}}},
		"an expanded url that is too long": {
			overrides:   []v1alpha1.ImageOverride{{URL: ptr.To("https://a.example.com/" + strings.Repeat("${labels.site}/", 130))}},
			labels:      map[string]string{"site": strings.Repeat("a", 63)},
			wantInvalid: "url: Too long: may not be more than 2048",
		},
		"a pull method of the former source": {
			template: func(s *v1alpha1.VMDiskImageSpec) {
				s.SourceType, s.URL, s.PullMethod = v1alpha1.SourceRegistry, "docker://a.example.com/b", v1alpha1.PullNode
			},
			overrides: []v1alpha1.ImageOverride{{SourceType: ptr.To(v1alpha1.SourceHTTP), URL: ptr.To("https://a.example.com/b")}},
		},
		"a pull method of its own": {
			overrides:   []v1alpha1.ImageOverride{{SourceType: ptr.To(v1alpha1.SourceHTTP), PullMethod: ptr.To(v1alpha1.PullNode)}},
			wantInvalid: "pullMethod works with sourceType registry only",
		},
		"a DataSource instead of what is published": {
			template: func(s *v1alpha1.VMDiskImageSpec) { s.Publish = &v1alpha1.Publish{DataSource: true} },
			overrides: []v1alpha1.ImageOverride{{
				SourceType: ptr.To(v1alpha1.SourceDataSource), URL: ptr.To(""), StorageClass: ptr.To(""), SnapshotClass: ptr.To(""), DataSource: &v1alpha1.DataSourceReference{Name: "fedora"},
			}},
		},
		"a DataSource of a former override": {
			overrides: []v1alpha1.ImageOverride{
				{SourceType: ptr.To(v1alpha1.SourceDataSource), URL: ptr.To(""), DataSource: &v1alpha1.DataSourceReference{Name: "fedora"}},
				{SourceType: ptr.To(v1alpha1.SourceHTTP), URL: ptr.To("https://a.example.com/b")},
			},
		},
		"a DataSource without its source type": {
			overrides:   []v1alpha1.ImageOverride{{DataSource: &v1alpha1.DataSourceReference{Name: "fedora"}}},
			wantInvalid: "dataSource and sourceType dataSource belong together",
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").Obj()
			if tc.template != nil {
				tc.template(&img.Spec.Template)
			}
			for i := range tc.overrides {
				tc.overrides[i].ClusterSelector = everywhere
			}
			img.Spec.Overrides = tc.overrides
			overrides, err := override.Parse(img)
			require.NoError(t, err)
			got := overrides.For("kiel", tc.labels).Invalid
			if tc.wantInvalid == "" {
				assert.Empty(t, got)
			} else {
				assert.Contains(t, got, tc.wantInvalid)
			}
			assert.NotContains(t, got, "hunter2", "values are not shown")
		})
	}
}

// oneOf draws nothing, or more rarely one of some values.
func oneOf[T any](values ...T) *rapid.Generator[*T] {
	return rapid.Custom(func(t *rapid.T) *T {
		if rapid.IntRange(0, 7).Draw(t, "set") > 0 {
			return nil
		}
		return ptr.To(rapid.SampledFrom(values).Draw(t, "value"))
	})
}

// accepts records whether an API server stores a spec.
type accepts struct{ failed bool }

func (a *accepts) Errorf(string, ...any) { a.failed = true }
func (a *accepts) FailNow()              { panic(a) }

func isStorable(spec *v1alpha1.VMDiskImageSpec) (storable bool) {
	a := &accepts{}
	defer func() {
		if r := recover(); r != nil && r != any(a) {
			panic(r)
		}
		storable = !a.failed
	}()
	schemacheck.RequireFieldStorable(a, "VMDiskImage", "spec", spec)
	return true
}

// TestInvalidIsWhatAnAPIServerRefuses merges random overrides.
func TestInvalidIsWhatAnAPIServerRefuses(t *testing.T) {
	valid, invalid := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		img := apitest.FleetDiskImage("ubuntu").Obj()
		for range rapid.IntRange(1, 4).Draw(t, "overrides") {
			img.Spec.Overrides = append(img.Spec.Overrides, v1alpha1.ImageOverride{
				ClusterSelector: everywhere,
				SourceType:      oneOf(v1alpha1.SourceHTTP, v1alpha1.SourceS3, v1alpha1.SourceRegistry, v1alpha1.SourceGCS, v1alpha1.SourceBlank, v1alpha1.SourceDataSource).Draw(t, "sourceType"),
				URL: oneOf("", "https://a.example.com/b", "https://${labels.site}.example.com/b", "docker://${cluster.name}/b", "gs://a/b", "https://[${labels.site}]/b", "https://169.254.169.254/a", "oci-archive:///a").
					Draw(t, "url"),
				Checksum: oneOf("", "md5:"+strings.Repeat("0", 32), "md5:0").Draw(t, "checksum"), SecretRef: oneOf("", "a", "A").Draw(t, "secretRef"),
				CertConfigMap: oneOf("", "a", "a b").Draw(t, "certConfigMap"), ExtraHeaders: oneOf([]string{}, []string{"X-A: b"}, []string{"Host: b"}).Draw(t, "extraHeaders"),
				SecretExtraHeaders: oneOf([]string{}, []string{"a"}, []string{"a", "a"}).Draw(t, "secretExtraHeaders"), PullMethod: oneOf(v1alpha1.PullPod, v1alpha1.PullNode).Draw(t, "pullMethod"),
				StorageClass: oneOf("", "a", "A").Draw(t, "storageClass"), SnapshotClass: oneOf("", "a").Draw(t, "snapshotClass"),
				DiskSize:     oneOf(resource.MustParse("1Gi"), resource.MustParse("1"), resource.MustParse("65Ti")).Draw(t, "diskSize"),
				Architecture: oneOf(v1alpha1.ArchitectureARM64, v1alpha1.Architecture("x86_64")).Draw(t, "architecture"),
				DataSource:   oneOf(v1alpha1.DataSourceReference{Name: "a"}, v1alpha1.DataSourceReference{Namespace: "a"}).Draw(t, "dataSource"), Priority: oneOf(int32(1), 1001).Draw(t, "priority"),
			})
		}
		overrides, err := override.Parse(img)
		require.NoError(t, err)
		got := overrides.For("kiel", map[string]string{"site": "north"})
		require.Equal(t, isStorable(&got.Spec), got.Invalid == "", "%s", got.Invalid)
		if got.Invalid == "" {
			valid++
			return
		}
		invalid++
		require.Contains(t, got.Invalid, "spec.overrides[")
		require.NotContains(t, got.Invalid, "evaluation error")
	})
	require.Positive(t, valid)
	require.Positive(t, invalid)
}

// TestRulesAreCompiledOnce: a fleet's clusters are checked at each change of a rollout.
func TestRulesAreCompiledOnce(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Spec.Overrides = []v1alpha1.ImageOverride{{ClusterSelector: everywhere, StorageClass: ptr.To("ceph")}}
	check := func() {
		overrides, err := override.Parse(img)
		require.NoError(t, err)
		require.Empty(t, overrides.For("kiel", nil).Invalid)
	}
	check()
	require.Less(t, testing.AllocsPerRun(10, check), 1000.0, "a check that is not remembered has several thousand")
}
