package vm

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/guest"
	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// missingInterval is how often a Secret or a namespace is looked for that no
// watch tells of, and a refused request repeated.
const missingInterval = 30 * time.Second

// Decide works out what becomes of a machine.
func Decide(v View) Decision {
	s := &step{View: v, now: metav1.NewTime(v.Now.UTC().Truncate(time.Second))}
	v.VM.Status.DeepCopyInto(&s.d.Status)
	s.d.before = v.VM.Status.Conditions
	s.st = &s.d.Status

	s.render()
	s.tellInputs()
	s.findImage()
	s.pin()
	if !s.d.StoreFirst {
		s.acquire()
	}
	if !s.d.StoreFirst {
		s.keepRootDisk()
		s.keepSecret()
		s.keepMachine()
	}
	if s.d.NeedsLive && !v.Live {
		return Decision{NeedsLive: true}
	}
	if s.d.StoreFirst {
		s.d.CreateImage = nil
	}
	if s.d.StoreFirst && s.st.Phase != "" {
		return s.d // what it waits for is told once it has been looked at again
	}
	s.summarize()
	return s.d
}

// render works out what the guest is told and what KubeVirt is to run.
func (s *step) render() {
	if s.Missing != "" {
		s.guest, s.invalid = guest.Outline(s.VM, s.Inputs.Cluster)
	} else {
		s.guest, s.invalid = guest.Render(s.VM, s.Inputs)
	}
	if s.invalid != nil {
		return
	}
	s.wanted, s.invalid = machine.KubeVirt(s.VM, s.guest)
}

// tellInputs says what keeps the guest from being told anything, whatever else is
// waited for meanwhile: it is for a person to mend.
func (s *step) tellInputs() {
	if s.ignored() {
		return
	}
	if s.Missing != "" {
		s.within(missingInterval)
		if s.Machine == nil { // one that is there has been told
			s.blocked(s.lacking(v1alpha1.ReasonSecretMissing, s.Missing))
		}
	}
	if s.invalid != nil {
		s.blocked(failed(v1alpha1.ReasonSpecInvalid, Cut(s.invalid.Error(), mostTold)))
	}
}

// findImage sees to it that the image that the spec names is there, and says
// how far it is.
func (s *step) findImage() {
	s.st.Image = nil
	name := s.VM.ImageName()
	img := s.Image
	if img == nil {
		s.missImage(name)
		return
	}
	s.st.Image = &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason}
	if !s.hasDisk() { // else every machine would be written at each step of an import that it does not wait for
		s.st.Image.Progress, s.st.Image.QueuePosition = img.Status.Progress, img.Status.QueuePosition
	}
	switch {
	case deleting(img):
		s.image = provisioning(v1alpha1.ReasonImageDeleting, fmt.Sprintf("VMDiskImage %s is being removed; this machine goes on when it is made again%s", name, s.byWhom()))
	case img.Status.Serving != nil:
		s.image = wait{v1alpha1.MachineReady, v1alpha1.ReasonReady, fmt.Sprintf("VMDiskImage %s is ready", name)}
	case img.Status.Phase == v1alpha1.PhaseFailed:
		s.image = failed(v1alpha1.ReasonImageFailed, fmt.Sprintf("VMDiskImage %s failed: %s: %s", name, img.Status.Reason, img.Status.Message))
	default:
		s.image = provisioning(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("waits for VMDiskImage %s: %s", name, progress(img)))
	}
}

func (s *step) missImage(name types.NamespacedName) {
	switch {
	case s.hasDisk() && !s.ignored(): // else whole clusters would download what nobody needs
		s.image = provisioning(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist; the machine has its root disk and does without", name))
	case !s.mayCreateImage():
		s.image = s.lacking(v1alpha1.ReasonImageMissing, fmt.Sprintf("VMDiskImage %s does not exist: create it, or set spec.vmDiskImageTemplate and imageMode %s", name, v1alpha1.ImageModeCreate))
	case !s.Live:
		s.d.NeedsLive = true
	default:
		s.image = provisioning(v1alpha1.ReasonWaitingForImage, fmt.Sprintf("VMDiskImage %s is being created from the template", name))
		s.d.CreateImage = &v1alpha1.VMDiskImage{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VMDiskImage"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name,
				Annotations: map[string]string{v1alpha1.AnnotationCreatedFor: s.VM.Namespace + "/" + s.VM.Name},
			},
			Spec: *s.VM.Spec.VMDiskImageTemplate.DeepCopy(),
		}
	}
}

func (s *step) mayCreateImage() bool {
	return s.VM.Spec.VMDiskImageTemplate != nil && s.VM.Spec.ImageMode != v1alpha1.ImageModeFail
}

// byWhom says who makes an image again that is being removed.
func (s *step) byWhom() string {
	if s.mayCreateImage() {
		return " from spec.vmDiskImageTemplate"
	}
	return ""
}

func progress(img *v1alpha1.VMDiskImage) string {
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

// deleting tells that an image can no longer be acquired.
func deleting(img *v1alpha1.VMDiskImage) bool {
	return img.Status.Phase == v1alpha1.PhaseDeleting || img.Status.TearDown
}

// pin chooses what the root disk is cloned from. Once it has been cloned the
// choice stands: another image, revision or snapshot is for a new disk only.
func (s *step) pin() {
	if s.hasDisk() {
		s.pinDisk()
		return
	}
	if s.hasLostDisk() {
		return // it may be found again, and is of what is pinned
	}
	if s.ignored() {
		// The name holds the image; which revision of it is taken is decided when the
		// disk is made.
		if s.st.Pinned != nil {
			s.repin(nil)
		}
		return
	}
	p := s.st.Pinned
	if p != nil && s.Image != nil && p.UID == s.Image.UID {
		switch {
		case serves(s.Image, p):
			return
		case p.AcquiredAt != nil && !s.Live:
			s.d.NeedsLive = true
			return
		case p.AcquiredAt != nil && s.SourceThere:
			return // an older revision, which is kept for the sake of this pin
		}
	}
	// What was pinned is of another image, has never been acquired, or is gone.
	next := s.pinOf(s.Image)
	if next == nil && (p == nil || (s.Image != nil && p.UID == s.Image.UID && !deleting(s.Image))) {
		return
	}
	if !s.Live && (p != nil || s.RootDisk != nil) {
		s.d.NeedsLive = true // no pin and no disk is given up for what a cache shows
		return
	}
	s.repin(next)
}

// pinDisk has a disk that is there be of what is pinned.
func (s *step) pinDisk() {
	p := s.st.Pinned
	switch {
	case p == nil || s.diskOfOther(p):
		if found := s.pinOfDisk(); found != nil {
			s.st.Pinned, s.d.StoreFirst = found, true
		} else if p != nil {
			s.foreign = fmt.Sprintf("DataVolume %s says that it was cloned from %q, which VMDiskImage %s does not have: it is used as it is, and nobody knows what it was cloned from",
				s.RootDisk.Name, Cut(s.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom], mostTold), s.VM.ImageName())
		}
	case p.AcquiredAt != nil:
	case s.RootDisk == nil && !s.Live:
		s.d.NeedsLive = true
	default: // nothing is cloned before, so it was acquired
		p.AcquiredAt, s.d.StoreFirst = &s.now, true
	}
}

// repin changes what is pinned, once nothing is being cloned from anything else:
// a clone that is complete after all would be of an image that nobody holds.
func (s *step) repin(next *v1alpha1.PinnedImage) {
	if s.replaced = s.diskOfOther(next); s.replaced {
		return
	}
	s.st.Pinned = next
	s.d.StoreFirst = true
}

// diskOfOther tells whether there is a root disk of something else than p.
func (s *step) diskOfOther(p *v1alpha1.PinnedImage) bool {
	dv := s.RootDisk
	return dv != nil && s.mine(dv) && (p == nil || dv.Annotations[v1alpha1.AnnotationClonedFrom] != machine.ClonedFrom(*p))
}

// pinOf is what an image serves now; nil where it serves nothing, or can no
// longer be acquired.
func (s *step) pinOf(img *v1alpha1.VMDiskImage) *v1alpha1.PinnedImage {
	if img == nil || img.Status.Serving == nil || deleting(img) {
		return nil
	}
	p := pinOfServing(v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}, img.Status.Serving)
	return &p
}

func pinOfServing(img v1alpha1.ImageKey, serving *v1alpha1.Serving) v1alpha1.PinnedImage {
	return v1alpha1.PinnedImage{
		ImageKey: img, Revision: serving.Revision, Attempt: serving.Attempt,
		PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot,
		DiskSize: serving.DiskSize, RestoreSize: serving.RestoreSize,
	}
}

// pinOfDisk finds again what a disk was cloned from whose machine has lost its
// status. Whoever writes to the namespace can say anything on a disk: it is only
// believed where it names what an image that the machine may be built from has
// itself made.
func (s *step) pinOfDisk() *v1alpha1.PinnedImage {
	if s.RootDisk == nil || s.RootDisk.Spec.Source == nil {
		return nil
	}
	for _, img := range []*v1alpha1.VMDiskImage{s.Image, s.Pinned} {
		for _, p := range made(img) {
			if s.RootDisk.Spec.Source.Snapshot == nil {
				p.VolumeSnapshot = ""
			}
			named := p.VolumeSnapshot != "" || p.PersistentVolumeClaim != ""
			if named && s.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom] == machine.ClonedFrom(p) {
				p.AcquiredAt = &s.now
				return &p
			}
		}
	}
	return nil
}

// made is what an image has that can be cloned: what it serves, and older
// revisions.
func made(img *v1alpha1.VMDiskImage) []v1alpha1.PinnedImage {
	if img == nil {
		return nil
	}
	key := v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}
	var pins []v1alpha1.PinnedImage
	if serving := img.Status.Serving; serving != nil {
		pins = append(pins, pinOfServing(key, serving))
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

// serves tells whether an image serves what is pinned of it.
func serves(img *v1alpha1.VMDiskImage, p *v1alpha1.PinnedImage) bool {
	serving := img.Status.Serving
	return serving != nil && !deleting(img) && serving.Revision == p.Revision && serving.Attempt == p.Attempt &&
		serving.PersistentVolumeClaim == p.PersistentVolumeClaim && serving.VolumeSnapshot == p.VolumeSnapshot
}

// acquire makes sure that what is pinned stays: the pin was stored before the
// image is looked at here, so whoever removes it has either been seen or sees
// the pin (DESIGN, S2).
func (s *step) acquire() {
	p := s.st.Pinned
	if p == nil || p.AcquiredAt != nil || s.diskOfOther(p) || s.replaced {
		return
	}
	switch {
	case !s.Live:
		s.d.NeedsLive = true
	case s.Pinned != nil && serves(s.Pinned, p) && s.SourceThere:
		p.AcquiredAt = &s.now
		s.d.StoreFirst = true
	case s.Pinned != nil && serves(s.Pinned, p):
		s.image = provisioning(v1alpha1.ReasonAcquiring, fmt.Sprintf("what VMDiskImage %s/%s serves is gone: waits until the image has seen it", p.Namespace, p.Name))
		s.within(time.Second)
	}
}

// ignored: nothing but the image is made.
func (s *step) ignored() bool { return s.VM.Spec.IgnoreOnDeploy && s.Machine == nil }

// hasDisk tells whether the root disk has been cloned. A bound claim without a
// DataVolume counts too: older CDI collects finished ones, and hands the claim to
// their owner. One that still is a DataVolume's goes with it, full or not.
func (s *step) hasDisk() bool {
	switch {
	case s.RootDisk != nil:
		return s.mine(s.RootDisk) && s.RootDisk.DeletionTimestamp == nil && s.RootDisk.Status.Phase == cdiv1.Succeeded
	case s.RootClaim != nil:
		of := metav1.GetControllerOf(s.RootClaim)
		return s.mine(s.RootClaim) && s.RootClaim.DeletionTimestamp == nil && s.RootClaim.Status.Phase == corev1.ClaimBound &&
			(of == nil || of.Kind != "DataVolume")
	default:
		return false
	}
}

// mine tells whether an object was made for this machine.
func (s *step) mine(o metav1.Object) bool {
	return o.GetLabels()[v1alpha1.LabelMachineUID] == string(s.VM.UID)
}

// Taken says that an object of a name that is needed belongs to others.
func Taken(kind, name string) string {
	return fmt.Sprintf("there is a %s %s that was not made for this machine: rename or delete it, or give this machine another name", kind, name)
}

func taken(kind, name string) wait {
	return failed(v1alpha1.ReasonNameTaken, Taken(kind, name))
}

// Refused has the status say that the API server did not take something.
func (d *Decision) Refused(generation int64, now time.Time, reason v1alpha1.Reason, what string, err error) {
	d.says(generation, now, failed(reason, fmt.Sprintf("the API server refused %s: %s", what, Cut(err.Error(), mostTold))))
	if d.After == 0 || d.After > missingInterval {
		d.After = missingInterval
	}
}

// mostTold is how much of what others say is told, in bytes; mostMessage bounds a
// message that has it: the API server takes 32 KiB.
const (
	mostTold    = 768
	mostMessage = 4096
)

// Cut shortens a text to some bytes.
func Cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len("…")], "") + "…"
	}
	return text
}
