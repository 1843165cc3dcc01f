package vm

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/diagnosis"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failedCloneRetryDelay is the age at which a failed clone is replaced. Retries are
// unlimited: cloning costs no egress.
const failedCloneRetryDelay = time.Minute

// cloneGracePeriod is how long a new clone may be unschedulable, or unknown to CDI: its claims
// are bound one after the other.
const cloneGracePeriod = 30 * time.Second

// reconcileRootDisk clones the root disk from the pin. Invariant: a disk that was cloned
// is never deleted here, whatever its source: the guest has written to it.
func (d *decider) reconcileRootDisk() {
	name := kubevirt.RootDiskName(d.VM)
	d.status.RootDisk = nil
	switch {
	case d.RootDisk == nil || d.ownsObject(d.RootDisk):
	case d.RootDisk.Labels[v1alpha1.LabelMachineUID] == "":
		d.setBlocker(nameTakenState("DataVolume", name))
		d.requeueWithin(missingRecheckInterval)
		return
	default:
		d.waitForLeftover("DataVolume", d.RootDisk)
		return
	}
	if d.hasLostRootDisk() { // first: only the status may know that the disk was cloned
		d.reportLostRootDisk()
		return
	}
	if d.RootClaim != nil && !d.ownsObject(d.RootClaim) {
		d.waitForLeftover("PersistentVolumeClaim", d.RootClaim)
		return
	}
	if d.hasClonedRootDisk() {
		d.rootDiskRequested = true
		d.status.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: d.rootDiskSize(), Ready: true}
		return
	}
	if d.deployIgnored() {
		d.deleteIncompleteDisk()
		return
	}
	if !d.CDIServed {
		d.setBlocker(failedState(v1alpha1.ReasonCDIMissing, "the cluster does not serve CDI's DataVolume: install CDI; the agent detects it"))
		return
	}
	p := d.status.Pinned
	if !d.replacesRootDisk && (p == nil || p.AcquiredAt == nil) {
		d.deleteIncompleteDisk()
		state := d.imageState
		if state.phase == v1alpha1.MachineReady {
			state = provisioningState(v1alpha1.ReasonAcquiringImage, fmt.Sprintf("VMDiskImage %s is ready; the machine is about to acquire it", d.VM.ImageNamespacedName()))
		}
		d.setBlocker(state)
		return
	}
	switch dv := d.RootDisk; {
	case dv == nil:
		d.createRootDisk(p)
	case dv.DeletionTimestamp != nil:
		d.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("DataVolume %s is being deleted; then the root disk is cloned again", name)))
	case d.replacesRootDisk || dv.Annotations[v1alpha1.AnnotationClonedFrom] != kubevirt.ClonedFromValue(*p):
		d.deleteIncompleteDisk()
		d.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("DataVolume %s is an unfinished clone of another source and is replaced", name)))
	case dv.Status.Phase == cdiv1.Failed:
		d.retryFailedClone(dv)
	default:
		d.rootDiskRequested = true
		d.status.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: d.rootDiskSize(), Progress: v1alpha1.SanitizeText(string(dv.Status.Progress), maxStateBytes)}
		d.setBlocker(d.cloningState(dv))
	}
}

// createRootDisk clones the root disk. The pin is acquired, but its source may have been
// deleted by hand since.
func (d *decider) createRootDisk(p *v1alpha1.PinnedImage) {
	if d.RootClaim != nil {
		d.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("PersistentVolumeClaim %s of a former root disk still exists: waiting until it is removed", d.RootClaim.Name)))
		return
	}
	img := d.cloneSourceImage()
	switch {
	case !d.Live:
		d.decision.NeedsLive = true
		return
	case d.Pinned == nil || !d.SourceExists:
		d.setBlocker(provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("the source of the root disk, VMDiskImage %s/%s revision %s, is gone: waiting until the image reports that", p.Namespace, p.Name, p.Revision)))
		if d.Pinned != nil && stillServes(d.Pinned, p) { // otherwise an event of the image follows
			d.requeueWithin(time.Second)
		}
		return
	}
	size, _ := kubevirt.RootDiskSize(d.VM, img)
	dv := kubevirt.BuildRootDisk(d.VM, img, *p, size)
	d.decision.CreateRootDisk = dv
	d.rootDiskRequested = true
	d.status.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: size}
	d.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, "the root disk is being cloned"))
}

// deleteIncompleteDisk deletes an unfinished root disk. A DataVolume without a status and
// with a bound claim may be complete: backups restore no status.
func (d *decider) deleteIncompleteDisk() {
	dv := d.RootDisk
	if dv == nil || dv.DeletionTimestamp != nil || (dv.Status.Phase == "" && d.RootClaim != nil && d.RootClaim.Status.Phase == corev1.ClaimBound) {
		return
	}
	d.decision.DeleteRootDisk = &DeleteTarget{dv.Name, dv.UID, dv.ResourceVersion}
}

// annPodPhase is set on a claim to the phase of the Pod that fills it (CDI 1.65).
const annPodPhase = "cdi.kubevirt.io/storage.pod.phase"

// hasLostRootDisk reports whether a root disk is Failed that was cloned, or may have been.
// CDI also sets Failed when a claim is lost, and the guest's data may still be on the volume.
func (d *decider) hasLostRootDisk() bool {
	dv, claim, previous := d.RootDisk, d.RootClaim, d.VM.Status.RootDisk
	if dv == nil || !d.ownsObject(dv) || dv.DeletionTimestamp != nil || dv.Status.Phase != cdiv1.Failed {
		return false
	}
	if previous != nil && previous.Ready {
		return true
	}
	if claim == nil || !d.ownsObject(claim) {
		return false
	}
	return claim.Status.Phase == corev1.ClaimLost || (claim.Status.Phase == corev1.ClaimBound && claim.Annotations[annPodPhase] != string(corev1.PodFailed))
}

// reportLostRootDisk keeps the disk as ready in status, so that the agent remembers that it
// was cloned; a person has to decide.
func (d *decider) reportLostRootDisk() {
	dv := d.RootDisk
	d.lostDiskMessage = "DataVolume " + dv.Name + " failed after it was cloned"
	d.lostDiskMessage += suffix(": ", d.cloneProblem(dv))
	if d.RootClaim != nil && d.ownsObject(d.RootClaim) && d.RootClaim.Status.Phase == corev1.ClaimLost {
		d.lostDiskMessage = fmt.Sprintf("PersistentVolumeClaim %s of the root disk is lost", dv.Name)
	}
	d.status.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: d.rootDiskSize(), Ready: true}
	if !d.deployIgnored() {
		d.setBlocker(failedState(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("%s. The agent does not replace it, since its volume may still hold what the guest has written: save that, or delete DataVolume %s to have another cloned", d.lostDiskMessage, dv.Name)))
	}
}

func (d *decider) retryFailedClone(dv *cdiv1.DataVolume) {
	d.setBlocker(failedState(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("cloning the root disk failed%s; it is retried every %s", suffix(": ", d.cloneProblem(dv)), failedCloneRetryDelay)))
	if left := failedCloneRetryDelay - d.Now.Sub(dv.CreationTimestamp.Time); left > 0 {
		d.requeueWithin(left)
		return
	}
	d.deleteIncompleteDisk()
}

// rootDiskSize returns the size of the existing disk as the guest sees it. A DataVolume
// without a request has the size that its image had, which only the status records.
func (d *decider) rootDiskSize() resource.Quantity {
	if d.RootDisk != nil && d.RootDisk.Spec.Storage != nil {
		if size, ok := d.RootDisk.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; ok {
			return size
		}
	}
	if previous := d.VM.Status.RootDisk; previous != nil {
		return previous.Size
	}
	if d.RootClaim != nil {
		return d.RootClaim.Status.Capacity[corev1.ResourceStorage]
	}
	return resource.Quantity{}
}

// cloneSourceImage returns the image that the root disk is cloned from, with the disk size
// that it had when it was pinned.
func (d *decider) cloneSourceImage() *v1alpha1.VMDiskImage {
	if d.Pinned == nil {
		return d.Image
	}
	img := d.Pinned
	if p := d.status.Pinned; p != nil && p.DiskSize != nil {
		img = img.DeepCopy()
		img.Spec.DiskSize = *p.DiskSize
	}
	return img
}

// cloningState returns the state of a clone that has neither succeeded nor failed.
func (d *decider) cloningState(dv *cdiv1.DataVolume) machineState {
	findings := diagnosis.ForRootDisk(dv, d.clonerPods())
	worst, problem := findings.Worst(), findings.Describe(diagnosis.Unknown)
	lasts := func() bool {
		left := cloneGracePeriod - d.Now.Sub(dv.CreationTimestamp.Time)
		if left > 0 {
			d.requeueWithin(left)
		}
		return left <= 0
	}
	if worst.Urgency == diagnosis.Passing && lasts() {
		problem = findings.Describe(diagnosis.Passing)
	}
	if d.ClaimProblem != "" {
		d.requeueWithin(missingRecheckInterval)
		if worst.Urgency != diagnosis.Act { // CDI may say it in its own words
			return failedState(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("DataVolume %s, the root disk, is not cloned: %s%s", dv.Name, d.ClaimProblem, suffix("; ", problem)))
		}
	}
	if worst.Urgency == diagnosis.Act || (worst.Urgency == diagnosis.ActIfLasting && lasts()) {
		return failedState(cmp.Or(worst.MachineReason, v1alpha1.ReasonRootDiskFailed), fmt.Sprintf("DataVolume %s, the root disk, is not cloned: %s", dv.Name, problem))
	}
	text := "the root disk is being cloned"
	if dv.Status.Phase == cdiv1.PhaseUnset && len(dv.Status.Conditions) == 0 && lasts() {
		text = fmt.Sprintf("CDI has not processed DataVolume %s, the root disk: check that CDI's controller is running, and its log", dv.Name)
	}
	if p := v1alpha1.SanitizeText(string(dv.Status.Progress), maxStateBytes); p != "" && p != "N/A" {
		text += ": " + p
	}
	if problem != "" {
		text += " (" + problem + ")"
	}
	return provisioningState(v1alpha1.ReasonCloningRootDisk, text)
}

// cloneProblem returns what CDI says about a clone that failed; empty for nothing.
func (d *decider) cloneProblem(dv *cdiv1.DataVolume) string {
	return diagnosis.ForRootDisk(dv, d.clonerPods()).Describe(diagnosis.Unknown)
}
