package vm

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// writeStatus writes phase, reason, message and conditions: all in one place, and
// all of them on every visit.
func (s *decider) writeStatus() {
	s.status.ObservedGeneration = s.VM.Generation
	s.status.PrintableStatus = s.printableStatus()
	if s.KubeVirtVM != nil && s.ownsObject(s.KubeVirtVM) {
		run, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "spec", "runStrategy")
		switch run {
		case "Always", "RerunOnFailure", "Manual", "Halted", "Once": // KubeVirtServed has others that no machine is made with
			s.status.RunStrategy = v1alpha1.RunStrategy(run)
		}
	}
	if s.decision.StoreStatusFirst {
		s.setBlocker(provisioningState(v1alpha1.ReasonAcquiringImage, "the image is about to be acquired"))
	}
	s.setPhase(s.VM.Generation, *s.blocker)

	acquired := (s.status.Pinned != nil && s.status.Pinned.AcquiredAt != nil) || (s.deployIgnored() && s.imageState.phase == v1alpha1.MachineReady)
	reason, message := v1alpha1.ReasonNotAcquired, s.imageState.message
	if p := s.status.Pinned; acquired && p != nil {
		reason, message = v1alpha1.ReasonAcquired, fmt.Sprintf("the root disk is of VMDiskImage %s/%s, revision %s", p.Namespace, p.Name, p.Revision)
		switch {
		case s.foreignDiskNote != "":
			message = fmt.Sprintf("VMDiskImage %s/%s, revision %s, is held, but the root disk is of something else", p.Namespace, p.Name, p.Revision)
		case s.Pinned == nil && s.hasClonedRootDisk():
			message += "; that image does not exist any more, and the machine does without"
		}
	} else if acquired {
		reason = v1alpha1.ReasonAcquired
	}
	s.setCondition(v1alpha1.ConditionImageAcquired, acquired, reason, message)

	disk := s.status.RootDisk
	switch {
	case s.lostDiskMessage != "":
		s.setCondition(v1alpha1.ConditionRootDiskReady, false, string(v1alpha1.ReasonRootDiskFailed), s.lostDiskMessage)
	case disk != nil && disk.Ready:
		s.setCondition(v1alpha1.ConditionRootDiskReady, true, v1alpha1.ReasonCloned, fmt.Sprintf("DataVolume %s has %s", disk.DataVolume, disk.Size.String()))
	case disk != nil:
		s.setCondition(v1alpha1.ConditionRootDiskReady, false, string(v1alpha1.ReasonCloningRootDisk), "the root disk is being cloned")
	default:
		s.setCondition(v1alpha1.ConditionRootDiskReady, false, v1alpha1.ReasonNotCreated, "there is no root disk yet")
	}

	created := s.KubeVirtVM != nil && s.ownsObject(s.KubeVirtVM) && s.KubeVirtVM.GetDeletionTimestamp() == nil
	if created || s.decision.ApplyKubeVirtVM != nil {
		s.setCondition(v1alpha1.ConditionMachineCreated, true, v1alpha1.ReasonCreated, "KubeVirt VirtualMachine "+s.VM.Name)
	} else {
		s.setCondition(v1alpha1.ConditionMachineCreated, false, v1alpha1.ReasonNotCreated, s.blocker.message)
	}

	s.reportRestartRequired(created)
	s.reportAdjustments()
	s.reportImageDifferences()
	s.reportPlainTextPasswords()
}

// reportRestartRequired says whether a restart would bring the machine something.
func (s *decider) reportRestartRequired(created bool) {
	upToDate := func(message string) {
		s.setCondition(v1alpha1.ConditionRestartRequired, false, v1alpha1.ReasonUpToDate, message)
	}
	theirs := ""
	if created && s.instanceIsRunning() { // KubeVirtServed takes its word back at the next start only
		theirs = s.kubeVirtRestartMessage()
	}
	switch {
	case s.changeNeedsRestart:
		s.setCondition(v1alpha1.ConditionRestartRequired, true, v1alpha1.ReasonSpecChanged, fmt.Sprintf("the spec was changed while the machine runs: it takes effect when it is restarted (virtctl restart %s)", s.VM.Name))
	case theirs != "":
		s.setCondition(v1alpha1.ConditionRestartRequired, true, v1alpha1.ReasonSpecChanged, fmt.Sprintf("KubeVirt says that the machine is to be restarted (virtctl restart %s): %s", s.VM.Name, theirs))
	case s.renderingChanged:
		upToDate("the machine runs as the spec says; what this version of the agent makes of it otherwise is taken up when it starts the next time")
	case s.comparedWithSpec:
		upToDate("KubeVirt has the spec as it is")
	case created && s.VM.Spec.IgnoreOnDeploy:
		upToDate("cannot be told while spec.ignoreOnDeploy is true: the KubeVirt VirtualMachine is left as it is")
	case created && s.specError != nil:
		upToDate("cannot be told while the spec cannot be carried out: the KubeVirt VirtualMachine is left as it is")
	case created:
		upToDate("cannot be told yet: " + s.blocker.message)
	default:
		upToDate("there is no KubeVirt VirtualMachine that could be restarted")
	}
}

// kubeVirtRestartMessage is what KubeVirtServed says of a change that its instance cannot take
// up; empty where there is none.
func (s *decider) kubeVirtRestartMessage() string {
	holds, message := s.kubeVirtCondition(kubevirtv1.VirtualMachineRestartRequired)
	if !holds {
		return ""
	}
	return Truncate(cmp.Or(message, "it gives no reason"), maxQuotedBytes)
}

// setPhase writes what the machine is and why.
func (s *decider) setPhase(generation int64, w machineState) {
	s.status.Phase, s.status.Reason, s.status.Message = w.phase, w.reason, Truncate(w.message, maxMessageBytes)
	s.generation = generation
	s.setCondition(v1alpha1.ConditionReady, w.phase == v1alpha1.MachineReady, string(w.reason), w.message)
	s.setCondition(v1alpha1.ConditionReconciling, w.phase == v1alpha1.MachineProvisioning, string(w.reason), w.message)
	s.setCondition(v1alpha1.ConditionStalled, w.phase == v1alpha1.MachineFailed, string(w.reason), w.message)
}

func (s *decider) setCondition(t string, holds bool, reason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.status.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: reason, Message: Truncate(message, maxMessageBytes),
		ObservedGeneration: s.generation, LastTransitionTime: s.timestamp,
	})
}

// reportAdjustments says where something else was done than the letter of the spec.
func (s *decider) reportAdjustments() {
	adjusted := append([]string(nil), s.guestConfig.Adjusted...)
	if img := s.cloneSourceImage(); img != nil {
		if _, grown := kubevirt.RootDiskSize(s.VM, img); grown != "" {
			adjusted = append(adjusted, grown)
		}
	}
	if s.foreignDiskNote != "" {
		adjusted = append(adjusted, s.foreignDiskNote)
	} else if p := s.status.Pinned; p != nil && s.status.RootDisk != nil && s.status.RootDisk.Ready {
		if named := s.VM.ImageNamespacedName(); named != (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}) {
			adjusted = append(adjusted, fmt.Sprintf("the root disk was cloned from VMDiskImage %s/%s and stays: VMDiskImage %s is for a new disk (delete DataVolume %s to have one made; what the guest has written is lost then)",
				p.Namespace, p.Name, named, s.status.RootDisk.DataVolume))
		}
	}
	if s.status.RootDisk != nil && s.status.RootDisk.Ready && s.VM.Spec.Resources != nil && s.VM.Spec.Resources.DiskSize != nil &&
		s.status.RootDisk.Size.Cmp(*s.VM.Spec.Resources.DiskSize) < 0 {
		adjusted = append(adjusted, fmt.Sprintf("the root disk has %s and is not grown to resources.diskSize: enlarge PersistentVolumeClaim %s where its StorageClass allows it", s.status.RootDisk.Size.String(), s.status.RootDisk.DataVolume))
	}
	adjusted = append(adjusted, s.unappliedChanges()...)
	if len(adjusted) == 0 {
		s.setCondition(v1alpha1.ConditionSpecAdjusted, false, v1alpha1.ReasonAsSpecified, "the machine is as spec says")
		return
	}
	s.setCondition(v1alpha1.ConditionSpecAdjusted, true, v1alpha1.ReasonAdjusted, strings.Join(adjusted, "; "))
}

// unappliedChanges says what of the spec a machine that is there does not get.
func (s *decider) unappliedChanges() (adjusted []string) {
	if s.KubeVirtVM == nil || !s.ownsObject(s.KubeVirtVM) {
		return nil
	}
	if claim := kubevirt.RestoredClaim(s.KubeVirtVM); claim != "" {
		adjusted = append(adjusted, fmt.Sprintf("KubeVirt has restored a snapshot: the machine's root disk is PersistentVolumeClaim %s, and is left so (remove annotation restore.kubevirt.io/lastRestoreUID from the KubeVirt VirtualMachine to have DataVolume %s again)",
			claim, kubevirt.RootDiskName(s.VM)))
	}
	if s.MissingSecret != "" {
		adjusted = append(adjusted, s.MissingSecret+"; until then the guest is told what it was told before")
	}
	if s.guestConfigOutdated {
		adjusted = append(adjusted, fmt.Sprintf("name, users, interfaces or cloudInit have changed since the guest's first boot, and cloud-init takes up then only what it is told: change it in the guest too (remove annotation %s from the KubeVirt VirtualMachine when that is done)", v1alpha1.AnnotationAppliedGuest))
	}
	return adjusted
}

// cloneSourceImage is the image that the root disk is, or will be, cloned from, with the
// size that it had: its spec may ask for another by now.
func (s *decider) cloneSourceImage() *v1alpha1.VMDiskImage {
	if s.Pinned == nil {
		return s.Image
	}
	img := s.Pinned
	if p := s.status.Pinned; p != nil && p.DiskSize != nil {
		img = img.DeepCopy()
		img.Spec.DiskSize = *p.DiskSize
	}
	return img
}

// reportImageDifferences says where the image that is there is not what the template
// says: it wins.
func (s *decider) reportImageDifferences() {
	t := s.VM.Spec.VMDiskImageTemplate
	switch {
	case t == nil || s.Image == nil:
		s.setCondition(v1alpha1.ConditionImageDiffers, false, v1alpha1.ReasonNoTemplate, "there is no image to compare with a template")
	default:
		fields := differingFields(t, &s.Image.Spec)
		if len(fields) == 0 {
			s.setCondition(v1alpha1.ConditionImageDiffers, false, v1alpha1.ReasonSameAsImage, "the image is what the template says")
			return
		}
		s.setCondition(v1alpha1.ConditionImageDiffers, true, v1alpha1.ReasonDiffersFromTemplate, fmt.Sprintf("VMDiskImage %s was there and is used as it is; the template has another %s", s.VM.ImageNamespacedName(), strings.Join(fields, ", ")))
	}
}

func differingFields(t, img *v1alpha1.VMDiskImageSpec) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"url", t.URL == img.URL},
		{"sourceType", t.SourceType == img.SourceType},
		{"checksum", t.Checksum == img.Checksum},
		{"diskSize", t.DiskSize.Cmp(img.DiskSize) == 0},
		{"storageClass", t.StorageClass == img.StorageClass},
		{"snapshotClass", t.SnapshotClass == img.SnapshotClass},
		{"secretRef", t.SecretRef == img.SecretRef},
		{"certConfigMap", t.CertConfigMap == img.CertConfigMap},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

func (s *decider) reportPlainTextPasswords() {
	var names []string
	for i := range s.VM.Spec.Users {
		if s.VM.Spec.Users[i].PlainTextPasswd != "" {
			names = append(names, s.VM.Spec.Users[i].Name)
		}
	}
	if len(names) == 0 {
		s.setCondition(v1alpha1.ConditionPlainTextPassword, false, v1alpha1.ReasonNoPasswordInSpec, "no password stands in the spec")
		return
	}
	s.setCondition(v1alpha1.ConditionPlainTextPassword, true, v1alpha1.ReasonPasswordInSpec, fmt.Sprintf("everybody who may read this VirtualMachine can read the password of %s: use passwordSecretRef", strings.Join(names, ", ")))
}

// NewlyTrue returns a condition that has come to hold; nil where it has not.
func NewlyTrue(before, after []metav1.Condition, t string) *metav1.Condition {
	c := meta.FindStatusCondition(after, t)
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	if was := meta.FindStatusCondition(before, t); was != nil && was.Status == c.Status && was.Message == c.Message {
		return nil
	}
	return c
}
