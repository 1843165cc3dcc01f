package vm_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRootDiskOfUnknownSource: a machine that has lost its status, as by a restored backup, may have a root disk
// that nothing says the source of. It runs on as it was, and its conditions say what they know.
func TestRootDiskOfUnknownSource(t *testing.T) {
	for name, tt := range map[string]struct {
		image           v1alpha1.Architecture
		loseSource      func(*world)
		wantRoot        string
		wantApplied     string // while neither says an architecture, KubeVirt chooses
		wantRootMessage string
	}{
		"elsewhere, the image says one":           {"arm64", migrateRootAndDeleteFormer, "fast", "arm64", "the root disk is PersistentVolumeClaim fast"},
		"elsewhere, neither says one":             {"", migrateRootAndDeleteFormer, "fast", "amd64", "the root disk is PersistentVolumeClaim fast"},
		"elsewhere, beside an unfinished clone":   {"arm64", migrateRootAndCloneFormer, "fast", "arm64", "the root disk is PersistentVolumeClaim fast"},
		"a revision that the image no longer has": {"arm64", setForeignSource, "vm-root", "arm64", "DataVolume vm-root has 1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(imageFor(tt.image), cdiv1.Succeeded).withRunningVM()
			w.VM.Spec.Resources.DiskSize = ptr.To(resource.MustParse("1Gi"))
			tt.loseSource(w)
			w.VM.Status = v1alpha1.VirtualMachineStatus{}
			w.refreshPinned()
			for range 3 {
				require.Nil(t, w.reconcile().ApplyKubeVirtVM)
				w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
			}
			require.Nil(t, w.VM.Status.Pinned)
			assert.False(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
			assert.Equal(t, "the machine has its root disk, whose source is unknown, and does not need an image", w.conditionMessage(v1alpha1.ConditionImageAcquired))
			assert.Equal(t, tt.wantRootMessage, w.conditionMessage(v1alpha1.ConditionRootDiskReady))
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "is not grown")
			assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired), w.conditionMessage(v1alpha1.ConditionRestartRequired))

			w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"})
			require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing has changed")
			w.VM.Spec.Version = "2"
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, tt.wantApplied, templateArchitecture(w.KubeVirtVM))
			assert.Equal(t, tt.wantRoot, w.volumeSource("root"))
			require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to apply")
			w.VM.Spec.Architecture = v1alpha1.ArchitectureS390X
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, "s390x", templateArchitecture(w.KubeVirtVM), "the machine's own wins")
			const kept = "the machine keeps architecture s390x, since nothing says what its root disk was cloned from: set spec.architecture to change it"
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "keeps architecture")
			w.VM.Spec.Architecture = ""
			require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing tells it from that of the root disk")
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), kept)
			w.VM.Spec.Architecture = v1alpha1.ArchitectureARM64
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, "arm64", templateArchitecture(w.KubeVirtVM))
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "keeps architecture")
		})
	}
}

func migrateRootAndDeleteFormer(w *world) {
	w.migrateVolume("root", "fast")
	w.reconcile()
	w.DataVolume, w.Claim = nil, nil
}

// migrateRootAndCloneFormer leaves a clone that was requested since: it is not what the root disk was copied from.
func migrateRootAndCloneFormer(w *world) {
	w.migrateVolume("root", "fast")
	w.reconcile()
	w.DataVolume.Status.Phase, w.Claim = cdiv1.CloneInProgress, nil
}

func setForeignSource(w *world) {
	w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = "uid-of-other/rev-9/9/other"
}

// TestDataDiskElsewhereAfterLostStatus: the guest writes to it, so a machine that runs with it is ready, and no
// other is made.
func TestDataDiskElsewhereAfterLostStatus(t *testing.T) {
	loseStatus := func(w *world, _ string) { w.VM.Status = v1alpha1.VirtualMachineStatus{} }
	for name, tt := range map[string]struct {
		change     func(w *world, disk string)
		wantStored bool
	}{
		"the status is lost": {loseStatus, true},
		"a former agent has requested another since": {func(w *world, disk string) {
			w.diskStatus(disk).Volume.Ready = false
			w.changeDisk(disk, func(v *vm.DiskView) { *v = vm.DiskView{Image: v.Image, DataVolume: unfinishedDisk(w, disk)} })
		}, false},
		"and the image": {func(w *world, disk string) {
			loseStatus(w, disk)
			w.changeDisk(disk, func(v *vm.DiskView) { v.Image = nil })
		}, true},
	} {
		for _, disk := range []string{"scratch", "tools"} {
			t.Run(disk+": "+name, func(t *testing.T) {
				w := newRunningDisksWorld(t)
				w.migrateVolume(disk, "faster")
				w.reconcile()
				w.removeDataVolume(disk)
				tt.change(w, disk)
				w.refreshPinned()
				if tt.wantStored {
					first := w.decide()
					require.True(t, first.StoreStatusFirst)
					for _, stored := range first.Status.Disks {
						require.True(t, stored.Volume.Ready, "it counts as complete before anything is done: %s", stored.Name)
					}
				}
				for range 3 {
					require.Empty(t, w.reconcile().CreateDisks)
					w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
				}
				assert.True(t, w.hasCondition(v1alpha1.ConditionDisksReady), w.conditionMessage(v1alpha1.ConditionDisksReady))
				assert.True(t, w.hasCondition(v1alpha1.ConditionImageAcquired), w.conditionMessage(v1alpha1.ConditionImageAcquired))
				adjusted := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
				assert.Contains(t, adjusted, "disk "+disk+" is PersistentVolumeClaim faster, which is kept")
				assert.NotContains(t, adjusted, "is not grown")
			})
		}
	}
}

// unfinishedDisk returns the DataVolume of a data disk that CDI does not complete.
func unfinishedDisk(w *world, disk string) *cdiv1.DataVolume {
	spec := &w.VM.Spec.Disks[slices.IndexFunc(w.VM.Spec.Disks, func(spec v1alpha1.Disk) bool { return spec.Name == disk })]
	var dv *cdiv1.DataVolume
	if pin := w.diskStatus(disk).Pinned; pin != nil {
		dv = kubevirt.BuildDataDisk(w.VM, spec, w.Disks[disk].Image, pin, resource.MustParse("1Gi"))
	} else {
		dv = kubevirt.BuildDataDisk(w.VM, spec, nil, nil, *spec.Size)
	}
	takeUp(dv)
	return dv
}

// TestPinThatWasNeverAcquiredIsReadLive: where the root disk is elsewhere, nothing says that it was cloned from
// this pin, so only its image tells whether it stays.
func TestPinThatWasNeverAcquiredIsReadLive(t *testing.T) {
	for _, deleting := range []bool{false, true} {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		migrateRootAndDeleteFormer(w)
		w.VM.Status.Pinned.AcquiredAt = nil
		w.Image = w.Image.DeepCopy()
		w.Image.Status.TearDown = deleting
		w.refreshPinned()
		for range 3 {
			w.reconcile()
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		}
		require.NotNil(t, w.VM.Status.Pinned)
		assert.Equal(t, deleting, w.VM.Status.Pinned.AcquiredAt == nil, "being deleted: %t", deleting)
		if deleting {
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionImageAcquired), "whose source is unknown")
		}
	}
}

// TestUnfinishedCloneDoesNotChangePin: the root disk elsewhere is of what is pinned.
func TestUnfinishedCloneDoesNotChangePin(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	migrateRootAndCloneFormer(w)
	before := w.VM.Status.Pinned.DeepCopy()
	w.Image = goldenImage(2)
	w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = kubevirt.ClonedFromValue(pinServedBy(w.Image, true))
	w.refreshPinned()
	for range 3 {
		w.reconcile()
		assert.Equal(t, before, w.VM.Status.Pinned)
	}
}
