//go:build linux

package acquire

import (
	"fmt"
	"net/http"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func pinning(acquired bool) func(proxy.Write) bool {
	return func(w proxy.Write) bool {
		vm := machineOf(w)
		return vm != nil && vm.Status.Pinned != nil && (vm.Status.Pinned.AcquiredAt != nil) == acquired
	}
}

func makingDisk(w proxy.Write) bool { return stepOf(w) == "post datavolumes: vm-root" }

func storingImage(as func(*v1alpha1.VMDiskImage) bool) func(proxy.Write) bool {
	return func(w proxy.Write) bool {
		img := imageOf(w)
		return img != nil && as(img)
	}
}

func tearingDown(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown }

func retiring(img *v1alpha1.VMDiskImage) bool {
	return len(img.Status.Revisions) == 2 && img.Status.Revisions[1].Outcome == v1alpha1.OutcomeFailed
}

// paused is a leader that is held, with an image and what else the test made.
type paused struct {
	*mortal.Held
	ns  string
	o   *observer.Observer
	img *v1alpha1.VMDiskImage
}

// pause has an image made ready, and then something done that leads to the write
// at which the leader is held.
func pause(t *testing.T, snapshotted bool, at func(proxy.Write) bool, do func(ns string, img *v1alpha1.VMDiskImage)) *paused {
	t.Helper()
	ns, o := begin(t)
	img := place.Image(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		img = place.Snapshotted(ns, "image", "/ok/i.qcow2")
	}
	h := mortal.Hold(t, place, at)
	place.Create(t, img)
	place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
	do(ns, img)
	h.AwaitStopped(t)
	return &paused{h, ns, o, img}
}

// wantRest wants machines to run and the judge to be content, and then all of it
// to go.
func (p *paused) wantRest(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	for _, vm := range vms {
		awaitRuns(t, vm)
	}
	wantKept(t, p.o)
	wantEmpty(t, p.ns, p.o, nil)
	wantKept(t, p.o)
}

func awaitRuns(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	if !scene.Await(t, func() bool { return runs(t, vm) }) {
		now := &v1alpha1.VirtualMachine{}
		read(t, vm.Namespace, vm.Name, now)
		require.Failf(t, "it does not run", "%s: %s %s: %s, pinned %+v", vm.Name, now.Status.Phase, now.Status.Reason, now.Status.Message, now.Status.Pinned)
	}
}

// changeSource has an image serve another source, and returns once it does.
func changeSource(t *testing.T, img *v1alpha1.VMDiskImage, path string) {
	t.Helper()
	was := serving(t, img)
	place.Change(t, img, func() { img.Spec.URL = place.Source.URL + path })
	place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Attempt > was.Attempt
	})
}

// What was to be pinned has been replaced and removed, and something else is
// pinned, when the pin comes.
func TestPausedBeforeItStoresAPin(t *testing.T) {
	var vm *v1alpha1.VirtualMachine
	a := pause(t, true, pinning(false), func(ns string, img *v1alpha1.VMDiskImage) {
		vm = scene.Machine(ns, "vm", img)
		place.Create(t, vm)
	})
	a.Next(t)
	awaitRuns(t, vm)
	assert.Equal(t, http.StatusConflict, a.LetGo(t), "a pin stored against an old resourceVersion")
	a.wantRest(t, vm)
}

// The look at the image was good when it was taken; by now the revision is
// retired and another one runs.
func TestPausedBeforeItStoresThatItAcquired(t *testing.T) {
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pause(t, snapshotted, pinning(true), func(ns string, img *v1alpha1.VMDiskImage) {
				vm = scene.Machine(ns, "vm", img)
				vm.Spec.IgnoreOnDeploy = false
				place.Create(t, vm)
			})
			// Nobody serves what A has looked at any more when B first comes to the machine.
			was := serving(t, a.img)
			place.Change(t, vm, func() { vm.Spec.IgnoreOnDeploy = true })
			a.Next(t)
			changeSource(t, a.img, "/ok/other.qcow2")
			require.True(t, scene.Await(t, func() bool { return serving(t, a.img).Attempt == 2 && !attemptThere(t, a.img, was) }), "what was never acquired is kept: %s", describe(t, a.img))
			assert.Equal(t, http.StatusConflict, a.LetGo(t), "stored against an old resourceVersion that it was acquired")
			place.Change(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
			a.wantRest(t, vm)
		})
	}
}

// describe tells what there is of an image, for a test that fails.
func describe(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	now := &v1alpha1.VMDiskImage{}
	read(t, img.Namespace, img.Name, now)
	return fmt.Sprintf("%+v; there are %v", now.Status, leftOf(t, img.Namespace))
}

// attemptThere tells whether anything is left of what an image served.
func attemptThere(t *testing.T, img *v1alpha1.VMDiskImage, was *v1alpha1.Serving) bool {
	t.Helper()
	for _, name := range leftOf(t, img.Namespace) {
		if name == was.PersistentVolumeClaim || name == was.VolumeSnapshot && name != "" {
			return true
		}
	}
	return false
}

// The machine is gone, made again, or names another image when its root disk
// comes.
func TestPausedBeforeItMakesARootDisk(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine{
		"the machine is gone": func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			remove(t, vm)
			a.Next(t)
			return nil
		},
		"the machine and its image are gone": func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			remove(t, vm)
			remove(t, a.img.DeepCopy())
			a.Next(t)
			place.Gone(t, a.img.DeepCopy())
			return nil
		},
		"the machine is another of that name": func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			remove(t, vm)
			again := scene.Machine(a.ns, "vm", a.img)
			place.Create(t, again)
			a.Next(t)
			awaitRuns(t, again)
			return again
		},
		"another one has made it": func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			a.Next(t)
			awaitRuns(t, vm)
			return vm
		},
		"the machine runs from another image": func(t *testing.T, a *paused, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			other := place.Image(a.ns, "other", "/ok/other.qcow2")
			place.Create(t, other)
			place.Change(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			a.Next(t)
			awaitRuns(t, vm)
			return vm
		},
	} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pause(t, true, makingDisk, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = scene.Machine(ns, "vm", img)
				place.Create(t, vm)
			})
			after := meanwhile(t, a, vm)
			a.LetGo(t)
			if after == nil {
				a.wantRest(t)
				return
			}
			a.wantRest(t, after)
		})
	}
}

// Left over: nothing keeps the API server from taking a root disk whose machine
// has let go of its pin since, for want of another image. It is no more than what
// would be, had it come before the machine was changed: it is removed, unless it is
// complete before that is seen.
func TestPausedBeforeItMakesARootDiskOfWhatIsPinnedNoMore(t *testing.T) {
	for name, deleted := range map[string]bool{"the source is there": false, "the source is gone": true} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pause(t, true, makingDisk, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = scene.Machine(ns, "vm", img)
				place.Create(t, vm)
			})
			place.Change(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			a.Next(t)
			place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Pinned == nil })
			if deleted {
				remove(t, a.img.DeepCopy())
				place.Gone(t, a.img.DeepCopy())
			}
			assert.Equal(t, http.StatusCreated, a.LetGo(t))
			require.True(t, scene.Await(t, func() bool {
				disk := diskOf(t, vm)
				return disk == nil || !deleted && disk.Status.Phase == cdiv1.Succeeded
			}), "neither complete nor removed")
			if wrong := scene.History(t, a.o).TakenAway(); assert.Len(t, wrong, 1) {
				assert.Contains(t, wrong[0], "is cloned, and its machine has acquired nothing")
			}
			wantEmpty(t, a.ns, a.o, nil)
			assert.Len(t, scene.History(t, a.o).TakenAway(), 1)
		})
	}
}

// A machine comes when nobody was seen to hold an image that is to go.
func TestPausedBeforeItMarksAnImageForTearDown(t *testing.T) {
	a := pause(t, true, storingImage(tearingDown), func(_ string, img *v1alpha1.VMDiskImage) { remove(t, img.DeepCopy()) })
	vm := scene.Machine(a.ns, "vm", a.img)
	place.Create(t, vm)
	a.Next(t)
	awaitRuns(t, vm)
	assert.Equal(t, http.StatusConflict, a.LetGo(t), "a mark without way back, stored against an old resourceVersion")
	a.wantRest(t, vm)
}

// The same with a revision that nobody was seen to have pinned: its source comes
// back, it serves again, and a machine runs from it.
func TestPausedBeforeItRetiresARevision(t *testing.T) {
	a := pause(t, true, storingImage(retiring), func(_ string, img *v1alpha1.VMDiskImage) { changeSource(t, img, "/ok/other.qcow2") })
	place.Change(t, a.img, func() { a.img.Spec.URL = place.Source.URL + "/ok/i.qcow2" })
	vm := scene.Machine(a.ns, "vm", a.img)
	place.Create(t, vm)
	a.Next(t)
	place.Eventually(t, a.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Serving != nil && got.Status.Serving.Attempt == 1
	})
	awaitRuns(t, vm)
	assert.Equal(t, http.StatusConflict, a.LetGo(t), "a revision retired against an old resourceVersion")
	a.wantRest(t, vm)
}

// Deletions reach the API server when the name, or the revision, is in use again.
func TestPausedBeforeItDeletes(t *testing.T) {
	change := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) { changeSource(t, img, "/ok/other.qcow2") }
	deletion := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) { remove(t, img.DeepCopy()) }
	for name, tt := range map[string]struct {
		resource string
		lead     func(t *testing.T, ns string, img *v1alpha1.VMDiskImage)
		deleted  bool
	}{
		"a snapshot of an older revision":     {"volumesnapshots", change, false},
		"the DataVolume of an older revision": {"datavolumes", change, false},
		"the snapshot of an image":            {"volumesnapshots", deletion, true},
		"the DataVolume of an image":          {"datavolumes", deletion, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := pause(t, true, proxy.To(http.MethodDelete, tt.resource, false), func(ns string, img *v1alpha1.VMDiskImage) { tt.lead(t, ns, img) })
			vm := scene.Machine(a.ns, "vm", a.img)
			if tt.deleted {
				vm = templated(vm, place.Snapshotted(a.ns, "image", "/ok/i.qcow2"))
				place.Create(t, vm)
				a.Next(t)
			} else {
				a.Next(t)
				changeSource(t, a.img, "/ok/i.qcow2")
				place.Create(t, vm)
			}
			awaitRuns(t, vm)
			a.LetGo(t)
			a.wantRest(t, vm)
		})
	}
}

// A disk is to be replaced that is not complete: its source was deleted by hand.
// By now it is complete, since somebody has restored the source, and a guest may
// write to it.
func TestPausedBeforeItReplacesARootDisk(t *testing.T) {
	var (
		vm   *v1alpha1.VirtualMachine
		o    *observer.Observer
		snap = &snapshotv1.VolumeSnapshot{}
	)
	at := func(w proxy.Write) bool {
		if makingDisk(w) && snap.Name == "" && read(t, vm.Namespace, serving(t, imageOfMachine(t, vm)).VolumeSnapshot, snap) {
			byHand(t, o, snap.DeepCopy())
		}
		return stepOf(w) == "delete datavolumes: vm-root"
	}
	a := pause(t, true, at, func(ns string, img *v1alpha1.VMDiskImage) {
		o = place.Observe(t)
		vm = scene.Machine(ns, "vm", img)
		place.Create(t, vm)
	})
	a.o.ByHand(snap.UID)
	place.Create(t, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}, Spec: snap.Spec,
	})
	var disk *cdiv1.DataVolume
	require.True(t, scene.Await(t, func() bool {
		disk = diskOf(t, vm)
		return disk != nil && disk.Status.Phase == cdiv1.Succeeded
	}), "the root disk is not cloned")
	a.Next(t)
	place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready })
	assert.Equal(t, http.StatusConflict, a.LetGo(t), "a root disk deleted that has become complete")
	if now := diskOf(t, vm); assert.NotNil(t, now) {
		assert.Equal(t, disk.UID, now.UID)
	}
	remove(t, &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}})
	a.wantRest(t)
}

// imageOfMachine is what a machine names.
func imageOfMachine(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	read(t, vm.ImageName().Namespace, vm.ImageName().Name, img)
	return img
}
