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
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func isPinWrite(acquired bool) func(faults.Write) bool {
	return func(w faults.Write) bool {
		vm := vmStatusWrite(w)
		return vm != nil && vm.Status.Pinned != nil && (vm.Status.Pinned.AcquiredAt != nil) == acquired
	}
}

func isRootDiskCreate(w faults.Write) bool { return stepOf(w) == "post datavolumes: vm-root" }

func isImageStatusWrite(as func(*v1alpha1.VMDiskImage) bool) func(faults.Write) bool {
	return func(w faults.Write) bool {
		img := imageStatusWrite(w)
		return img != nil && as(img)
	}
}

func isTearDown(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown }

func isRetirement(img *v1alpha1.VMDiskImage) bool {
	return len(img.Status.Revisions) == 2 && img.Status.Revisions[1].Outcome == v1alpha1.OutcomeFailed
}

// pausedLeader is a leader that is held, with an image and what else the test made.
type pausedLeader struct {
	*faults.FrozenLeader
	ns  string
	o   *observer.Observer
	img *v1alpha1.VMDiskImage
}

// pauseLeader has an image made ready, and then something done that leads to the write
// at which the leader is held.
func pauseLeader(t *testing.T, snapshotted bool, at func(faults.Write) bool, do func(ns string, img *v1alpha1.VMDiskImage)) *pausedLeader {
	t.Helper()
	ns, o := beginTest(t)
	img := testScene.NewImage(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		img = testScene.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
	}
	h := faults.FreezeLeaderAt(t, testScene, at)
	testScene.Create(t, img)
	testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	do(ns, img)
	h.AwaitFrozen(t)
	return &pausedLeader{h, ns, o, img}
}

// requireConvergence wants machines to run and the judge to be content, and then all of it
// to go.
func (p *pausedLeader) requireConvergence(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	for _, vm := range vms {
		awaitVMComplete(t, vm)
	}
	requirePromisesKept(t, p.o)
	requireNothingLeft(t, p.ns, p.o, nil)
	requirePromisesKept(t, p.o)
}

func awaitVMComplete(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	if !testenv.Await(t, func() bool { return isVMComplete(t, vm) }) {
		now := &v1alpha1.VirtualMachine{}
		getObject(t, vm.Namespace, vm.Name, now)
		require.Failf(t, "it does not run", "%s: %s %s: %s, pinned %+v", vm.Name, now.Status.Phase, now.Status.Reason, now.Status.Message, now.Status.Pinned)
	}
}

// changeSourceAndAwait has an image serve another source, and returns once it does.
func changeSourceAndAwait(t *testing.T, img *v1alpha1.VMDiskImage, path string) {
	t.Helper()
	was := readServing(t, img)
	testScene.Update(t, img, func() { img.Spec.URL = testScene.Source.URL + path })
	testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Attempt > was.Attempt
	})
}

// What was to be pinned has been replaced and removed, and something else is
// pinned, when the pin comes.
func TestPausedBeforePinWrite(t *testing.T) {
	var vm *v1alpha1.VirtualMachine
	a := pauseLeader(t, true, isPinWrite(false), func(ns string, img *v1alpha1.VMDiskImage) {
		vm = testenv.NewMachine(ns, "vm", img)
		testScene.Create(t, vm)
	})
	a.StartSuccessor(t)
	awaitVMComplete(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a pin stored against an old resourceVersion")
	a.requireConvergence(t, vm)
}

// The look at the image was good when it was taken; by now the revision is
// retired and another one runs.
func TestPausedBeforeAcquiredWrite(t *testing.T) {
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, snapshotted, isPinWrite(true), func(ns string, img *v1alpha1.VMDiskImage) {
				vm = testenv.NewMachine(ns, "vm", img)
				vm.Spec.IgnoreOnDeploy = false
				testScene.Create(t, vm)
			})
			// Nobody serves what A has looked at any more when B first comes to the machine.
			was := readServing(t, a.img)
			testScene.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = true })
			a.StartSuccessor(t)
			changeSourceAndAwait(t, a.img, "/ok/other.qcow2")
			require.True(t, testenv.Await(t, func() bool { return readServing(t, a.img).Attempt == 2 && !isAttemptPresent(t, a.img, was) }), "what was never acquired is kept: %s", describeImage(t, a.img))
			assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "stored against an old resourceVersion that it was acquired")
			testScene.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
			a.requireConvergence(t, vm)
		})
	}
}

// describeImage tells what there is of an image, for a test that fails.
func describeImage(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	now := &v1alpha1.VMDiskImage{}
	getObject(t, img.Namespace, img.Name, now)
	return fmt.Sprintf("%+v; there are %v", now.Status, listLeftovers(t, img.Namespace))
}

// isAttemptPresent tells whether anything is left of what an image served.
func isAttemptPresent(t *testing.T, img *v1alpha1.VMDiskImage, was *v1alpha1.Serving) bool {
	t.Helper()
	for _, name := range listLeftovers(t, img.Namespace) {
		if name == was.PersistentVolumeClaim || name == was.VolumeSnapshot && name != "" {
			return true
		}
	}
	return false
}

// The machine is gone, made again, or names another image when its root disk
// comes.
func TestPausedBeforeRootDiskCreate(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine{
		"the machine is gone": func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			a.StartSuccessor(t)
			return nil
		},
		"the machine and its image are gone": func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			deleteObject(t, a.img.DeepCopy())
			a.StartSuccessor(t)
			testScene.AwaitGone(t, a.img.DeepCopy())
			return nil
		},
		"the machine is another of that name": func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			again := testenv.NewMachine(a.ns, "vm", a.img)
			testScene.Create(t, again)
			a.StartSuccessor(t)
			awaitVMComplete(t, again)
			return again
		},
		"another one has made it": func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			a.StartSuccessor(t)
			awaitVMComplete(t, vm)
			return vm
		},
		"the machine runs from another image": func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			other := testScene.NewImage(a.ns, "other", "/ok/other.qcow2")
			testScene.Create(t, other)
			testScene.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			a.StartSuccessor(t)
			awaitVMComplete(t, vm)
			return vm
		},
	} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, true, isRootDiskCreate, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = testenv.NewMachine(ns, "vm", img)
				testScene.Create(t, vm)
			})
			after := meanwhile(t, a, vm)
			a.ReleaseWrite(t)
			if after == nil {
				a.requireConvergence(t)
				return
			}
			a.requireConvergence(t, after)
		})
	}
}

// Left over: nothing keeps the API server from taking a root disk whose machine
// has let go of its pin since, for want of another image. It is no more than what
// would be, had it come before the machine was changed: it is removed, unless it is
// complete before that is seen.
func TestPausedBeforeRootDiskCreateOfFormerPin(t *testing.T) {
	for name, deleted := range map[string]bool{"the source is there": false, "the source is gone": true} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, true, isRootDiskCreate, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = testenv.NewMachine(ns, "vm", img)
				testScene.Create(t, vm)
			})
			testScene.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			a.StartSuccessor(t)
			testScene.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Pinned == nil })
			if deleted {
				deleteObject(t, a.img.DeepCopy())
				testScene.AwaitGone(t, a.img.DeepCopy())
			}
			assert.Equal(t, http.StatusCreated, a.ReleaseWrite(t))
			require.True(t, testenv.Await(t, func() bool {
				disk := findRootDisk(t, vm)
				return disk == nil || !deleted && disk.Status.Phase == cdiv1.Succeeded
			}), "neither complete nor removed")
			if wrong := testenv.History(t, a.o).AcquireViolations(); assert.Len(t, wrong, 1) {
				assert.Contains(t, wrong[0], "is cloned, and its machine has acquired nothing")
			}
			requireNothingLeft(t, a.ns, a.o, nil)
			assert.Len(t, testenv.History(t, a.o).AcquireViolations(), 1)
		})
	}
}

// A machine comes when nobody was seen to hold an image that is to go.
func TestPausedBeforeDeletingMark(t *testing.T) {
	a := pauseLeader(t, true, isImageStatusWrite(isTearDown), func(_ string, img *v1alpha1.VMDiskImage) { deleteObject(t, img.DeepCopy()) })
	vm := testenv.NewMachine(a.ns, "vm", a.img)
	testScene.Create(t, vm)
	a.StartSuccessor(t)
	awaitVMComplete(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a mark without way back, stored against an old resourceVersion")
	a.requireConvergence(t, vm)
}

// The same with a revision that nobody was seen to have pinned: its source comes
// back, it serves again, and a machine runs from it.
func TestPausedBeforeRevisionRetirement(t *testing.T) {
	a := pauseLeader(t, true, isImageStatusWrite(isRetirement), func(_ string, img *v1alpha1.VMDiskImage) { changeSourceAndAwait(t, img, "/ok/other.qcow2") })
	testScene.Update(t, a.img, func() { a.img.Spec.URL = testScene.Source.URL + "/ok/i.qcow2" })
	vm := testenv.NewMachine(a.ns, "vm", a.img)
	testScene.Create(t, vm)
	a.StartSuccessor(t)
	testScene.AwaitImage(t, a.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Serving != nil && got.Status.Serving.Attempt == 1
	})
	awaitVMComplete(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a revision retired against an old resourceVersion")
	a.requireConvergence(t, vm)
}

// Deletions reach the API server when the name, or the revision, is in use again.
func TestPausedBeforeDeletes(t *testing.T) {
	change := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) {
		changeSourceAndAwait(t, img, "/ok/other.qcow2")
	}
	deletion := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) { deleteObject(t, img.DeepCopy()) }
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
			a := pauseLeader(t, true, faults.MatchWrite(http.MethodDelete, tt.resource, false), func(ns string, img *v1alpha1.VMDiskImage) { tt.lead(t, ns, img) })
			vm := testenv.NewMachine(a.ns, "vm", a.img)
			if tt.deleted {
				vm = withImageTemplate(vm, testScene.NewSnapshottedImage(a.ns, "image", "/ok/i.qcow2"))
				testScene.Create(t, vm)
				a.StartSuccessor(t)
			} else {
				a.StartSuccessor(t)
				changeSourceAndAwait(t, a.img, "/ok/i.qcow2")
				testScene.Create(t, vm)
			}
			awaitVMComplete(t, vm)
			a.ReleaseWrite(t)
			a.requireConvergence(t, vm)
		})
	}
}

// A disk is to be replaced that is not complete: its source was deleted by hand.
// By now it is complete, since somebody has restored the source, and a guest may
// write to it.
func TestPausedBeforeRootDiskReplacement(t *testing.T) {
	var (
		vm   *v1alpha1.VirtualMachine
		o    *observer.Observer
		snap = &snapshotv1.VolumeSnapshot{}
	)
	at := func(w faults.Write) bool {
		if isRootDiskCreate(w) && snap.Name == "" && getObject(t, vm.Namespace, readServing(t, referencedImage(t, vm)).VolumeSnapshot, snap) {
			deleteByHand(t, o, snap.DeepCopy())
		}
		return stepOf(w) == "delete datavolumes: vm-root"
	}
	a := pauseLeader(t, true, at, func(ns string, img *v1alpha1.VMDiskImage) {
		o = testScene.StartObserver(t)
		vm = testenv.NewMachine(ns, "vm", img)
		testScene.Create(t, vm)
	})
	a.o.MarkDeletedByHand(snap.UID)
	testScene.Create(t, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}, Spec: snap.Spec,
	})
	var disk *cdiv1.DataVolume
	require.True(t, testenv.Await(t, func() bool {
		disk = findRootDisk(t, vm)
		return disk != nil && disk.Status.Phase == cdiv1.Succeeded
	}), "the root disk is not cloned")
	a.StartSuccessor(t)
	testScene.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready })
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a root disk deleted that has become complete")
	if now := findRootDisk(t, vm); assert.NotNil(t, now) {
		assert.Equal(t, disk.UID, now.UID)
	}
	deleteObject(t, &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}})
	a.requireConvergence(t)
}

// referencedImage is what a machine names.
func referencedImage(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	getObject(t, vm.ImageNamespacedName().Namespace, vm.ImageNamespacedName().Name, img)
	return img
}
