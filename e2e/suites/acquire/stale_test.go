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

// staleAgent is an agent that holds itself for the leader and is kept from news of
// some kinds; fresh is another one.
type staleAgent struct {
	*faults.FaultyAgent
	freshAgent *faults.FaultyAgent
	ns         string
	o          *observer.Observer
	img        *v1alpha1.VMDiskImage
}

// startStaleAgent has an image made ready, and holds news of some kinds back from then
// on.
func startStaleAgent(t *testing.T, snapshotted bool, kinds ...string) *staleAgent {
	t.Helper()
	ns, o := beginTest(t)
	s := &staleAgent{ns: ns, o: o, FaultyAgent: faults.StartLeader(t, testScene, faults.WriteHooks{})}
	s.img = testScene.NewImage(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		s.img = testScene.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
	}
	testScene.Create(t, s.img)
	testScene.AwaitImage(t, s.img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	s.Proxy.HoldWatches(kinds...)
	s.freshAgent = faults.StartAgent(t, testScene, faults.WriteHooks{}, "--leader-elect=false")
	_, err := s.freshAgent.ReadMetrics(t.Context())
	require.NoError(t, err)
	return s
}

// stopFreshAgent has only the stale agent work from here on.
func (s *staleAgent) stopFreshAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, s.freshAgent.Pause(t.Context()))
}

// requireConvergence lets the news through, and wants all of it to go well.
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

// An agent that has not heard of a machine is to remove its image.
func TestStaleVMCacheDeletesNoImage(t *testing.T) {
	s := startStaleAgent(t, true, "virtualmachines")
	vm := testenv.NewMachine(s.ns, "vm", s.img)
	testScene.Create(t, vm)
	awaitVMComplete(t, vm)
	s.stopFreshAgent(t)
	deleteObject(t, s.img.DeepCopy())
	got := testScene.AwaitImage(t, s.img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, []string{s.ns + "/vm"}, got.Status.References.Holders)
	s.requireConvergence(t, vm)
}

// An agent that has not heard of a machine is to retire what that runs from.
// Without a snapshot there is no other live look on the way.
func TestStaleVMCacheRetiresNoRevision(t *testing.T) {
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			s := startStaleAgent(t, snapshotted, "virtualmachines")
			vm := testenv.NewMachine(s.ns, "vm", s.img)
			testScene.Create(t, vm)
			awaitVMComplete(t, vm)
			was := readServing(t, s.img)
			s.stopFreshAgent(t)
			changeSourceAndAwait(t, s.img, "/ok/other.qcow2")
			// It comes to the image again, and again finds live who has pinned what.
			testScene.Update(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
			testScene.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
			assert.True(t, isAttemptPresent(t, s.img, was), "what a machine runs from is gone")
			s.requireConvergence(t, vm)
		})
	}
}

// An agent that has not heard of a machine is to remove an older snapshot.
func TestStaleVMCacheDeletesNoSnapshot(t *testing.T) {
	createOtherSnapshotClass(t)
	s := startStaleAgent(t, true, "virtualmachines")
	vm := testenv.NewMachine(s.ns, "vm", s.img)
	testScene.Create(t, vm)
	awaitVMComplete(t, vm)
	was := readServing(t, s.img)
	s.stopFreshAgent(t)
	testScene.Update(t, s.img, func() { s.img.Spec.SnapshotClass = otherSnapshotClass })
	testScene.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.VolumeSnapshot != was.VolumeSnapshot
	})
	testScene.Update(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	testScene.AwaitImage(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
	assert.True(t, isAttemptPresent(t, s.img, was))
	s.requireConvergence(t, vm)
}

// An agent that sees an image as it was long ago has a machine pin what is gone.
func TestStaleImageCacheAcquiresNothing(t *testing.T) {
	for name, happens := range map[string]func(*testing.T, *staleAgent){
		"the source was changed": func(t *testing.T, s *staleAgent) {
			was := readServing(t, s.img)
			changeSourceAndAwait(t, s.img, "/ok/other.qcow2")
			require.True(t, testenv.Await(t, func() bool { return !isAttemptPresent(t, s.img, was) }), "what nobody has acquired is kept")
		},
		"the image is another one": func(t *testing.T, s *staleAgent) {
			deleteObject(t, s.img.DeepCopy())
			testScene.AwaitGone(t, s.img.DeepCopy())
			again := testScene.NewSnapshottedImage(s.ns, "image", "/ok/i.qcow2")
			testScene.Create(t, again)
			testScene.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))
		},
		"the image is gone": func(t *testing.T, s *staleAgent) {
			deleteObject(t, s.img.DeepCopy())
			testScene.AwaitGone(t, s.img.DeepCopy())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startStaleAgent(t, true, "vmdiskimages", "volumesnapshots", "datavolumes", "persistentvolumeclaims")
			happens(t, s)
			s.stopFreshAgent(t)
			vm := testenv.NewMachine(s.ns, "vm", s.img)
			testScene.Create(t, vm)
			writes := len(s.Proxy.Writes())
			require.True(t, testenv.Await(t, func() bool {
				for _, w := range s.Proxy.Writes()[writes:] {
					if resource, _, status := w.Target(); resource == "virtualmachines" && status {
						return true
					}
				}
				return false
			}), "the agent with stale news never came to the machine")
			if name == "the image is gone" {
				s.requireConvergence(t)
				return
			}
			s.requireConvergence(t, vm)
		})
	}
}

// An agent that has not heard that a root disk is there, or complete, makes no
// second one and deletes none, also where its machine names another image by now.
func TestStaleRootDiskCache(t *testing.T) {
	s := startStaleAgent(t, true, "datavolumes", "persistentvolumeclaims")
	vm, other := testenv.NewMachine(s.ns, "vm", s.img), testScene.NewImage(s.ns, "other", "/ok/other.qcow2")
	testScene.Create(t, vm, other)
	awaitVMComplete(t, vm)
	testScene.AwaitImage(t, other, testenv.InPhase(v1alpha1.PhaseSucceeded))
	disk := findRootDisk(t, vm)
	s.stopFreshAgent(t)
	testScene.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
	writes := len(s.Proxy.Writes())
	require.True(t, testenv.Await(t, func() bool { return len(s.Proxy.Writes()) > writes+2 }), "the agent with stale news does nothing")
	require.NoError(t, s.freshAgent.Resume())
	s.Proxy.ReleaseWatches()
	require.True(t, testenv.Await(t, func() bool {
		now := &v1alpha1.VirtualMachine{}
		getObject(t, vm.Namespace, vm.Name, now)
		return now.Status.ObservedGeneration == now.Generation && now.Status.RootDisk != nil && now.Status.RootDisk.Ready
	}))
	if now := findRootDisk(t, vm); assert.NotNil(t, now) {
		assert.Equal(t, disk.UID, now.UID)
	}
	s.requireConvergence(t)
}
