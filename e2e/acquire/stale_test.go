//go:build linux

package acquire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// stale is an agent that holds itself for the leader and is kept from news of
// some kinds; fresh is another one.
type stale struct {
	*mortal.Agent
	fresh *mortal.Agent
	ns    string
	o     *observer.Observer
	img   *v1alpha1.VMDiskImage
}

// goStale has an image made ready, and holds news of some kinds back from then
// on.
func goStale(t *testing.T, snapshotted bool, kinds ...string) *stale {
	t.Helper()
	ns, o := begin(t)
	s := &stale{ns: ns, o: o, Agent: mortal.StartLeading(t, place, mortal.Hooks{})}
	s.img = place.Image(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		s.img = place.Snapshotted(ns, "image", "/ok/i.qcow2")
	}
	place.Create(t, s.img)
	place.Eventually(t, s.img, scene.InPhase(v1alpha1.PhaseSucceeded))
	s.Proxy.HoldWatches(kinds...)
	s.fresh = mortal.Start(t, place, mortal.Hooks{}, "--leader-elect=false")
	_, err := s.fresh.Metrics(t.Context())
	require.NoError(t, err)
	return s
}

// alone has only the stale agent work from here on.
func (s *stale) alone(t *testing.T) { t.Helper(); require.NoError(t, s.fresh.Pause(t.Context())) }

// rest lets the news through, and wants all of it to go well.
func (s *stale) rest(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	wantKept(t, s.o)
	require.NoError(t, s.fresh.Resume())
	s.Proxy.ReleaseWatches()
	for _, vm := range vms {
		awaitRuns(t, vm)
	}
	wantKept(t, s.o)
	wantEmpty(t, s.ns, s.o, nil)
	wantKept(t, s.o)
}

// An agent that has not heard of a machine is to remove its image.
func TestStaleNewsOfMachinesRemovesNoImage(t *testing.T) {
	s := goStale(t, true, "virtualmachines")
	vm := scene.Machine(s.ns, "vm", s.img)
	place.Create(t, vm)
	awaitRuns(t, vm)
	s.alone(t)
	remove(t, s.img.DeepCopy())
	got := place.Eventually(t, s.img, scene.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, []string{s.ns + "/vm"}, got.Status.References.Holders)
	s.rest(t, vm)
}

// An agent that has not heard of a machine is to retire what that runs from.
// Without a snapshot there is no other live look on the way.
func TestStaleNewsOfMachinesRetiresNoRevision(t *testing.T) {
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			s := goStale(t, snapshotted, "virtualmachines")
			vm := scene.Machine(s.ns, "vm", s.img)
			place.Create(t, vm)
			awaitRuns(t, vm)
			was := serving(t, s.img)
			s.alone(t)
			changeSource(t, s.img, "/ok/other.qcow2")
			// It comes to the image again, and again finds live who has pinned what.
			place.Change(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
			place.Eventually(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
			assert.True(t, attemptThere(t, s.img, was), "what a machine runs from is gone")
			s.rest(t, vm)
		})
	}
}

// An agent that has not heard of a machine is to remove an older snapshot.
func TestStaleNewsOfMachinesRemovesNoSnapshot(t *testing.T) {
	makeAnotherClass(t)
	s := goStale(t, true, "virtualmachines")
	vm := scene.Machine(s.ns, "vm", s.img)
	place.Create(t, vm)
	awaitRuns(t, vm)
	was := serving(t, s.img)
	s.alone(t)
	place.Change(t, s.img, func() { s.img.Spec.SnapshotClass = anotherClass })
	place.Eventually(t, s.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.VolumeSnapshot != was.VolumeSnapshot
	})
	place.Change(t, s.img, func() { s.img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	place.Eventually(t, s.img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "1" })
	assert.True(t, attemptThere(t, s.img, was))
	s.rest(t, vm)
}

// An agent that sees an image as it was long ago has a machine pin what is gone.
func TestStaleNewsOfImagesAcquiresNothing(t *testing.T) {
	for name, happens := range map[string]func(*testing.T, *stale){
		"the source was changed": func(t *testing.T, s *stale) {
			was := serving(t, s.img)
			changeSource(t, s.img, "/ok/other.qcow2")
			require.True(t, scene.Await(t, func() bool { return !attemptThere(t, s.img, was) }), "what nobody has acquired is kept")
		},
		"the image is another one": func(t *testing.T, s *stale) {
			remove(t, s.img.DeepCopy())
			place.Gone(t, s.img.DeepCopy())
			again := place.Snapshotted(s.ns, "image", "/ok/i.qcow2")
			place.Create(t, again)
			place.Eventually(t, again, scene.InPhase(v1alpha1.PhaseSucceeded))
		},
		"the image is gone": func(t *testing.T, s *stale) {
			remove(t, s.img.DeepCopy())
			place.Gone(t, s.img.DeepCopy())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := goStale(t, true, "vmdiskimages", "volumesnapshots", "datavolumes", "persistentvolumeclaims")
			happens(t, s)
			s.alone(t)
			vm := scene.Machine(s.ns, "vm", s.img)
			place.Create(t, vm)
			writes := len(s.Proxy.Writes())
			require.True(t, scene.Await(t, func() bool {
				for _, w := range s.Proxy.Writes()[writes:] {
					if resource, _, status := w.Target(); resource == "virtualmachines" && status {
						return true
					}
				}
				return false
			}), "the agent with stale news never came to the machine")
			if name == "the image is gone" {
				s.rest(t)
				return
			}
			s.rest(t, vm)
		})
	}
}

// An agent that has not heard that a root disk is there, or complete, makes no
// second one and deletes none, also where its machine names another image by now.
func TestStaleNewsOfRootDisks(t *testing.T) {
	s := goStale(t, true, "datavolumes", "persistentvolumeclaims")
	vm, other := scene.Machine(s.ns, "vm", s.img), place.Image(s.ns, "other", "/ok/other.qcow2")
	place.Create(t, vm, other)
	awaitRuns(t, vm)
	place.Eventually(t, other, scene.InPhase(v1alpha1.PhaseSucceeded))
	disk := diskOf(t, vm)
	s.alone(t)
	place.Change(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
	writes := len(s.Proxy.Writes())
	require.True(t, scene.Await(t, func() bool { return len(s.Proxy.Writes()) > writes+2 }), "the agent with stale news does nothing")
	require.NoError(t, s.fresh.Resume())
	s.Proxy.ReleaseWatches()
	require.True(t, scene.Await(t, func() bool {
		now := &v1alpha1.VirtualMachine{}
		read(t, vm.Namespace, vm.Name, now)
		return now.Status.ObservedGeneration == now.Generation && now.Status.RootDisk != nil && now.Status.RootDisk.Ready
	}))
	if now := diskOf(t, vm); assert.NotNil(t, now) {
		assert.Equal(t, disk.UID, now.UID)
	}
	s.rest(t)
}
