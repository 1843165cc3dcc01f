package vm

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pinImage chooses what the root disk is cloned from. Once the disk is cloned the pin
// stays: another image, revision or snapshot is for a new disk only.
func (d *decider) pinImage() {
	if d.hasClonedRootDisk() {
		d.pinFromRootDisk()
		return
	}
	if d.hasLostRootDisk() {
		return // the disk may come back, and is of the pin
	}
	if d.deployIgnored() {
		// The spec's reference holds the image; the revision is chosen with the disk.
		if d.status.Pinned != nil {
			d.changePin(nil)
		}
		return
	}
	p := d.status.Pinned
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
	if !d.Live && (p != nil || d.RootDisk != nil) {
		d.decision.NeedsLive = true // a cache must not decide to give up a pin or a disk
		return
	}
	d.changePin(next)
}

// pinFromRootDisk pins what the existing root disk was cloned from.
func (d *decider) pinFromRootDisk() {
	p := d.status.Pinned
	switch {
	case p == nil || d.rootDiskHasOtherSource(p):
		if recovered := d.recoverPin(); recovered != nil {
			d.status.Pinned, d.decision.StoreStatusFirst = recovered, true
		} else if p != nil {
			d.foreignDiskNote = fmt.Sprintf("annotation %s of DataVolume %s is %q, which VMDiskImage %s does not have: the disk is used as it is, and its source is unknown",
				v1alpha1.AnnotationClonedFrom, d.RootDisk.Name, v1alpha1.SanitizeText(d.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom], maxQuotedBytes), d.VM.ImageNamespacedName())
		}
	case p.AcquiredAt != nil:
	case d.RootDisk == nil && !d.Live:
		d.decision.NeedsLive = true
	default: // a disk is cloned only after its image is acquired
		p.AcquiredAt, d.decision.StoreStatusFirst = &d.timestamp, true
	}
}

// changePin first has an unfinished clone of another source deleted: if it completed, the
// machine would run from an image that nobody holds.
func (d *decider) changePin(next *v1alpha1.PinnedImage) {
	if d.replacesRootDisk = d.rootDiskHasOtherSource(next); d.replacesRootDisk {
		return
	}
	d.status.Pinned = next
	d.decision.StoreStatusFirst = true
}

// rootDiskHasOtherSource reports whether there is a root disk that was not cloned from p.
func (d *decider) rootDiskHasOtherSource(p *v1alpha1.PinnedImage) bool {
	dv := d.RootDisk
	return dv != nil && d.ownsObject(dv) && (p == nil || dv.Annotations[v1alpha1.AnnotationClonedFrom] != kubevirt.ClonedFromValue(*p))
}

// newPin returns a pin of what an image serves; nil if it serves nothing or can no longer
// be acquired.
func (d *decider) newPin(img *v1alpha1.VMDiskImage) *v1alpha1.PinnedImage {
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

// recoverPin rebuilds the pin of a root disk whose machine has lost its status. Whoever may
// write to the namespace can forge the annotation of the disk, so it counts only where it
// names what an image that this machine may be built from has itself produced.
func (d *decider) recoverPin() *v1alpha1.PinnedImage {
	if d.RootDisk == nil || d.RootDisk.Spec.Source == nil {
		return nil
	}
	for _, img := range []*v1alpha1.VMDiskImage{d.Image, d.Pinned} {
		for _, p := range cloneSources(img) {
			if d.RootDisk.Spec.Source.Snapshot == nil {
				p.VolumeSnapshot = ""
			}
			hasSource := p.VolumeSnapshot != "" || p.PersistentVolumeClaim != ""
			if hasSource && d.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom] == kubevirt.ClonedFromValue(p) {
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

// stillServes reports whether an image serves what is pinned.
func stillServes(img *v1alpha1.VMDiskImage, p *v1alpha1.PinnedImage) bool {
	serving := img.Status.Serving
	return serving != nil && !isBeingDeleted(img) && serving.Revision == p.Revision && serving.Attempt == p.Attempt &&
		serving.PersistentVolumeClaim == p.PersistentVolumeClaim && serving.VolumeSnapshot == p.VolumeSnapshot
}

// acquireImage marks the pin as acquired. Invariant: the pin was stored before the image
// was read live here, so either this read shows that the image is being deleted, or whoever
// deletes it sees the pin (docs/architecture.md, promise S2).
func (d *decider) acquireImage() {
	p := d.status.Pinned
	if p == nil || p.AcquiredAt != nil || d.rootDiskHasOtherSource(p) || d.replacesRootDisk {
		return
	}
	switch {
	case !d.Live:
		d.decision.NeedsLive = true
	case d.Pinned != nil && stillServes(d.Pinned, p) && d.SourceExists:
		p.AcquiredAt = &d.timestamp
		d.decision.StoreStatusFirst = true
	case d.Pinned != nil && stillServes(d.Pinned, p):
		d.imageState = provisioningState(v1alpha1.ReasonAcquiringImage, fmt.Sprintf("the storage that VMDiskImage %s/%s serves is gone: waiting until the image reports that", p.Namespace, p.Name))
		d.requeueWithin(time.Second)
	}
}
