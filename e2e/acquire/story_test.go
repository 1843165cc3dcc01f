//go:build linux

package acquire

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

// anotherClass of snapshots is that of the simulated CSI driver by another name.
const anotherClass = "another-snapclass"

func makeAnotherClass(t *testing.T) {
	t.Helper()
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: anotherClass}, Driver: simulator.ClassCSI + ".pelotech.ot", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	if err := place.Client().Create(t.Context(), class); !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// tell runs the story once, in a namespace of its own, whatever becomes of the
// agents, and judges it. Alpha is made from a template and removed under
// machines, beta changes its source, gamma its snapshots, and delta is deleted
// just when a machine comes.
func (s *sweep) tell(t *testing.T) {
	t.Helper()
	makeAnotherClass(t)
	ns, o := begin(t)
	s.ns, s.died = ns, nil
	defer s.bury(t)

	alpha := place.Snapshotted(ns, "alpha", "/ok/alpha.qcow2")
	beta := place.Image(ns, "beta", "/ok/beta-1.qcow2")
	gamma := place.Snapshotted(ns, "gamma", "/ok/gamma.qcow2")
	delta := place.Image(ns, "delta", "/ok/delta.qcow2")
	machine := func(name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
		return scene.Machine(ns, name, img)
	}
	early, wanders := templated(machine("early", alpha), alpha), machine("wanders", place.Image(ns, "nothing", "/"))
	b1, b2, b3 := machine("b1", beta), machine("b2", beta), machine("b3", beta)
	g1, g2 := machine("g1", gamma), machine("g2", gamma)

	place.Create(t, early, wanders, beta, b1, b2, gamma, g1, delta)
	s.awaitRuns(t, early, b1, b2, g1)
	s.await(t, "delta", func() bool { return serving(t, delta) != nil })
	require.True(t, read(t, ns, "alpha", alpha))

	// Images change under machines, and one is to go.
	remove(t, alpha.DeepCopy())
	late, again := machine("late", alpha), templated(machine("again", alpha), place.Snapshotted(ns, "alpha", "/ok/alpha.qcow2"))
	place.Create(t, late)
	place.Change(t, beta, func() { beta.Spec.URL = place.Source.URL + "/ok/beta-2.qcow2" })
	first := serving(t, gamma).VolumeSnapshot
	byHand(t, o, s.snapshot(t, ns, first))
	second := s.awaitSnapshot(t, gamma, first)
	place.Create(t, g2)
	s.await(t, "beta's second source", func() bool { sv := serving(t, beta); return sv != nil && sv.Attempt == 2 })
	place.Create(t, b3)
	s.awaitRuns(t, late, g2, b3)
	place.Change(t, gamma, func() { gamma.Spec.SnapshotClass = anotherClass })
	s.awaitSnapshot(t, gamma, second)
	place.Change(t, wanders, func() { wanders.Spec.VMDiskImageRef.Name = "gamma" })
	place.Change(t, b3, func() { b3.Spec.VMDiskImageRef.Name = "gamma" })
	byHand(t, o, diskOf(t, g1))
	s.awaitRuns(t, early, late, b1, b2, b3, g1, g2, wanders)
	assert.Equal(t, int32(1), s.pinned(t, b1).Attempt)
	assert.Equal(t, int32(2), s.pinned(t, b3).Attempt)
	assert.Equal(t, second, s.pinned(t, g2).VolumeSnapshot)
	s.snapshot(t, ns, second)

	// Machines go, and what was kept for them.
	remove(t, early)
	remove(t, late)
	remove(t, b1)
	remove(t, b2)
	remove(t, g2)
	remove(t, beta.DeepCopy())
	remove(t, delta.DeepCopy())
	d1 := templated(machine("d1", delta), place.Image(ns, "delta", "/ok/delta.qcow2"))
	place.Create(t, d1)
	s.await(t, "alpha to go", func() bool { return !read(t, ns, "alpha", &v1alpha1.VMDiskImage{}) })
	place.Create(t, again)
	s.await(t, "the snapshot of g2 to go", func() bool { return !read(t, ns, second, &snapshotv1.VolumeSnapshot{}) })
	s.await(t, "the first source of beta to go", func() bool {
		var claims corev1.PersistentVolumeClaimList
		require.NoError(t, place.Client().List(t.Context(), &claims, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(beta.UID)}))
		return len(claims.Items) == 1
	})
	s.awaitRuns(t, again, b3, g1, wanders, d1)
	require.True(t, read(t, ns, "beta", beta))
	assert.NotNil(t, beta.DeletionTimestamp, "it is held by b3, which names another image by now")
	remove(t, b3)
	s.await(t, "beta to go", func() bool { return !read(t, ns, "beta", &v1alpha1.VMDiskImage{}) })

	wantEmpty(t, ns, o, func() { s.keepAlive(t) })
	wantKept(t, o)
}

func (s *sweep) awaitRuns(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	for _, vm := range vms {
		s.await(t, vm.Name+" to run", func() bool { return runs(t, vm) })
	}
}

func (s *sweep) pinned(t *testing.T, vm *v1alpha1.VirtualMachine) v1alpha1.PinnedImage {
	t.Helper()
	now := &v1alpha1.VirtualMachine{}
	require.True(t, read(t, vm.Namespace, vm.Name, now))
	require.NotNil(t, now.Status.Pinned)
	return *now.Status.Pinned
}

func (s *sweep) snapshot(t *testing.T, ns, name string) *snapshotv1.VolumeSnapshot {
	t.Helper()
	snap := &snapshotv1.VolumeSnapshot{}
	require.True(t, read(t, ns, name, snap), "VolumeSnapshot %s", name)
	return snap
}

// awaitSnapshot waits until an image serves from another snapshot, and returns it.
func (s *sweep) awaitSnapshot(t *testing.T, img *v1alpha1.VMDiskImage, than string) (name string) {
	t.Helper()
	s.await(t, img.Name+" to have another snapshot", func() bool {
		if sv := serving(t, img); sv != nil {
			name = sv.VolumeSnapshot
		}
		return name != "" && name != than
	})
	return name
}
