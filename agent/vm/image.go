package vm

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// evaluateImage sets imageState for the image that the spec names. The root disk's is also in
// status.image, and created if it is missing.
func (d *diskDecider) evaluateImage() {
	name, img := d.imageName, d.Image
	switch {
	case d.isBlank():
		d.imageState = machineState{v1alpha1.MachineReady, v1alpha1.ReasonReady, d.title + " is blank"}
		return
	case d.isRoot():
		d.reportImage()
	}
	defer func() { d.imageState.message = d.prefix() + d.imageState.message }()
	switch {
	case img == nil:
		d.handleMissingImage(name)
	case isBeingDeleted(img):
		d.imageState = provisioningState(v1alpha1.ReasonImageDeleting, fmt.Sprintf("VMDiskImage %s is being deleted; this machine continues once it is recreated%s", name, d.recreationHint()))
	case d.cloneMismatch(img) != "" && !d.hasDisk():
		d.imageState = failedState(v1alpha1.ReasonArchitectureMismatch, d.cloneMismatch(img))
	case img.Status.Serving != nil:
		d.imageState = machineState{v1alpha1.MachineReady, v1alpha1.ReasonReady, fmt.Sprintf("VMDiskImage %s is ready", name)}
	case img.Status.Phase == v1alpha1.PhaseFailed:
		d.imageState = failedState(v1alpha1.ReasonImageFailed, fmt.Sprintf("VMDiskImage %s failed: %s: %s", name, img.Status.Reason, img.Status.Message))
	case isStalled(img):
		d.imageState = d.missingDependency(v1alpha1.ReasonImageFailed, fmt.Sprintf("VMDiskImage %s needs a person: %s", name, describeImageProgress(img)))
	default:
		d.imageState = provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("waiting for VMDiskImage %s: %s", name, describeImageProgress(img)))
	}
}

func (d *diskDecider) reportImage() {
	img := d.Image
	d.status.Image = nil
	if img == nil {
		return
	}
	d.status.Image = &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason}
	if !d.hasDisk() { // otherwise each step of an import would write every machine
		d.status.Image.Progress, d.status.Image.QueuePosition = v1alpha1.SanitizeText(img.Status.Progress, maxStateBytes), img.Status.QueuePosition
	}
}

// prefix names a data disk in messages that are about its image.
func (d *diskDecider) prefix() string {
	if d.isRoot() {
		return ""
	}
	return d.title + ": "
}

func (d *diskDecider) handleMissingImage(name types.NamespacedName) {
	switch {
	case d.hasDisk() && !d.deployIgnored(): // otherwise whole clusters would download images that no machine needs
		d.imageState = provisioningState(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist; the machine has %s and does not need it", name, d.ownTitle()))
	case !d.isRoot():
		d.imageState = d.missingDependency(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist: create it, or correct spec.disks", name))
	case !d.mayCreateImage():
		d.imageState = d.missingDependency(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist: create it, or set spec.vmDiskImageTemplate and imageMode %s", name, v1alpha1.ImageModeCreate))
	case !d.Live:
		d.decision.NeedsLive = true
	default:
		d.imageState = provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("VMDiskImage %s is being created from the template", name))
		d.decision.CreateImage = &v1alpha1.VMDiskImage{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VMDiskImage"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name,
				Annotations: map[string]string{v1alpha1.AnnotationCreatedFor: d.VM.Namespace + "/" + d.VM.Name},
			},
			Spec: *d.VM.Spec.VMDiskImageTemplate.DeepCopy(),
		}
	}
}

// ownTitle names the disk as the machine's own.
func (d *diskDecider) ownTitle() string {
	if d.isRoot() {
		return "its root disk"
	}
	return "the disk"
}

func (d *diskDecider) mayCreateImage() bool {
	return d.isRoot() && d.VM.Spec.VMDiskImageTemplate != nil && d.VM.Spec.ImageMode != v1alpha1.ImageModeFail
}

func (d *diskDecider) recreationHint() string {
	if d.mayCreateImage() {
		return " from spec.vmDiskImageTemplate"
	}
	return ""
}

func describeImageProgress(img *v1alpha1.VMDiskImage) string {
	if img.Status.Phase == "" {
		return "it was just created"
	}
	text := fmt.Sprintf("%s, %s", img.Status.Phase, img.Status.Reason)
	if p := v1alpha1.SanitizeText(img.Status.Progress, maxStateBytes); img.Status.Phase == v1alpha1.PhaseSyncing && p != "" && p != "N/A" {
		text += " " + p
	}
	if img.Status.Message != "" {
		text += ": " + img.Status.Message
	}
	return text
}

// isStalled reports whether an image waits for a person, in whatever phase it is.
func isStalled(img *v1alpha1.VMDiskImage) bool {
	c := meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionStalled)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == img.Generation
}

// isBeingDeleted: the image can no longer be acquired. A released one is gone once others let it go, whatever
// the agent stored of it before.
func isBeingDeleted(img *v1alpha1.VMDiskImage) bool {
	return image.IsReleased(img) || img.Status.Phase == v1alpha1.PhaseDeleting || img.Status.TearDown
}
