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

func isImageStatusWrite(matches func(*v1alpha1.VMDiskImage) bool) func(faults.Write) bool {
	return func(w faults.Write) bool {
		img := imageStatusWrite(w)
		return img != nil && matches(img)
	}
}

func isTearDown(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown }

func isRetirement(img *v1alpha1.VMDiskImage) bool {
	return len(img.Status.Revisions) == 2 && img.Status.Revisions[1].Outcome == v1alpha1.OutcomeFailed
}

// pausedLeader is a frozen leader and the image of its test.
type pausedLeader struct {
	*faults.FrozenLeader
	ns  string
	o   *observer.Observer
	img *v1alpha1.VMDiskImage
}

// pauseLeader creates an image, and once it is ready triggers the write at which the leader
// is frozen.
func pauseLeader(t *testing.T, snapshotted bool, matches func(faults.Write) bool, trigger func(ns string, img *v1alpha1.VMDiskImage)) *pausedLeader {
	t.Helper()
	ns, o := beginTest(t)
	img := env.NewImage(ns, "image", "/ok/i.qcow2")
	if snapshotted {
		img = env.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
	}
	h := faults.FreezeLeaderAt(t, env, matches)
	env.Create(t, img)
	env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	trigger(ns, img)
	h.AwaitFrozen(t)
	return &pausedLeader{h, ns, o, img}
}

// completeBySuccessor has another leader complete a VM.
func (p *pausedLeader) completeBySuccessor(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	p.StartSuccessor(t)
	awaitVMComplete(t, vm)
}

// requireConvergence wants VMs to run and promises to be kept, also when all objects are
// deleted.
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
	if !testenv.AwaitCondition(t, func() bool { return isVMComplete(t, vm) }) {
		current := &v1alpha1.VirtualMachine{}
		getObject(t, vm.Namespace, vm.Name, current)
		require.Failf(t, "VM does not run", "%s: %s %s: %s, pinned %+v", vm.Name, current.Status.Phase, current.Status.Reason, current.Status.Message, current.Status.Pinned)
	}
}

// changeSourceAndAwait changes the source of an image and waits until it is served.
func changeSourceAndAwait(t *testing.T, img *v1alpha1.VMDiskImage, path string) {
	t.Helper()
	before := readServing(t, img)
	env.Update(t, img, func() { img.Spec.URL = env.Source.URL + path })
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Attempt > before.Attempt
	})
}

// TestPausedBeforePinWrite: another leader has pinned the image before the held pin arrives.
func TestPausedBeforePinWrite(t *testing.T) {
	testenv.RunInTurn(t, 0)
	var vm *v1alpha1.VirtualMachine
	a := pauseLeader(t, true, isPinWrite(false), func(ns string, img *v1alpha1.VMDiskImage) {
		vm = createMachine(t, ns, img)
	})
	a.completeBySuccessor(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a pin written with an old resourceVersion")
	a.requireConvergence(t, vm)
}

// TestPausedBeforeAcquiredWrite: the live read of the image was right, but the revision is
// retired and another one is served when the held write arrives.
func TestPausedBeforeAcquiredWrite(t *testing.T) {
	testenv.RunInTurn(t, 1)
	for name, snapshotted := range map[string]bool{"snapshot": true, "claim": false} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, snapshotted, isPinWrite(true), func(ns string, img *v1alpha1.VMDiskImage) {
				vm = testenv.NewMachine(ns, "vm", img)
				vm.Spec.IgnoreOnDeploy = false
				env.Create(t, vm)
			})
			// B reconciles the VM only when the revision that A has read is gone.
			before := readServing(t, a.img)
			env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = true })
			a.StartSuccessor(t)
			changeSourceAndAwait(t, a.img, "/ok/other.qcow2")
			require.True(t, testenv.AwaitCondition(t, func() bool { return readServing(t, a.img).Attempt == 2 && !isAttemptPresent(t, a.img, before) }), "a revision that no VM has acquired is kept: %s", describeImage(t, a.img))
			assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "acquiredAt written with an old resourceVersion")
			env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
			a.requireConvergence(t, vm)
		})
	}
}

// describeImage returns the status and the children of an image, for a failure message.
func describeImage(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	current := &v1alpha1.VMDiskImage{}
	getObject(t, img.Namespace, img.Name, current)
	return fmt.Sprintf("%+v; children %v", current.Status, listLeftovers(t, img.Namespace))
}

// isAttemptPresent reports whether the storage of what an image served exists.
func isAttemptPresent(t *testing.T, img *v1alpha1.VMDiskImage, served *v1alpha1.Serving) bool {
	t.Helper()
	for _, name := range listLeftovers(t, img.Namespace) {
		if name == served.PersistentVolumeClaim || name == served.VolumeSnapshot && name != "" {
			return true
		}
	}
	return false
}

// TestPausedBeforeRootDiskCreate: the VM is deleted, recreated, or names another image when
// the held root disk arrives. Each run takes its share of the cases.
func TestPausedBeforeRootDiskCreate(t *testing.T) {
	type change struct {
		name  string
		apply func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine
	}
	for _, tt := range testenv.SweepShare([]change{
		{"the VM is gone", func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			a.StartSuccessor(t)
			return nil
		}},
		{"the VM and its image are gone", func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			deleteObject(t, a.img.DeepCopy())
			a.StartSuccessor(t)
			env.AwaitGone(t, a.img.DeepCopy())
			return nil
		}},
		{"the VM is recreated", func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			deleteObject(t, vm)
			again := createMachine(t, a.ns, a.img)
			a.completeBySuccessor(t, again)
			return again
		}},
		{"another leader has created it", func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			a.completeBySuccessor(t, vm)
			return vm
		}},
		{"the VM runs from another image", func(t *testing.T, a *pausedLeader, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
			other := env.NewImage(a.ns, "other", "/ok/other.qcow2")
			env.Create(t, other)
			env.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			a.completeBySuccessor(t, vm)
			return vm
		}},
	}) {
		t.Run(tt.name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, true, isRootDiskCreate, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = createMachine(t, ns, img)
			})
			after := tt.apply(t, a, vm)
			a.ReleaseWrite(t)
			if after == nil {
				a.requireConvergence(t)
				return
			}
			a.requireConvergence(t, after)
		})
	}
}

// TestPausedBeforeRootDiskCreateOfFormerPin: the VM names another image when the held root disk
// arrives. The successor has kept the pin, so the disk is deleted, or is of storage that is held.
func TestPausedBeforeRootDiskCreateOfFormerPin(t *testing.T) {
	testenv.RunInTurn(t, 2)
	for name, deleted := range map[string]bool{"the image stays": false, "the image is deleted": true} {
		t.Run(name, func(t *testing.T) {
			var vm *v1alpha1.VirtualMachine
			a := pauseLeader(t, true, isRootDiskCreate, func(ns string, img *v1alpha1.VMDiskImage) {
				vm = createMachine(t, ns, img)
			})
			env.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = "other" })
			if deleted {
				deleteObject(t, a.img.DeepCopy())
			}
			a.StartSuccessor(t)
			env.AwaitMachine(t, vm, func(got *v1alpha1.VirtualMachine) bool {
				return got.Status.ObservedGeneration == vm.Generation && got.Status.Pinned != nil
			})
			assert.Equal(t, http.StatusCreated, a.ReleaseWrite(t))
			require.True(t, testenv.AwaitCondition(t, func() bool {
				disk := findRootDisk(t, vm)
				return disk == nil || disk.Status.Phase == cdiv1.Succeeded
			}), "the root disk is neither complete nor deleted")
			requireNothingLeft(t, a.ns, a.o, nil)
			assert.Empty(t, testenv.History(t, a.o).AcquireViolations())
		})
	}
}

// TestPausedBeforeDeletingMark: a VM is created between the list of holders and the mark.
func TestPausedBeforeDeletingMark(t *testing.T) {
	testenv.RunInTurn(t, 3)
	a := pauseLeader(t, true, isImageStatusWrite(isTearDown), func(_ string, img *v1alpha1.VMDiskImage) { deleteObject(t, img.DeepCopy()) })
	vm := createMachine(t, a.ns, a.img)
	a.completeBySuccessor(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "an irreversible mark written with an old resourceVersion")
	a.requireConvergence(t, vm)
}

// TestPausedBeforeRevisionRetirement: the source changes back, the revision is served again,
// and a VM runs from it when the held retirement arrives.
func TestPausedBeforeRevisionRetirement(t *testing.T) {
	testenv.RunInTurn(t, 4)
	a := pauseLeader(t, true, isImageStatusWrite(isRetirement), func(_ string, img *v1alpha1.VMDiskImage) { changeSourceAndAwait(t, img, "/ok/other.qcow2") })
	env.Update(t, a.img, func() { a.img.Spec.URL = env.Source.URL + "/ok/i.qcow2" })
	vm := createMachine(t, a.ns, a.img)
	a.StartSuccessor(t)
	env.AwaitImage(t, a.img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Serving != nil && got.Status.Serving.Attempt == 1
	})
	awaitVMComplete(t, vm)
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a revision retired with an old resourceVersion")
	a.requireConvergence(t, vm)
}

// TestPausedBeforeDeletes: the name, or the revision, is in use again when the held delete
// arrives. Each run takes its share of the cases.
func TestPausedBeforeDeletes(t *testing.T) {
	changeSource := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) {
		changeSourceAndAwait(t, img, "/ok/other.qcow2")
	}
	deleteImage := func(t *testing.T, _ string, img *v1alpha1.VMDiskImage) { deleteObject(t, img.DeepCopy()) }
	type deletion struct {
		name     string
		resource string
		trigger  func(t *testing.T, ns string, img *v1alpha1.VMDiskImage)
		deleted  bool
	}
	for _, tt := range testenv.SweepShare([]deletion{
		{"a snapshot of an older revision", "volumesnapshots", changeSource, false},
		{"the DataVolume of an older revision", "datavolumes", changeSource, false},
		{"the snapshot of an image", "volumesnapshots", deleteImage, true},
		{"the DataVolume of an image", "datavolumes", deleteImage, true},
	}) {
		t.Run(tt.name, func(t *testing.T) {
			a := pauseLeader(t, true, faults.MatchWrite(http.MethodDelete, tt.resource, false), func(ns string, img *v1alpha1.VMDiskImage) { tt.trigger(t, ns, img) })
			vm := testenv.NewMachine(a.ns, "vm", a.img)
			if tt.deleted {
				vm = withImageTemplate(vm, env.NewSnapshottedImage(a.ns, "image", "/ok/i.qcow2"))
				env.Create(t, vm)
				a.StartSuccessor(t)
			} else {
				a.StartSuccessor(t)
				changeSourceAndAwait(t, a.img, "/ok/i.qcow2")
				env.Create(t, vm)
			}
			awaitVMComplete(t, vm)
			a.ReleaseWrite(t)
			a.requireConvergence(t, vm)
		})
	}
}

// TestPausedBeforeRootDiskReplacement: the source of an incomplete disk was deleted by hand,
// so the leader replaces the disk. When the held delete arrives, the source is restored, the
// disk is complete, and a guest may write to it.
func TestPausedBeforeRootDiskReplacement(t *testing.T) {
	testenv.RunInTurn(t, 5)
	var (
		vm   *v1alpha1.VirtualMachine
		o    *observer.Observer
		snap = &snapshotv1.VolumeSnapshot{}
	)
	matches := func(w faults.Write) bool {
		if isRootDiskCreate(w) && snap.Name == "" && getObject(t, vm.Namespace, readServing(t, referencedImage(t, vm)).VolumeSnapshot, snap) {
			deleteByHand(t, o, snap.DeepCopy())
		}
		return stepOf(w) == "delete datavolumes: vm-root"
	}
	a := pauseLeader(t, true, matches, func(ns string, img *v1alpha1.VMDiskImage) {
		o = env.StartObserver(t)
		vm = createMachine(t, ns, img)
	})
	a.o.MarkDeletedByHand(snap.UID)
	env.Create(t, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}, Spec: snap.Spec,
	})
	var disk *cdiv1.DataVolume
	require.True(t, testenv.AwaitCondition(t, func() bool {
		disk = findRootDisk(t, vm)
		return disk != nil && disk.Status.Phase == cdiv1.Succeeded
	}), "the root disk is not cloned")
	a.StartSuccessor(t)
	env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready })
	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "the delete of a complete root disk")
	if current := findRootDisk(t, vm); assert.NotNil(t, current) {
		assert.Equal(t, disk.UID, current.UID)
	}
	deleteObject(t, &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: a.ns, Name: snap.Name}})
	a.requireConvergence(t)
}

// referencedImage reads the image that a VM references.
func referencedImage(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	getObject(t, vm.ImageNamespacedName().Namespace, vm.ImageNamespacedName().Name, img)
	return img
}
