//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestVMWaitsForItsImage and says what for, as long as the image does.
func TestVMWaitsForItsImage(t *testing.T) {
	setPolicyForTest(t, "concurrency", "0")
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	first := env.NewImage(farm, "first", "/hang/a")
	env.Create(t, first)
	img := env.NewSnapshottedImage(farm, "image", "/ok/100ms/b")
	vm := withImageTemplate(ns, "vm", img)
	env.Create(t, vm)

	paused := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Reason == v1alpha1.ReasonPaused
	})
	assert.Equal(t, v1alpha1.MachineProvisioning, paused.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForImage, paused.Status.Reason)
	assert.Contains(t, paused.Status.Message, "waiting for VMDiskImage "+farm+"/image: Queued, Paused: nothing is downloaded: the policy's concurrency is 0")
	made := awaitHolders(t, img, vm)
	assert.Equal(t, ns+"/vm", made.Annotations[v1alpha1.AnnotationCreatedFor])
	assert.Equal(t, img.Spec, made.Spec)

	env.SetPolicy(t, newPolicy("concurrency", "1"))
	queued := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.QueuePosition != nil && *vm.Status.Image.QueuePosition == 0
	})
	assert.Contains(t, queued.Status.Message, "Queued, WaitingForSlot: waits for a slot; it is next")
	deleteObject(t, first)
	got := awaitRunning(t, vm)
	assert.Equal(t, made.UID, got.Status.Pinned.UID)
}

func TestVMWithoutRightToCreateItsImage(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	img := env.NewSnapshottedImage(ns, "image", "/ok/100ms/a")
	vm, bare := withImageTemplate(ns, "vm", img), testenv.NewMachine(ns, "bare", img)
	vm.Spec.ImageMode = v1alpha1.ImageModeFail
	env.Create(t, vm, bare)
	for _, vm := range []*v1alpha1.VirtualMachine{vm, bare} {
		got := awaitReason(t, vm, v1alpha1.ReasonImageMissing)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/image does not exist")
	}
	awaitFailure(t, bare, v1alpha1.ReasonImageMissing)
	assert.True(t, apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{})))

	env.Create(t, img)
	awaitRunning(t, vm)
	awaitRunning(t, bare)
}

// TestExistingImageWinsOverTemplate over a template that says otherwise.
func TestExistingImageWinsOverTemplate(t *testing.T) {
	t.Parallel()
	img := sharedImage(t)
	vm := withImageTemplate(env.CreateNamespace(t), "vm", img)
	vm.Spec.VMDiskImageTemplate.URL += "-other"
	vm.Spec.VMDiskImageTemplate.DiskSize = resource.MustParse("5Gi")
	createAndAwaitRunning(t, vm)
	differs := awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue)
	assert.Contains(t, differs, "the template has another url, diskSize")
	env.AwaitEvent(t, vm, v1alpha1.ConditionImageDiffers, "url, diskSize")
	after := awaitSucceeded(t, img)
	assert.Equal(t, img.Generation, after.Generation)
	assert.Equal(t, img.Spec, after.Spec)

	env.Update(t, vm, func() { vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy() })
	awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionFalse)
}

// TestVMRecoversFromFailedImage by a person, and the machine runs.
func TestVMRecoversFromFailedImage(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	for name, path := range map[string]string{"imported": "/notfound/100ms/a", "asked": "/gone/a"} {
		env.Create(t, withImageTemplate(ns, name, env.NewSnapshottedImage(ns, name, path)))
	}
	for _, name := range []string{"imported", "asked"} {
		vm := testenv.NewMachine(ns, name, env.NewImage(ns, name, ""))
		got := awaitReason(t, vm, v1alpha1.ReasonImageFailed)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Equal(t, v1alpha1.PhaseFailed, got.Status.Image.Phase)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/"+name+" failed: NotFound: ")
		env.AwaitEvent(t, got, string(v1alpha1.ReasonImageFailed), "NotFound")
		img := env.NewImage(ns, name, "")
		env.Update(t, img, func() { img.Spec.URL = env.Source.URL + "/ok/100ms/right" })
		awaitRunning(t, vm)
		assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue), "another url")
	}
}

// TestVMDeletedDuringImport leaves its image to be imported: others may want
// it by now, and what was downloaded is paid for.
func TestVMDeletedDuringImport(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.NewSnapshottedImage(farm, "image", "/ok/15s/a")
	vm := withImageTemplate(ns, "vm", img)
	env.Create(t, vm)
	env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Phase == v1alpha1.PhaseSyncing
	})
	deleteObject(t, vm)
	env.AwaitGone(t, vm)
	awaitSucceeded(t, img)
	after := awaitHolders(t, img)
	assert.EqualValues(t, 1, after.Status.LastAttempt)
	assert.Empty(t, listLeftovers(t, ns))
	var clones cdiv1.DataVolumeList
	require.NoError(t, env.Client().List(t.Context(), &clones, client.InNamespace(ns)))
	assert.Empty(t, clones.Items)
}
