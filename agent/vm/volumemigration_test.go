package vm_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var strategyPath = []string{"spec", "updateVolumesStrategy"}

// setVolume has the KubeVirt VirtualMachine name another disk as a volume, as a person does.
func (w *world) setVolume(volume string, source map[string]any) {
	list := w.getList(volumesPath)
	for i := range list {
		if item := list[i].(map[string]any); item["name"] == volume {
			source["name"] = volume
			list[i] = source
		}
	}
	w.setList(list, volumesPath)
}

// migrateVolume has KubeVirt (1.8) migrate a volume to another DataVolume.
func (w *world) migrateVolume(volume, dataVolume string) {
	require.NoError(w.t, unstructured.SetNestedField(w.KubeVirtVM.Object, "Migration", strategyPath...))
	w.setVolume(volume, map[string]any{"dataVolume": map[string]any{"name": dataVolume}})
}

func (w *world) volumeSource(volume string) any {
	for _, item := range w.getList(volumesPath) {
		if m := item.(map[string]any); m["name"] == volume {
			for kind, source := range m {
				if kind != "name" {
					return source.(map[string]any)[map[string]string{"dataVolume": "name", "persistentVolumeClaim": "claimName"}[kind]]
				}
			}
		}
	}
	return nil
}

// TestMigratedVolumeStays: an agent that put the DataVolume back would end the migration, or, once that is
// complete, have the guest start with a disk of before.
func TestMigratedVolumeStays(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*world)
		wantKept bool
	}{
		"while it runs": {func(w *world) {}, true},
		"stopped":       {func(w *world) { w.setKubeVirtStatus("Stopped", nil) }, true},
		"after a change of the spec": {func(w *world) {
			w.VM.Spec.Version = "2"
			w.setKubeVirtStatus("Stopped", nil)
		}, true},
		"to a claim": {func(w *world) {
			w.setVolume("root", map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "fast"}})
		}, true},
		"the strategy is removed afterwards": {func(w *world) {
			w.reconcile()
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
			w.VM.Spec.Version = "2"
			w.setKubeVirtStatus("Stopped", nil)
		}, true},
		"without the strategy it never was a migration": {func(w *world) { unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...) }, false},
		"another strategy": {func(w *world) {
			require.NoError(w.t, unstructured.SetNestedField(w.KubeVirtVM.Object, "Replacement", strategyPath...))
		}, false},
		"another disk than that of the migration": {func(w *world) {
			w.reconcile()
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
			w.setVolume("root", map[string]any{"dataVolume": map[string]any{"name": "other"}})
		}, false},
		"it is migrated back": {func(w *world) { w.reconcile(); w.migrateVolume("root", "vm-root") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			w.migrateVolume("root", "fast")
			tt.change(w)
			for range 2 {
				w.reconcile()
				message := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
				if !tt.wantKept {
					assert.Equal(t, "vm-root", w.volumeSource("root"))
					assert.NotContains(t, message, "migrates")
					continue
				}
				assert.Equal(t, "fast", w.volumeSource("root"))
				assert.Contains(t, message, "the root disk is PersistentVolumeClaim fast, which is kept")
				assert.Contains(t, message, "name DataVolume vm-root again")
			}
			assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to apply")
		})
	}
}

// TestMigrationIsRecordedWhateverIsHeldBack: the record is all that shows a migration once the strategy is
// gone, and the machine may not be applied until then.
func TestMigrationIsRecordedWhateverIsHeldBack(t *testing.T) {
	for name, holdBack := range map[string]func(*world){
		"nothing":                      func(*world) {},
		"a change waits for a restart": func(w *world) { w.VM.Spec.Version = "2" },
		"another rendering waits":      func(w *world) { w.setAnnotation(v1alpha1.AnnotationAppliedDigest, "former") },
		"the spec is invalid":          func(w *world) { w.VM.Spec.Overlay = &runtime.RawExtension{Raw: []byte(`{"running":true}`)} },
		"a Secret is missing":          func(w *world) { w.MissingSecret = "Secret ns/s does not exist" },
		"a new disk waits for an image": func(w *world) {
			w.VM.Spec.Disks = append(w.VM.Spec.Disks, v1alpha1.Disk{Name: "late", Image: &v1alpha1.ImageReference{Name: "absent"}})
		},
		"the disk is removed": func(w *world) { w.reconcile(); w.VM.Spec.Disks = nil },
	} {
		for _, sourceDeleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, source deleted %t", name, sourceDeleted), func(t *testing.T) {
				w := newRunningDisksWorld(t)
				former := w.VM.Spec.DeepCopy()
				w.migrateVolume("root", "fast")
				w.migrateVolume("scratch", "faster")
				holdBack(w)
				w.reconcile()
				unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
				if sourceDeleted {
					w.DataVolume, w.Claim = nil, nil
					w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume, v.Claim = nil, nil })
				}
				assert.Empty(t, w.reconcile().CreateDisks, "the guest writes to the other claim")
				w.VM.Spec, w.MissingSecret = *former, ""
				w.VM.Spec.Version = "3"
				w.setKubeVirtStatus("Stopped", nil)
				w.reconcile()
				assert.Equal(t, []any{"fast", "faster"}, []any{w.volumeSource("root"), w.volumeSource("scratch")})
				assert.Equal(t, "root=fast,scratch=faster", w.KubeVirtVM.GetAnnotations()[v1alpha1.AnnotationMigratedVolumes])
				assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "the root disk is PersistentVolumeClaim fast, which is kept")
			})
		}
	}
}

// TestSourceOfMigratedVolumeMayBeDeleted: the guest does not use it, and its storage is what a migration is to free.
func TestSourceOfMigratedVolumeMayBeDeleted(t *testing.T) {
	t.Run("root", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.migrateVolume("root", "fast")
		w.reconcile()
		w.DataVolume, w.Claim = nil, nil
		for range 2 {
			require.Empty(t, w.reconcile().CreateDisks)
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		}
		require.NotNil(t, w.VM.Status.Pinned, "the image is held as before")
		deleted := w.KubeVirtVM
		w.KubeVirtVM = nil
		require.NotEmpty(t, w.reconcile().CreateDisks, "the next KubeVirt VirtualMachine has the machine's own")
		w.KubeVirtVM, w.DataVolume, w.Claim = deleted, nil, nil
		w.migrateVolume("root", "vm-root")
		require.NotEmpty(t, w.reconcile().CreateDisks, "it is the disk again")
	})
	t.Run("data disk", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		w.migrateVolume("scratch", "fast")
		w.reconcile()
		w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume, v.Claim = nil, nil })
		for range 2 {
			require.Empty(t, w.reconcile().CreateDisks)
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		}
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "disk scratch is PersistentVolumeClaim fast")
		w.migrateVolume("scratch", kubevirt.DataDiskName(w.VM, "scratch"))
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost)
	})
}

// TestMigratedDiskThatIsAttachedAgain: under the same name it is the disk that the guest has written to, not the
// DataVolume of before, and no new one.
func TestMigratedDiskThatIsAttachedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		disk       string
		isRestored bool
		meanwhile  func(w *world, disk string)
		wantVolume string // empty: the machine's own DataVolume
	}{
		"nothing else":                     {"scratch", false, func(*world, string) {}, "faster"},
		"cloned":                           {"tools", false, func(*world, string) {}, "faster"},
		"the former DataVolume is deleted": {"scratch", false, func(w *world, disk string) { w.removeDataVolume(disk) }, "faster"},
		"the status is lost": {"scratch", false, func(w *world, disk string) {
			w.removeDataVolume(disk)
			w.VM.Status = v1alpha1.VirtualMachineStatus{}
			w.refreshPinned()
		}, "faster"},
		"a person discards it": {"scratch", false, func(w *world, _ string) { w.setAnnotation(v1alpha1.AnnotationMigratedVolumes, "") }, ""},
		"the overlay names a third disk": {"scratch", false, func(w *world, disk string) {
			w.VM.Spec.Overlay = overlayOf(disk, "", "third without strategy")
		}, "third"},
		"restored": {"scratch", true, func(*world, string) {}, "faster"},
		"restored, the former DataVolume is deleted":     {"scratch", true, func(w *world, disk string) { w.removeDataVolume(disk) }, "faster"},
		"restored, and KubeVirt's annotation is removed": {"scratch", true, func(w *world, _ string) { w.setAnnotation(restoreKey, "") }, "faster"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			if tt.isRestored {
				w.restoreDisk("faster")
			} else {
				w.migrateVolume(tt.disk, "faster")
			}
			w.reconcile()
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
			former := w.VM.Spec.Disks
			w.VM.Spec.Disks = slices.DeleteFunc(slices.Clone(former), func(disk v1alpha1.Disk) bool { return disk.Name == tt.disk })
			w.reconcile()
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "disk "+tt.disk+" is not in spec.disks and is PersistentVolumeClaim faster", "while it runs")
			w.setKubeVirtStatus("Stopped", nil)
			for range 3 {
				require.Empty(t, w.reconcile().CreateDisks)
			}
			require.Nil(t, w.volumeSource(tt.disk), "it is detached")
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "disk "+tt.disk+" is not in spec.disks and is PersistentVolumeClaim faster, which is kept, also when this machine is deleted")
			require.Nil(t, w.lastDecision.ApplyKubeVirtVM, "nothing is left to apply")
			tt.meanwhile(w, tt.disk)
			for range 3 {
				w.reconcile()
			}
			w.VM.Spec.Disks = former
			for range 3 {
				require.Empty(t, w.reconcile().CreateDisks)
			}
			assert.Equal(t, cmp.Or(tt.wantVolume, kubevirt.DataDiskName(w.VM, tt.disk)), w.volumeSource(tt.disk))
			assert.Nil(t, w.lastDecision.ApplyKubeVirtVM, "nothing is left to apply")
			assert.Equal(t, tt.wantVolume == "faster", strings.Contains(w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "migrates volumes: disk "+tt.disk+" is PersistentVolumeClaim faster"))
		})
	}
}

// TestRestoredDiskIsNamedUntilItIsDetached: also without the DataVolume of before, and with no advice to delete that.
func TestRestoredDiskIsNamedUntilItIsDetached(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.restoreDisk("faster")
	w.reconcile()
	w.VM.Spec.Disks = slices.DeleteFunc(slices.Clone(w.VM.Spec.Disks), func(disk v1alpha1.Disk) bool { return disk.Name == "scratch" })
	for _, lose := range []func(){func() {}, func() { w.removeDataVolume("scratch") }} {
		lose()
		w.reconcile()
		message := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
		assert.Contains(t, message, "disk scratch is not in spec.disks and is PersistentVolumeClaim faster of a snapshot")
		assert.NotContains(t, message, "delete DataVolume")
		assert.NotContains(t, message, v1alpha1.AnnotationMigratedVolumes)
		assert.Contains(t, message, "is kept until the KubeVirt VirtualMachine is deleted, and deleted with it unless")
	}
}

// TestRestoredClaimIsNotSaidToOutliveItsMachine: its owner is the KubeVirt VirtualMachine, also once it is recorded.
func TestRestoredClaimIsNotSaidToOutliveItsMachine(t *testing.T) {
	w := newRunningDisksWorld(t)
	requireFate := func(want, when string) {
		w.reconcile()
		message := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
		require.Contains(t, message, "PersistentVolumeClaim faster", when)
		assert.Contains(t, message, want, when)
	}
	w.restoreDisk("faster")
	requireFate("is kept until the KubeVirt VirtualMachine is deleted, and deleted with it unless", "in spec.disks")
	former := w.VM.Spec.Disks
	w.VM.Spec.Disks = nil
	requireFate("is kept until the KubeVirt VirtualMachine is deleted, and deleted with it unless", "removed while the machine runs")
	w.setKubeVirtStatus("Stopped", nil)
	w.reconcile()
	require.Nil(t, w.volumeSource("scratch"), "it is detached")
	const recorded = "unless it is deleted with the KubeVirt VirtualMachine that owns it"
	requireFate(recorded, "detached")
	w.setAnnotation(restoreKey, "")
	requireFate(recorded, "detached, without KubeVirt's annotation")
	w.VM.Spec.Disks = former
	w.reconcile()
	require.Equal(t, "faster", w.volumeSource("scratch"))
	requireFate(recorded, "attached again")
}

// TestNextKubeVirtVMHasOwnDisks: with the former KubeVirt VirtualMachine its restored claims are gone. One
// that was migrated can be named by the overlay.
func TestNextKubeVirtVMHasOwnDisks(t *testing.T) {
	for name, tt := range map[string]struct {
		isRestored, isRemoved, isSourceDeleted bool
		disk, overlay                          string // disk: empty for scratch
		wantVolume                             string // empty: the machine's own DataVolume
		wantLost, wantCreated                  bool
	}{
		"migrated":                                  {},
		"migrated, and named by overlay":            {overlay: "faster without strategy", wantVolume: "faster"},
		"migrated and removed":                      {isRemoved: true},
		"migrated, without former":                  {isSourceDeleted: true, wantLost: true},
		"migrated, removed, without former":         {isRemoved: true, isSourceDeleted: true, wantCreated: true},
		"cloned, migrated, removed, without former": {disk: "tools", isRemoved: true, isSourceDeleted: true, wantCreated: true},
		"restored":                          {isRestored: true},
		"restored and removed":              {isRestored: true, isRemoved: true},
		"restored, without former":          {isRestored: true, isSourceDeleted: true, wantLost: true},
		"restored, removed, without former": {isRestored: true, isRemoved: true, isSourceDeleted: true, wantCreated: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, volume := newRunningDisksWorld(t), cmp.Or(tt.disk, "scratch")
			if tt.isRestored {
				w.restoreDisk("faster")
			} else {
				w.migrateVolume(volume, "faster")
			}
			w.reconcile()
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
			former := w.VM.Spec.Disks
			if tt.isRemoved {
				w.VM.Spec.Disks = slices.DeleteFunc(slices.Clone(former), func(disk v1alpha1.Disk) bool { return disk.Name == volume })
			}
			w.setKubeVirtStatus("Stopped", nil)
			w.reconcile()
			if tt.isSourceDeleted {
				w.removeDataVolume(volume)
				w.reconcile()
			}
			w.KubeVirtVM = nil
			if tt.overlay != "" {
				w.VM.Spec.Overlay = overlayOf(volume, "", tt.overlay)
			}
			w.reconcile()
			w.VM.Spec.Disks = former
			isCreated := false
			for range 3 {
				isCreated = len(w.reconcile().CreateDisks) > 0 || isCreated
			}
			assert.Equal(t, tt.wantCreated, isCreated)
			if tt.wantLost {
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost)
				return
			}
			require.NotNil(t, w.KubeVirtVM)
			if !tt.wantCreated { // the machine is Provisioning otherwise
				w.setKubeVirtStatus("Stopped", nil)
				w.reconcile()
				assert.Equal(t, cmp.Or(tt.wantVolume, kubevirt.DataDiskName(w.VM, volume)), w.volumeSource(volume))
			}
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "PersistentVolumeClaim faster")
		})
	}
}

// TestMigratedClaimIsNoRestoredOne: KubeVirt's annotation of a restore stays, and a person may remove it.
func TestMigratedClaimIsNoRestoredOne(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.migrateVolume("scratch", "")
	w.setVolume("scratch", map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "faster"}})
	w.reconcile()
	unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
	for _, restore := range []string{"vmrestore-1", ""} {
		w.setAnnotation(restoreKey, restore)
		w.VM.Spec.Version += "1"
		w.setKubeVirtStatus("Stopped", nil)
		for range 3 {
			w.reconcile()
		}
		assert.Equal(t, "faster", w.volumeSource("scratch"))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "KubeVirt migrates volumes: disk scratch is PersistentVolumeClaim faster")
	}
}

// TestRemovedDiskMigratesBeforeItIsDetached: it is recorded like any other.
func TestRemovedDiskMigratesBeforeItIsDetached(t *testing.T) {
	w := newRunningDisksWorld(t)
	former := w.VM.Spec.Disks
	w.VM.Spec.Disks = nil
	w.reconcile()
	w.migrateVolume("scratch", "faster")
	w.reconcile()
	w.setKubeVirtStatus("Stopped", nil)
	for range 3 {
		w.reconcile()
	}
	require.Nil(t, w.volumeSource("scratch"), "it is detached")
	w.VM.Spec.Disks = former
	for range 3 {
		w.reconcile()
	}
	assert.Equal(t, "faster", w.volumeSource("scratch"))
}

// TestNoReturnToDiskThatIsGone: a data disk would be lost, and a root disk cloned anew.
func TestNoReturnToDiskThatIsGone(t *testing.T) {
	elsewhere := map[string]func(w *world, volume string){
		"migrated": func(w *world, volume string) { w.migrateVolume(volume, "fast") },
		"restored": func(w *world, volume string) {
			w.setVolume(volume, map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "fast"}})
			w.setAnnotation(restoreKey, "vmrestore-1")
		},
	}
	for name, move := range elsewhere {
		for _, volume := range []string{"root", "scratch"} {
			t.Run(name+" "+volume, func(t *testing.T) {
				w := newRunningDisksWorld(t)
				move(w, volume)
				w.reconcile()
				assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "to return")
				own, served := "vm-root", w.CDIServed
				if volume == "root" {
					w.DataVolume, w.Claim = nil, nil
				} else {
					own = kubevirt.DataDiskName(w.VM, volume)
					w.removeDataVolume(volume)
				}
				w.CDIServed = false
				w.reconcile()
				assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "to return", "it cannot be read")
				w.CDIServed = served
				w.reconcile()
				message := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
				assert.NotContains(t, message, "to return")
				assert.Contains(t, message, "is PersistentVolumeClaim fast")
				assert.Contains(t, message, "(there is no return: DataVolume "+own+" is gone, or not complete)")
			})
		}
	}
}

// TestAnotherImageForMigratedRootDisk: with the DataVolume deleted, the disk elsewhere stays.
func TestAnotherImageForMigratedRootDisk(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.VM.Spec.VMDiskImageRef.Name = "other"
	w.reconcile()
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "is for a new disk (delete DataVolume vm-root to have one cloned")
	w.migrateVolume("root", "fast")
	w.reconcile()
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "is for a new disk (make another machine to get one)")
}

// TestPinOfMigratedRootDiskStays: it says what the disk was cloned from, also once the source and the former
// DataVolume are gone.
func TestPinOfMigratedRootDiskStays(t *testing.T) {
	for name, loseImage := range map[string]func(*world){
		"another revision is served": func(w *world) { w.Image = goldenImage(2) },
		"the image is made anew":     func(w *world) { w.Image = goldenImage(2); w.Image.UID = "uid-of-another" },
		"the image is gone":          func(w *world) { w.Image = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			before := w.VM.Status.Pinned.DeepCopy()
			w.migrateVolume("root", "fast")
			w.reconcile()
			w.DataVolume, w.Claim, w.sourceExists = nil, nil, false
			loseImage(w)
			w.refreshPinned()
			for range 3 {
				w.reconcile()
				assert.Equal(t, before, w.VM.Status.Pinned)
				w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
				assert.True(t, w.hasCondition(v1alpha1.ConditionImageAcquired), w.conditionMessage(v1alpha1.ConditionImageAcquired))
			}
		})
	}
}

// TestImageIsNotCreatedForRootDiskElsewhere: the machine needs none, and a download costs a slot and egress.
func TestImageIsNotCreatedForRootDiskElsewhere(t *testing.T) {
	newMigrated := func(t *testing.T) *world {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.Spec.VMDiskImageTemplate = goldenImage(1).Spec.DeepCopy()
		w.migrateVolume("root", "fast")
		w.reconcile()
		w.DataVolume, w.Claim, w.sourceExists = nil, nil, false
		return w
	}
	t.Run("the image is gone", func(t *testing.T) {
		w := newMigrated(t)
		w.Image = nil
		w.refreshPinned()
		for range 3 {
			require.Nil(t, w.reconcile().CreateImage)
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionImageAcquired), "that image no longer exists, and the machine does not need it")
		}
	})
	t.Run("it is imported anew for others", func(t *testing.T) {
		w := newMigrated(t)
		w.Image = goldenImage(1)
		w.Image.UID, w.Image.Status = "uid-of-another", v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseSyncing, Progress: "20%"}
		w.refreshPinned()
		w.reconcile()
		assert.Empty(t, w.VM.Status.Image.Progress, "each step would write every machine")
	})
}
