//go:build linux

package workspaces

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestMachineGoesWithAllThatWasMadeForIt(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	vm := scene.Machine(ns, "vm", base(t))
	started(t, vm)
	remove(t, vm)
	place.Gone(t, vm)
	wantNothingLeft(t, ns)
}

// TestMachineMadeAgain under the name of one that is still being taken apart.
func TestMachineMadeAgain(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	old := scene.Machine(ns, "vm", base(t))
	started(t, old)
	disk := read(t, rootDisk(old))
	remove(t, old)
	again := scene.Machine(ns, "vm", base(t))
	require.True(t, scene.Await(t, func() bool { return place.Client().Create(t.Context(), again) == nil }))
	runs(t, again)
	require.NotEqual(t, old.UID, again.UID)
	for _, o := range []client.Object{theirs(again), rootDisk(again), told(again)} {
		assert.Equal(t, string(again.UID), read(t, o).GetLabels()[v1alpha1.LabelMachineUID], "%T", o)
	}
	assert.NotEqual(t, disk.UID, read(t, rootDisk(again)).UID, "a guest's data is not the next one's")
}

// TestImageDeletedWhileItIsHeld serves on, also for those that come later, and
// goes with the last of them.
func TestImageDeletedWhileItIsHeld(t *testing.T) {
	t.Parallel()
	ns, farm := place.Namespace(t), place.Namespace(t)
	img := imported(t, place.Snapshotted(farm, "image", "/ok/100ms/a"))
	first, halted := scene.Machine(ns, "first", img), scene.Machine(ns, "halted", img)
	halted.Spec.RunStrategy = "Halted"
	place.Create(t, halted)
	started(t, first)
	because(t, halted, v1alpha1.ReasonStopped)

	remove(t, img)
	leaving := place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, v1alpha1.ReasonReferenced, leaving.Status.Reason)
	assert.Contains(t, leaving.Status.Message, "until these let go of it: "+ns+"/first, "+ns+"/halted")
	later := scene.Machine(ns, "later", img)
	started(t, later)
	held(t, img, first, halted, later)

	for _, vm := range []*v1alpha1.VirtualMachine{first, later} {
		remove(t, vm)
		place.Gone(t, vm)
	}
	still := held(t, img, halted)
	assert.Equal(t, v1alpha1.PhaseTerminating, still.Status.Phase)
	assert.NotNil(t, still.Status.Serving)
	remove(t, halted)
	place.Gone(t, img)
	wantNothingLeft(t, farm)
	wantNothingLeft(t, ns)
}

// TestMachineThatComesTooLate waits until the image is gone, and makes it again
// from its template.
func TestMachineThatComesTooLate(t *testing.T) {
	t.Parallel()
	ns, farm := place.Namespace(t), place.Namespace(t)
	fresh := place.Snapshotted(farm, "image", "/ok/100ms/a")
	img := imported(t, fresh.DeepCopy())
	snap := snapshot(farm, img.Status.Serving.VolumeSnapshot)
	place.Change(t, snap, func() { snap.Finalizers = append(snap.Finalizers, "pelotech.ot/held-by-test") })
	remove(t, img)
	place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown })

	able, unable := templated(ns, "able", fresh), scene.Machine(ns, "unable", fresh)
	place.Create(t, able, unable)
	assert.Contains(t, because(t, able, v1alpha1.ReasonImageDeleting).Status.Message, "is being removed; this machine goes on when it is made again from spec.vmDiskImageTemplate")
	late := because(t, unable, v1alpha1.ReasonImageDeleting)
	assert.Equal(t, v1alpha1.MachineProvisioning, late.Status.Phase)
	assert.Nil(t, late.Status.Pinned)
	assert.True(t, place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseDeleting)).Status.TearDown, "there is no way back")

	place.Change(t, snap, func() {
		snap.Finalizers = slices.DeleteFunc(snap.Finalizers, func(f string) bool { return f == "pelotech.ot/held-by-test" })
	})
	got := runs(t, able)
	assert.NotEqual(t, img.UID, got.Status.Pinned.UID)
	assert.Equal(t, got.Status.Pinned.UID, runs(t, unable).Status.Pinned.UID)
}

func namespaced(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestNamespaceOfMachinesDeleted while they run: it goes, and lets go of images.
func TestNamespaceOfMachinesDeleted(t *testing.T) {
	t.Parallel()
	ns, farm := place.Namespace(t), place.Namespace(t)
	img := imported(t, place.Snapshotted(farm, "image", "/ok/100ms/a"))
	own := templated(ns, "own", place.Snapshotted(ns, "own", "/ok/1s/b"))
	place.Create(t, own)
	vm := scene.Machine(ns, "vm", img)
	started(t, vm)
	remove(t, namespaced(ns))
	place.Gone(t, namespaced(ns))
	assert.Equal(t, v1alpha1.PhaseSucceeded, held(t, img).Status.Phase)
}

// TestNamespaceOfImagesDeleted while machines elsewhere are built from them: it
// goes too. What has a disk runs on, and comes again; what has none waits.
func TestNamespaceOfImagesDeleted(t *testing.T) {
	t.Parallel()
	ns, farm := place.Namespace(t), place.Namespace(t)
	img := imported(t, place.Snapshotted(farm, "image", "/ok/100ms/a"))
	vm := templated(ns, "vm", img)
	started(t, vm)
	remove(t, namespaced(farm))
	place.Gone(t, namespaced(farm))

	disk, was := read(t, rootDisk(vm)), read(t, theirs(vm))
	late := templated(ns, "late", img)
	place.Create(t, late)
	assert.Contains(t, because(t, late, v1alpha1.ReasonImageNamespaceMissing).Status.Message, farm)
	removed(t, theirs(vm))
	eventually(t, theirs(vm), "made again", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != was.UID && o.Status.Ready })
	assert.Equal(t, disk.UID, read(t, rootDisk(vm)).UID)
	runs(t, vm)

	place.Create(t, namespaced(farm))
	runs(t, late)
	assert.Equal(t, img.UID, runs(t, vm).Status.Pinned.UID, "what its disk was cloned from is told though it is gone")
}
