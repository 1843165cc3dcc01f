//go:build linux

package acquire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// staleAgent considers itself the leader and receives no watch events of some kinds. The
// fresh agent runs beside it.
type staleAgent struct {
	*faults.FaultyAgent
	freshAgent *faults.FaultyAgent
	ns         string
	o          *observer.Observer
	img        *v1alpha1.VMDiskImage
}

// startStaleAgent creates an image and holds watch events of some kinds back once the image
// is ready.
func startStaleAgent(t *testing.T, snapshotted bool, kinds ...string) *staleAgent {
	t.Helper()
	ns, o := beginTest(t)
	s := &staleAgent{ns: ns, o: o, FaultyAgent: faults.StartLeader(t, env, faults.WriteHooks{})}
	s.img = env.NewImage(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		s.img = env.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
	}
	env.Create(t, s.img)
	env.AwaitImage(t, s.img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	s.Proxy.HoldWatches(kinds...)
	s.freshAgent = faults.StartAgent(t, env, faults.WriteHooks{}, "--leader-elect=false")
	_, err := s.freshAgent.ReadMetrics(t.Context())
	require.NoError(t, err)
	return s
}

// stopFreshAgent pauses the fresh agent, so that the stale one works alone.
func (s *staleAgent) stopFreshAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, s.freshAgent.Pause(t.Context()))
}

// requireConvergence releases the watch events and wants VMs to run and promises to be kept.
func (s *staleAgent) requireConvergence(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	requirePromisesKept(t, s.o)
	require.NoError(t, s.freshAgent.Resume())
	s.Proxy.ReleaseWatches()
	for _, vm := range vms {
		awaitVMComplete(t, vm)
	}
	requirePromisesKept(t, s.o)
	requireNothingLeft(t, s.ns, s.o, nil)
	requirePromisesKept(t, s.o)
}

// TestStaleVMCacheDeletesNoImage deletes the image of a VM that the agent does not know of.
func TestStaleVMCacheDeletesNoImage(t *testing.T) {
	testenv.RunInTurn(t, 9)
	s := startStaleAgent(t, true, "virtualmachines")
	vm := createMachine(t, s.ns, s.img)
	awaitVMComplete(t, vm)
	s.stopFreshAgent(t)
	deleteObject(t, s.img.DeepCopy())
	got := env.AwaitImage(t, s.img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, []string{s.ns + "/vm"}, got.Status.References.Holders)
	s.requireConvergence(t, vm)
}

// TestStaleVMCacheRetiresNoRevision changes the source of an image while the agent does not
// know of its VM. Without a snapshot, no other live read is on the way.
func TestStaleVMCacheRetiresNoRevision(t *testing.T) {
	testenv.RunInTurn(t, 6)
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			s := startStaleAgent(t, snapshotted, "virtualmachines")
			vm := createMachine(t, s.ns, s.img)
			awaitVMComplete(t, vm)
			before := readServing(t, s.img)
			s.stopFreshAgent(t)
			changeSourceAndAwait(t, s.img, "/ok/other.qcow2")
			// A second reconcile reads live who has pinned what, too.
			env.Update(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
			env.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
			assert.True(t, isAttemptPresent(t, s.img, before), "the revision that a VM runs from is deleted")
			s.requireConvergence(t, vm)
		})
	}
}

// TestStaleVMCacheDeletesNoSnapshot replaces the snapshot of a VM that the agent does not
// know of.
func TestStaleVMCacheDeletesNoSnapshot(t *testing.T) {
	testenv.RunInTurn(t, 8)
	createOtherSnapshotClass(t)
	s := startStaleAgent(t, true, "virtualmachines")
	vm := createMachine(t, s.ns, s.img)
	awaitVMComplete(t, vm)
	before := readServing(t, s.img)
	s.stopFreshAgent(t)
	env.Update(t, s.img, func() { s.img.Spec.SnapshotClass = otherSnapshotClass })
	env.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.VolumeSnapshot != before.VolumeSnapshot
	})
	env.Update(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	env.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
	assert.True(t, isAttemptPresent(t, s.img, before))
	s.requireConvergence(t, vm)
}

// TestStaleImageCacheAcquiresNothing has an agent pin a revision that no longer exists.
func TestStaleImageCacheAcquiresNothing(t *testing.T) {
	testenv.RunInTurn(t, 7)
	for name, change := range map[string]func(*testing.T, *staleAgent){
		"the source was changed": func(t *testing.T, s *staleAgent) {
			before := readServing(t, s.img)
			changeSourceAndAwait(t, s.img, "/ok/other.qcow2")
			require.True(t, testenv.AwaitCondition(t, func() bool { return !isAttemptPresent(t, s.img, before) }), "a revision that no VM has acquired is kept")
		},
		"the image is another one": func(t *testing.T, s *staleAgent) {
			deleteObject(t, s.img.DeepCopy())
			env.AwaitGone(t, s.img.DeepCopy())
			again := env.NewSnapshottedImage(s.ns, "image", "/ok/i.qcow2")
			env.Create(t, again)
			env.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))
		},
		"the image is gone": func(t *testing.T, s *staleAgent) {
			deleteObject(t, s.img.DeepCopy())
			env.AwaitGone(t, s.img.DeepCopy())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startStaleAgent(t, true, "vmdiskimages", "volumesnapshots", "datavolumes", "persistentvolumeclaims")
			change(t, s)
			s.stopFreshAgent(t)
			vm := testenv.NewMachine(s.ns, "vm", s.img)
			writes := len(s.Proxy.Writes())
			env.Create(t, vm)
			require.True(t, testenv.AwaitCondition(t, func() bool {
				for _, w := range s.Proxy.Writes()[writes:] {
					if resource, _, status := w.Target(); resource == "virtualmachines" && status {
						return true
					}
				}
				return false
			}), "the stale agent never wrote the status of the VM")
			if name == "the image is gone" {
				s.requireConvergence(t)
				return
			}
			s.requireConvergence(t, vm)
		})
	}
}

// TestStaleRootDiskCache: an agent that does not know that a root disk exists, or is
// complete, neither creates a second one nor deletes it, even when the VM names another
// image.
func TestStaleRootDiskCache(t *testing.T) {
	s := startStaleAgent(t, true, "datavolumes", "persistentvolumeclaims")
	vm, other := testenv.NewMachine(s.ns, "vm", s.img), env.NewImage(s.ns, "other", "/ok/other.qcow2")
	env.Create(t, vm, other)
	awaitVMComplete(t, vm)
	env.AwaitImage(t, other, testenv.InPhase(v1alpha1.PhaseSucceeded))
	disk := findRootDisk(t, vm)
	s.stopFreshAgent(t)
	env.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
	writes := len(s.Proxy.Writes())
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(s.Proxy.Writes()) > writes+2 }), "the stale agent makes no writes")
	require.NoError(t, s.freshAgent.Resume())
	s.Proxy.ReleaseWatches()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		current := &v1alpha1.VirtualMachine{}
		getObject(t, vm.Namespace, vm.Name, current)
		return current.Status.ObservedGeneration == current.Generation && current.Status.RootDisk != nil && current.Status.RootDisk.Ready
	}))
	if current := findRootDisk(t, vm); assert.NotNil(t, current) {
		assert.Equal(t, disk.UID, current.UID)
	}
	s.requireConvergence(t)
}
