package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageFor returns a ready image for an architecture; empty for none.
func imageFor(architecture v1alpha1.Architecture) *v1alpha1.VMDiskImage {
	img := goldenImage(1)
	img.Spec.Architecture, img.Status.Serving.Architecture = architecture, architecture
	return img
}

func templateArchitecture(u *unstructured.Unstructured) string {
	architecture, _, _ := unstructured.NestedString(u.Object, "spec", "template", "spec", "architecture")
	return architecture
}

func TestArchitectureOfNewMachine(t *testing.T) {
	const overlay = `{"template":{"spec":{"architecture":"s390x"}}}`
	for name, tt := range map[string]struct {
		machine, image v1alpha1.Architecture
		overlay        string
		wantMismatch   string // empty: it is cloned
		wantApplied    string
	}{
		"neither says one":         {"", "", "", "", ""},
		"the machine says one":     {"arm64", "", "", "", "arm64"},
		"the image says one":       {"", "arm64", "", "", "arm64"},
		"both say the same":        {"arm64", "arm64", "", "", "arm64"},
		"they differ":              {"amd64", "arm64", "", "spec.architecture is amd64, and VMDiskImage ns/golden is for arm64: correct spec.architecture, or name an image for amd64", ""},
		"the overlay differs":      {"", "arm64", overlay, "template.spec.architecture of spec.overlay is s390x, and VMDiskImage ns/golden is for arm64", ""},
		"the overlay wins":         {"arm64", "s390x", overlay, "", "s390x"},
		"an overlay without image": {"arm64", "", overlay, "", "s390x"},
	} {
		t.Run(name, func(t *testing.T) {
			b := apitest.VirtualMachine("ns", "vm")
			if tt.overlay != "" {
				b = b.WithOverlay(tt.overlay)
			}
			w := newWorld(t, b)
			w.VM.Spec.Architecture, w.Image = tt.machine, imageFor(tt.image)
			d := w.reconcile()
			if tt.wantMismatch != "" {
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonArchitectureMismatch, tt.wantMismatch)
				require.Nil(t, w.VM.Status.Pinned, "nothing is acquired")
				require.Nil(t, w.DataVolume, "nothing is cloned")
				require.Nil(t, w.KubeVirtVM)
				w.Image = imageFor(v1alpha1.Architecture("s390x"))
				w.VM.Spec.Architecture = ""
				w.VM.Spec.Overlay = nil
				w.reconcile()
				require.NotNil(t, w.KubeVirtVM, "it starts once that is mended: %s", w.VM.Status.Message)
				assert.Equal(t, "s390x", templateArchitecture(w.KubeVirtVM))
				return
			}
			require.NotNil(t, d.ApplyKubeVirtVM, w.VM.Status.Message)
			assert.Equal(t, tt.wantApplied, templateArchitecture(d.ApplyKubeVirtVM))
			assert.Equal(t, tt.image, w.VM.Status.Pinned.Architecture)
		})
	}
}

// A machine that exists has the architecture of what its disk was cloned from. What runs is not
// touched, and what does not run is not started on another.
func TestArchitectureChangesOfExistingMachine(t *testing.T) {
	newMachine := func(machine, image v1alpha1.Architecture) *world {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.Spec.Architecture = machine
		return w.withRootDisk(imageFor(image), cdiv1.Succeeded)
	}
	changeImage := func(w *world, architecture v1alpha1.Architecture) {
		w.Image = w.Image.DeepCopy()
		w.Image.Spec.Architecture, w.Image.Status.Serving.Architecture = architecture, architecture
		w.Image.Status.Serving.Revision = "rev-2"
		w.refreshPinned()
	}
	t.Run("the image's next revision is for another", func(t *testing.T) {
		w := newMachine("amd64", "amd64").withRunningVM()
		changeImage(w, "arm64")
		d := w.reconcile()
		assert.Nil(t, d.ApplyKubeVirtVM)
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		w.DataVolume = nil // a person has it cloned anew
		w.setKubeVirtStatus("Stopped", nil)
		w.sourceExists = false // otherwise the former revision is kept for it
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonArchitectureMismatch, "spec.architecture is amd64, and VMDiskImage ns/golden is for arm64")
		assert.Nil(t, w.DataVolume)
	})
	t.Run("an image that said none says another", func(t *testing.T) {
		w := newMachine("amd64", "").withRunningVM()
		changeImage(w, "arm64")
		d := w.reconcile()
		assert.Nil(t, d.ApplyKubeVirtVM)
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		adjusted := meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionSpecAdjusted)
		assert.Contains(t, adjusted.Message, "VMDiskImage ns/golden, which the root disk is of, is for arm64")
		assert.Contains(t, adjusted.Message, "the machine runs on as it was started")
		w.setKubeVirtStatus("Stopped", nil)
		d = w.reconcile()
		assert.Nil(t, d.ApplyKubeVirtVM)
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonArchitectureMismatch, "which the root disk is of, is for arm64")
		w.VM.Spec.RunStrategy = "Halted"
		assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.reconcile().RunStrategy, "it can be stopped")
	})
	t.Run("the machine's own is changed", func(t *testing.T) {
		w := newMachine("", "amd64").withRunningVM()
		w.VM.Spec.Architecture = "arm64"
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		w.setKubeVirtStatus("Stopped", nil)
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonArchitectureMismatch, "is for amd64")
		w.VM.Spec.Architecture = ""
		w.reconcile()
		assert.NotEqual(t, v1alpha1.ReasonArchitectureMismatch, w.VM.Status.Reason)
	})
	t.Run("the image is deleted", func(t *testing.T) {
		w := newMachine("", "arm64").withKubeVirtVM("Stopped", nil)
		w.Image, w.Pinned = nil, nil
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing changes")
		assert.Equal(t, "arm64", templateArchitecture(w.KubeVirtVM))
	})
}

// A disk that is being cloned from what others have deleted is cloned from what serves now.
func TestVanishedDataSourceTarget(t *testing.T) {
	img := goldenImage(0)
	img.Status.Serving.Namespace, img.Status.Serving.PersistentVolumeClaim = "os", "fedora-1"
	w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.Image = img
	w.reconcile()
	require.NotNil(t, w.DataVolume)
	require.Equal(t, &cdiv1.DataVolumeSourcePVC{Namespace: "os", Name: "fedora-1"}, w.DataVolume.Spec.Source.PVC)
	assert.NotZero(t, w.reconcile().RequeueAfter, "no event tells that the claim is gone")

	next := img.DeepCopy()
	next.Status.Serving.PersistentVolumeClaim, next.Status.Serving.VolumeSnapshot = "", "fedora-2"
	next.Status.Serving.RestoreSize, next.Status.Serving.DiskSize = ptr.To(resource.MustParse("3Gi")), ptr.To(resource.MustParse("3Gi"))
	w.Image = next
	w.refreshPinned()
	w.reconcile()
	assert.Equal(t, "fedora-1", w.VM.Status.Pinned.PersistentVolumeClaim, "as long as it exists, it is cloned from")
	w.sourceExists = false
	w.reconcile()
	assert.Nil(t, w.DataVolume, "the unfinished clone is replaced")
	w.VM.Status = w.decide().Status
	w.refreshPinned()
	w.sourceExists = true
	w.reconcile()
	require.NotNil(t, w.DataVolume)
	assert.Equal(t, &cdiv1.DataVolumeSourceSnapshot{Namespace: "os", Name: "fedora-2"}, w.DataVolume.Spec.Source.Snapshot)
	assert.Empty(t, w.DataVolume.Spec.Storage.Resources.Requests, "CDI takes the snapshot's size")
}
