// Package apitest builds objects for tests. Fields that a test does not set have valid
// values that do not matter.
package apitest

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Epoch is the creation time of objects unless a test sets another.
var Epoch = time.Date(2025, time.June, 2, 8, 0, 0, 0, time.UTC)

// newObjectMeta splits "namespace/name"; the UID follows from both.
func newObjectMeta(key string) metav1.ObjectMeta {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		panic(fmt.Sprintf("%q is no namespace/name", key))
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("uid-%x", h.Sum64())),
		ResourceVersion: "1", Generation: 1, CreationTimestamp: metav1.NewTime(Epoch),
	}
}

// ImageBuilder builds a VMDiskImage.
type ImageBuilder struct{ img v1alpha1.VMDiskImage }

// Image is "namespace/name", of source type http, 1Gi.
func Image(key string) *ImageBuilder {
	b := &ImageBuilder{v1alpha1.VMDiskImage{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VMDiskImage"},
		ObjectMeta: newObjectMeta(key),
	}}
	b.img.Spec = v1alpha1.VMDiskImageSpec{
		Name: b.img.Name, SourceType: v1alpha1.SourceHTTP,
		URL: "https://images.example.com/" + b.img.Name + ".qcow2", DiskSize: resource.MustParse("1Gi"),
	}
	return b
}

// Obj returns a copy of the image; the builder can be used further.
func (b *ImageBuilder) Obj() *v1alpha1.VMDiskImage { return b.img.DeepCopy() }

// WithUID sets the UID.
func (b *ImageBuilder) WithUID(uid types.UID) *ImageBuilder { b.img.UID = uid; return b }

// WithGeneration sets the generation.
func (b *ImageBuilder) WithGeneration(n int64) *ImageBuilder { b.img.Generation = n; return b }

// WithFinalizer adds the agent's finalizer.
func (b *ImageBuilder) WithFinalizer() *ImageBuilder {
	b.img.Finalizers = append(b.img.Finalizers, v1alpha1.FinalizerImage)
	return b
}

// Deleted sets the time of a deletion that waits for finalizers.
func (b *ImageBuilder) Deleted(t time.Time) *ImageBuilder {
	at := metav1.NewTime(t)
	b.img.DeletionTimestamp = &at
	return b
}

// WithRetry sets the annotation that starts an image over.
func (b *ImageBuilder) WithRetry(value string) *ImageBuilder {
	metav1.SetMetaDataAnnotation(&b.img.ObjectMeta, v1alpha1.AnnotationRetry, value)
	return b
}

// WithSource sets source type and URL.
func (b *ImageBuilder) WithSource(t v1alpha1.SourceType, url string) *ImageBuilder {
	b.img.Spec.SourceType, b.img.Spec.URL = t, url
	return b
}

// WithURL sets the URL.
func (b *ImageBuilder) WithURL(url string) *ImageBuilder { b.img.Spec.URL = url; return b }

// WithChecksum sets the checksum.
func (b *ImageBuilder) WithChecksum(sum string) *ImageBuilder { b.img.Spec.Checksum = sum; return b }

// WithSecretRef names the Secret of the source's credentials.
func (b *ImageBuilder) WithSecretRef(name string) *ImageBuilder {
	b.img.Spec.SecretRef = name
	return b
}

// WithCertConfigMap names the ConfigMap of the source's certificate authorities.
func (b *ImageBuilder) WithCertConfigMap(name string) *ImageBuilder {
	b.img.Spec.CertConfigMap = name
	return b
}

// WithExtraHeaders sets headers of the requests for the image.
func (b *ImageBuilder) WithExtraHeaders(headers ...string) *ImageBuilder {
	b.img.Spec.ExtraHeaders = headers
	return b
}

// WithSecretExtraHeaders names the Secrets with headers of the requests for the image.
func (b *ImageBuilder) WithSecretExtraHeaders(names ...string) *ImageBuilder {
	b.img.Spec.SecretExtraHeaders = names
	return b
}

// WithPullMethod sets who pulls the container image of a registry source.
func (b *ImageBuilder) WithPullMethod(m v1alpha1.PullMethod) *ImageBuilder {
	b.img.Spec.PullMethod = m
	return b
}

// WithStorageClass names the StorageClass.
func (b *ImageBuilder) WithStorageClass(name string) *ImageBuilder {
	b.img.Spec.StorageClass = name
	return b
}

// WithSnapshotClass names the VolumeSnapshotClass.
func (b *ImageBuilder) WithSnapshotClass(name string) *ImageBuilder {
	b.img.Spec.SnapshotClass = name
	return b
}

// WithDiskSize sets the size.
func (b *ImageBuilder) WithDiskSize(size string) *ImageBuilder {
	b.img.Spec.DiskSize = resource.MustParse(size)
	return b
}

// WithPriority sets the priority.
func (b *ImageBuilder) WithPriority(n int32) *ImageBuilder { b.img.Spec.Priority = n; return b }

// WithStatus sets the status.
func (b *ImageBuilder) WithStatus(st v1alpha1.VMDiskImageStatus) *ImageBuilder {
	b.img.Status = st
	return b
}

// WithRevisions sets the revisions of the status, the first of which is current.
func (b *ImageBuilder) WithRevisions(revisions ...v1alpha1.RevisionStatus) *ImageBuilder {
	b.img.Status.Revisions = revisions
	if len(revisions) > 0 {
		b.img.Status.Revision = revisions[0].Revision
	}
	return b
}

// WithCondition adds a condition.
func (b *ImageBuilder) WithCondition(t string, status metav1.ConditionStatus, reason v1alpha1.Reason) *ImageBuilder {
	b.img.Status.Conditions = append(b.img.Status.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: string(reason), LastTransitionTime: metav1.NewTime(Epoch),
	})
	return b
}

// SlotBuilder builds a slot of the SyncLedger.
type SlotBuilder struct{ slot v1alpha1.Slot }

// Slot of an image, for an attempt at a revision of it.
func Slot(img *v1alpha1.VMDiskImage, revision string, attempt int32) *SlotBuilder {
	return &SlotBuilder{v1alpha1.Slot{
		Image:    v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID},
		Revision: revision, Attempt: attempt, DataVolume: fmt.Sprintf("%s-%d", img.Name, attempt),
		StartedAt: metav1.NewTime(Epoch),
	}}
}

// Obj returns the slot.
func (b *SlotBuilder) Obj() v1alpha1.Slot { return b.slot }

// WithDataVolume names the DataVolume.
func (b *SlotBuilder) WithDataVolume(name string) *SlotBuilder { b.slot.DataVolume = name; return b }

// Started sets when the slot was given.
func (b *SlotBuilder) Started(t time.Time) *SlotBuilder {
	b.slot.StartedAt = metav1.NewTime(t)
	return b
}
