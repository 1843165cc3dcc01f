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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestDeletedVMLeavesNothing(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	createAndAwaitRunning(t, vm)
	deleteObject(t, vm)
	env.AwaitGone(t, vm)
	awaitNothingLeft(t, ns)
}

// TestRecreatedVM under the name of one that is still being taken apart.
func TestRecreatedVM(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	old := testenv.NewMachine(ns, "vm", sharedImage(t))
	createAndAwaitRunning(t, old)
	disk := requireObject(t, rootDiskOf(old))
	deleteObject(t, old)
	again := testenv.NewMachine(ns, "vm", sharedImage(t))
	require.True(t, testenv.Await(t, func() bool { return env.Client().Create(t.Context(), again) == nil }))
	awaitRunning(t, again)
	require.NotEqual(t, old.UID, again.UID)
	for _, o := range []client.Object{kubeVirtVMOf(again), rootDiskOf(again), cloudInitSecretOf(again)} {
		assert.Equal(t, string(again.UID), requireObject(t, o).GetLabels()[v1alpha1.LabelMachineUID], "%T", o)
	}
	assert.NotEqual(t, disk.UID, requireObject(t, rootDiskOf(again)).UID, "a guest's data is not the next one's")
}

// TestDeletedImageServesUntilReleased serves on, also for those that come later, and
// goes with the last of them.
func TestDeletedImageServesUntilReleased(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := createAndAwaitImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	first, halted := testenv.NewMachine(ns, "first", img), testenv.NewMachine(ns, "halted", img)
	halted.Spec.RunStrategy = "Halted"
	env.Create(t, halted)
	createAndAwaitRunning(t, first)
	awaitReason(t, halted, v1alpha1.ReasonStopped)

	deleteObject(t, img)
	leaving := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, v1alpha1.ReasonReferenced, leaving.Status.Reason)
	assert.Contains(t, leaving.Status.Message, "until these let go of it: "+ns+"/first, "+ns+"/halted")
	later := testenv.NewMachine(ns, "later", img)
	createAndAwaitRunning(t, later)
	awaitHolders(t, img, first, halted, later)

	for _, vm := range []*v1alpha1.VirtualMachine{first, later} {
		deleteObject(t, vm)
		env.AwaitGone(t, vm)
	}
	still := awaitHolders(t, img, halted)
	assert.Equal(t, v1alpha1.PhaseTerminating, still.Status.Phase)
	assert.NotNil(t, still.Status.Serving)
	deleteObject(t, halted)
	env.AwaitGone(t, img)
	awaitNothingLeft(t, farm)
	awaitNothingLeft(t, ns)
}

// TestVMCreatedDuringImageTearDown waits until the image is gone, and makes it again
// from its template.
func TestVMCreatedDuringImageTearDown(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	fresh := env.NewSnapshottedImage(farm, "image", "/ok/100ms/a")
	img := createAndAwaitImage(t, fresh.DeepCopy())
	snap := snapshotOf(farm, img.Status.Serving.VolumeSnapshot)
	env.Update(t, snap, func() { snap.Finalizers = append(snap.Finalizers, "pelotech.ot/held-by-test") })
	deleteObject(t, img)
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown })

	able, unable := withImageTemplate(ns, "able", fresh), testenv.NewMachine(ns, "unable", fresh)
	env.Create(t, able, unable)
	assert.Contains(t, awaitReason(t, able, v1alpha1.ReasonImageDeleting).Status.Message, "is being deleted; this machine continues once it is recreated from spec.vmDiskImageTemplate")
	late := awaitReason(t, unable, v1alpha1.ReasonImageDeleting)
	assert.Equal(t, v1alpha1.MachineProvisioning, late.Status.Phase)
	assert.Nil(t, late.Status.Pinned)
	assert.True(t, env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseDeleting)).Status.TearDown, "there is no way back")

	env.Update(t, snap, func() {
		snap.Finalizers = slices.DeleteFunc(snap.Finalizers, func(f string) bool { return f == "pelotech.ot/held-by-test" })
	})
	got := awaitRunning(t, able)
	assert.NotEqual(t, img.UID, got.Status.Pinned.UID)
	assert.Equal(t, got.Status.Pinned.UID, awaitRunning(t, unable).Status.Pinned.UID)
}

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestVMNamespaceDeleted while they run: it goes, and lets go of images.
func TestVMNamespaceDeleted(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := createAndAwaitImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	own := withImageTemplate(ns, "own", env.NewSnapshottedImage(ns, "own", "/ok/1s/b"))
	env.Create(t, own)
	vm := testenv.NewMachine(ns, "vm", img)
	createAndAwaitRunning(t, vm)
	deleteObject(t, newNamespace(ns))
	env.AwaitGone(t, newNamespace(ns))
	assert.Equal(t, v1alpha1.PhaseSucceeded, awaitHolders(t, img).Status.Phase)
}

// TestImageNamespaceDeleted while machines elsewhere are built from them: it
// goes too. What has a disk runs on, and comes again; what has none waits.
func TestImageNamespaceDeleted(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := createAndAwaitImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	vm := withImageTemplate(ns, "vm", img)
	createAndAwaitRunning(t, vm)
	deleteObject(t, newNamespace(farm))
	env.AwaitGone(t, newNamespace(farm))

	disk, kubeVirt := requireObject(t, rootDiskOf(vm)), requireObject(t, kubeVirtVMOf(vm))
	late := withImageTemplate(ns, "late", img)
	env.Create(t, late)
	assert.Contains(t, awaitReason(t, late, v1alpha1.ReasonImageNamespaceMissing).Status.Message, farm)
	deleteAndAwaitGone(t, kubeVirtVMOf(vm))
	awaitObject(t, kubeVirtVMOf(vm), "made again", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != kubeVirt.UID && o.Status.Ready })
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)
	awaitRunning(t, vm)

	env.Create(t, newNamespace(farm))
	awaitRunning(t, late)
	assert.Equal(t, img.UID, awaitRunning(t, vm).Status.Pinned.UID, "what its disk was cloned from is told though it is gone")
}
