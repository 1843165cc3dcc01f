package vm

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// completeVolume returns the state of a disk that is complete, or was, with the claim that the status
// knows of.
func (d *diskDecider) completeVolume() *v1alpha1.DiskVolume {
	volume := &v1alpha1.DiskVolume{DataVolume: d.objectName, Size: d.diskSize(), Ready: true}
	if d.previous != nil {
		volume.DataVolumeUID, volume.ClaimUID = d.previous.DataVolumeUID, d.previous.ClaimUID
	}
	return volume
}

// knownClaim returns the claim of the disk, also one that only a live read has found: it has lost the
// machine's label, or is newer than the cache.
func (d *diskDecider) knownClaim() *corev1.PersistentVolumeClaim { return cmp.Or(d.Claim, d.LiveClaim) }

// recordClaim has the status remember the claim of a complete data disk, which the guest writes to. A
// claim that belongs to a former DataVolume is in a cache that lags behind, and while another
// claim is the disk, as a restored one, this one may be CDI's, without what the guest has written.
func (d *diskDecider) recordClaim() {
	claim := d.knownClaim()
	if d.isRoot() || claim == nil || claim.Status.Phase != corev1.ClaimBound || d.isReplacedElsewhere() {
		return
	}
	d.volume.DataVolumeUID = ""
	if d.DataVolume != nil {
		if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "DataVolume" && owner.UID != d.DataVolume.UID {
			d.volume.ClaimUID = ""
			return
		}
		d.volume.DataVolumeUID = d.DataVolume.UID
	}
	d.volume.ClaimUID = claim.UID
}

// knowsClaim reports whether the status has the claim of this complete data disk. One of another
// DataVolume says nothing: a person has restored the disk.
func (d *diskDecider) knowsClaim() bool {
	return !d.isRoot() && d.isComplete() && d.DataVolume != nil &&
		d.previous != nil && d.previous.ClaimUID != "" && d.previous.DataVolumeUID == d.DataVolume.UID
}

// losesClaim reports whether the claim of a complete data disk is being deleted, and the machine has
// it: another claim may be the disk instead.
func (d *diskDecider) losesClaim() bool {
	claim := d.knownClaim()
	return !d.isRoot() && d.isComplete() && claim != nil && claim.DeletionTimestamp != nil && !d.isReplacedElsewhere()
}

// isReplacedElsewhere reports whether a claim of another name is the disk, since KubeVirt has restored a
// snapshot or migrates the volume.
func (d *diskDecider) isReplacedElsewhere() bool {
	claim := d.replacingClaim()
	return claim != "" && claim != d.objectName
}

// hasDisk reports whether the machine has the disk and needs no image for it: it is complete, or a claim of
// another name is that disk of this machine, whatever becomes of the DataVolume.
func (d *diskDecider) hasDisk() bool {
	return d.isComplete() || (d.isReplacedElsewhere() && d.ownsObject(d.KubeVirtVM))
}

// isMigrated reports whether the machine has the disk since KubeVirt migrates, or has migrated, its volume.
func (d *diskDecider) isMigrated() bool {
	if d.KubeVirtVM == nil || !d.ownsObject(d.KubeVirtVM) {
		return false
	}
	_, isMigration := kubevirt.ReplacingClaim(d.KubeVirtVM, d.volumeName(), d.objectName)
	return isMigration
}

// isRestoredInPlace reports whether KubeVirt has restored a snapshot into this claim, which has the disk's
// name. Invariant: that of another restore, which may not be complete, or one that CDI has made since, is
// not the disk.
func (d *diskDecider) isRestoredInPlace(claim *corev1.PersistentVolumeClaim) bool {
	return d.replacingClaim() == d.objectName && kubevirt.IsOfSameRestore(claim, d.KubeVirtVM)
}

// replacingClaim returns the claim that is the disk since KubeVirt has restored a snapshot or migrates the
// volume; empty for none.
func (d *diskDecider) replacingClaim() string {
	if d.KubeVirtVM == nil {
		return ""
	}
	claim, _ := kubevirt.ReplacingClaim(d.KubeVirtVM, d.volumeName(), d.objectName)
	return claim
}

// reportClaimDeletion says that the claim of a complete data disk is being deleted without its
// DataVolume: as long as an instance runs with it, the guest's data can be saved.
func (d *diskDecider) reportClaimDeletion() {
	d.volume = d.completeVolume()
	if !d.knowsClaim() {
		d.recordClaim()
	}
	advice := "restore the DataVolume and its claim from a backup"
	if d.KubeVirtVM != nil && d.isUsed() && d.instanceIsRunning() {
		advice = "save in the guest what it has written, since it stays only while the machine runs"
	}
	consequence := ", and CDI makes another one without what the guest has written: " + advice
	if d.mayBeRestoredInPlace() {
		consequence = d.restoreAdvice(advice)
	}
	d.reportLostClaim(fmt.Sprintf("PersistentVolumeClaim %s of %s is being deleted", d.objectName, d.title), consequence)
}

// checkClaim reports a complete data disk without the claim that it was complete with, and whether
// the decision about the disk ends with that.
//
// Invariant: CDI 1.65 makes another claim, blank or cloned, for a DataVolume that lacks one, and the
// DataVolume is complete all the time. Such a claim is never shown as the guest's disk, unless a
// person accepts it. A claim that the cache does not have is read live: it may have lost its label.
func (d *diskDecider) checkClaim() (ends bool) {
	if !d.knowsClaim() || d.isReplacedElsewhere() {
		return false
	}
	switch claim := d.knownClaim(); {
	case claim == nil && !d.Live:
		d.decision.NeedsLive = true
		return true
	case claim == nil:
		d.volume = d.completeVolume()
		consequence := ", and CDI makes another one without what the guest has written: " + d.replacedClaimAdvice()
		if d.mayBeRestoredInPlace() {
			consequence = d.restoreAdvice(d.replacedClaimAdvice())
		}
		d.reportLostClaim(fmt.Sprintf("PersistentVolumeClaim %s of %s is gone", d.objectName, d.title), consequence)
		return true
	case claim.UID == d.previous.ClaimUID || claim.Annotations[v1alpha1.AnnotationAcceptClaim] == string(claim.UID) || d.isRestoredInPlace(claim):
		return false
	default:
		d.volume = d.completeVolume()
		consequence := " without what the guest has written: " + d.replacedClaimAdvice()
		if d.mayBeRestoredInPlace() || kubevirt.IsRestored(claim) {
			consequence = d.restoreAdvice(d.replacedClaimAdvice())
		}
		d.reportLostClaim(fmt.Sprintf("PersistentVolumeClaim %s of %s was deleted, and another one has taken its place", d.objectName, d.title),
			consequence+". To use the one that is there: "+shellword.FormatCommand("kubectl -n %s annotate persistentvolumeclaim %s %s --overwrite",
				d.VM.Namespace, d.objectName, v1alpha1.AnnotationAcceptClaim+"="+string(claim.UID)))
		return true
	}
}

// mayBeRestoredInPlace reports whether KubeVirt (1.8) may be restoring a snapshot into another claim of
// the same name: it marks the DataVolume before, and CDI makes no claim for such a one. The mark stays
// for good, and tools that restore backups set it, too.
func (d *diskDecider) mayBeRestoredInPlace() bool {
	return d.DataVolume != nil && d.DataVolume.Annotations[cdiv1.AnnPrePopulated] != ""
}

// restoreAdvice says what to wait for: what is deleted or written before may destroy the restored disk.
// otherwise is what to do where nothing is restored.
func (d *diskDecider) restoreAdvice(otherwise string) string {
	return fmt.Sprintf(", maybe since KubeVirt restores a snapshot in its place: wait until no VirtualMachineRestore of the machine is in progress (%s); where none is, %s",
		shellword.FormatCommand("kubectl -n %s get virtualmachinerestores", d.VM.Namespace), otherwise)
}

func (d *diskDecider) replacedClaimAdvice() string {
	return fmt.Sprintf("delete DataVolume %s and restore it with its claim from a backup, or give the disk another name in spec.disks to get a new one", d.objectName)
}

// reportLostClaim says what happened to the claim, and what follows from it.
func (d *diskDecider) reportLostClaim(message, consequence string) {
	d.lostMessage = message
	if !d.isRemoved() {
		d.requeueWithin(missingRecheckInterval) // a claim that is restored without the machine's label has no event
	}
	if !d.deployIgnored() {
		d.setBlocker(failedState(v1alpha1.ReasonDataDiskLost, message+consequence))
	}
}
