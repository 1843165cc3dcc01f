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
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// otherSnapshotClass of snapshots is that of the simulated CSI driver by another name.
const otherSnapshotClass = "another-snapclass"

func createOtherSnapshotClass(t *testing.T) {
	t.Helper()
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: otherSnapshotClass}, Driver: simulator.ClassCSI + ".pelotech.ot", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	if err := testScene.Client().Create(t.Context(), class); !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// runStory runs the story once, in a namespace of its own, whatever becomes of the
// agents, and judges it. Alpha is made from a template and removed under
// machines, beta changes its source, gamma its snapshots, and delta is deleted
// just when a machine comes.
func (s *killSweep) runStory(t *testing.T) {
	t.Helper()
	createOtherSnapshotClass(t)
	ns, o := beginTest(t)
	s.ns, s.died = ns, nil
	defer s.replaceDeadAgent(t)

	alpha := testScene.NewSnapshottedImage(ns, "alpha", "/ok/alpha.qcow2")
	beta := testScene.NewImage(ns, "beta", "/ok/beta-1.qcow2")
	gamma := testScene.NewSnapshottedImage(ns, "gamma", "/ok/gamma.qcow2")
	delta := testScene.NewImage(ns, "delta", "/ok/delta.qcow2")
	machine := func(name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
		return testenv.NewMachine(ns, name, img)
	}
	early, wanders := withImageTemplate(machine("early", alpha), alpha), machine("wanders", testScene.NewImage(ns, "nothing", "/"))
	b1, b2, b3 := machine("b1", beta), machine("b2", beta), machine("b3", beta)
	g1, g2 := machine("g1", gamma), machine("g2", gamma)

	testScene.Create(t, early, wanders, beta, b1, b2, gamma, g1, delta)
	s.awaitVMsComplete(t, early, b1, b2, g1)
	s.awaitWithAgent(t, "delta", func() bool { return readServing(t, delta) != nil })
	require.True(t, getObject(t, ns, "alpha", alpha))

	// Images change under machines, and one is to go.
	deleteObject(t, alpha.DeepCopy())
	late, again := machine("late", alpha), withImageTemplate(machine("again", alpha), testScene.NewSnapshottedImage(ns, "alpha", "/ok/alpha.qcow2"))
	testScene.Create(t, late)
	testScene.Update(t, beta, func() { beta.Spec.URL = testScene.Source.URL + "/ok/beta-2.qcow2" })
	first := readServing(t, gamma).VolumeSnapshot
	deleteByHand(t, o, s.createSnapshot(t, ns, first))
	second := s.awaitNewSnapshot(t, gamma, first)
	testScene.Create(t, g2)
	s.awaitWithAgent(t, "beta's second source", func() bool { sv := readServing(t, beta); return sv != nil && sv.Attempt == 2 })
	testScene.Create(t, b3)
	s.awaitVMsComplete(t, late, g2, b3)
	testScene.Update(t, gamma, func() { gamma.Spec.SnapshotClass = otherSnapshotClass })
	s.awaitNewSnapshot(t, gamma, second)
	testScene.Update(t, wanders, func() { wanders.Spec.VMDiskImageRef.Name = "gamma" })
	testScene.Update(t, b3, func() { b3.Spec.VMDiskImageRef.Name = "gamma" })
	deleteByHand(t, o, findRootDisk(t, g1))
	s.awaitVMsComplete(t, early, late, b1, b2, b3, g1, g2, wanders)
	assert.Equal(t, int32(1), s.awaitPinned(t, b1).Attempt)
	assert.Equal(t, int32(2), s.awaitPinned(t, b3).Attempt)
	assert.Equal(t, second, s.awaitPinned(t, g2).VolumeSnapshot)
	s.createSnapshot(t, ns, second)

	// Machines go, and what was kept for them.
	deleteObject(t, early)
	deleteObject(t, late)
	deleteObject(t, b1)
	deleteObject(t, b2)
	deleteObject(t, g2)
	deleteObject(t, beta.DeepCopy())
	deleteObject(t, delta.DeepCopy())
	d1 := withImageTemplate(machine("d1", delta), testScene.NewImage(ns, "delta", "/ok/delta.qcow2"))
	testScene.Create(t, d1)
	s.awaitWithAgent(t, "alpha to go", func() bool { return !getObject(t, ns, "alpha", &v1alpha1.VMDiskImage{}) })
	testScene.Create(t, again)
	s.awaitWithAgent(t, "the snapshot of g2 to go", func() bool { return !getObject(t, ns, second, &snapshotv1.VolumeSnapshot{}) })
	s.awaitWithAgent(t, "the first source of beta to go", func() bool {
		var claims corev1.PersistentVolumeClaimList
		require.NoError(t, testScene.Client().List(t.Context(), &claims, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(beta.UID)}))
		return len(claims.Items) == 1
	})
	s.awaitVMsComplete(t, again, b3, g1, wanders, d1)
	require.True(t, getObject(t, ns, "beta", beta))
	assert.NotNil(t, beta.DeletionTimestamp, "it is held by b3, which names another image by now")
	deleteObject(t, b3)
	s.awaitWithAgent(t, "beta to go", func() bool { return !getObject(t, ns, "beta", &v1alpha1.VMDiskImage{}) })

	requireNothingLeft(t, ns, o, func() { s.restartDeadAgents(t) })
	requirePromisesKept(t, o)
}

func (s *killSweep) awaitVMsComplete(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	for _, vm := range vms {
		s.awaitWithAgent(t, vm.Name+" to run", func() bool { return isVMComplete(t, vm) })
	}
}

func (s *killSweep) awaitPinned(t *testing.T, vm *v1alpha1.VirtualMachine) v1alpha1.PinnedImage {
	t.Helper()
	now := &v1alpha1.VirtualMachine{}
	require.True(t, getObject(t, vm.Namespace, vm.Name, now))
	require.NotNil(t, now.Status.Pinned)
	return *now.Status.Pinned
}

func (s *killSweep) createSnapshot(t *testing.T, ns, name string) *snapshotv1.VolumeSnapshot {
	t.Helper()
	snap := &snapshotv1.VolumeSnapshot{}
	require.True(t, getObject(t, ns, name, snap), "VolumeSnapshot %s", name)
	return snap
}

// awaitNewSnapshot waits until an image serves from another snapshot, and returns it.
func (s *killSweep) awaitNewSnapshot(t *testing.T, img *v1alpha1.VMDiskImage, than string) (name string) {
	t.Helper()
	s.awaitWithAgent(t, img.Name+" to have another snapshot", func() bool {
		if sv := readServing(t, img); sv != nil {
			name = sv.VolumeSnapshot
		}
		return name != "" && name != than
	})
	return name
}
