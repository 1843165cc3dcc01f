package vm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// writeStatus sets phase, reason, message and every condition, at each decision.
func (d *decider) writeStatus() {
	d.status.ObservedGeneration = d.VM.Generation
	d.status.PrintableStatus = d.printableStatus()
	if d.KubeVirtVM != nil && d.ownsObject(d.KubeVirtVM) {
		switch run := liveRunStrategy(d.KubeVirtVM); run {
		case "Always", "RerunOnFailure", "Manual", "Halted", "Once": // KubeVirt has others that spec.runStrategy does not accept
			d.status.RunStrategy = v1alpha1.RunStrategy(run)
		}
	}
	if d.decision.StoreStatusFirst {
		d.setBlocker(provisioningState(v1alpha1.ReasonAcquiringImage, "the machine is about to acquire the image"))
	}
	d.setPhase(d.VM.Generation, *d.blocker)

	d.reportImageAcquired()
	d.reportRootDiskReady()
	d.reportDisksReady()
	created := d.KubeVirtVM != nil && d.ownsObject(d.KubeVirtVM) && d.KubeVirtVM.GetDeletionTimestamp() == nil
	if created || d.decision.ApplyKubeVirtVM != nil {
		d.setCondition(v1alpha1.ConditionMachineCreated, true, v1alpha1.ReasonCreated, "KubeVirt VirtualMachine "+d.VM.Name)
	} else {
		d.setCondition(v1alpha1.ConditionMachineCreated, false, v1alpha1.ReasonNotCreated, d.blocker.message)
	}
	d.reportRestartRequired(created)
	d.reportAdjustments()
	d.reportImageDifferences()
	d.reportPlainTextPasswords()
}

// statusInterval is the least time between two stored statuses of a machine that is being
// provisioned.
const statusInterval = 10 * time.Second

// StatusDelay returns how long to wait before a decided status is stored; 0 stores it now. since is
// the time since the last store.
//
// Invariant: what later decisions or people rest on is stored at once: a phase, a pin, what is
// known of data disks, reasons and conditions that report no progress.
func StatusDelay(stored, decided *v1alpha1.VirtualMachineStatus, since time.Duration) time.Duration {
	left := statusInterval - since
	if since < 0 || left <= 0 || stored.Phase != v1alpha1.MachineProvisioning || decided.Phase != v1alpha1.MachineProvisioning ||
		stored.ObservedGeneration != decided.ObservedGeneration ||
		(stored.Reason != decided.Reason && (!slices.Contains(progressReasons, stored.Reason) || !slices.Contains(progressReasons, decided.Reason))) ||
		!equality.Semantic.DeepEqual(stored.Pinned, decided.Pinned) || !equality.Semantic.DeepEqual(stored.Disks, decided.Disks) {
		return 0
	}
	for i := range decided.Conditions {
		c := &decided.Conditions[i]
		former := meta.FindStatusCondition(stored.Conditions, c.Type)
		if former == nil || (!slices.Contains(progressConditions, c.Type) && (former.Status != c.Status || former.Message != c.Message)) {
			return 0
		}
	}
	return left
}

// progressReasons follow each other where nothing holds a machine up.
var progressReasons = []v1alpha1.Reason{
	v1alpha1.ReasonAcquiringImage, v1alpha1.ReasonCloningRootDisk, v1alpha1.ReasonPreparingDataDisk, v1alpha1.ReasonStarting,
}

// progressConditions say how far a machine is.
var progressConditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionImageAcquired,
	v1alpha1.ConditionRootDiskReady, v1alpha1.ConditionDisksReady, v1alpha1.ConditionMachineCreated, v1alpha1.ConditionRestartRequired,
}

// setPhase sets phase, reason and message, and conditions Ready, Reconciling and Stalled.
func (d *decider) setPhase(generation int64, state machineState) {
	d.status.Phase, d.status.Reason, d.status.Message = state.phase, state.reason, v1alpha1.SanitizeText(state.message, maxMessageBytes)
	d.generation = generation
	d.setCondition(v1alpha1.ConditionReady, state.phase == v1alpha1.MachineReady, string(state.reason), state.message)
	d.setCondition(v1alpha1.ConditionReconciling, state.phase == v1alpha1.MachineProvisioning, string(state.reason), state.message)
	d.setCondition(v1alpha1.ConditionStalled, state.phase == v1alpha1.MachineFailed, string(state.reason), state.message)
}

func (d *decider) setCondition(t string, holds bool, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, kstatus.NewCondition(
		t, holds, reason, v1alpha1.SanitizeText(message, maxMessageBytes), d.generation, d.timestamp.Time))
}

func (d *decider) reportImageAcquired() {
	acquired := d.root().isAcquired() || (d.deployIgnored() && d.imagesState().phase == v1alpha1.MachineReady)
	reason, message := v1alpha1.ReasonNotAcquired, d.root().imageState.message
	if p := d.status.Pinned; acquired && p != nil {
		reason, message = v1alpha1.ReasonAcquired, fmt.Sprintf("the root disk is of VMDiskImage %s/%s, revision %s", p.Namespace, p.Name, p.Revision)
		switch {
		case d.root().foreignSourceNote != "":
			message = fmt.Sprintf("VMDiskImage %s/%s, revision %s, is held, but the root disk was cloned from another source", p.Namespace, p.Name, p.Revision)
		case d.Pinned == nil && d.root().hasDisk():
			message += "; that image no longer exists, and the machine does not need it"
		}
	} else if acquired {
		reason = v1alpha1.ReasonAcquired
	} else if d.Image != nil && d.root().hasDisk() {
		message = "the machine has its root disk, whose source is unknown, and does not need an image"
	}
	for _, disk := range d.wantedDisks()[1:] {
		if acquired && !d.deployIgnored() && !disk.isAcquired() {
			acquired, reason, message = false, v1alpha1.ReasonNotAcquired, disk.imageState.message
		}
	}
	d.setCondition(v1alpha1.ConditionImageAcquired, acquired, reason, message)
}

// isAcquired reports whether the image of the disk stays; true for a disk without one.
func (d *diskDecider) isAcquired() bool {
	if !d.isRoot() && (d.isBlank() || d.hasDisk()) {
		return true
	}
	return d.pinned != nil && d.pinned.AcquiredAt != nil
}

func (d *decider) reportRootDiskReady() {
	disk := d.status.RootDisk
	switch {
	case d.root().lostMessage != "":
		d.setCondition(v1alpha1.ConditionRootDiskReady, false, string(v1alpha1.ReasonRootDiskFailed), d.root().lostMessage)
	case disk != nil && disk.Ready && d.root().isReplacedElsewhere():
		d.setCondition(v1alpha1.ConditionRootDiskReady, true, v1alpha1.ReasonCloned, "the root disk is PersistentVolumeClaim "+d.root().replacingClaim())
	case disk != nil && disk.Ready:
		d.setCondition(v1alpha1.ConditionRootDiskReady, true, v1alpha1.ReasonCloned, fmt.Sprintf("DataVolume %s has %s", disk.DataVolume, disk.Size.String()))
	case d.root().late:
		d.setCondition(v1alpha1.ConditionRootDiskReady, false, string(v1alpha1.ReasonCloningRootDisk), d.root().lateText())
	case disk != nil:
		d.setCondition(v1alpha1.ConditionRootDiskReady, false, string(v1alpha1.ReasonCloningRootDisk), "the root disk is being cloned")
	default:
		d.setCondition(v1alpha1.ConditionRootDiskReady, false, v1alpha1.ReasonNotCreated, "there is no root disk yet")
	}
}

// reportDisksReady names the first disk of spec.disks that is not complete.
func (d *decider) reportDisksReady() {
	disks := d.wantedDisks()[1:]
	if len(disks) == 0 {
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionDisksReady)
		return
	}
	for _, disk := range disks {
		switch {
		case disk.lostMessage != "":
			d.setCondition(v1alpha1.ConditionDisksReady, false, string(v1alpha1.ReasonDataDiskLost), disk.lostMessage)
		case disk.volume == nil || (!disk.requested && !disk.isOwned() && !disk.volume.Ready):
			d.setCondition(v1alpha1.ConditionDisksReady, false, v1alpha1.ReasonNotCreated, fmt.Sprintf("there is no disk %s yet", disk.name))
		case disk.late:
			d.setCondition(v1alpha1.ConditionDisksReady, false, string(v1alpha1.ReasonPreparingDataDisk), disk.lateText())
		case !disk.volume.Ready:
			d.setCondition(v1alpha1.ConditionDisksReady, false, string(v1alpha1.ReasonPreparingDataDisk), fmt.Sprintf("disk %s is being %s", disk.name, disk.doneWord()))
		default:
			continue
		}
		return
	}
	d.setCondition(v1alpha1.ConditionDisksReady, true, string(v1alpha1.ReasonReady), fmt.Sprintf("all %d disks of spec.disks are complete", len(disks)))
}

// reportRestartRequired sets condition RestartRequired: True where a restart would change the
// machine.
func (d *decider) reportRestartRequired(created bool) {
	setUpToDate := func(message string) {
		d.setCondition(v1alpha1.ConditionRestartRequired, false, v1alpha1.ReasonUpToDate, message)
	}
	kubeVirtMessage := ""
	if created && d.instanceIsRunning() { // KubeVirt clears its condition only at the next start
		kubeVirtMessage = d.kubeVirtRestartMessage()
	}
	switch {
	case d.changeNeedsRestart:
		d.setCondition(v1alpha1.ConditionRestartRequired, true, v1alpha1.ReasonSpecChanged, fmt.Sprintf("the spec changed while the machine runs: restart it to apply the change (virtctl restart %s)", d.VM.Name))
	case kubeVirtMessage != "":
		d.setCondition(v1alpha1.ConditionRestartRequired, true, v1alpha1.ReasonSpecChanged, fmt.Sprintf("KubeVirt requires a restart of the machine (virtctl restart %s): %s", d.VM.Name, kubeVirtMessage))
	case d.renderingChanged:
		setUpToDate("the machine runs as the spec says; what this version of the agent renders differently applies at the next start")
	case d.comparedWithSpec:
		setUpToDate("the KubeVirt VirtualMachine matches the spec")
	case created && d.VM.Spec.IgnoreOnDeploy:
		setUpToDate("unknown while spec.ignoreOnDeploy is true: the KubeVirt VirtualMachine is left as it is")
	case created && d.specError != nil:
		setUpToDate("unknown while the spec is invalid: the KubeVirt VirtualMachine is left as it is")
	case created:
		setUpToDate("unknown yet: " + d.blocker.message)
	default:
		setUpToDate("there is no KubeVirt VirtualMachine to restart")
	}
}

// kubeVirtRestartMessage returns why KubeVirt requires a restart; empty if it does not.
func (d *decider) kubeVirtRestartMessage() string {
	holds, message := d.kubeVirtCondition(kubevirtv1.VirtualMachineRestartRequired)
	if !holds {
		return ""
	}
	return v1alpha1.SanitizeText(cmp.Or(message, "it gives no reason"), maxQuotedBytes)
}

// reportAdjustments sets condition SpecAdjusted: True where the machine deviates from its spec.
func (d *decider) reportAdjustments() {
	adjusted := append([]string(nil), d.guestConfig.Adjusted...)
	for _, disk := range d.disks {
		adjusted = append(adjusted, disk.adjustments()...)
	}
	if d.addressProblem != "" && d.KubeVirtVM != nil {
		adjusted = append(adjusted, v1alpha1.SanitizeText(d.addressProblem, maxQuotedBytes))
	}
	adjusted = append(adjusted, d.unappliedChanges()...)
	if len(adjusted) == 0 {
		d.setCondition(v1alpha1.ConditionSpecAdjusted, false, v1alpha1.ReasonAsSpecified, "the machine matches its spec")
		return
	}
	d.setCondition(v1alpha1.ConditionSpecAdjusted, true, v1alpha1.ReasonAdjusted, strings.Join(adjusted, "; "))
}

// The fates of a claim that is the disk instead. KubeVirt (1.8) makes the KubeVirt VirtualMachine the owner of a
// restored claim, unless volumeOwnershipPolicy of the restore is None; AnnotationMigratedVolumes records those, too,
// once they are detached, and does not tell them from others.
const (
	recordedClaimFate = "which is kept, also when this machine is deleted, unless it is deleted with the KubeVirt VirtualMachine that owns it, as one that KubeVirt has restored"
	restoredClaimFate = "is kept until the KubeVirt VirtualMachine is deleted, and deleted with it unless volumeOwnershipPolicy of the restore was None"
)

// adjustments returns how the disk deviates from the spec.
func (d *diskDecider) adjustments() (sentences []string) {
	ready := d.volume != nil && d.volume.Ready
	if d.isRemoved() {
		switch {
		case ready && d.isMigrated():
			claim := d.replacingClaim()
			sentences = append(sentences, fmt.Sprintf("%s is not in spec.disks and is PersistentVolumeClaim %s, %s: to discard what the guest has written, delete that claim with its DataVolume, and remove %s=%s from annotation %s of the KubeVirt VirtualMachine (then DataVolume %s is the disk again)",
				d.title, claim, recordedClaimFate, d.name, claim, v1alpha1.AnnotationMigratedVolumes, d.objectName))
		case ready && d.isReplacedElsewhere() && d.ownsObject(d.KubeVirtVM): // restored, and recorded once it is detached
			sentences = append(sentences, fmt.Sprintf("%s is not in spec.disks and is PersistentVolumeClaim %s of a snapshot that KubeVirt has restored, and %s: to discard what the guest has written, restart the machine, which detaches the disk; this condition then says what to delete", d.title, d.replacingClaim(), restoredClaimFate))
		case ready && d.isOwned():
			sentences = append(sentences, fmt.Sprintf("%s is not in spec.disks and is kept until the machine is deleted: to discard what the guest has written, delete DataVolume %s", d.title, d.objectName))
		}
		return sentences
	}
	if sentence := d.sizeAdjustment(); sentence != "" {
		sentences = append(sentences, sentence)
	}
	field, requested := "resources.diskSize", (*resource.Quantity)(nil)
	if d.isRoot() && d.VM.Spec.Resources != nil {
		requested = d.VM.Spec.Resources.DiskSize
	} else if !d.isRoot() {
		field, requested = "its size in spec.disks", d.spec.Size
	}
	switch p := d.pinned; {
	case d.foreignSourceNote != "":
		sentences = append(sentences, d.foreignSourceNote)
	case !ready:
	case p == nil && d.DataVolume != nil && !d.isRoot() && !d.isBlank() && d.hasBlankSource():
		sentences = append(sentences, fmt.Sprintf("%s was created blank and stays: VMDiskImage %s is for a new disk (%s)", d.title, d.imageName, d.replacementAdvice()))
	case p != nil && d.isBlank():
		sentences = append(sentences, fmt.Sprintf("%s was cloned from VMDiskImage %s/%s and stays: a blank disk is a new one (%s)", d.title, p.Namespace, p.Name, d.replacementAdvice()))
	case p != nil && d.imageName != (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}):
		sentences = append(sentences, fmt.Sprintf("%s was cloned from VMDiskImage %s/%s and stays: VMDiskImage %s is for a new disk (%s)", d.title, p.Namespace, p.Name, d.imageName, d.replacementAdvice()))
	}
	if ready && requested != nil && !d.isReplacedElsewhere() && d.volume.Size.Cmp(*requested) < 0 {
		sentences = append(sentences, fmt.Sprintf("%s has %s and is not grown to %s: expand PersistentVolumeClaim %s where its StorageClass allows that", d.title, d.volume.Size.String(), field, d.volume.DataVolume))
	}
	return sentences
}

// sizeAdjustment says that the disk is made larger for its image; empty if not.
func (d *diskDecider) sizeAdjustment() (sentence string) {
	img := d.cloneSourceImage()
	switch {
	case img == nil || d.isBlank():
	case d.pinned != nil && d.Pinned == nil: // img has its name, and is another one
	case d.isRoot():
		_, sentence = kubevirt.RootDiskSize(d.VM, img)
	default:
		_, sentence = kubevirt.DataDiskSize(d.spec, img)
	}
	return sentence
}

func (d *diskDecider) hasBlankSource() bool {
	return d.DataVolume.Spec.Source != nil && d.DataVolume.Spec.Source.Blank != nil
}

// replacementAdvice says how to get another disk.
func (d *diskDecider) replacementAdvice() string {
	switch {
	case d.isRoot() && d.isReplacedElsewhere():
		return "make another machine to get one"
	case d.isRoot():
		return fmt.Sprintf("delete DataVolume %s to have one cloned; this loses what the guest has written", d.objectName)
	default:
		return "give it another name to get one"
	}
}

// returnAdvice says how to return to the machine's own DataVolume from the claim that took its place, where it
// is there: a data disk would be lost, and a root disk cloned anew.
func (d *diskDecider) returnAdvice(isMigration bool) string {
	switch overlaid := kubevirt.OverlayDisk(d.VM, d.volumeName()); {
	case d.CDIServed && !d.isComplete():
		return fmt.Sprintf("there is no return: DataVolume %s is gone, or not complete", d.objectName)
	case !isMigration:
		return "remove annotation restore.kubevirt.io/lastRestoreUID from the KubeVirt VirtualMachine to return to DataVolume " + d.objectName
	default:
		first := ""
		if overlaid != "" && overlaid != d.objectName { // it would be applied again
			first = fmt.Sprintf("remove volume %s from spec.overlay, then ", d.volumeName())
		}
		return fmt.Sprintf("to return, %shave volume %s of the KubeVirt VirtualMachine name DataVolume %s again with spec.updateVolumesStrategy Migration while the machine runs; while it is stopped KubeVirt copies nothing, and the guest would start with the data of before",
			first, d.volumeName(), d.objectName)
	}
}

// volumeName is the name of the disk's volume in the KubeVirt VirtualMachine.
func (d *diskDecider) volumeName() string {
	if d.isRoot() {
		return kubevirt.RootVolume
	}
	return d.name
}

// unappliedChanges returns what an existing KubeVirt VirtualMachine does not get of the spec.
func (d *decider) unappliedChanges() (sentences []string) {
	if d.KubeVirtVM == nil || !d.ownsObject(d.KubeVirtVM) {
		return nil
	}
	for _, disk := range d.wantedDisks() {
		switch claim, isMigration := kubevirt.ReplacingClaim(d.KubeVirtVM, disk.volumeName(), disk.objectName); {
		case isMigration:
			sentences = append(sentences, fmt.Sprintf("KubeVirt migrates volumes: %s is PersistentVolumeClaim %s, %s (%s)", disk.title, claim, recordedClaimFate, disk.returnAdvice(true)))
		case claim != "":
			sentences = append(sentences, fmt.Sprintf("KubeVirt has restored a snapshot: %s is PersistentVolumeClaim %s and %s (%s)", disk.title, claim, restoredClaimFate, disk.returnAdvice(false)))
		}
	}
	if d.MissingSecret != "" {
		sentences = append(sentences, d.MissingSecret+"; until then the cloud-init data stays as it was")
	}
	if d.architectureNote != "" {
		sentences = append(sentences, d.architectureNote)
	}
	if d.guestConfigOutdated {
		sentences = append(sentences, fmt.Sprintf("name, users, interfaces or cloudInit have changed since the guest's first boot, and cloud-init applies them only then: make the change in the guest too (remove annotation %s from the KubeVirt VirtualMachine when that is done)", v1alpha1.AnnotationAppliedGuest))
	}
	return sentences
}

// reportImageDifferences sets condition ImageDiffers: True where the existing image differs
// from the template. The existing one is used.
func (d *decider) reportImageDifferences() {
	t := d.VM.Spec.VMDiskImageTemplate
	if t == nil || d.Image == nil {
		d.setCondition(v1alpha1.ConditionImageDiffers, false, v1alpha1.ReasonNoTemplate, "there is no template, or no image to compare it with")
		return
	}
	fields := slices.DeleteFunc(t.DiffersIn(&d.Image.Spec), func(field string) bool { return slices.Contains(ownFields, field) })
	if len(fields) == 0 {
		d.setCondition(v1alpha1.ConditionImageDiffers, false, v1alpha1.ReasonSameAsImage, "the image matches the template")
		return
	}
	d.setCondition(v1alpha1.ConditionImageDiffers, true, v1alpha1.ReasonDiffersFromTemplate, fmt.Sprintf("VMDiskImage %s already existed and is used as it is; the template has another %s", d.VM.ImageNamespacedName(), strings.Join(fields, ", ")))
}

// ownFields of an image say nothing of its content: a template may have others.
var ownFields = []string{"name", "priority", "deleteUnreferencedAfter"}

func (d *decider) reportPlainTextPasswords() {
	var names []string
	for i := range d.VM.Spec.Users {
		if d.VM.Spec.Users[i].PlainTextPasswd != "" {
			names = append(names, d.VM.Spec.Users[i].Name)
		}
	}
	if len(names) == 0 {
		d.setCondition(v1alpha1.ConditionPlainTextPassword, false, v1alpha1.ReasonNoPasswordInSpec, "the spec contains no password")
		return
	}
	d.setCondition(v1alpha1.ConditionPlainTextPassword, true, v1alpha1.ReasonPasswordInSpec, fmt.Sprintf("whoever may read this VirtualMachine can read the password of %s: use passwordSecretRef", strings.Join(names, ", ")))
}

// NewlyTrue returns a condition that became True, or True with another message; nil
// otherwise.
func NewlyTrue(before, after []metav1.Condition, t string) *metav1.Condition {
	c := meta.FindStatusCondition(after, t)
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	if previous := meta.FindStatusCondition(before, t); previous != nil && previous.Status == c.Status && previous.Message == c.Message {
		return nil
	}
	return c
}
