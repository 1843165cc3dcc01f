package vm_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// replaceClaim has CDI make another claim for a DataVolume that is complete all the time.
func (w *world) replaceClaim(disk string) {
	w.changeDisk(disk, func(v *vm.DiskView) {
		v.Claim = rootDiskClaim(v.DataVolume, corev1.ClaimBound)
		v.Claim.UID = types.UID("uid-of-another-claim-of-" + disk)
	})
}

func (w *world) acceptClaim(disk string, uid types.UID) {
	w.changeDisk(disk, func(v *vm.DiskView) {
		v.Claim = v.Claim.DeepCopy()
		v.Claim.Annotations = map[string]string{v1alpha1.AnnotationAcceptClaim: string(uid)}
	})
}

// TestReplacedClaimOfDataDisk: what CDI makes in place of a deleted claim is not shown as the guest's disk.
func TestReplacedClaimOfDataDisk(t *testing.T) {
	for _, disk := range []string{"tools", "scratch"} {
		for name, replace := range map[string]func(*world){
			"seen from its deletion on": func(w *world) {
				w.changeDisk(disk, func(v *vm.DiskView) { v.Claim = v.Claim.DeepCopy(); markDeleted(v.Claim) })
				w.reconcile()
				w.changeDisk(disk, func(v *vm.DiskView) { v.Claim = nil })
				w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "PersistentVolumeClaim "+kubevirt.DataDiskName(w.VM, disk)+" of disk "+disk+" is gone")
				w.replaceClaim(disk)
			},
			"while the agent was down": func(w *world) { w.replaceClaim(disk) },
			"not bound yet": func(w *world) {
				w.replaceClaim(disk)
				w.changeDisk(disk, func(v *vm.DiskView) { v.Claim.Status.Phase = corev1.ClaimPending })
			},
			"of a machine of an earlier release": func(w *world) {
				w.diskStatus(disk).Volume.ClaimUID, w.diskStatus(disk).Volume.DataVolumeUID = "", ""
				w.reconcile()
				w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
				w.replaceClaim(disk)
			},
			"of an earlier release, seen from its deletion on": func(w *world) {
				w.diskStatus(disk).Volume.ClaimUID, w.diskStatus(disk).Volume.DataVolumeUID = "", ""
				w.changeDisk(disk, func(v *vm.DiskView) { v.Claim = v.Claim.DeepCopy(); markDeleted(v.Claim) })
				w.reconcile()
				w.replaceClaim(disk)
			},
			"with the machine stopped": func(w *world) {
				w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"})
				w.replaceClaim(disk)
			},
			"with an acceptance of another one": func(w *world) {
				w.replaceClaim(disk)
				w.acceptClaim(disk, "uid-of-a-copied-claim")
			},
		} {
			newReplaced := func(t *testing.T) *world {
				w := newRunningDisksWorld(t)
				replace(w)
				return w
			}
			requireLost := func(w *world) {
				for range 3 {
					d := w.reconcile()
					assert.Empty(t, d.DeleteDisks)
					assert.Empty(t, d.CreateDisks)
					w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "PersistentVolumeClaim "+kubevirt.DataDiskName(w.VM, disk)+" of disk "+disk+" was deleted, and another one has taken its place", "give the disk another name")
					assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
				}
			}
			t.Run(disk+" "+name, func(t *testing.T) {
				w := newReplaced(t)
				requireLost(w)
				w.KubeVirtVM = nil
				assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "no machine is started with it")
			})
			t.Run(disk+" "+name+", then accepted", func(t *testing.T) {
				w := newReplaced(t)
				requireLost(w)
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "kubectl -n ns annotate persistentvolumeclaim "+kubevirt.DataDiskName(w.VM, disk)+" pelotech.ot/accept-claim=uid-of-another-claim-of-"+disk)
				w.acceptClaim(disk, w.Disks[disk].Claim.UID)
				w.reconcile()
				assert.True(t, w.hasCondition(v1alpha1.ConditionDisksReady))
				w.changeDisk(disk, func(v *vm.DiskView) {
					v.Claim.Annotations, v.Claim.Status.Phase = nil, corev1.ClaimBound
				})
				if w.reconcile(); name != "not bound yet" {
					assert.True(t, w.hasCondition(v1alpha1.ConditionDisksReady), "the status remembers it")
				}
			})
			t.Run(disk+" "+name+", then restored", func(t *testing.T) {
				w := newReplaced(t)
				requireLost(w)
				restored := w.Disks[disk].DataVolume.DeepCopy()
				w.removeDataVolume(disk)
				w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "DataVolume "+restored.Name+" of disk "+disk+" is gone")
				restored.UID = "uid-of-restored"
				w.changeDisk(disk, func(v *vm.DiskView) {
					v.DataVolume = restored
					v.Claim = rootDiskClaim(restored, corev1.ClaimBound)
					v.Claim.UID = "uid-of-restored-claim"
				})
				w.reconcile()
				assert.True(t, w.hasCondition(v1alpha1.ConditionDisksReady))
				w.replaceClaim(disk)
				requireLost(w)
			})
		}
	}
}

// TestClaimOfRemovedDiskIsRemembered: it holds nothing up until the disk is in the spec again.
func TestClaimOfRemovedDiskIsRemembered(t *testing.T) {
	w := newRunningDisksWorld(t)
	removed := w.VM.Spec.Disks[1]
	w.VM.Spec.Disks = w.VM.Spec.Disks[:1]
	w.reconcile()
	w.replaceClaim("scratch")
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	w.VM.Spec.Disks = append(w.VM.Spec.Disks, removed)
	w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "of disk scratch was deleted")
}

// hideClaim has only live reads find the claim: it has lost its label, or is newer than the cache.
func (w *world) hideClaim(disk string) {
	w.unlabelled = map[string]*corev1.PersistentVolumeClaim{disk: w.Disks[disk].Claim}
	w.changeDisk(disk, func(v *vm.DiskView) { v.Claim = nil })
}

func (w *world) showClaim(disk string) {
	if claim := w.unlabelled[disk]; claim != nil {
		w.unlabelled = nil
		w.changeDisk(disk, func(v *vm.DiskView) { v.Claim = claim })
	}
}

// TestClaimThatOnlyLiveReadFinds: it is compared with the one that the status knows, as a cached one is.
func TestClaimThatOnlyLiveReadFinds(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*world)
		wantLost string
	}{
		"another one": {func(w *world) { w.replaceClaim("scratch") }, "was deleted, and another one has taken its place"},
		"another one, not bound yet": {func(w *world) {
			w.replaceClaim("scratch")
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim.Status.Phase = corev1.ClaimPending })
		}, "was deleted, and another one has taken its place"},
		"the known one, which is being deleted": {func(w *world) {
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = v.Claim.DeepCopy(); markDeleted(v.Claim) })
		}, "is being deleted"},
		"one that a person accepts": {func(w *world) {
			w.replaceClaim("scratch")
			w.acceptClaim("scratch", w.Disks["scratch"].Claim.UID)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			tt.change(w)
			w.hideClaim("scratch")
			if w.reconcile(); tt.wantLost == "" {
				w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
				assert.Equal(t, w.unlabelled["scratch"].UID, w.diskStatus("scratch").Volume.ClaimUID, "the status remembers it")
				return
			}
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, tt.wantLost)
			assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
			w.KubeVirtVM = nil
			assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "no machine is started with it")
		})
	}
}

// TestLostClaimIsReadAgain: no event says that it is restored without the label.
func TestLostClaimIsReadAgain(t *testing.T) {
	w := newRunningDisksWorld(t)
	known := w.Disks["scratch"].Claim
	w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = nil })
	d := w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost)
	assert.Equal(t, 30*time.Second, d.RequeueAfter)
	w.unlabelled = map[string]*corev1.PersistentVolumeClaim{"scratch": known}
	assert.Zero(t, w.reconcile().RequeueAfter)
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
}

// TestClaimWithoutLabelIsNotLost: no cache has it.
func TestClaimWithoutLabelIsNotLost(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.hideClaim("scratch")
	v := w.View
	require.True(t, w.decideChecked(v).NeedsLive)
	d := w.decide()
	assert.Equal(t, v1alpha1.ReasonRunning, d.Status.Reason)
	assert.Equal(t, w.diskStatus("scratch").Volume, d.Status.Disks[1].Volume, "the status remembers it")
}

// TestClaimOfFormerDataVolumeIsNotRecorded: the cache of claims may lag behind that of DataVolumes.
func TestClaimOfFormerDataVolumeIsNotRecorded(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.diskStatus("scratch").Volume.ClaimUID, w.diskStatus("scratch").Volume.DataVolumeUID = "", ""
	current := w.Disks["scratch"].Claim
	w.changeDisk("scratch", func(v *vm.DiskView) {
		v.Claim = current.DeepCopy()
		v.Claim.UID, v.Claim.OwnerReferences[0].UID = "uid-of-former-claim", "uid-of-former-disk"
	})
	w.reconcile()
	assert.Empty(t, w.diskStatus("scratch").Volume.ClaimUID)
	w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = current })
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.Equal(t, current.UID, w.diskStatus("scratch").Volume.ClaimUID)
}

// restoreDisk has KubeVirt restore a snapshot of data disk scratch into a claim.
func (w *world) restoreDisk(claim string) {
	volumes := w.getList(volumesPath)
	volumes[3] = map[string]any{"name": "scratch", "persistentVolumeClaim": map[string]any{"claimName": claim}}
	w.setList(volumes, volumesPath)
	w.setAnnotation("restore.kubevirt.io/lastRestoreUID", "vmrestore-1")
}

// TestClaimBesideRestoredOneIsNotRecorded: CDI's empty claim is not the disk once a person returns to it.
func TestClaimBesideRestoredOneIsNotRecorded(t *testing.T) {
	w := newRunningDisksWorld(t)
	former, known := w.getList(volumesPath), w.Disks["scratch"].Claim.UID
	w.restoreDisk("restore-1-scratch")
	w.replaceClaim("scratch")
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.Equal(t, known, w.diskStatus("scratch").Volume.ClaimUID)
	w.setAnnotation("restore.kubevirt.io/lastRestoreUID", "")
	w.setList(former, volumesPath)
	w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "another one has taken its place")
}

// TestRestoreInPlaceIsWaitedFor: to delete the DataVolume meanwhile would delete what KubeVirt restores.
func TestRestoreInPlaceIsWaitedFor(t *testing.T) {
	prePopulate := func(w *world) {
		w.changeDisk("scratch", func(v *vm.DiskView) {
			v.DataVolume = v.DataVolume.DeepCopy()
			v.DataVolume.Annotations[cdiv1.AnnPrePopulated] = v.DataVolume.Name
		})
	}
	for name, tt := range map[string]struct {
		change   func(*world)
		wantText string
	}{
		"the former claim is being deleted": {func(w *world) {
			prePopulate(w)
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = v.Claim.DeepCopy(); markDeleted(v.Claim) })
		}, "where none is, save in the guest"},
		"there is no claim": {func(w *world) {
			prePopulate(w)
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = nil })
		}, "where none is, delete DataVolume"},
		"the restored claim": {func(w *world) {
			prePopulate(w)
			w.replaceClaim("scratch")
		}, "To use the one that is there: kubectl"},
		"the restored claim, with KubeVirt's annotation alone": {func(w *world) {
			w.replaceClaim("scratch")
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim.Annotations = map[string]string{"restore.kubevirt.io/name": "r"} })
		}, "To use the one that is there: kubectl"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			tt.change(w)
			w.reconcile()
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "KubeVirt restores a snapshot in its place: wait until no VirtualMachineRestore of the machine is in progress (kubectl -n ns get virtualmachinerestores)", tt.wantText)
			assert.NotContains(t, w.VM.Status.Message, "CDI makes another one")
			assert.NotContains(t, w.VM.Status.Message, "without what the guest has written")
			assert.Equal(t, 1, strings.Count(w.VM.Status.Message, "where none is"), w.VM.Status.Message)
		})
	}
}

// TestDataDiskNeverShowsForeignClaim draws what happens to a claim: no decision shows a machine as ready
// with a claim that nobody has accepted, in the place of the one that it was ready with.
func TestDataDiskNeverShowsForeignClaim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newDisksWorld(t)
		w.reconcile()
		w.completeDisk("tools")
		w.completeDisk("scratch")
		w.withRunningVM()
		w.reconcile()
		known, next := w.Disks["scratch"].Claim.UID, 'a'
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			w.showClaim("scratch")
			claim := w.Disks["scratch"].Claim
			switch rapid.SampledFrom([]string{"delete", "remove", "make", "accept", "stop", "bind", "hide", "look"}).Draw(t, "step") {
			case "delete":
				if claim != nil {
					w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = claim.DeepCopy(); markDeleted(v.Claim) })
				}
			case "remove":
				w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = nil })
			case "make":
				if claim == nil {
					w.changeDisk("scratch", func(v *vm.DiskView) {
						v.Claim = rootDiskClaim(v.DataVolume, rapid.SampledFrom([]corev1.PersistentVolumeClaimPhase{corev1.ClaimPending, corev1.ClaimBound}).Draw(t, "phase"))
						v.Claim.UID = types.UID("uid-" + string(next))
					})
					next++
				}
			case "accept":
				if claim != nil {
					w.acceptClaim("scratch", claim.UID)
					if claim.DeletionTimestamp == nil {
						known = claim.UID
					}
				}
			case "bind":
				if claim != nil {
					w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = claim.DeepCopy(); v.Claim.Status.Phase = corev1.ClaimBound })
				}
			case "hide":
				w.hideClaim("scratch")
			case "stop":
				w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"})
			}
			d := w.reconcile()
			require.Empty(t, d.CreateDisks)
			require.Empty(t, d.DeleteDisks)
			claim = cmp.Or(w.Disks["scratch"].Claim, w.unlabelled["scratch"])
			isKnown := claim != nil && claim.DeletionTimestamp == nil && claim.UID == known
			require.Equal(t, isKnown, w.hasCondition(v1alpha1.ConditionDisksReady))
		}
	})
}
