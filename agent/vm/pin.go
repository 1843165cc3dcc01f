package vm

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pinImage chooses what the disk is cloned from. Once the machine has the disk the pin
// stays: another image, revision or snapshot is for a new disk only.
func (d *diskDecider) pinImage() {
	if d.hasDisk() {
		d.pinFromDisk()
		return
	}
	if d.holdsData() || d.mayHoldData() {
		if d.pinned == nil && d.isOwned() {
			d.pinFromDisk()
		}
		return // the disk may come back, and is of the pin
	}
	if d.deployIgnored() {
		// The spec's reference holds the image; the revision is chosen with the disk.
		if d.pinned != nil {
			d.changePin(nil)
		}
		return
	}
	p := d.pinned
	if d.isBlank() {
		switch {
		case p == nil:
		case !d.Live:
			d.decision.NeedsLive = true
		default:
			d.changePin(nil)
		}
		return
	}
	if p != nil && d.Image != nil && p.UID == d.Image.UID {
		switch {
		case stillServes(d.Image, p):
			return
		case p.AcquiredAt != nil && !d.Live:
			d.decision.NeedsLive = true
			return
		case p.AcquiredAt != nil && d.SourceExists:
			return // an older revision, which the image keeps for this pin
		}
	}
	// The pin is of another image, was never acquired, or its source is gone.
	next := d.newPin(d.Image)
	if next == nil && (p == nil || (d.Image != nil && p.UID == d.Image.UID && !isBeingDeleted(d.Image))) {
		return
	}
	if !d.Live && (p != nil || d.DataVolume != nil) {
		d.decision.NeedsLive = true // a cache must not decide to give up a pin or a disk
		return
	}
	d.changePin(next)
}

// pinFromDisk pins what the existing disk was cloned from. An unfinished DataVolume beside a disk elsewhere says
// nothing: it is not what that disk was copied from.
func (d *diskDecider) pinFromDisk() {
	p := d.pinned
	switch {
	case d.hasDisk() && !d.isComplete() && (p == nil || d.hasOtherSource(p)):
	case p == nil || d.hasOtherSource(p):
		if recovered := d.recoverPin(); recovered != nil {
			d.pinned, d.decision.StoreStatusFirst = recovered, true
		} else if p != nil {
			d.foreignSourceNote = fmt.Sprintf("annotation %s of DataVolume %s is %q, which VMDiskImage %s does not have: the disk is used as it is, and its source is unknown",
				v1alpha1.AnnotationClonedFrom, d.DataVolume.Name, v1alpha1.SanitizeText(d.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom], maxQuotedBytes), d.imageName)
		}
	case p.AcquiredAt != nil:
	case !d.isComplete(): // nothing says that a disk elsewhere is of p: see acquireImage
	case d.DataVolume == nil && !d.Live:
		d.decision.NeedsLive = true
	default: // a disk is cloned only after its image is acquired
		p.AcquiredAt, d.decision.StoreStatusFirst = &d.timestamp, true
	}
}

// changePin first has an unfinished clone of another source deleted, and waits until none can
// come from a former leader that has stored the pin as acquired: if it completed, the machine
// would run from an image that nobody holds.
func (d *diskDecider) changePin(next *v1alpha1.PinnedImage) {
	if d.replaces = d.hasOtherSource(next); d.replaces {
		return
	}
	if p := d.pinned; p != nil && p.AcquiredAt != nil && d.LateWrites > 0 && (d.SourceExists || !d.LiveImages) {
		d.keepsPin = true
		d.requeueWithin(d.LateWrites)
		return
	}
	d.pinned = next
	d.decision.StoreStatusFirst = true
}

// hasOtherSource reports whether the disk exists and was not cloned from p. Without p a disk that
// exists has another source, except a blank disk that was not cloned.
func (d *diskDecider) hasOtherSource(p *v1alpha1.PinnedImage) bool {
	dv := d.DataVolume
	return dv != nil && d.ownsObject(dv) && ((p == nil && !d.isBlank()) || dv.Annotations[v1alpha1.AnnotationClonedFrom] != sourceAnnotation(p))
}

// newPin returns a pin of what an image serves; nil if it serves nothing or can no longer
// be acquired.
func (d *diskDecider) newPin(img *v1alpha1.VMDiskImage) *v1alpha1.PinnedImage {
	if img == nil || img.Status.Serving == nil || isBeingDeleted(img) || d.cloneMismatch(img) != "" {
		return nil
	}
	p := pinFromServing(image.KeyOf(img), img.Status.Serving)
	return &p
}

func pinFromServing(img v1alpha1.ImageKey, serving *v1alpha1.Serving) v1alpha1.PinnedImage {
	return v1alpha1.PinnedImage{
		ImageKey: img, Revision: serving.Revision, Attempt: serving.Attempt,
		SourceNamespace: serving.Namespace, PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot,
		Architecture: serving.Architecture, DiskSize: serving.DiskSize, RestoreSize: serving.RestoreSize,
	}
}

// recoverPin rebuilds the pin of a disk whose machine has lost its status. Whoever may
// write to the namespace can forge the annotation of the disk, so it counts only where it
// names what an image that this machine may be built from has itself produced.
func (d *diskDecider) recoverPin() *v1alpha1.PinnedImage {
	if d.DataVolume == nil || d.DataVolume.Spec.Source == nil {
		return nil
	}
	for _, img := range []*v1alpha1.VMDiskImage{d.Image, d.Pinned} {
		for _, p := range cloneSources(img) {
			if d.DataVolume.Spec.Source.Snapshot == nil {
				p.VolumeSnapshot = ""
			}
			hasSource := p.VolumeSnapshot != "" || p.PersistentVolumeClaim != ""
			if hasSource && d.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] == kubevirt.ClonedFromValue(p) {
				p.AcquiredAt = &d.timestamp
				return &p
			}
		}
	}
	return nil
}

// cloneSources returns what can be cloned of an image: what it serves, and its older
// revisions.
func cloneSources(img *v1alpha1.VMDiskImage) []v1alpha1.PinnedImage {
	if img == nil {
		return nil
	}
	key := image.KeyOf(img)
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

// stillServes reports whether an image serves what is pinned.
func stillServes(img *v1alpha1.VMDiskImage, p *v1alpha1.PinnedImage) bool {
	serving := img.Status.Serving
	return serving != nil && !isBeingDeleted(img) && serving.Revision == p.Revision && serving.Attempt == p.Attempt &&
		serving.Namespace == p.SourceNamespace && serving.PersistentVolumeClaim == p.PersistentVolumeClaim && serving.VolumeSnapshot == p.VolumeSnapshot
}

// acquireImage marks the pin as acquired. Invariant: the pin was stored before the image
// was read live here, so either this read shows that the image is being deleted, or whoever
// deletes it sees the pin (docs/architecture.md, promise S2).
func (d *diskDecider) acquireImage() {
	p := d.pinned
	if p == nil || p.AcquiredAt != nil || d.isBlank() || d.holdsData() || d.mayHoldData() || d.hasOtherSource(p) || d.replaces {
		return
	}
	switch {
	case !d.LiveImages:
		d.decision.NeedsLiveImages = true
	case d.Pinned != nil && stillServes(d.Pinned, p) && d.SourceExists:
		p.AcquiredAt = &d.timestamp
		d.decision.StoreStatusFirst = true
	case d.Pinned != nil && stillServes(d.Pinned, p):
		d.imageState = provisioningState(v1alpha1.ReasonAcquiringImage, d.prefix()+fmt.Sprintf("the storage that VMDiskImage %s/%s serves is gone: waiting until the image reports that", p.Namespace, p.Name))
		d.requeueWithin(time.Second)
	}
}

// HaveSamePins reports whether two statuses pin the same, acquired or not.
func HaveSamePins(a, b *v1alpha1.VirtualMachineStatus) bool {
	pins := func(st *v1alpha1.VirtualMachineStatus) map[string]v1alpha1.PinnedImage {
		all := map[string]v1alpha1.PinnedImage{}
		add := func(disk string, p *v1alpha1.PinnedImage) {
			if p != nil {
				pin := *p
				pin.AcquiredAt = nil
				all[disk] = pin
			}
		}
		add("", st.Pinned)
		for i := range st.Disks {
			add(st.Disks[i].Name, st.Disks[i].Pinned)
		}
		return all
	}
	return equality.Semantic.DeepEqual(pins(a), pins(b))
}
