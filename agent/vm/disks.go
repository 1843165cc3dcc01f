package vm

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// diskDecider decides about one disk. Its DiskView is that of the disk.
type diskDecider struct {
	*decider
	DiskView

	// name of a data disk; empty for the root disk.
	name string
	// title names the disk in messages.
	title string
	// spec of a data disk; nil for the root disk and for a removed disk.
	spec *v1alpha1.Disk
	// imageName of the spec; empty for a blank disk and a removed one.
	imageName types.NamespacedName
	// objectName is the name of the DataVolume and its claim.
	objectName string
	reasons    diskReasons

	// previous is the stored state of the volume.
	previous *v1alpha1.DiskVolume
	// pinned and volume are the state to store.
	pinned *v1alpha1.PinnedImage
	volume *v1alpha1.DiskVolume

	// replaces: the disk is incomplete and is deleted before the pin changes.
	replaces bool
	// keepsPin: the pin is not given up before View.LateWrites has passed.
	keepsPin bool
	// foreignSourceNote says that the disk was cloned from something other than the pin.
	foreignSourceNote string
	// lostMessage says what happened to a disk that had been complete.
	lostMessage string
	// requested: the disk exists or is being cloned.
	requested bool
	// late: the disk awaits a start, and holds nothing up.
	late bool
	// progress of a requested disk that is not complete; nil for none.
	progress *machineState
	// imageState describes the image, whatever the blocker is.
	imageState machineState
}

// diskReasons are the reasons of a machine that a disk holds up.
type diskReasons struct{ preparing, failed v1alpha1.Reason }

// maxDisks bounds status.disks.
const maxDisks = 16

// collectDisks sets disks. Disks that have no state yet are left out beyond maxDisks: the spec
// is invalid then.
func (d *decider) collectDisks() {
	d.disks = []*diskDecider{{
		decider: d, DiskView: d.View.DiskView, title: "the root disk", imageName: d.VM.ImageNamespacedName(),
		objectName: kubevirt.RootDiskName(d.VM), reasons: diskReasons{v1alpha1.ReasonCloningRootDisk, v1alpha1.ReasonRootDiskFailed},
		previous: d.VM.Status.RootDisk, pinned: d.status.Pinned,
	}}
	stored := d.status.Disks
	room := maxDisks - len(stored)
	for i := range d.VM.Spec.Disks {
		spec := &d.VM.Spec.Disks[i]
		index := slices.IndexFunc(stored, func(s v1alpha1.DataDisk) bool { return s.Name == spec.Name })
		disk := d.newDataDisk(spec.Name)
		disk.spec = spec
		disk.imageName, _ = d.VM.DiskImage(spec)
		switch {
		case index >= 0:
			disk.pinned, disk.previous = stored[index].Pinned, stored[index].Volume
		case room == 0:
			d.specError = fmt.Errorf("disk %s is one too many beside the removed disks that are kept: delete the DataVolume of a removed disk whose data is not needed, see condition SpecAdjusted", spec.Name)
			continue
		default:
			room--
		}
		disk.storeVolumeFirst()
		d.disks = append(d.disks, disk)
	}
	for i := range stored {
		if slices.ContainsFunc(d.VM.Spec.Disks, func(s v1alpha1.Disk) bool { return s.Name == stored[i].Name }) {
			continue
		}
		disk := d.newDataDisk(stored[i].Name)
		disk.pinned, disk.previous = stored[i].Pinned, stored[i].Volume
		d.disks = append(d.disks, disk)
	}
}

func (d *decider) newDataDisk(name string) *diskDecider {
	return &diskDecider{
		decider: d, DiskView: d.Disks[name], name: name, title: "disk " + name, objectName: kubevirt.DataDiskName(d.VM, name),
		reasons: diskReasons{v1alpha1.ReasonPreparingDataDisk, v1alpha1.ReasonDataDiskFailed},
	}
}

// storeVolumeFirst has the status know of a disk before it is requested. Invariant: a disk that
// the status does not know of was not requested by this status. So where the disk exists all the
// same, or KubeVirt's VirtualMachine has it or the claim that took its place, the status was lost, and the
// disk counts as complete: it may hold data. Caches do not decide that.
func (d *diskDecider) storeVolumeFirst() {
	if d.previous != nil || d.isForeign() {
		return
	}
	if !d.Live {
		d.decision.NeedsLive = true
		return
	}
	known := d.isOwned() || ((d.isUsedByMachine() || d.hasDisk()) && d.KubeVirtVM.GetDeletionTimestamp() == nil)
	d.previous = &v1alpha1.DiskVolume{DataVolume: d.objectName, Size: d.diskSize(), Ready: known}
	d.decision.StoreStatusFirst = true
}

// isForeign reports whether an object of the disk's name is not of this machine.
func (d *diskDecider) isForeign() bool {
	return (d.DataVolume != nil && !d.ownsObject(d.DataVolume)) || (d.Claim != nil && !d.ownsObject(d.Claim))
}

// storeDisks copies the states of all disks into the status. A removed disk of which nothing is
// left is forgotten.
func (d *decider) storeDisks() {
	d.status.Pinned, d.status.RootDisk, d.status.Disks = d.root().pinned, d.root().volume, nil
	for _, disk := range d.disks[1:] {
		if disk.isRemoved() && disk.pinned == nil && !disk.isOwned() && !disk.hasDisk() {
			continue
		}
		d.status.Disks = append(d.status.Disks, v1alpha1.DataDisk{Name: disk.name, Pinned: disk.pinned, Volume: disk.volume, Removed: disk.isRemoved()})
	}
}

func (d *decider) root() *diskDecider { return d.disks[0] }

// wantedDisks are all disks but removed ones.
func (d *decider) wantedDisks() []*diskDecider {
	return slices.DeleteFunc(slices.Clone(d.disks), (*diskDecider).isRemoved)
}

// allDisksRequested reports whether KubeVirt may wait for the disks by itself: where volumes
// bind late, a disk is filled only once the machine is scheduled.
func (d *decider) allDisksRequested() bool {
	return !slices.ContainsFunc(d.wantedDisks(), func(disk *diskDecider) bool { return !disk.requested })
}

func (d *diskDecider) isRoot() bool { return d.name == "" }

// isOwned reports whether the machine has an object of the disk.
func (d *diskDecider) isOwned() bool {
	return (d.DataVolume != nil && d.ownsObject(d.DataVolume)) || (d.Claim != nil && d.ownsObject(d.Claim))
}

// isRemoved: spec.disks no longer has the disk. It holds up nothing.
func (d *diskDecider) isRemoved() bool { return !d.isRoot() && d.spec == nil }

// isBlank: the spec names no image.
func (d *diskDecider) isBlank() bool { return d.imageName == (types.NamespacedName{}) }

// setBlocker keeps an earlier blocker. A removed disk blocks nothing.
func (d *diskDecider) setBlocker(state machineState) {
	if !d.isRemoved() {
		d.decider.setBlocker(state)
	}
}

// reportProgress comes after the causes that keep other disks from being requested: where
// volumes bind late, no disk is filled before all are.
func (d *diskDecider) reportProgress() {
	if d.progress != nil {
		d.setBlocker(*d.progress)
	}
}

// sourceAnnotation is the value of AnnotationClonedFrom of a disk that is cloned from p; empty
// for a blank disk.
func sourceAnnotation(p *v1alpha1.PinnedImage) string {
	if p == nil {
		return ""
	}
	return kubevirt.ClonedFromValue(*p)
}
