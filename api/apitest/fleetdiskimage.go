package apitest

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FleetDiskImageBuilder builds a FleetDiskImage.
type FleetDiskImageBuilder struct{ img v1alpha1.FleetDiskImage }

// FleetDiskImage of version 1.0.0, whose images are in namespace "images", of
// source type http and 1Gi. It is placed in all clusters, in one wave.
func FleetDiskImage(name string) *FleetDiskImageBuilder {
	b := &FleetDiskImageBuilder{v1alpha1.FleetDiskImage{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FleetDiskImage"},
		ObjectMeta: newObjectMeta("/" + name),
	}}
	b.img.Spec = v1alpha1.FleetDiskImageSpec{
		Version: "1.0.0", TargetNamespace: "images",
		Template: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP,
			URL: "https://images.example.com/" + name + ".qcow2", DiskSize: resource.MustParse("1Gi"),
		},
		Placement: v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}},
	}
	return b
}

// Obj returns the FleetDiskImage; the builder can be used further.
func (b *FleetDiskImageBuilder) Obj() *v1alpha1.FleetDiskImage { return b.img.DeepCopy() }

// Created sets the creation time.
func (b *FleetDiskImageBuilder) Created(t time.Time) *FleetDiskImageBuilder {
	b.img.CreationTimestamp = metav1.NewTime(t)
	return b
}

// WithGeneration sets the generation.
func (b *FleetDiskImageBuilder) WithGeneration(n int64) *FleetDiskImageBuilder {
	b.img.Generation = n
	return b
}

// Deleted sets the time of a deletion that waits for finalizers, and what becomes
// of the images.
func (b *FleetDiskImageBuilder) Deleted(t time.Time, policy v1alpha1.DeletionPolicy) *FleetDiskImageBuilder {
	at := metav1.NewTime(t)
	b.img.DeletionTimestamp, b.img.Spec.DeletionPolicy = &at, policy
	return b
}

// WithVersion sets the version.
func (b *FleetDiskImageBuilder) WithVersion(version string) *FleetDiskImageBuilder {
	b.img.Spec.Version = version
	return b
}

// WithImageName sets the first part of the images' names.
func (b *FleetDiskImageBuilder) WithImageName(name string) *FleetDiskImageBuilder {
	b.img.Spec.ImageName = name
	return b
}

// WithTargetNamespace sets the namespace of the images.
func (b *FleetDiskImageBuilder) WithTargetNamespace(namespace string) *FleetDiskImageBuilder {
	b.img.Spec.TargetNamespace = namespace
	return b
}

// WithURL sets the URL of the template.
func (b *FleetDiskImageBuilder) WithURL(url string) *FleetDiskImageBuilder {
	b.img.Spec.Template.URL = url
	return b
}

// WithPlacement sets where the image is to be.
func (b *FleetDiskImageBuilder) WithPlacement(p v1alpha1.Placement) *FleetDiskImageBuilder {
	b.img.Spec.Placement = p
	return b
}

// WithWave adds a wave of the clusters with label wave=name.
func (b *FleetDiskImageBuilder) WithWave(name string) *FleetDiskImageBuilder {
	return b.WithWaves(v1alpha1.Wave{Name: name, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": name}}})
}

// WithWaves adds waves.
func (b *FleetDiskImageBuilder) WithWaves(waves ...v1alpha1.Wave) *FleetDiskImageBuilder {
	b.img.Spec.Rollout.Waves = append(b.img.Spec.Rollout.Waves, waves...)
	return b
}

// WithMaxConcurrency sets maxConcurrency of the rollout, "3" or "25%".
func (b *FleetDiskImageBuilder) WithMaxConcurrency(n string) *FleetDiskImageBuilder {
	most := intstr.Parse(n)
	b.img.Spec.Rollout.MaxConcurrency = &most
	return b
}

// WithMaxFailures sets how many clusters may fail, "3" or "25%".
func (b *FleetDiskImageBuilder) WithMaxFailures(n string) *FleetDiskImageBuilder {
	most := intstr.Parse(n)
	b.img.Spec.Rollout.MaxFailures = &most
	return b
}

// WithMinSuccessTime sets for how long a wave has to have been done.
func (b *FleetDiskImageBuilder) WithMinSuccessTime(d time.Duration) *FleetDiskImageBuilder {
	b.img.Spec.Rollout.MinSuccessTime = &metav1.Duration{Duration: d}
	return b
}

// WithProgressDeadline sets how long a cluster may take.
func (b *FleetDiskImageBuilder) WithProgressDeadline(d time.Duration) *FleetDiskImageBuilder {
	b.img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: d}
	return b
}

// WithOfflineClusters sets what becomes of a wave with clusters that are offline.
func (b *FleetDiskImageBuilder) WithOfflineClusters(o v1alpha1.OfflineClusters) *FleetDiskImageBuilder {
	b.img.Spec.Rollout.OfflineClusters = o
	return b
}

// Paused has no further cluster begin.
func (b *FleetDiskImageBuilder) Paused() *FleetDiskImageBuilder {
	b.img.Spec.Rollout.Paused = true
	return b
}

// WithApproval approves of a wave of a version, as user "operator".
func (b *FleetDiskImageBuilder) WithApproval(wave, version string, sources ...string) *FleetDiskImageBuilder {
	b.img.Spec.Approvals = append(b.img.Spec.Approvals, v1alpha1.Approval{Wave: wave, Version: version, Sources: sources, By: "operator"})
	return b
}

// WithOverride adds an override.
func (b *FleetDiskImageBuilder) WithOverride(o v1alpha1.ImageOverride) *FleetDiskImageBuilder {
	b.img.Spec.Overrides = append(b.img.Spec.Overrides, o)
	return b
}

// WithRetention sets how many versions are kept, and for how long the images of
// older ones must have been unreferenced to be deleted; 0 keeps them.
func (b *FleetDiskImageBuilder) WithRetention(keep int32, unreferencedFor time.Duration) *FleetDiskImageBuilder {
	b.img.Spec.Retention = &v1alpha1.Retention{KeepVersions: keep}
	if unreferencedFor > 0 {
		b.img.Spec.Retention.KeepUnreferencedFor = &metav1.Duration{Duration: unreferencedFor}
	}
	return b
}

// WithStatus sets the status.
func (b *FleetDiskImageBuilder) WithStatus(st v1alpha1.FleetDiskImageStatus) *FleetDiskImageBuilder {
	b.img.Status = *st.DeepCopy()
	return b
}

// WithFormer adds to the versions of the status one that was rolled out from the
// template as it is, the newest first.
func (b *FleetDiskImageBuilder) WithFormer(versions ...string) *FleetDiskImageBuilder {
	for _, version := range versions {
		b.img.Status.Versions = append(b.img.Status.Versions, v1alpha1.VersionStatus{
			Version: version, Namespace: b.img.Spec.TargetNamespace, Image: b.img.ImageNameForVersion(version),
			Revision: b.img.Spec.Template.Revision(), Since: metav1.NewTime(Epoch),
		})
	}
	return b
}
