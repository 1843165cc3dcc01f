package vm_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// toolsImage is the image of disk tools. It serves an attempt.
func toolsImage(attempt int32) *v1alpha1.VMDiskImage {
	img := apitest.Image("farm/tools").WithUID("uid-of-tools").WithStatus(v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, Serving: servingStatus("tools", attempt),
	}).Obj()
	return img
}

// newDisksWorld has a machine with disk tools, of an image, and disk scratch, which is blank.
func newDisksWorld(t require.TestingT) *world {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.VM.Spec.Disks = []v1alpha1.Disk{
		{Name: "tools", Image: &v1alpha1.ImageReference{Namespace: "farm", Name: "tools"}},
		{Name: "scratch", Size: ptr.To(resource.MustParse("5Gi")), StorageClass: "fast", Bus: "scsi"},
	}
	w.changeDisk("tools", func(v *vm.DiskView) { v.Image = toolsImage(1) })
	w.changeDisk("scratch", func(*vm.DiskView) {})
	return w
}

// completeDisk has CDI complete a disk.
func (w *world) completeDisk(name string) {
	w.changeDisk(name, func(v *vm.DiskView) {
		require.NotNil(w.t, v.DataVolume, name)
		v.DataVolume.Status.Phase = cdiv1.Succeeded
		v.Claim = rootDiskClaim(v.DataVolume, corev1.ClaimBound)
	})
}

// newRunningDisksWorld has a machine that runs with all its disks.
func newRunningDisksWorld(t *testing.T) *world {
	w := newDisksWorld(t)
	w.reconcile()
	w.completeDisk("tools")
	w.completeDisk("scratch")
	w.withRunningVM()
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	return w
}

func (w *world) diskStatus(name string) *v1alpha1.DataDisk {
	for i := range w.VM.Status.Disks {
		if w.VM.Status.Disks[i].Name == name {
			return &w.VM.Status.Disks[i]
		}
	}
	return nil
}

// removeDataVolume has a person delete a disk.
func (w *world) removeDataVolume(name string) {
	w.changeDisk(name, func(v *vm.DiskView) { v.DataVolume, v.Claim = nil, nil })
}

func TestDataDisksAreAcquiredAndCreated(t *testing.T) {
	w := newDisksWorld(t)
	first := w.decide()
	require.True(t, first.StoreStatusFirst, "the pin is stored before its image is read live")
	require.NotNil(t, first.Status.Disks[0].Pinned)
	assert.Nil(t, first.Status.Disks[0].Pinned.AcquiredAt)

	d := w.reconcile()
	require.Len(t, d.CreateDisks, 2)
	tools, scratch := d.CreateDisks[0], d.CreateDisks[1]
	assert.Equal(t, "tools-1", tools.Spec.Source.PVC.Name)
	assert.Equal(t, map[string]string{v1alpha1.LabelMachineUID: string(w.VM.UID), v1alpha1.LabelDisk: "tools"}, tools.Labels)
	assert.NotNil(t, scratch.Spec.Source.Blank)
	assert.Equal(t, "fast", *scratch.Spec.Storage.StorageClassName)
	assert.Equal(t, resource.MustParse("5Gi"), scratch.Spec.Storage.Resources.Requests[corev1.ResourceStorage])
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonPreparingDataDisk, "disk tools is being cloned")
	require.NotNil(t, w.KubeVirtVM, "where volumes bind late, the disks wait for the machine")
	var volumes []string
	for _, item := range w.getList(volumesPath) {
		volumes = append(volumes, item.(map[string]any)["name"].(string))
	}
	assert.Equal(t, []string{"root", "cloudinit", "tools", "scratch"}, volumes)

	w.completeDisk("tools")
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonPreparingDataDisk, "disk scratch is being created")
	assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
	w.completeDisk("scratch")
	w.withRunningVM()
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	w.requireAllOwned()
}

// TestDataDiskHoldsUpMachine wants each cause to be said with the name of the disk.
func TestDataDiskHoldsUpMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		phase  v1alpha1.MachinePhase
		reason v1alpha1.Reason
		want   string
	}{
		"no image": {
			func(w *world) { w.changeDisk("tools", func(v *vm.DiskView) { v.Image = nil }) },
			v1alpha1.MachineFailed, v1alpha1.ReasonImageMissing, "disk tools: VMDiskImage farm/tools does not exist: create it, or correct spec.disks",
		},
		"image not ready": {
			func(w *world) {
				w.changeDisk("tools", func(v *vm.DiskView) {
					v.Image.Status = v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseQueued, Reason: "Waiting"}
				})
			},
			v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "disk tools: waiting for VMDiskImage farm/tools: Queued",
		},
		"image failed": {
			func(w *world) {
				w.changeDisk("tools", func(v *vm.DiskView) {
					v.Image.Status = v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseFailed, Reason: "NotFound", Message: "404"}
				})
			},
			v1alpha1.MachineFailed, v1alpha1.ReasonImageFailed, "disk tools: VMDiskImage farm/tools failed: NotFound: 404",
		},
		"image being deleted": {
			func(w *world) { w.changeDisk("tools", func(v *vm.DiskView) { v.Image.Status.TearDown = true }) },
			v1alpha1.MachineProvisioning, v1alpha1.ReasonImageDeleting, "disk tools: VMDiskImage farm/tools is being deleted",
		},
		"name taken": {
			func(w *world) {
				w.changeDisk("scratch", func(v *vm.DiskView) {
					v.DataVolume = &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: kubevirt.DataDiskName(w.VM, "scratch")}}
				})
			},
			v1alpha1.MachineFailed, v1alpha1.ReasonNameTaken, "exists and was not created for this machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDisksWorld(t)
			tt.change(w)
			w.reconcile()
			w.requireState(tt.phase, tt.reason, tt.want)
			assert.Nil(t, w.KubeVirtVM, "a machine starts with all its disks")
			assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
		})
	}
	t.Run("CDI's cause", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.changeDisk("tools", func(v *vm.DiskView) {
			v.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: "Running", Status: "False", Reason: "ErrExceededQuota", Message: "exceeded quota: small"}}
		})
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonQuotaExceeded, "disk tools, is not cloned", "exceeded quota: small")
	})
	t.Run("a Pod's cause, of one disk", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.completeDisk("tools")
		pod := apitest.Pod("ns/importer").Obj()
		pod.Labels = map[string]string{v1alpha1.LabelMachineUID: string(w.VM.UID), v1alpha1.LabelDisk: "scratch"}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "importer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		w.Pods = []corev1.Pod{*pod}
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskFailed, "disk scratch of storageClass fast, is not created", "no such image")
	})
	t.Run("a failed clone is repeated", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.Failed })
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskFailed, "creating disk scratch failed")
		w.Now = w.Now.Add(time.Hour)
		require.Len(t, w.reconcile().DeleteDisks, 1)
		require.Len(t, w.reconcile().CreateDisks, 1, "it never was complete")
	})
	t.Run("refused", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.removeDataVolume("scratch")
		d := w.decide()
		require.Len(t, d.CreateDisks, 1)
		d.SetRefused(1, w.Now, v1alpha1.ReasonDataDiskRefused, "disk scratch", errors.New("no"))
		require.NotNil(t, d.Status.Disks[1].Volume, "it stays known that the agent requested it")
		assert.False(t, d.Status.Disks[1].Volume.Ready)
		assert.Equal(t, v1alpha1.ReasonDataDiskRefused, d.Status.Reason)
		assert.Equal(t, "NotCreated", meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDisksReady).Reason)
	})
}

// TestDeletedClaimOfDataDisk: CDI makes another claim for the DataVolume, which is complete all the time.
func TestDeletedClaimOfDataDisk(t *testing.T) {
	for _, disk := range []string{"tools", "scratch"} {
		t.Run(disk, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			w.changeDisk(disk, func(v *vm.DiskView) { markDeleted(v.Claim) })
			for range 2 {
				d := w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "PersistentVolumeClaim "+kubevirt.DataDiskName(w.VM, disk)+" of disk "+disk+" is being deleted", "save in the guest")
				assert.Empty(t, d.DeleteDisks)
				assert.Empty(t, d.CreateDisks)
				assert.True(t, w.diskStatus(disk).Volume.Ready)
				assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
			}
			w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"}).reconcile()
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "restore the DataVolume and its claim from a backup")
			w.VM.Spec.Disks = slices.DeleteFunc(w.VM.Spec.Disks, func(d v1alpha1.Disk) bool { return d.Name == disk })
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting) // a removed disk holds up nothing
		})
	}
}

// TestLostDataDiskIsNotReplaced: another disk would be without what the guest has written.
func TestLostDataDiskIsNotReplaced(t *testing.T) {
	for _, disk := range []string{"tools", "scratch"} {
		for name, lose := range map[string]func(*world){
			"gone": func(w *world) { w.removeDataVolume(disk) },
			"being deleted, then gone": func(w *world) {
				w.changeDisk(disk, func(v *vm.DiskView) { markDeleted(v.DataVolume) })
				w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "is being deleted")
				w.changeDisk(disk, func(v *vm.DiskView) { v.DataVolume = nil; markDeleted(v.Claim) })
				w.reconcile()
				w.removeDataVolume(disk)
			},
			"gone, with the machine stopped": func(w *world) {
				w.setKubeVirtStatus("Stopped", nil)
				w.removeDataVolume(disk)
			},
			"gone, with the machine": func(w *world) {
				w.removeDataVolume(disk)
				w.KubeVirtVM = nil
			},
			"gone, and the status of the machine too": func(w *world) {
				w.removeDataVolume(disk)
				w.VM.Status = v1alpha1.VirtualMachineStatus{ObservedGeneration: -1}
				w.refreshPinned()
			},
			"gone while CDI is": func(w *world) {
				w.removeDataVolume(disk)
				w.CDIServed = false
				w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonCDIMissing, "install CDI")
				require.True(w.t, w.diskStatus(disk).Volume.Ready, "it stays known that the disk was complete")
				w.CDIServed = true
			},
		} {
			t.Run(disk+" is "+name, func(t *testing.T) {
				w := newRunningDisksWorld(t)
				lose(w)
				for range 3 {
					assert.Empty(t, w.reconcile().CreateDisks)
					w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "DataVolume "+kubevirt.DataDiskName(w.VM, disk)+" of disk "+disk+" is gone", "give the disk another name")
				}
				assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
				for i := range w.VM.Spec.Disks {
					if w.VM.Spec.Disks[i].Name == disk {
						w.VM.Spec.Disks[i].Name = "fresh"
					}
				}
				w.changeDisk("fresh", func(v *vm.DiskView) { v.Image = w.Disks[disk].Image })
				var created []vm.CreateDisk
				for range 3 {
					created = append(created, w.reconcile().CreateDisks...)
				}
				require.Len(t, created, 1)
				assert.Equal(t, "fresh", created[0].Disk)
				assert.Nil(t, w.diskStatus(disk), "nothing of it is left")
			})
		}
	}
	t.Run("it comes back", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		kept := w.Disks["scratch"]
		w.removeDataVolume("scratch")
		w.reconcile()
		w.changeDisk("scratch", func(v *vm.DiskView) { *v = kept })
		w.reconcile()
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	})
	t.Run("its claim is lost", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		w.changeDisk("scratch", func(v *vm.DiskView) {
			v.DataVolume.Status.Phase = cdiv1.Failed
			v.Claim.Status.Phase = corev1.ClaimLost
		})
		w.Now = w.Now.Add(time.Hour)
		assert.Empty(t, w.reconcile().DeleteDisks)
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskFailed, "is lost", "save that, or give the disk another name")
	})
}

func TestRemovedDataDiskIsKept(t *testing.T) {
	w := newRunningDisksWorld(t)
	removed := w.VM.Spec.Disks[0]
	w.VM.Spec.Disks, w.VM.Generation = w.VM.Spec.Disks[1:], 2
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "disk tools is not in spec.disks and is kept until the machine is deleted")
	require.NotNil(t, w.diskStatus("tools").Pinned, "what it was cloned from stays")
	assert.True(t, w.diskStatus("tools").Removed)

	w.setKubeVirtStatus("Stopped", nil)
	require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
	assert.Len(t, w.getList(volumesPath), 3, "it is detached, and not taken for a disk of others")

	w.VM.Spec.Disks = append(w.VM.Spec.Disks, removed)
	assert.Empty(t, w.reconcile().CreateDisks, "it is attached again")
	assert.Len(t, w.getList(volumesPath), 4)
	assert.False(t, w.diskStatus("tools").Removed)

	w.VM.Spec.Disks = w.VM.Spec.Disks[:1]
	w.reconcile()
	w.removeDataVolume("tools")
	w.reconcile()
	assert.Nil(t, w.diskStatus("tools"), "a person has discarded it")
	w.VM.Spec.Disks = append(w.VM.Spec.Disks, removed)
	require.Len(t, w.reconcile().CreateDisks, 1)

	t.Run("incomplete", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.VM.Spec.Disks = nil
		w.reconcile()
		require.NotNil(t, w.Disks["tools"].DataVolume, "the KubeVirt machine is applied first")
		w.reconcile()
		w.reconcile()
		assert.Nil(t, w.Disks["tools"].DataVolume)
		assert.Nil(t, w.Disks["scratch"].DataVolume)
		w.reconcile()
		assert.Empty(t, w.VM.Status.Disks)
		assert.Nil(t, meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionDisksReady))
	})
	t.Run("no longer complete", func(t *testing.T) {
		for _, phase := range []cdiv1.DataVolumePhase{"", cdiv1.Pending, cdiv1.Failed} {
			w := newRunningDisksWorld(t)
			w.VM.Spec.Disks = w.VM.Spec.Disks[1:]
			w.setKubeVirtStatus("Stopped", nil)
			w.reconcile()
			w.changeDisk("tools", func(v *vm.DiskView) { v.DataVolume.Status.Phase = phase; v.Claim = nil })
			w.Now = w.Now.Add(time.Hour)
			for range 3 {
				assert.Empty(t, w.reconcile().DeleteDisks, "it may hold what the guest has written")
			}
			assert.NotNil(t, w.diskStatus("tools").Pinned)
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting) // it holds up nothing
		}
	})
	t.Run("one too many", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		for i := range 14 {
			w.VM.Status.Disks = append(w.VM.Status.Disks, v1alpha1.DataDisk{Name: fmt.Sprint("old-", i), Removed: true, Volume: &v1alpha1.DiskVolume{Ready: true}})
			dv := kubevirt.BuildDataDisk(w.VM, &v1alpha1.Disk{Name: fmt.Sprint("old-", i)}, nil, nil, resource.MustParse("1Gi"))
			dv.Status.Phase = cdiv1.Succeeded
			w.changeDisk(fmt.Sprint("old-", i), func(v *vm.DiskView) { v.DataVolume = dv })
		}
		w.VM.Spec.Disks = append(w.VM.Spec.Disks, v1alpha1.Disk{Name: "more", Size: ptr.To(resource.MustParse("1Gi"))})
		assert.Empty(t, w.reconcile().CreateDisks)
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonSpecInvalid, "disk more is one too many beside the removed disks that are kept")
		w.changeDisk("more", func(*vm.DiskView) {})
		w.removeDataVolume("old-3")
		w.reconcile()
		require.NotEmpty(t, w.reconcile().CreateDisks)
	})
}

func TestChangedDataDisk(t *testing.T) {
	t.Run("added while the machine runs", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		w.VM.Spec.Disks = append(w.VM.Spec.Disks, v1alpha1.Disk{Name: "late", Image: &v1alpha1.ImageReference{Name: "missing"}})
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonImageMissing, "disk late")
		w.VM.Spec.RunStrategy = "Halted"
		assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.reconcile().RunStrategy, "a machine can be stopped all the same")
		w.VM.Spec.RunStrategy = "Always"
		assert.Empty(t, w.reconcile().RunStrategy, "it starts with the disk")
		w.VM.Spec.Disks[2] = v1alpha1.Disk{Name: "late", Size: ptr.To(resource.MustParse("1Gi"))}
		require.Len(t, w.reconcile().CreateDisks, 1)
		w.changeDisk("late", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.WaitForFirstConsumer })
		w.reconcile()
		w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonPreparingDataDisk, "disk late is being created", "until then the machine runs without it")
		w.completeDisk("late")
		w.reconcile()
		assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	})
	for name, tt := range map[string]struct {
		change func(*v1alpha1.VirtualMachineSpec)
		want   string
	}{
		"to another image": {func(s *v1alpha1.VirtualMachineSpec) { s.Disks[0].Image.Name = "other" }, "disk tools was cloned from VMDiskImage farm/tools and stays: VMDiskImage farm/other is for a new disk"},
		"to blank": {func(s *v1alpha1.VirtualMachineSpec) {
			s.Disks[0] = v1alpha1.Disk{Name: "tools", Size: ptr.To(resource.MustParse("1Gi"))}
		}, "disk tools was cloned from VMDiskImage farm/tools and stays: a blank disk is a new one"},
		"to an image":               {func(s *v1alpha1.VirtualMachineSpec) { s.Disks[1].Image = &v1alpha1.ImageReference{Name: "a"} }, "disk scratch was created blank and stays: VMDiskImage ns/a is for a new disk"},
		"to larger":                 {func(s *v1alpha1.VirtualMachineSpec) { s.Disks[1].Size = ptr.To(resource.MustParse("9Gi")) }, "disk scratch has 5Gi and is not grown to its size in spec.disks"},
		"to smaller than its image": {func(s *v1alpha1.VirtualMachineSpec) { s.Disks[0].Size = ptr.To(resource.MustParse("1Mi")) }, "size of disk tools 1Mi is less than the size of image farm/tools: it has 1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			tt.change(&w.VM.Spec)
			d := w.reconcile()
			assert.Empty(t, d.CreateDisks)
			assert.Empty(t, d.DeleteDisks)
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), tt.want)
			require.NotNil(t, w.diskStatus("tools").Pinned)
		})
	}
	t.Run("before it is complete", func(t *testing.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.VM.Spec.Disks[0] = v1alpha1.Disk{Name: "tools", Size: ptr.To(resource.MustParse("2Gi"))}
		w.changeDisk("tools", func(v *vm.DiskView) { v.Image = nil })
		require.Len(t, w.reconcile().DeleteDisks, 1, "a clone that nobody wants is not used")
		d := w.reconcile()
		require.Len(t, d.CreateDisks, 1)
		assert.NotNil(t, d.CreateDisks[0].Spec.Source.Blank)
		assert.Nil(t, w.diskStatus("tools").Pinned)
	})
	t.Run("a blank one before it is complete", func(t *testing.T) {
		for name, change := range map[string]func(*v1alpha1.Disk){
			"storageClass": func(d *v1alpha1.Disk) { d.StorageClass = "slow" },
			"size":         func(d *v1alpha1.Disk) { d.Size = ptr.To(resource.MustParse("6Gi")) },
		} {
			w := newDisksWorld(t)
			w.reconcile()
			w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.Pending })
			assert.Empty(t, w.reconcile().DeleteDisks, name)
			change(&w.VM.Spec.Disks[1])
			require.Len(t, w.reconcile().DeleteDisks, 1, name)
			require.Len(t, w.reconcile().CreateDisks, 1, name)
			w.reconcile()
			w.completeDisk("scratch")
			change(&w.VM.Spec.Disks[1])
			w.VM.Spec.Disks[1].StorageClass = "other"
			assert.Empty(t, w.reconcile().DeleteDisks, "%s: the guest has written to it", name)
		}
	})
	t.Run("a new revision of its image", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		w.changeDisk("tools", func(v *vm.DiskView) { v.Image = toolsImage(2) })
		w.reconcile()
		assert.EqualValues(t, 1, w.diskStatus("tools").Pinned.Attempt)
	})
	t.Run("lost status", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		w.VM.Status = v1alpha1.VirtualMachineStatus{ObservedGeneration: -1}
		w.refreshPinned()
		w.reconcile()
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		require.NotNil(t, w.diskStatus("tools").Pinned)
		assert.NotNil(t, w.diskStatus("tools").Pinned.AcquiredAt)
	})
	t.Run("restored from a snapshot by KubeVirt", func(t *testing.T) {
		w := newRunningDisksWorld(t)
		volumes := w.getList(volumesPath)
		volumes[3] = map[string]any{"name": "scratch", "persistentVolumeClaim": map[string]any{"claimName": "restore-1-scratch"}}
		w.setList(volumes, volumesPath)
		w.setAnnotation("restore.kubevirt.io/lastRestoreUID", "vmrestore-1")
		w.removeDataVolume("scratch")
		w.VM.Spec.Version = "2"
		w.setKubeVirtStatus("Stopped", nil)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Contains(t, w.getList(volumesPath)[3], "persistentVolumeClaim")
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "disk scratch is PersistentVolumeClaim restore-1-scratch and is kept")
		assert.Empty(t, w.lastDecision.CreateDisks)
		assert.True(t, w.hasCondition(v1alpha1.ConditionDisksReady), "the restored claim is the disk")
	})
	t.Run("ignored on deploy", func(t *testing.T) {
		w := newDisksWorld(t)
		w.VM.Spec.IgnoreOnDeploy = true
		w.changeDisk("tools", func(v *vm.DiskView) { v.Image = nil })
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonImageMissing, "disk tools")
	})
}
