package vm

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failedCloneRetryDelay is how old a failed clone gets before another is tried: cloning
// costs no egress, so it is tried for as long as it is wanted.
const failedCloneRetryDelay = time.Minute

// reconcileRootDisk has the root disk cloned from what is pinned. A disk that has
// been cloned is never deleted here, whatever it was cloned from: a guest has
// written to it.
func (s *decider) reconcileRootDisk() {
	name := kubevirt.RootDiskName(s.VM)
	s.status.RootDisk = nil
	switch {
	case s.RootDisk == nil || s.ownsObject(s.RootDisk):
	case s.RootDisk.Labels[v1alpha1.LabelMachineUID] == "":
		s.setBlocker(nameTakenState("DataVolume", name))
		s.requeueWithin(missingRecheckInterval)
		return
	default:
		s.waitForLeftover("DataVolume", s.RootDisk)
		return
	}
	if s.hasLostRootDisk() { // first, for the status alone may know that it had been cloned
		s.reportLostRootDisk()
		return
	}
	if s.RootClaim != nil && !s.ownsObject(s.RootClaim) {
		s.waitForLeftover("PersistentVolumeClaim", s.RootClaim)
		return
	}
	if s.hasClonedRootDisk() {
		s.rootDiskRequested = true
		s.status.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: s.rootDiskSize(), Ready: true}
		return
	}
	if s.deployIgnored() {
		s.deleteIncompleteDisk()
		return
	}
	if !s.CDIServed {
		s.setBlocker(failedState(v1alpha1.ReasonCDIMissing, "the cluster does not serve CDI's DataVolume: install CDI; the agent takes it up by itself"))
		return
	}
	p := s.status.Pinned
	if !s.replacesRootDisk && (p == nil || p.AcquiredAt == nil) {
		s.deleteIncompleteDisk()
		w := s.imageState
		if w.phase == v1alpha1.MachineReady {
			w = provisioningState(v1alpha1.ReasonAcquiringImage, fmt.Sprintf("VMDiskImage %s is ready; the machine is about to acquire it", s.VM.ImageNamespacedName()))
		}
		s.setBlocker(w)
		return
	}
	switch dv := s.RootDisk; {
	case dv == nil:
		s.createRootDisk(p)
	case dv.DeletionTimestamp != nil:
		s.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("DataVolume %s is being deleted; the root disk is cloned again then", name)))
	case s.replacesRootDisk || dv.Annotations[v1alpha1.AnnotationClonedFrom] != kubevirt.ClonedFromValue(*p):
		s.deleteIncompleteDisk()
		s.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("DataVolume %s was to be cloned from something else and is replaced", name)))
	case dv.Status.Phase == cdiv1.Failed:
		s.retryFailedClone(dv)
	default:
		s.rootDiskRequested = true
		s.status.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: s.rootDiskSize(), Progress: string(dv.Status.Progress)}
		s.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, describeCloning(dv)))
	}
}

// createRootDisk clones the root disk. What is pinned has been acquired, but may have
// been deleted by hand since.
func (s *decider) createRootDisk(p *v1alpha1.PinnedImage) {
	if s.RootClaim != nil {
		s.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, fmt.Sprintf("PersistentVolumeClaim %s of a former root disk is still there: waits until it is removed", s.RootClaim.Name)))
		return
	}
	img := s.cloneSourceImage()
	switch {
	case !s.Live:
		s.decision.NeedsLive = true
		return
	case s.Pinned == nil || !s.SourceExists:
		s.setBlocker(provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("what the root disk is cloned from, VMDiskImage %s/%s revision %s, is gone: waits until the image has seen it", p.Namespace, p.Name, p.Revision)))
		if s.Pinned != nil && stillServes(s.Pinned, p) { // else it tells when it serves again
			s.requeueWithin(time.Second)
		}
		return
	}
	size, _ := kubevirt.RootDiskSize(s.VM, img)
	dv := kubevirt.BuildRootDisk(s.VM, img, *p, size)
	s.decision.CreateRootDisk = dv
	s.rootDiskRequested = true
	s.status.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: size}
	s.setBlocker(provisioningState(v1alpha1.ReasonCloningRootDisk, "the root disk is being cloned"))
}

// deleteIncompleteDisk deletes a root disk that is incomplete and not wanted as it is. One that
// CDIServed has said nothing of, and whose claim is bound, may be complete: it has been
// restored from a backup, which has no status.
func (s *decider) deleteIncompleteDisk() {
	dv := s.RootDisk
	if dv == nil || dv.DeletionTimestamp != nil || (dv.Status.Phase == "" && s.RootClaim != nil && s.RootClaim.Status.Phase == corev1.ClaimBound) {
		return
	}
	s.decision.DeleteRootDisk = &DeleteTarget{dv.Name, dv.UID, dv.ResourceVersion}
}

// annPodPhase of a claim is what became of the Pod of CDIServed's that filled it (CDIServed 1.65).
const annPodPhase = "cdi.kubevirt.io/storage.pod.phase"

// hasLostRootDisk tells that a root disk has failed that had been cloned, or may have
// been: CDIServed says so too of one whose claim is lost, and what the guest has written
// can still be on the volume.
func (s *decider) hasLostRootDisk() bool {
	dv, claim, was := s.RootDisk, s.RootClaim, s.VM.Status.RootDisk
	if dv == nil || !s.ownsObject(dv) || dv.DeletionTimestamp != nil || dv.Status.Phase != cdiv1.Failed {
		return false
	}
	if was != nil && was.Ready {
		return true
	}
	if claim == nil || !s.ownsObject(claim) {
		return false
	}
	return claim.Status.Phase == corev1.ClaimLost || (claim.Status.Phase == corev1.ClaimBound && claim.Annotations[annPodPhase] != string(corev1.PodFailed))
}

// reportLostRootDisk leaves it to a person, and keeps in mind that it had been cloned.
func (s *decider) reportLostRootDisk() {
	dv := s.RootDisk
	s.lostDiskMessage = "DataVolume " + dv.Name + " has failed after it had been cloned"
	if why := cloneProblem(dv); why != "" {
		s.lostDiskMessage += ": " + Truncate(why, maxQuotedBytes)
	}
	if s.RootClaim != nil && s.ownsObject(s.RootClaim) && s.RootClaim.Status.Phase == corev1.ClaimLost {
		s.lostDiskMessage = fmt.Sprintf("PersistentVolumeClaim %s of the root disk is lost", dv.Name)
	}
	s.status.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: s.rootDiskSize(), Ready: true}
	if !s.deployIgnored() {
		s.setBlocker(failedState(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("%s. It is not replaced by itself, for what the guest has written may still be on its volume: save that, or delete DataVolume %s to have another cloned", s.lostDiskMessage, dv.Name)))
	}
}

func (s *decider) retryFailedClone(dv *cdiv1.DataVolume) {
	s.setBlocker(failedState(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("cloning the root disk failed: %s; it is tried again every %s", Truncate(cloneProblem(dv), maxQuotedBytes), failedCloneRetryDelay)))
	if left := failedCloneRetryDelay - s.Now.Sub(dv.CreationTimestamp.Time); left > 0 {
		s.requeueWithin(left)
		return
	}
	s.deleteIncompleteDisk()
}

// rootDiskSize is what the guest sees of a disk that is there. One that asked for
// nothing has the size of its image at that time, which only the status knows.
func (s *decider) rootDiskSize() resource.Quantity {
	if s.RootDisk != nil && s.RootDisk.Spec.Storage != nil {
		if size, asked := s.RootDisk.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; asked {
			return size
		}
	}
	if was := s.VM.Status.RootDisk; was != nil {
		return was.Size
	}
	if s.RootClaim != nil {
		return s.RootClaim.Status.Capacity[corev1.ResourceStorage]
	}
	return resource.Quantity{}
}

func describeCloning(dv *cdiv1.DataVolume) string {
	text := "the root disk is being cloned"
	if p := dv.Status.Progress; p != "" && p != "N/A" {
		text += ": " + string(p)
	}
	if why := cloneProblem(dv); why != "" {
		text += " (" + Truncate(why, maxQuotedBytes) + ")"
	}
	return text
}

// cloneProblem is what CDIServed says of a clone that does not run.
func cloneProblem(dv *cdiv1.DataVolume) string {
	for _, t := range []cdiv1.DataVolumeConditionType{cdiv1.DataVolumeRunning, cdiv1.DataVolumeBound} {
		for i := range dv.Status.Conditions {
			if c := &dv.Status.Conditions[i]; c.Type == t && c.Status != corev1.ConditionTrue && c.Message != "" {
				return c.Message
			}
		}
	}
	return ""
}
