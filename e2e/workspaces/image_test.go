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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// TestMachineWaitsForItsImage and says what for, as long as the image does.
func TestMachineWaitsForItsImage(t *testing.T) {
	setPolicy(t, "concurrency", "0")
	ns, farm := place.Namespace(t), place.Namespace(t)
	first := place.Image(farm, "first", "/hang/a")
	place.Create(t, first)
	img := place.Snapshotted(farm, "image", "/ok/100ms/b")
	vm := templated(ns, "vm", img)
	place.Create(t, vm)

	paused := place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Reason == v1alpha1.ReasonPaused
	})
	assert.Equal(t, v1alpha1.MachineProvisioning, paused.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForImage, paused.Status.Reason)
	assert.Contains(t, paused.Status.Message, "waits for VMDiskImage "+farm+"/image: Queued, Paused: nothing is downloaded: the policy's concurrency is 0")
	made := held(t, img, vm)
	assert.Equal(t, ns+"/vm", made.Annotations[v1alpha1.AnnotationCreatedFor])
	assert.Equal(t, img.Spec, made.Spec)

	place.SetPolicy(t, policy("concurrency", "1"))
	queued := place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.QueuePosition != nil && *vm.Status.Image.QueuePosition == 0
	})
	assert.Contains(t, queued.Status.Message, "Queued, WaitingForSlot: waits for a slot; it is next")
	remove(t, first)
	got := runs(t, vm)
	assert.Equal(t, made.UID, got.Status.Pinned.UID)
}

func TestMachineMayNotMakeItsImage(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	img := place.Snapshotted(ns, "image", "/ok/100ms/a")
	vm, bare := templated(ns, "vm", img), scene.Machine(ns, "bare", img)
	vm.Spec.ImageMode = v1alpha1.ImageModeFail
	place.Create(t, vm, bare)
	for _, vm := range []*v1alpha1.VirtualMachine{vm, bare} {
		got := because(t, vm, v1alpha1.ReasonImageMissing)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/image does not exist")
	}
	failsBecause(t, bare, v1alpha1.ReasonImageMissing)
	assert.True(t, apierrors.IsNotFound(place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{})))

	place.Create(t, img)
	runs(t, vm)
	runs(t, bare)
}

// TestImageThatIsThereWins over a template that says otherwise.
func TestImageThatIsThereWins(t *testing.T) {
	t.Parallel()
	img := base(t)
	vm := templated(place.Namespace(t), "vm", img)
	vm.Spec.VMDiskImageTemplate.URL += "-other"
	vm.Spec.VMDiskImageTemplate.DiskSize = resource.MustParse("5Gi")
	started(t, vm)
	differs := says(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue)
	assert.Contains(t, differs, "the template has another url, diskSize")
	place.WantEvent(t, vm, v1alpha1.ConditionImageDiffers, "url, diskSize")
	after := succeeded(t, img)
	assert.Equal(t, img.Generation, after.Generation)
	assert.Equal(t, img.Spec, after.Spec)

	place.Change(t, vm, func() { vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy() })
	says(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionFalse)
}

// TestFailedImageIsRepaired by a person, and the machine runs.
func TestFailedImageIsRepaired(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	for name, path := range map[string]string{"imported": "/notfound/100ms/a", "asked": "/gone/a"} {
		place.Create(t, templated(ns, name, place.Snapshotted(ns, name, path)))
	}
	for _, name := range []string{"imported", "asked"} {
		vm := scene.Machine(ns, name, place.Image(ns, name, ""))
		got := because(t, vm, v1alpha1.ReasonImageFailed)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Equal(t, v1alpha1.PhaseFailed, got.Status.Image.Phase)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/"+name+" failed: NotFound: ")
		place.WantEvent(t, got, string(v1alpha1.ReasonImageFailed), "NotFound")
		img := place.Image(ns, name, "")
		place.Change(t, img, func() { img.Spec.URL = place.Source.URL + "/ok/100ms/right" })
		runs(t, vm)
		assert.Contains(t, says(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue), "another url")
	}
}

// TestMachineDeletedMidImport leaves its image to be imported: others may want
// it by now, and what was downloaded is paid for.
func TestMachineDeletedMidImport(t *testing.T) {
	t.Parallel()
	ns, farm := place.Namespace(t), place.Namespace(t)
	img := place.Snapshotted(farm, "image", "/ok/15s/a")
	vm := templated(ns, "vm", img)
	place.Create(t, vm)
	place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Phase == v1alpha1.PhaseSyncing
	})
	remove(t, vm)
	place.Gone(t, vm)
	succeeded(t, img)
	after := held(t, img)
	assert.EqualValues(t, 1, after.Status.LastAttempt)
	assert.Empty(t, leftIn(t, ns))
	var clones cdiv1.DataVolumeList
	require.NoError(t, place.Client().List(t.Context(), &clones, client.InNamespace(ns)))
	assert.Empty(t, clones.Items)
}
