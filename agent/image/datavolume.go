package image

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// NewDataVolume returns the DataVolume of a slot. It has no owner reference: a
// foreground deletion of the image would delete it while VMs still use it.
func NewDataVolume(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: "DataVolume"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slot.Image.Namespace,
			Name:      slot.DataVolume,
			Labels:    AttemptLabels(slot.Image, slot.Revision, slot.Attempt),
			Annotations: map[string]string{
				v1alpha1.AnnotationImageName:    slot.Image.Name,
				v1alpha1.AnnotationSourceDigest: importDigest(&img.Spec),
				// With WaitForFirstConsumer the slot would be occupied until a VM is created.
				"cdi.kubevirt.io/storage.bind.immediate.requested": "true",
				"cdi.kubevirt.io/storage.deleteAfterCompletion":    "false",
			},
		},
		Spec: cdiv1.DataVolumeSpec{
			Source:      buildSource(img.Spec),
			ContentType: cdiv1.DataVolumeKubeVirt,
			Storage: &cdiv1.StorageSpec{
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: img.Spec.DiskSize},
				},
			},
		},
	}
	if img.Spec.StorageClass != "" {
		dv.Spec.Storage.StorageClassName = &img.Spec.StorageClass
	}
	return dv
}

// isCorrected reports whether the spec asks for its source in another way than when a DataVolume of the
// same revision was created, as with other credentials. The DataVolume's own source is not compared:
// webhooks of others may change it.
func isCorrected(spec *v1alpha1.VMDiskImageSpec, dv *cdiv1.DataVolume) bool {
	digest := dv.Annotations[v1alpha1.AnnotationSourceDigest]
	return digest != "" && digest != importDigest(spec)
}

// importDigest is the SourceDigest of what an import depends on.
func importDigest(spec *v1alpha1.VMDiskImageSpec) string {
	s := *spec
	s.SnapshotClass = ""
	return s.SourceDigest()
}

func buildSource(spec v1alpha1.VMDiskImageSpec) *cdiv1.DataVolumeSource {
	switch spec.SourceType {
	case v1alpha1.SourceS3:
		return &cdiv1.DataVolumeSource{S3: &cdiv1.DataVolumeSourceS3{
			URL: spec.URL, SecretRef: spec.SecretRef, CertConfigMap: spec.CertConfigMap,
		}}
	case v1alpha1.SourceRegistry:
		registry := &cdiv1.DataVolumeSourceRegistry{URL: &spec.URL}
		if spec.SecretRef != "" {
			registry.SecretRef = &spec.SecretRef
		}
		if spec.CertConfigMap != "" {
			registry.CertConfigMap = &spec.CertConfigMap
		}
		if spec.PullMethod != "" {
			registry.PullMethod = ptr.To(cdiv1.RegistryPullMethod(spec.PullMethod))
		}
		if spec.Architecture != "" {
			registry.Platform = &cdiv1.PlatformOptions{Architecture: string(spec.Architecture)}
		}
		return &cdiv1.DataVolumeSource{Registry: registry}
	case v1alpha1.SourceGCS:
		return &cdiv1.DataVolumeSource{GCS: &cdiv1.DataVolumeSourceGCS{URL: spec.URL, SecretRef: spec.SecretRef}}
	case v1alpha1.SourceBlank:
		return &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	default:
		return &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{
			URL: spec.URL, SecretRef: spec.SecretRef, CertConfigMap: spec.CertConfigMap, Checksum: spec.Checksum,
			ExtraHeaders: spec.ExtraHeaders, SecretExtraHeaders: spec.SecretExtraHeaders,
		}}
	}
}

// UnknownFieldsMessage states that the CRD of DataVolumes lacks fields, of which paths has
// at least one.
func UnknownFieldsMessage(paths []string) string {
	var names []string
	for _, path := range paths {
		name := path[strings.LastIndex(path, ".")+1:]
		if name == "platform" {
			name = "architecture"
		}
		names = append(names, name)
	}
	return "CDI on this cluster does not know " + strings.Join(paths, ", ") + " of DataVolumes, and would import without it: upgrade CDI, or remove " +
		strings.Join(names, ", ") + " from the image's spec"
}

// findDroppedField returns the path of a field that decides which bytes a DataVolume imports, and
// that it lacks: an older CRD has dropped it from a create that was not strict. Empty for none.
func findDroppedField(img *v1alpha1.VMDiskImage, dv *cdiv1.DataVolume) string {
	switch source := dv.Spec.Source; {
	case source == nil:
	case img.Spec.Checksum != "" && source.HTTP != nil && source.HTTP.Checksum == "":
		return "spec.source.http.checksum"
	case img.Spec.Architecture != "" && source.Registry != nil && source.Registry.Platform == nil:
		return "spec.source.registry.platform.architecture"
	}
	return ""
}
