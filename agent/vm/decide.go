package vm

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// missingRecheckInterval is how often a Secret or a namespace is looked for that no
// watch tells of, and a refused request repeated.
const missingRecheckInterval = 30 * time.Second

// Decide works out what becomes of a machine.
func Decide(v View) Decision {
	s := &decider{View: v, timestamp: metav1.NewTime(v.Now.UTC().Truncate(time.Second))}
	v.VM.Status.DeepCopyInto(&s.decision.Status)
	s.decision.previousConditions = v.VM.Status.Conditions
	s.status = &s.decision.Status

	s.renderGuestAndMachine()
	s.reportInputErrors()
	s.evaluateImage()
	s.pinImage()
	if !s.decision.StoreStatusFirst {
		s.acquireImage()
	}
	if !s.decision.StoreStatusFirst {
		s.reconcileRootDisk()
		s.reconcileCloudInitSecret()
		s.reconcileKubeVirtVM()
	}
	if s.decision.NeedsLive && !v.Live {
		return Decision{NeedsLive: true}
	}
	if s.decision.StoreStatusFirst {
		s.decision.CreateImage = nil
	}
	if s.decision.StoreStatusFirst && s.status.Phase != "" {
		return s.decision // what it waits for is told once it has been looked at again
	}
	s.writeStatus()
	return s.decision
}

// renderGuestAndMachine works out what the guest is told and what KubeVirtServed is to run.
func (s *decider) renderGuestAndMachine() {
	if s.MissingSecret != "" {
		s.guestConfig, s.specError = cloudinit.RenderWithoutSecrets(s.VM, s.Inputs.ClusterUID)
	} else {
		s.guestConfig, s.specError = cloudinit.Render(s.VM, s.Inputs)
	}
	if s.specError != nil {
		return
	}
	s.desiredVM, s.specError = kubevirt.BuildVirtualMachine(s.VM, s.guestConfig)
}

// reportInputErrors says what keeps the guest from being told anything, whatever else is
// waited for meanwhile: it is for a person to mend.
func (s *decider) reportInputErrors() {
	if s.deployIgnored() {
		return
	}
	if s.MissingSecret != "" {
		s.requeueWithin(missingRecheckInterval)
		if s.KubeVirtVM == nil { // one that is there has been told
			s.setBlocker(s.missingDependency(v1alpha1.ReasonSecretMissing, s.MissingSecret))
		}
	}
	if s.specError != nil {
		s.setBlocker(failedState(v1alpha1.ReasonSpecInvalid, Truncate(s.specError.Error(), maxQuotedBytes)))
	}
}

// evaluateImage sees to it that the image that the spec names is there, and says
// how far it is.
func (s *decider) evaluateImage() {
	s.status.Image = nil
	name := s.VM.ImageNamespacedName()
	img := s.Image
	if img == nil {
		s.handleMissingImage(name)
		return
	}
	s.status.Image = &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason}
	if !s.hasClonedRootDisk() { // else every machine would be written at each step of an import that it does not wait for
		s.status.Image.Progress, s.status.Image.QueuePosition = img.Status.Progress, img.Status.QueuePosition
	}
	switch {
	case isBeingDeleted(img):
		s.imageState = provisioningState(v1alpha1.ReasonImageDeleting, fmt.Sprintf("VMDiskImage %s is being removed; this machine goes on when it is made again%s", name, s.recreationHint()))
	case img.Status.Serving != nil:
		s.imageState = machineState{v1alpha1.MachineReady, v1alpha1.ReasonReady, fmt.Sprintf("VMDiskImage %s is ready", name)}
	case img.Status.Phase == v1alpha1.PhaseFailed:
		s.imageState = failedState(v1alpha1.ReasonImageFailed, fmt.Sprintf("VMDiskImage %s failed: %s: %s", name, img.Status.Reason, img.Status.Message))
	default:
		s.imageState = provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("waits for VMDiskImage %s: %s", name, describeImageProgress(img)))
	}
}

func (s *decider) handleMissingImage(name types.NamespacedName) {
	switch {
	case s.hasClonedRootDisk() && !s.deployIgnored(): // else whole clusters would download what nobody needs
		s.imageState = provisioningState(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist; the machine has its root disk and does without", name))
	case !s.mayCreateImage():
		s.imageState = s.missingDependency(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist: create it, or set spec.vmDiskImageTemplate and imageMode %s", name, v1alpha1.ImageModeCreate))
	case !s.Live:
		s.decision.NeedsLive = true
	default:
		s.imageState = provisioningState(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("VMDiskImage %s is being created from the template", name))
		s.decision.CreateImage = &v1alpha1.VMDiskImage{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VMDiskImage"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name,
				Annotations: map[string]string{v1alpha1.AnnotationCreatedFor: s.VM.Namespace + "/" + s.VM.Name},
			},
			Spec: *s.VM.Spec.VMDiskImageTemplate.DeepCopy(),
		}
	}
}

func (s *decider) mayCreateImage() bool {
	return s.VM.Spec.VMDiskImageTemplate != nil && s.VM.Spec.ImageMode != v1alpha1.ImageModeFail
}

// recreationHint says who makes an image again that is being removed.
func (s *decider) recreationHint() string {
	if s.mayCreateImage() {
		return " from spec.vmDiskImageTemplate"
	}
	return ""
}

func describeImageProgress(img *v1alpha1.VMDiskImage) string {
	if img.Status.Phase == "" {
		return "it has just been created"
	}
	text := fmt.Sprintf("%s, %s", img.Status.Phase, img.Status.Reason)
	if p := img.Status.Progress; img.Status.Phase == v1alpha1.PhaseSyncing && p != "" && p != "N/A" {
		text += " " + p
	}
	if img.Status.Message != "" {
		text += ": " + img.Status.Message
	}
	return text
}

// isBeingDeleted tells that an image can no longer be acquired.
func isBeingDeleted(img *v1alpha1.VMDiskImage) bool {
	return img.Status.Phase == v1alpha1.PhaseDeleting || img.Status.TearDown
}

// pinImage chooses what the root disk is cloned from. Once it has been cloned the
// choice stands: another image, revision or snapshot is for a new disk only.
func (s *decider) pinImage() {
	if s.hasClonedRootDisk() {
		s.pinFromRootDisk()
		return
	}
	if s.hasLostRootDisk() {
		return // it may be found again, and is of what is pinned
	}
	if s.deployIgnored() {
		// The name holds the image; which revision of it is taken is decided when the
		// disk is made.
		if s.status.Pinned != nil {
			s.changePin(nil)
		}
		return
	}
	p := s.status.Pinned
	if p != nil && s.Image != nil && p.UID == s.Image.UID {
		switch {
		case stillServes(s.Image, p):
			return
		case p.AcquiredAt != nil && !s.Live:
			s.decision.NeedsLive = true
			return
		case p.AcquiredAt != nil && s.SourceExists:
			return // an older revision, which is kept for the sake of this pin
		}
	}
	// What was pinned is of another image, has never been acquired, or is gone.
	next := s.newPin(s.Image)
	if next == nil && (p == nil || (s.Image != nil && p.UID == s.Image.UID && !isBeingDeleted(s.Image))) {
		return
	}
	if !s.Live && (p != nil || s.RootDisk != nil) {
		s.decision.NeedsLive = true // no pin and no disk is given up for what a cache shows
		return
	}
	s.changePin(next)
}

// pinFromRootDisk has a disk that is there be of what is pinned.
func (s *decider) pinFromRootDisk() {
	p := s.status.Pinned
	switch {
	case p == nil || s.rootDiskHasOtherSource(p):
		if found := s.recoverPin(); found != nil {
			s.status.Pinned, s.decision.StoreStatusFirst = found, true
		} else if p != nil {
			s.foreignDiskNote = fmt.Sprintf("DataVolume %s says that it was cloned from %q, which VMDiskImage %s does not have: it is used as it is, and nobody knows what it was cloned from",
				s.RootDisk.Name, Truncate(s.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom], maxQuotedBytes), s.VM.ImageNamespacedName())
		}
	case p.AcquiredAt != nil:
	case s.RootDisk == nil && !s.Live:
		s.decision.NeedsLive = true
	default: // nothing is cloned before, so it was acquired
		p.AcquiredAt, s.decision.StoreStatusFirst = &s.timestamp, true
	}
}

// changePin changes what is pinned, once nothing is being cloned from anything else:
// a clone that is complete after all would be of an image that nobody holds.
func (s *decider) changePin(next *v1alpha1.PinnedImage) {
	if s.replacesRootDisk = s.rootDiskHasOtherSource(next); s.replacesRootDisk {
		return
	}
	s.status.Pinned = next
	s.decision.StoreStatusFirst = true
}

// rootDiskHasOtherSource tells whether there is a root disk of something else than p.
func (s *decider) rootDiskHasOtherSource(p *v1alpha1.PinnedImage) bool {
	dv := s.RootDisk
	return dv != nil && s.ownsObject(dv) && (p == nil || dv.Annotations[v1alpha1.AnnotationClonedFrom] != kubevirt.ClonedFromValue(*p))
}

// newPin is what an image serves now; nil where it serves nothing, or can no
// longer be acquired.
func (s *decider) newPin(img *v1alpha1.VMDiskImage) *v1alpha1.PinnedImage {
	if img == nil || img.Status.Serving == nil || isBeingDeleted(img) {
		return nil
	}
	p := pinFromServing(v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}, img.Status.Serving)
	return &p
}

func pinFromServing(img v1alpha1.ImageKey, serving *v1alpha1.Serving) v1alpha1.PinnedImage {
	return v1alpha1.PinnedImage{
		ImageKey: img, Revision: serving.Revision, Attempt: serving.Attempt,
		PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot,
		DiskSize: serving.DiskSize, RestoreSize: serving.RestoreSize,
	}
}

// recoverPin finds again what a disk was cloned from whose machine has lost its
// status. Whoever writes to the namespace can say anything on a disk: it is only
// believed where it names what an image that the machine may be built from has
// itself made.
func (s *decider) recoverPin() *v1alpha1.PinnedImage {
	if s.RootDisk == nil || s.RootDisk.Spec.Source == nil {
		return nil
	}
	for _, img := range []*v1alpha1.VMDiskImage{s.Image, s.Pinned} {
		for _, p := range cloneSources(img) {
			if s.RootDisk.Spec.Source.Snapshot == nil {
				p.VolumeSnapshot = ""
			}
			named := p.VolumeSnapshot != "" || p.PersistentVolumeClaim != ""
			if named && s.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom] == kubevirt.ClonedFromValue(p) {
				p.AcquiredAt = &s.timestamp
				return &p
			}
		}
	}
	return nil
}

// cloneSources is what an image has that can be cloned: what it serves, and older
// revisions.
func cloneSources(img *v1alpha1.VMDiskImage) []v1alpha1.PinnedImage {
	if img == nil {
		return nil
	}
	key := v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}
	var pins []v1alpha1.PinnedImage
	if serving := img.Status.Serving; serving != nil {
		pins = append(pins, pinFromServing(key, serving))
	}
	for i := range img.Status.Revisions {
		r := &img.Status.Revisions[i]
		if r.Outcome != v1alpha1.OutcomeSucceeded || r.AttemptEnded != r.Attempt {
			continue
		}
		pins = append(pins, v1alpha1.PinnedImage{
			ImageKey: key, Revision: r.Revision, Attempt: r.Attempt,
			PersistentVolumeClaim: r.DataVolume, VolumeSnapshot: r.VolumeSnapshot,
		})
	}
	return pins
}

// stillServes tells whether an image serves what is pinned of it.
func stillServes(img *v1alpha1.VMDiskImage, p *v1alpha1.PinnedImage) bool {
	serving := img.Status.Serving
	return serving != nil && !isBeingDeleted(img) && serving.Revision == p.Revision && serving.Attempt == p.Attempt &&
		serving.PersistentVolumeClaim == p.PersistentVolumeClaim && serving.VolumeSnapshot == p.VolumeSnapshot
}

// acquireImage makes sure that what is pinned stays: the pin was stored before the
// image is looked at here, so whoever removes it has either been seen or sees
// the pin (DESIGN, S2).
func (s *decider) acquireImage() {
	p := s.status.Pinned
	if p == nil || p.AcquiredAt != nil || s.rootDiskHasOtherSource(p) || s.replacesRootDisk {
		return
	}
	switch {
	case !s.Live:
		s.decision.NeedsLive = true
	case s.Pinned != nil && stillServes(s.Pinned, p) && s.SourceExists:
		p.AcquiredAt = &s.timestamp
		s.decision.StoreStatusFirst = true
	case s.Pinned != nil && stillServes(s.Pinned, p):
		s.imageState = provisioningState(v1alpha1.ReasonAcquiringImage, fmt.Sprintf("what VMDiskImage %s/%s serves is gone: waits until the image has seen it", p.Namespace, p.Name))
		s.requeueWithin(time.Second)
	}
}

// ignored: nothing but the image is made.
func (s *decider) deployIgnored() bool { return s.VM.Spec.IgnoreOnDeploy && s.KubeVirtVM == nil }

// hasClonedRootDisk tells whether the root disk has been cloned. A bound claim without a
// DataVolume counts too: older CDIServed collects finished ones, and hands the claim to
// their owner. One that still is a DataVolume's goes with it, full or not.
func (s *decider) hasClonedRootDisk() bool {
	switch {
	case s.RootDisk != nil:
		return s.ownsObject(s.RootDisk) && s.RootDisk.DeletionTimestamp == nil && s.RootDisk.Status.Phase == cdiv1.Succeeded
	case s.RootClaim != nil:
		of := metav1.GetControllerOf(s.RootClaim)
		return s.ownsObject(s.RootClaim) && s.RootClaim.DeletionTimestamp == nil && s.RootClaim.Status.Phase == corev1.ClaimBound &&
			(of == nil || of.Kind != "DataVolume")
	default:
		return false
	}
}

// ownsObject tells whether an object was made for this machine.
func (s *decider) ownsObject(o metav1.Object) bool {
	return o.GetLabels()[v1alpha1.LabelMachineUID] == string(s.VM.UID)
}

// NameTakenMessage says that an object of a name that is needed belongs to others.
func NameTakenMessage(kind, name string) string {
	return fmt.Sprintf("there is a %s %s that was not made for this machine: rename or delete it, or give this machine another name", kind, name)
}

func nameTakenState(kind, name string) machineState {
	return failedState(v1alpha1.ReasonNameTaken, NameTakenMessage(kind, name))
}

// SetRefused has the status say that the API server did not take something.
func (d *Decision) SetRefused(generation int64, now time.Time, reason v1alpha1.Reason, what string, err error) {
	d.overrideState(generation, now, failedState(reason, fmt.Sprintf("the API server refused %s: %s", what, Truncate(err.Error(), maxQuotedBytes))))
	if d.RequeueAfter == 0 || d.RequeueAfter > missingRecheckInterval {
		d.RequeueAfter = missingRecheckInterval
	}
}

// maxQuotedBytes is how much of what others say is told, in bytes; maxMessageBytes bounds a
// message that has it: the API server takes 32 KiB.
const (
	maxQuotedBytes  = 768
	maxMessageBytes = 4096
)

// Truncate shortens a text to some bytes.
func Truncate(text string, most int) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len("…")], "") + "…"
	}
	return text
}
