//go:build linux

package fleetjourneys

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// namespace of the images in the members.
const namespace = metav1.NamespaceDefault

// CreateImage creates an image in a member and deletes it when the test ends.
func CreateImage(t *testing.T, m Member, name string, spec v1alpha1.VMDiskImageSpec) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	require.NoError(t, m.Create(t.Context(), img))
	DeleteAfterTest(t, m.Client, img.DeepCopy())
	return img
}

// AwaitImage waits until an image of a member matches, and returns it.
func AwaitImage(t *testing.T, m Member, name, wanted string, holds func(*v1alpha1.VMDiskImage) bool) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	AwaitCondition(t, fmt.Sprintf("image %s in %s %s", name, m.Name, wanted), func() bool {
		img = &v1alpha1.VMDiskImage{}
		return m.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, img) == nil && holds(img)
	}, func() string {
		return fmt.Sprintf("%s %s: %s\n%+v", img.Status.Phase, img.Status.Reason, img.Status.Message, img.Status.Revisions)
	})
	return img
}

// HasPhase matches images in one of the phases.
func HasPhase(phases ...v1alpha1.Phase) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool { return slices.Contains(phases, img.Status.Phase) }
}

// AwaitReadyImage waits until an image of a member is ready, with the source's content.
func AwaitReadyImage(t *testing.T, f Fleet, m Member, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := AwaitImage(t, m, name, "ready", HasPhase(v1alpha1.PhaseSucceeded))
	require.NotNil(t, img.Status.Serving)
	f.RequireBytes(t, m, img)
	return img
}

// NewFleetImage returns version 1 of an image for all members, not created yet.
func NewFleetImage(f Fleet, name string) *v1alpha1.FleetDiskImage {
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: "1", TargetNamespace: namespace, Template: f.ImageSpec(SlowDownload, name),
		},
	}
	for _, m := range f.Members() {
		img.Spec.Placement.ClusterNames = append(img.Spec.Placement.ClusterNames, m.Name)
	}
	return img
}

// CreateFleetImage creates a FleetDiskImage and deletes it, with its images, when the test
// ends.
func CreateFleetImage(t *testing.T, f Fleet, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	require.NoError(t, f.Hub().Create(t.Context(), img))
	DeleteAfterTest(t, f.Hub(), img.DeepCopy())
}

// AwaitFleetImage waits until the status of a FleetDiskImage matches, and returns it.
func AwaitFleetImage(t *testing.T, f Fleet, name, wanted string, holds func(*v1alpha1.FleetDiskImage) bool) *v1alpha1.FleetDiskImage {
	t.Helper()
	img := &v1alpha1.FleetDiskImage{}
	AwaitCondition(t, "FleetDiskImage "+name+" "+wanted, func() bool {
		img = &v1alpha1.FleetDiskImage{}
		return f.Hub().Get(t.Context(), client.ObjectKey{Name: name}, img) == nil && img.Status.ObservedGeneration == img.Generation && holds(img)
	}, func() string {
		return fmt.Sprintf("%s %s: %s\n%+v", img.Status.Phase, img.Status.Reason, img.Status.Message, img.Status.Clusters)
	})
	return img
}

// IsSucceeded matches rollouts that have succeeded.
func IsSucceeded(img *v1alpha1.FleetDiskImage) bool {
	return img.Status.Phase == v1alpha1.RolloutSucceeded
}
