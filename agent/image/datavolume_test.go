package image_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestNewDataVolumeSource(t *testing.T) {
	const sum = "md5:00000000000000000000000000000000"
	for name, tt := range map[string]struct {
		img  *apitest.ImageBuilder
		want cdiv1.DataVolumeSource
	}{
		"http": {
			apitest.Image("ns/a").WithURL("https://h/a").WithSecretRef("s").WithCertConfigMap("c").WithChecksum(sum),
			cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://h/a", SecretRef: "s", CertConfigMap: "c", Checksum: sum}},
		},
		"http with headers": {
			apitest.Image("ns/a").WithURL("https://h/a").WithExtraHeaders("X-Tenant: blue", "X-Site: b").WithSecretExtraHeaders("token"),
			cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://h/a", ExtraHeaders: []string{"X-Tenant: blue", "X-Site: b"}, SecretExtraHeaders: []string{"token"}}},
		},
		"gcs": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceGCS, "gs://bucket/a").WithSecretRef("s"),
			cdiv1.DataVolumeSource{GCS: &cdiv1.DataVolumeSourceGCS{URL: "gs://bucket/a", SecretRef: "s"}},
		},
		"registry by the node": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://h/a").WithPullMethod(v1alpha1.PullNode),
			cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: ptr.To("docker://h/a"), PullMethod: ptr.To(cdiv1.RegistryPullNode)}},
		},
		"s3": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceS3, "s3://b/a").WithSecretRef("s").WithCertConfigMap("c"),
			cdiv1.DataVolumeSource{S3: &cdiv1.DataVolumeSourceS3{URL: "s3://b/a", SecretRef: "s", CertConfigMap: "c"}},
		},
		"registry": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://h/a").WithSecretRef("s").WithCertConfigMap("c"),
			cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: ptr.To("docker://h/a"), SecretRef: ptr.To("s"), CertConfigMap: ptr.To("c")}},
		},
		"public registry": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://h/a"),
			cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: ptr.To("docker://h/a")}},
		},
		"blank": {
			apitest.Image("ns/a").WithSource(v1alpha1.SourceBlank, ""),
			cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := tt.img.Obj()
			got := image.NewDataVolume(img, apitest.Slot(img, "r", 1).Obj())
			assert.Equal(t, &tt.want, got.Spec.Source)
			if tt.img.Obj().Spec.SourceType == v1alpha1.SourceGCS {
				assert.Equal(t, "storage.googleapis.com", img.Spec.SourceHost(), "the name in the URL is that of a bucket")
			}
			assert.Equal(t, img.Spec.SourceHost(), image.DataVolumeHost(got))
		})
	}
}

func TestNewDataVolume(t *testing.T) {
	img := apitest.Image("ns/" + strings.Repeat("long.", 50) + "abc").WithStorageClass("fast").WithDiskSize("24Gi").Obj()
	key := image.KeyOf(img)
	slot := apitest.Slot(img, "r", 7).WithDataVolume(ledger.DataVolumeName(key, 7)).Obj()

	got := image.NewDataVolume(img, slot)

	assert.Equal(t, "ns", got.Namespace)
	assert.Equal(t, slot.DataVolume, got.Name)
	assert.Empty(t, got.OwnerReferences, "a foreground deletion of the image would delete storage in use")
	assert.Equal(t, img.Name, got.Annotations[v1alpha1.AnnotationImageName])
	assert.Equal(t, "true", got.Annotations["cdi.kubevirt.io/storage.bind.immediate.requested"])
	for k, v := range got.Labels {
		require.Empty(t, validation.IsValidLabelValue(v), k)
	}
	assert.Empty(t, validation.IsDNS1123Label(got.Name))
	assert.Equal(t, map[string]string{v1alpha1.LabelImageUID: string(img.UID), v1alpha1.LabelRevision: "r", v1alpha1.LabelAttempt: "7"}, got.Labels)
	assert.Nil(t, got.Spec.PVC, "spec.storage uses the StorageProfile")
	assert.Equal(t, "fast", *got.Spec.Storage.StorageClassName)
	assert.Equal(t, "24Gi", ptr.To(got.Spec.Storage.Resources.Requests[corev1.ResourceStorage]).String())
	assert.Equal(t, map[int32]*image.AttemptObjects{7: {DataVolume: got}}, image.GroupByAttempt(image.ObjectLists{DataVolumes: []cdiv1.DataVolume{*got}}))

	assert.Nil(t, image.NewDataVolume(apitest.Image("ns/a").Obj(), slot).Spec.Storage.StorageClassName, "the cluster's default")
}

// A registry's index has an image for each architecture.
func TestArchitectureOfRegistrySource(t *testing.T) {
	for name, tt := range map[string]struct {
		sourceType   v1alpha1.SourceType
		url          string
		architecture v1alpha1.Architecture
		want         string
	}{
		"registry":            {v1alpha1.SourceRegistry, "docker://r.example.com/a", v1alpha1.ArchitectureARM64, "arm64"},
		"registry without it": {v1alpha1.SourceRegistry, "docker://r.example.com/a", "", ""},
		"http":                {v1alpha1.SourceHTTP, "https://h.example.com/a", v1alpha1.ArchitectureARM64, ""},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").WithSource(tt.sourceType, tt.url).Obj()
			img.Spec.Architecture = tt.architecture
			dv := image.NewDataVolume(img, v1alpha1.Slot{Image: image.KeyOf(img), Revision: img.Spec.Revision(), Attempt: 1, DataVolume: "a-1"})
			got := ""
			if registry := dv.Spec.Source.Registry; registry != nil && registry.Platform != nil {
				got = registry.Platform.Architecture
			}
			assert.Equal(t, tt.want, got)
		})
	}
	assert.Contains(t, image.UnknownFieldsMessage([]string{"spec.source.registry.platform"}), "remove architecture from the image's spec")
}
