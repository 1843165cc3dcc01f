//go:build linux

package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// Versions that are kept stay; older ones go where no machine has needed them for
// as long as was said, and nowhere else.
func TestRetention(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("retention", bergen, edge)
	img.Spec.Retention = &v1alpha1.Retention{KeepVersions: 2, KeepUnreferencedFor: &metav1.Duration{Duration: time.Second}}
	names := []string{img.VMDiskImage("1"), img.VMDiskImage("2"), img.VMDiskImage("3")}
	shared.apply(t, img)
	shared.eventually(t, img, "rolled out", succeeded)
	vm := shared.sites[bergen].machine(t, "retention", names[0])
	// A person's image of a name that is as if it were one of an older version.
	theirs := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "retention-0"}, Spec: img.Spec.Template}
	require.NoError(t, shared.sites[edge].Create(t.Context(), theirs))
	require.True(t, scene.Await(t, func() bool { return shared.reported(t, bergen, names[0]).References == 1 }))

	for n, version := range []string{"2", "3"} {
		shared.change(t, img, func() { shared.toVersion(img, version) })
		shared.eventually(t, img, "version "+version+" rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
		if n == 0 {
			for _, cluster := range []string{bergen, edge} {
				assert.True(t, keeps(shared.hubPlan(t, cluster), names[0]), "%s keeps two versions", cluster)
				require.NotNil(t, shared.sites[cluster].image(t, names[0]), cluster)
			}
		}
	}
	shared.sites[edge].loses(t, names[0])
	for _, cluster := range []string{bergen, edge} {
		plan := shared.hubPlan(t, cluster)
		assert.True(t, retires(plan, names[0]), cluster)
		assert.True(t, keeps(plan, names[1]), cluster)
		shared.sites[cluster].has(t, names[1], v1alpha1.PhaseSucceeded)
		shared.sites[cluster].has(t, names[2], v1alpha1.PhaseSucceeded)
	}
	// The machine holds what it names, while as much has happened beside it as in
	// the member where the image has gone.
	held := shared.sites[bergen].has(t, names[0], v1alpha1.PhaseSucceeded)
	assert.Zero(t, held.DeletionTimestamp)
	require.NoError(t, shared.sites[bergen].Delete(t.Context(), vm))
	shared.sites[bergen].loses(t, names[0])
	assert.NotNil(t, shared.sites[edge].image(t, theirs.Name))
}

// A FleetDiskImage whose images are retained is gone at once, and nobody asks for
// them or keeps them any more.
func TestDeletionRetains(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("retained", bergen, edge)
	name := img.VMDiskImage("1")
	shared.apply(t, img)
	shared.eventually(t, img, "rolled out", succeeded)
	require.NoError(t, shared.Delete(t.Context(), img))
	shared.gone(t, img)
	for _, cluster := range []string{bergen, edge} {
		shared.awaitPlan(t, cluster, "without it", func(p *v1alpha1.ClusterPlan) bool {
			return plannedImage(p, name) == nil && !keeps(p, name) && !retires(p, name)
		})
	}
	shared.pulse(t, "retained-beside", bergen, edge)
	for _, cluster := range []string{bergen, edge} {
		there := shared.sites[cluster].image(t, name)
		require.NotNil(t, there, cluster)
		assert.Nil(t, there.DeletionTimestamp, cluster)
	}
}

// One whose images are to be deleted stays until they are: of every version, and
// each one when no machine needs it any more.
func TestDeletionDeletes(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("deleted", bergen, edge)
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	names := []string{img.VMDiskImage("1"), img.VMDiskImage("2")}
	shared.apply(t, img)
	shared.eventually(t, img, "rolled out", succeeded)
	vm := shared.sites[edge].machine(t, "deleted", names[0])
	require.True(t, scene.Await(t, func() bool { return shared.reported(t, edge, names[0]).References == 1 }))
	shared.change(t, img, func() { shared.toVersion(img, "2") })
	shared.eventually(t, img, "rolled out", succeeded)

	require.NoError(t, shared.Delete(t.Context(), img))
	for _, name := range names {
		shared.sites[bergen].loses(t, name)
	}
	shared.sites[edge].loses(t, names[1])
	// The others are waited for as well, until they have said that they have none.
	shared.eventually(t, img, "waits for edge alone", func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Reason == v1alpha1.ReasonDeletingImages && !says(bergen)(img)
	}, says(edge, string(v1alpha1.DeletionRetain)))
	held := shared.sites[edge].image(t, names[0])
	require.NotNil(t, held, "a machine needs it")
	assert.NotNil(t, held.Status.Serving, "it serves on")
	require.NoError(t, shared.sites[edge].Delete(t.Context(), vm))
	shared.sites[edge].loses(t, names[0])
	shared.gone(t, img)
	for _, cluster := range []string{bergen, edge} {
		shared.awaitPlan(t, cluster, "without it", func(p *v1alpha1.ClusterPlan) bool {
			return !retires(p, names[0]) && !retires(p, names[1])
		})
		assert.Equal(t, 1, shared.sites[cluster].downloads(t, names[0]), cluster)
		assert.Equal(t, 1, shared.sites[cluster].downloads(t, names[1]), cluster)
	}
}

// gone waits until a FleetDiskImage is.
func (f *fleet) gone(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	got := &v1alpha1.FleetDiskImage{}
	require.True(t, scene.Await(t, func() bool {
		return apierrors.IsNotFound(f.Get(t.Context(), client.ObjectKeyFromObject(img), got))
	}), "FleetDiskImage %s is still there: %s", img.Name, got.Status.Message)
}
