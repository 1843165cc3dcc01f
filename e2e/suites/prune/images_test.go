//go:build linux

package prune_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// gibibyte is the size of every image.
const gibibyte = 1 << 30

// createLeftoverImages creates images that a plan once created and no plan wants, and waits
// until they are synced.
func (s *testMember) createLeftoverImages(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		img := fleet.NewImage(name)
		img.Labels = map[string]string{v1alpha1.LabelPlanned: "true"}
		require.NoError(t, s.Create(t.Context(), img))
	}
	for _, name := range names {
		s.AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	}
}

// requireServing waits until the member has an image that serves and is not being deleted.
func (s *testMember) requireServing(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := s.AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	assert.Nil(t, img.DeletionTimestamp)
	requireReady(t, img)
	return img
}

// requireReady requires an image that machines can be built from.
func requireReady(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	assert.NotNil(t, img.Status.Serving, "%s serves", img.Name)
	assert.True(t, meta.IsStatusConditionTrue(img.Status.Conditions, v1alpha1.ConditionReady), "%s is ready: %+v", img.Name, img.Status.Conditions)
}

// awaitImageGone waits until the member has neither an image nor its storage.
func (s *testMember) awaitImageGone(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	s.AwaitImageGone(t, img.Name, img.UID)
	assert.Empty(t, s.listStorage(t, img), "%s: storage of %s", s.Name(), img.Name)
}

// listStorage lists the member's objects that hold an image's data.
func (s *testMember) listStorage(t *testing.T, img *v1alpha1.VMDiskImage) (objects []string) {
	t.Helper()
	for _, list := range []client.ObjectList{&cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}} {
		require.NoError(t, s.Client().List(t.Context(), list, client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
		require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, fmt.Sprintf("%T %s", o, o.(client.Object).GetName()))
			return nil
		}))
	}
	return objects
}

// closeUndoWindow ends the undo window of a pending image, as though its time had passed: a window
// that must be open while a test acts, and end afterwards, depends on no speed.
func (s *testMember) closeUndoWindow(t *testing.T, name string) {
	t.Helper()
	img := s.AwaitPhase(t, name, v1alpha1.PhasePrunePending)
	past := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	require.NoError(t, s.Status().Patch(t.Context(), img, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"prune":{"until":%q}}}`, past))))
}

// createMachine creates a machine of the image's name that references it.
func (s *testMember) createMachine(t *testing.T, image string) *v1alpha1.VirtualMachine {
	t.Helper()
	return s.CreateMachine(t, image, image)
}

// awaitMachineReady waits until a machine is ready with this image, not a recreated one.
func (s *testMember) awaitMachineReady(t *testing.T, vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VirtualMachine{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.VirtualMachine{}
		return s.Get(t.Context(), client.ObjectKeyFromObject(vm), got) == nil && got.Status.Phase == v1alpha1.MachineReady
	}), "%s: machine %s is not ready: %s, %s: %s", s.Name(), vm.Name, &got.Status.Phase, &got.Status.Reason, &got.Status.Message)
	there := s.GetImage(t, img.Name)
	require.NotNil(t, there, "%s: the image of machine %s is gone", s.Name(), vm.Name)
	assert.Equal(t, img.UID, there.UID)
	requireReady(t, there)
}

// newFleetImage is version 1 of a FleetDiskImage for clusters, not created yet.
func newFleetImage(name string, clusters ...string) *v1alpha1.FleetDiskImage {
	img := fleet.NewFleetImage(name, clusters...)
	setVersion(img, "1")
	return img
}

func setVersion(img *v1alpha1.FleetDiskImage, version string) {
	img.Spec.Version = version
	img.Spec.Template.URL = fmt.Sprintf("http://images.example.com/%s/%s.qcow2", img.Name, version)
}

// rollOut creates or updates a FleetDiskImage and waits until it is rolled out. The test
// deletes it at its end; its images stay.
func (f *testFleet) rollOut(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	if img.UID == "" {
		f.CreateForTest(t, img)
	} else {
		spec := img.Spec
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the hub still writes its status
			if err := f.Get(t.Context(), client.ObjectKeyFromObject(img), img); err != nil {
				return err
			}
			img.Spec = spec
			return f.Update(t.Context(), img)
		}))
	}
	got := &v1alpha1.FleetDiskImage{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.FleetDiskImage{}
		require.NoError(t, f.Get(t.Context(), client.ObjectKeyFromObject(img), got))
		return got.Status.ObservedGeneration == got.Generation && got.Status.Phase == v1alpha1.RolloutSucceeded
	}), "FleetDiskImage %s is not rolled out: %+v", img.Name, &got)
}
