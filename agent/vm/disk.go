package vm

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/diagnosis"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failedCloneRetryDelay is the age at which a failed clone is replaced. Retries are
// unlimited: cloning costs no egress.
const failedCloneRetryDelay = time.Minute

// cloneGracePeriod is how long a new clone may be unschedulable, or unknown to CDI: its claims
// are bound one after the other.
const cloneGracePeriod = 30 * time.Second

// reconcile clones the disk from the pin, or creates a blank one. Invariant: a disk that was
// complete is never deleted here, whatever its source, and a data disk that may hold data is
// neither deleted nor created again: the guest may have written to it.
func (d *diskDecider) reconcile() {
	d.volume = nil
	if !d.isRoot() {
		d.volume = d.previous // only the status may know that the disk was requested, or complete
	}
	p := d.pinned
	switch {
	case d.reportMadeDisk():
	case d.deployIgnored() || d.isRemoved():
		d.deleteIncompleteDisk()
	case d.keepsPin:
		d.blockOnImage(d.reasons.preparing, fmt.Sprintf("the source of %s changes: waiting up to a minute, because a request of the agent that ran before may still clone VMDiskImage %s/%s", d.title, p.Namespace, p.Name))
	case !d.isBlank() && !d.replaces && (p == nil || p.AcquiredAt == nil):
		d.deleteIncompleteDisk()
		d.blockOnImage(v1alpha1.ReasonAcquiringImage, d.prefix()+fmt.Sprintf("VMDiskImage %s is ready; the machine is about to acquire it", d.imageName))
	default:
		d.makeDisk()
	}
}

// reportMadeDisk reports a disk that is complete, or may have been, and objects of its name that are not
// its own; false where the disk may be made. The order of the cases counts.
func (d *diskDecider) reportMadeDisk() bool {
	switch dv := d.DataVolume; {
	case dv != nil && !d.ownsObject(dv):
		d.reportForeignDataVolume()
	case d.hasFailedLater(): // first: only the status may know that the disk was cloned
		d.reportFailedLater()
	case d.Claim != nil && !d.ownsObject(d.Claim):
		if !d.isRemoved() {
			d.waitForLeftover("PersistentVolumeClaim", d.Claim, dv)
		}
	case d.losesClaim():
		d.reportClaimDeletion()
	case d.checkClaim():
	case d.hasDisk():
		d.requested = true
		d.volume = d.completeVolume()
		d.recordClaim()
	case !d.CDIServed && !d.deployIgnored() && !d.isRemoved(): // a disk that cannot be read is not lost
		d.setBlocker(failedState(v1alpha1.ReasonCDIMissing, "the cluster does not serve CDI's DataVolume: install CDI; the agent detects it"))
	case d.holdsData():
		d.reportLost()
	case d.mayHoldData() && !d.isRemoved() && (dv == nil || dv.DeletionTimestamp != nil):
		if !d.Live {
			d.decision.NeedsLive = true
			return true
		}
		d.volume = d.completeVolume()
		d.reportLost()
	default:
		return false
	}
	return true
}

func (d *diskDecider) reportForeignDataVolume() {
	switch dv := d.DataVolume; {
	case d.isRemoved():
	case dv.Labels[v1alpha1.LabelMachineUID] == "":
		d.setBlocker(nameTakenState("DataVolume", d.objectName))
		d.requeueWithin(missingRecheckInterval)
	default:
		d.waitForLeftover("DataVolume", dv, dv)
	}
}

// makeDisk creates the disk, follows it until it is complete, and replaces what cannot become that.
func (d *diskDecider) makeDisk() {
	p, name := d.pinned, d.objectName
	switch dv := d.DataVolume; {
	case dv == nil && d.cannotBeBuilt():
	case dv == nil && d.isRoot() && d.startMismatch() != "":
		d.setBlocker(failedState(v1alpha1.ReasonArchitectureMismatch, d.startMismatch()))
	case dv == nil:
		d.createDisk(p)
	case dv.DeletionTimestamp != nil && d.isHeldByInstance(dv):
		d.setBlocker(d.stopToReplace("DataVolume " + name))
	case dv.DeletionTimestamp != nil:
		d.setBlocker(provisioningState(d.reasons.preparing, fmt.Sprintf("DataVolume %s is being deleted; then %s is %s again", name, d.title, d.doneWord())))
	case d.mayHoldData():
		d.setRequested(dv)
	case d.replaces || dv.Annotations[v1alpha1.AnnotationClonedFrom] != sourceAnnotation(p):
		d.deleteIncompleteDisk()
		d.setBlocker(provisioningState(d.reasons.preparing, fmt.Sprintf("DataVolume %s is an unfinished clone of another source and is replaced", name)))
	case d.awaitsRebuildCheck(dv):
		d.decision.NeedsLive = true
	case d.isRebuilt(dv):
		d.deleteIncompleteDisk()
		d.setBlocker(provisioningState(d.reasons.preparing, fmt.Sprintf("DataVolume %s is unfinished, of another size or storageClass than %s, and is replaced", name, d.title)))
	case dv.Status.Phase == cdiv1.Failed:
		d.retryFailedClone(dv)
	case d.hasExpiredToken(dv):
		d.renewToken(dv)
	default:
		d.setRequested(dv)
	}
}

// blockOnImage says what is wrong with the image, or, where nothing is, what is waited for.
func (d *diskDecider) blockOnImage(reason v1alpha1.Reason, message string) {
	state := d.imageState
	if state.phase == v1alpha1.MachineReady {
		state = provisioningState(reason, message)
	}
	d.setBlocker(state)
}

// setRequested reports the progress of an existing disk.
func (d *diskDecider) setRequested(dv *cdiv1.DataVolume) {
	if p := d.pinned; p != nil && p.SourceNamespace != "" {
		d.requeueWithin(missingRecheckInterval) // others may delete the source: no event says so
	}
	d.requested = true
	d.volume = &v1alpha1.DiskVolume{DataVolume: d.objectName, Size: d.diskSize(), Progress: v1alpha1.SanitizeText(string(dv.Status.Progress), maxStateBytes)}
	state := d.cloningState(dv)
	if d.late = state.phase == v1alpha1.MachineProvisioning && d.awaitsStart(dv); !d.late {
		d.setProgress(state)
	}
}

// setProgress sets the state of a requested disk: what needs a person blocks at once.
func (d *diskDecider) setProgress(state machineState) {
	if state.phase == v1alpha1.MachineFailed {
		d.setBlocker(state)
		return
	}
	d.progress = &state
}

// doneWord says what is done to make the disk.
func (d *diskDecider) doneWord() string {
	if d.isBlank() {
		return "created"
	}
	return "cloned"
}

// createDisk creates the disk. The pin is acquired, but its source may have been deleted by
// hand since.
func (d *diskDecider) createDisk(p *v1alpha1.PinnedImage) {
	if d.Claim != nil {
		former := fmt.Sprintf("PersistentVolumeClaim %s of a former %s", d.Claim.Name, strings.TrimPrefix(d.title, "the "))
		if d.isHeldByInstance(d.Claim) {
			d.setBlocker(d.stopToReplace(former))
		}
		d.setBlocker(provisioningState(d.reasons.preparing, former+" still exists: waiting until it is removed"))
		return
	}
	switch {
	case !d.isRoot() && !d.Live: // it may hold data
		d.decision.NeedsLive = true
		return
	case !d.LiveImages: // a root disk that a cache does not know of is found by its creation
		d.decision.NeedsLiveImages = true
		return
	}
	if mismatch := d.cloneMismatch(d.Image); mismatch != "" && !d.SourceExists {
		d.setBlocker(failedState(v1alpha1.ReasonArchitectureMismatch, mismatch)) // no other source is pinned for that
		return
	}
	if !d.isBlank() && (d.Pinned == nil || !d.SourceExists) {
		d.setBlocker(provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("the source of %s, VMDiskImage %s/%s revision %s, is gone: waiting until the image reports that", d.title, p.Namespace, p.Name, p.Revision)))
		if d.Pinned != nil && stillServes(d.Pinned, p) { // otherwise an event of the image follows
			d.requeueWithin(time.Second)
		}
		return
	}
	dv, size := d.buildDisk(p)
	d.decision.CreateDisks = append(d.decision.CreateDisks, CreateDisk{dv, d.name})
	d.requested = true
	d.volume = &v1alpha1.DiskVolume{DataVolume: dv.Name, Size: size}
	d.setProgress(provisioningState(d.reasons.preparing, d.title+" is being "+d.doneWord()))
}

// isHeldByInstance reports whether an object of the disk is being deleted and stays as long as an
// instance runs with it (finalizer kubernetes.io/pvc-protection), which nobody is about to stop.
func (d *diskDecider) isHeldByInstance(o metav1.Object) bool {
	if o.GetDeletionTimestamp() == nil || d.KubeVirtVM == nil || d.KubeVirtVM.GetDeletionTimestamp() != nil || !d.ownsObject(d.KubeVirtVM) || !d.isUsed() || !d.instanceIsRunning() {
		return false
	}
	return liveRunStrategy(d.KubeVirtVM) != string(halted) && d.VM.Spec.RunStrategy != halted
}

// stopToReplace returns the state of a machine that runs with a disk that somebody has deleted.
func (d *diskDecider) stopToReplace(object string) machineState {
	return failedState(d.reasons.failed, fmt.Sprintf("%s is being deleted, but stays while the machine runs with it: stop the machine to have %s %s again, which loses what the guest has written (virtctl -n %s stop %s)",
		object, d.title, d.doneWord(), d.VM.Namespace, d.VM.Name))
}

func (d *diskDecider) buildDisk(p *v1alpha1.PinnedImage) (*cdiv1.DataVolume, resource.Quantity) {
	if d.isRoot() {
		img := d.cloneSourceImage()
		size, _ := kubevirt.RootDiskSize(d.VM, img)
		return kubevirt.BuildRootDisk(d.VM, img, *p, size), size
	}
	var img *v1alpha1.VMDiskImage
	if !d.isBlank() {
		img = d.cloneSourceImage()
	}
	size, _ := kubevirt.DataDiskSize(d.spec, img)
	return kubevirt.BuildDataDisk(d.VM, d.spec, img, p, size), size
}

// deleteIncompleteDisk deletes an unfinished disk. A DataVolume without a status and with a
// bound claim may be complete: backups restore no status. One that a machine waits for is
// deleted once the machine no longer names it. Invariant: a data disk is deleted only where the
// status says that the agent requested it, and after a live read of it and of the machine that
// may use it.
func (d *diskDecider) deleteIncompleteDisk() {
	dv := d.DataVolume
	if dv == nil || dv.DeletionTimestamp != nil || (dv.Status.Phase == "" && d.Claim != nil && d.Claim.Status.Phase == corev1.ClaimBound) {
		return
	}
	if d.mayHoldData() || (d.isRemoved() && d.isUsed()) {
		return
	}
	if !d.isRoot() && !d.Live {
		d.decision.NeedsLive = true
		return
	}
	d.decision.DeleteDisks = append(d.decision.DeleteDisks, DeleteTarget{d.name, dv.Name, dv.UID, dv.ResourceVersion})
}

// wasReady reports whether the status says that the disk was complete.
func (d *diskDecider) wasReady() bool { return d.previous != nil && d.previous.Ready }

// isUsed reports whether the KubeVirt VirtualMachine has the data disk as a volume. A restore in place
// has it name the claim.
func (d *diskDecider) isUsed() bool {
	return d.KubeVirtVM != nil && (kubevirt.UsesDataVolume(d.KubeVirtVM, d.volumeName(), d.objectName) || d.replacingClaim() == d.objectName)
}

// mayHoldData reports whether the guest may have written to a data disk that is not complete now:
// it was complete before, the status does not know of its DataVolume or claim, as after a
// restore, or a machine that has started has it as a volume. The last covers an agent that was
// down while the disk was completed and lost.
func (d *diskDecider) mayHoldData() bool {
	switch {
	case d.isRoot() || d.isComplete() || (d.isRemoved() && d.DataVolume == nil && d.Claim == nil):
		return false
	case d.holdsData():
		return true
	default:
		return (d.previous == nil && d.isOwned()) || (d.isUsedByMachine() && hasStarted(d.KubeVirtVM))
	}
}

// isUsedByMachine is isUsed without the KubeVirt VirtualMachine of a former machine, which is
// removed with its disks.
func (d *diskDecider) isUsedByMachine() bool {
	return d.isUsed() && (d.ownsObject(d.KubeVirtVM) || !d.isBeingRemoved(d.KubeVirtVM, nil))
}

// holdsData reports whether a disk that is not complete now was so before: it is neither
// replaced nor deleted. A root disk that is gone is cloned again: people delete it for that.
func (d *diskDecider) holdsData() bool {
	switch {
	case d.isComplete():
		return false
	case d.isRoot():
		return d.hasFailedLater()
	case d.isRemoved():
		return d.hasFailedLater() || (d.wasReady() && (d.DataVolume != nil || d.Claim != nil))
	default:
		return d.hasFailedLater() || d.wasReady()
	}
}

// reportLost says what became of a data disk that was complete. The status keeps it as ready, so
// that the agent remembers.
func (d *diskDecider) reportLost() {
	dv := d.DataVolume
	if dv != nil && dv.DeletionTimestamp == nil {
		state := d.cloningState(dv)
		d.lostMessage = state.message
		d.setBlocker(state)
		return
	}
	if d.isReplacedElsewhere() {
		d.requested = true
		return // the other claim is the disk
	}
	d.lostMessage = fmt.Sprintf("DataVolume %s of %s is gone", d.objectName, d.title)
	if dv != nil || d.Claim != nil {
		d.lostMessage = fmt.Sprintf("DataVolume %s of %s is being deleted", d.objectName, d.title)
	}
	if !d.deployIgnored() {
		d.setBlocker(failedState(v1alpha1.ReasonDataDiskLost, fmt.Sprintf("%s. The agent makes no other, which would be without what the guest has written: restore the DataVolume and its claim from a backup, or give the disk another name in spec.disks to get a new one", d.lostMessage)))
	}
}

// hasFailedLater reports whether a disk is Failed that was cloned, or may have been.
// CDI also sets Failed when a claim is lost, and the guest's data may still be on the volume.
func (d *diskDecider) hasFailedLater() bool {
	dv, claim := d.DataVolume, d.Claim
	if dv == nil || !d.ownsObject(dv) || dv.DeletionTimestamp != nil || dv.Status.Phase != cdiv1.Failed {
		return false
	}
	if d.wasReady() || (!d.isRoot() && d.isUsedByMachine() && hasStarted(d.KubeVirtVM)) {
		return true
	}
	if claim == nil || !d.ownsObject(claim) {
		return false
	}
	return claim.Status.Phase == corev1.ClaimLost || (claim.Status.Phase == corev1.ClaimBound && claim.Annotations[image.PodPhaseAnnotation] != string(corev1.PodFailed))
}

// reportFailedLater keeps the disk as ready in status, so that the agent remembers that it
// was cloned; a person has to decide.
func (d *diskDecider) reportFailedLater() {
	dv := d.DataVolume
	d.lostMessage = "DataVolume " + dv.Name + " failed after it was " + d.doneWord()
	d.lostMessage += suffix(": ", d.cloneProblem(dv))
	if d.Claim != nil && d.ownsObject(d.Claim) && d.Claim.Status.Phase == corev1.ClaimLost {
		d.lostMessage = fmt.Sprintf("PersistentVolumeClaim %s of %s is lost", dv.Name, d.title)
	}
	d.volume = d.completeVolume()
	if !d.deployIgnored() {
		advice := fmt.Sprintf("delete DataVolume %s to have another cloned", dv.Name)
		if !d.isRoot() {
			advice = "give the disk another name in spec.disks to get a new one"
		}
		d.setBlocker(failedState(d.reasons.failed, fmt.Sprintf("%s. The agent does not replace it, since its volume may still hold what the guest has written: save that, or %s", d.lostMessage, advice)))
	}
}

// ageOf returns how old the DataVolume of the disk is. Its creation is by the API server's clock: an agent
// whose clock is behind waits from when it saw the DataVolume first.
func (d *diskDecider) ageOf(dv *cdiv1.DataVolume) time.Duration {
	return max(d.SeenFor, d.Now.Sub(dv.CreationTimestamp.Time))
}

func (d *diskDecider) retryFailedClone(dv *cdiv1.DataVolume) {
	doing := "cloning "
	if d.isBlank() {
		doing = "creating "
	}
	d.setBlocker(failedState(d.reasons.failed, fmt.Sprintf("%s%s failed%s; it is retried every %s", doing, d.title, suffix(": ", d.cloneProblem(dv)), failedCloneRetryDelay)))
	if left := failedCloneRetryDelay - d.ageOf(dv); left > 0 {
		d.requeueWithin(left)
		return
	}
	d.deleteIncompleteDisk()
}

// diskSize returns the size of the existing disk as the guest sees it. A DataVolume
// without a request has the size that its image had, which only the status records.
func (d *diskDecider) diskSize() resource.Quantity {
	if d.DataVolume != nil && d.DataVolume.Spec.Storage != nil {
		if size, ok := d.DataVolume.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; ok {
			return size
		}
	}
	if d.previous != nil {
		return d.previous.Size
	}
	if d.Claim != nil {
		return d.Claim.Status.Capacity[corev1.ResourceStorage]
	}
	return resource.Quantity{}
}

// cloneSourceImage returns the image that the disk is cloned from, with the disk size
// that it had when it was pinned.
func (d *diskDecider) cloneSourceImage() *v1alpha1.VMDiskImage {
	if d.Pinned == nil {
		return d.Image
	}
	img := d.Pinned
	if p := d.pinned; p != nil && p.DiskSize != nil {
		img = img.DeepCopy()
		img.Spec.DiskSize = *p.DiskSize
	}
	return img
}

// cloningState returns the state of a clone that has neither succeeded nor failed.
func (d *diskDecider) cloningState(dv *cdiv1.DataVolume) machineState {
	findings := diagnosis.ForDisk(dv, d.fillerPods())
	worst, problem := findings.Worst(), findings.Describe(diagnosis.Unknown)
	lasts := func() bool {
		left := cloneGracePeriod - d.ageOf(dv)
		if left > 0 {
			d.requeueWithin(left)
		}
		return left <= 0
	}
	if worst.Urgency == diagnosis.Passing && lasts() {
		problem = findings.Describe(diagnosis.Passing)
	}
	kept := suffix("; ", d.keptStorage(dv))
	if d.ClaimProblem != "" {
		d.requeueWithin(missingRecheckInterval)
		if worst.Urgency != diagnosis.Act { // CDI may say it in its own words
			return failedState(d.reasons.failed, fmt.Sprintf("DataVolume %s, %s, is not %s: %s%s", dv.Name, d.title, d.doneWord(), d.ClaimProblem, suffix("; ", problem)+kept))
		}
	}
	if worst.Urgency == diagnosis.Act || (worst.Urgency == diagnosis.ActIfLasting && lasts()) {
		return failedState(cmp.Or(worst.MachineReason, d.reasons.failed), fmt.Sprintf("DataVolume %s, %s%s, is not %s: %s", dv.Name, d.title, d.describeStorageClass(), d.doneWord(), problem+kept))
	}
	text := d.title + " is being " + d.doneWord()
	if dv.Status.Phase == cdiv1.PhaseUnset && len(dv.Status.Conditions) == 0 && lasts() {
		text = fmt.Sprintf("CDI has not processed DataVolume %s, %s: check that CDI's controller is running, and its log", dv.Name, d.title)
	}
	if p := v1alpha1.SanitizeText(string(dv.Status.Progress), maxStateBytes); p != "" && p != "N/A" {
		text += ": " + p
	}
	if problem != "" {
		text += " (" + problem + ")"
	}
	if !d.isRoot() && d.KubeVirtVM != nil && d.ownsObject(d.KubeVirtVM) && !d.isUsed() && d.instanceIsRunning() {
		text += "; it is attached at the next start: until then the machine runs without it"
	}
	return provisioningState(d.reasons.preparing, text)
}

// describeStorageClass names the StorageClass that the spec of a blank disk has: reports about
// one that is missing do not.
func (d *diskDecider) describeStorageClass() string {
	if d.spec == nil || d.spec.StorageClass == "" {
		return ""
	}
	return " of storageClass " + d.spec.StorageClass
}

// cloneProblem returns what CDI says about a clone that failed; empty for nothing.
func (d *diskDecider) cloneProblem(dv *cdiv1.DataVolume) string {
	return diagnosis.ForDisk(dv, d.fillerPods()).Describe(diagnosis.Unknown)
}
