package vm

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failedDiskAge is how old a failed clone gets before another is tried: cloning
// costs no egress, so it is tried for as long as it is wanted.
const failedDiskAge = time.Minute

// keepRootDisk has the root disk cloned from what is pinned. A disk that has
// been cloned is never deleted here, whatever it was cloned from: a guest has
// written to it.
func (s *step) keepRootDisk() {
	name := machine.RootDiskName(s.VM)
	s.st.RootDisk = nil
	switch {
	case s.RootDisk == nil || s.mine(s.RootDisk):
	case s.RootDisk.Labels[v1alpha1.LabelMachineUID] == "":
		s.blocked(taken("DataVolume", name))
		s.within(missingInterval)
		return
	default:
		s.leftOver("DataVolume", s.RootDisk)
		return
	}
	if s.hasLostDisk() { // first, for the status alone may know that it had been cloned
		s.keepLostDisk()
		return
	}
	if s.RootClaim != nil && !s.mine(s.RootClaim) {
		s.leftOver("PersistentVolumeClaim", s.RootClaim)
		return
	}
	if s.hasDisk() {
		s.diskMade = true
		s.st.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: s.diskSize(), Ready: true}
		return
	}
	if s.ignored() {
		s.dropDisk()
		return
	}
	if !s.CDI {
		s.blocked(failed(v1alpha1.ReasonCDIMissing, "the cluster does not serve CDI's DataVolume: install CDI; the agent takes it up by itself"))
		return
	}
	p := s.st.Pinned
	if !s.replaced && (p == nil || p.AcquiredAt == nil) {
		s.dropDisk()
		w := s.image
		if w.phase == v1alpha1.MachineReady {
			w = provisioning(v1alpha1.ReasonAcquiring, fmt.Sprintf("VMDiskImage %s is ready; the machine is about to acquire it", s.VM.ImageName()))
		}
		s.blocked(w)
		return
	}
	switch dv := s.RootDisk; {
	case dv == nil:
		s.makeDisk(p)
	case dv.DeletionTimestamp != nil:
		s.blocked(provisioning(v1alpha1.ReasonCloning, fmt.Sprintf("DataVolume %s is being deleted; the root disk is cloned again then", name)))
	case s.replaced || dv.Annotations[v1alpha1.AnnotationClonedFrom] != machine.ClonedFrom(*p):
		s.dropDisk()
		s.blocked(provisioning(v1alpha1.ReasonCloning, fmt.Sprintf("DataVolume %s was to be cloned from something else and is replaced", name)))
	case dv.Status.Phase == cdiv1.Failed:
		s.retryDisk(dv)
	default:
		s.diskMade = true
		s.st.RootDisk = &v1alpha1.RootDisk{DataVolume: name, Size: s.diskSize(), Progress: string(dv.Status.Progress)}
		s.blocked(provisioning(v1alpha1.ReasonCloning, cloning(dv)))
	}
}

// makeDisk clones the root disk. What is pinned has been acquired, but may have
// been deleted by hand since.
func (s *step) makeDisk(p *v1alpha1.PinnedImage) {
	if s.RootClaim != nil {
		s.blocked(provisioning(v1alpha1.ReasonCloning, fmt.Sprintf("PersistentVolumeClaim %s of a former root disk is still there: waits until it is removed", s.RootClaim.Name)))
		return
	}
	img := s.diskImage()
	switch {
	case !s.Live:
		s.d.NeedsLive = true
		return
	case s.Pinned == nil || !s.SourceThere:
		s.blocked(provisioning(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("what the root disk is cloned from, VMDiskImage %s/%s revision %s, is gone: waits until the image has seen it", p.Namespace, p.Name, p.Revision)))
		if s.Pinned != nil && serves(s.Pinned, p) { // else it tells when it serves again
			s.within(time.Second)
		}
		return
	}
	size, _ := machine.DiskSize(s.VM, img)
	dv := machine.RootDisk(s.VM, img, *p, size)
	s.d.CreateRootDisk = dv
	s.diskMade = true
	s.st.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: size}
	s.blocked(provisioning(v1alpha1.ReasonCloning, "the root disk is being cloned"))
}

// dropDisk deletes a root disk that is incomplete and not wanted as it is. One that
// CDI has said nothing of, and whose claim is bound, may be complete: it has been
// restored from a backup, which has no status.
func (s *step) dropDisk() {
	dv := s.RootDisk
	if dv == nil || dv.DeletionTimestamp != nil || (dv.Status.Phase == "" && s.RootClaim != nil && s.RootClaim.Status.Phase == corev1.ClaimBound) {
		return
	}
	s.d.DeleteRootDisk = &Target{dv.Name, dv.UID, dv.ResourceVersion}
}

// podPhase of a claim is what became of the Pod of CDI's that filled it (CDI 1.65).
const podPhase = "cdi.kubevirt.io/storage.pod.phase"

// hasLostDisk tells that a root disk has failed that had been cloned, or may have
// been: CDI says so too of one whose claim is lost, and what the guest has written
// can still be on the volume.
func (s *step) hasLostDisk() bool {
	dv, claim, was := s.RootDisk, s.RootClaim, s.VM.Status.RootDisk
	if dv == nil || !s.mine(dv) || dv.DeletionTimestamp != nil || dv.Status.Phase != cdiv1.Failed {
		return false
	}
	if was != nil && was.Ready {
		return true
	}
	if claim == nil || !s.mine(claim) {
		return false
	}
	return claim.Status.Phase == corev1.ClaimLost || (claim.Status.Phase == corev1.ClaimBound && claim.Annotations[podPhase] != string(corev1.PodFailed))
}

// keepLostDisk leaves it to a person, and keeps in mind that it had been cloned.
func (s *step) keepLostDisk() {
	dv := s.RootDisk
	s.lost = "DataVolume " + dv.Name + " has failed after it had been cloned"
	if why := stuckOn(dv); why != "" {
		s.lost += ": " + Cut(why, mostTold)
	}
	if s.RootClaim != nil && s.mine(s.RootClaim) && s.RootClaim.Status.Phase == corev1.ClaimLost {
		s.lost = fmt.Sprintf("PersistentVolumeClaim %s of the root disk is lost", dv.Name)
	}
	s.st.RootDisk = &v1alpha1.RootDisk{DataVolume: dv.Name, Size: s.diskSize(), Ready: true}
	if !s.ignored() {
		s.blocked(failed(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("%s. It is not replaced by itself, for what the guest has written may still be on its volume: save that, or delete DataVolume %s to have another cloned", s.lost, dv.Name)))
	}
}

func (s *step) retryDisk(dv *cdiv1.DataVolume) {
	s.blocked(failed(v1alpha1.ReasonRootDiskFailed, fmt.Sprintf("cloning the root disk failed: %s; it is tried again every %s", Cut(stuckOn(dv), mostTold), failedDiskAge)))
	if left := failedDiskAge - s.Now.Sub(dv.CreationTimestamp.Time); left > 0 {
		s.within(left)
		return
	}
	s.dropDisk()
}

// diskSize is what the guest sees of a disk that is there. One that asked for
// nothing has the size of its image at that time, which only the status knows.
func (s *step) diskSize() resource.Quantity {
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

func cloning(dv *cdiv1.DataVolume) string {
	text := "the root disk is being cloned"
	if p := dv.Status.Progress; p != "" && p != "N/A" {
		text += ": " + string(p)
	}
	if why := stuckOn(dv); why != "" {
		text += " (" + Cut(why, mostTold) + ")"
	}
	return text
}

// stuckOn is what CDI says of a clone that does not run.
func stuckOn(dv *cdiv1.DataVolume) string {
	for _, t := range []cdiv1.DataVolumeConditionType{cdiv1.DataVolumeRunning, cdiv1.DataVolumeBound} {
		for i := range dv.Status.Conditions {
			if c := &dv.Status.Conditions[i]; c.Type == t && c.Status != corev1.ConditionTrue && c.Message != "" {
				return c.Message
			}
		}
	}
	return ""
}
