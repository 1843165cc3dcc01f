package image

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxShownHolders is how many holders the status and messages name.
const maxShownHolders = 5

// Holder is a VirtualMachine that references an image, or a disk without one.
type Holder struct {
	Name string // namespace/name
	// OrphanedDisk: it is a disk whose VirtualMachine no longer exists.
	OrphanedDisk bool
	// UsedBy is what still uses an orphaned disk, as far as the agent sees; empty for nothing.
	UsedBy string
	// Pins are what disks of the VM are cloned from; none where it has pinned nothing of
	// this image.
	Pins []*v1alpha1.PinnedImage
}

const (
	// maxIgnoredBytes bounds the list of namespaces in a command, which has to fit into a status message.
	maxIgnoredBytes = 512
	// maxReferencePrefixBytes bounds what a message has before the holders.
	maxReferencePrefixBytes = 80
)

// allNamespaces as the value of AnnotationIgnoreOrphanedDisks ignores the orphaned disks of every namespace.
const allNamespaces = "*"

// dropIgnoredHolders drops the orphaned disks that hold the image no longer, as a person says. Nothing
// that a tenant cannot write distinguishes a restored disk from a forged one, so only a person may.
//
// Invariant: a VirtualMachine holds its images whatever is said, and so does its disk.
func (d *decider) dropIgnoredHolders() {
	ignored := d.ignoredNamespaces()
	d.Holders = slices.DeleteFunc(slices.Clone(d.Holders), func(h Holder) bool {
		return h.OrphanedDisk && (slices.Contains(ignored, allNamespaces) || slices.Contains(ignored, h.namespace()))
	})
}

// ignoredNamespaces returns the entries of AnnotationIgnoreOrphanedDisks.
func (d *decider) ignoredNamespaces() (namespaces []string) {
	for entry := range strings.SplitSeq(d.Image.Annotations[v1alpha1.AnnotationIgnoreOrphanedDisks], ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			namespaces = append(namespaces, entry)
		}
	}
	return namespaces
}

// ignoringAlso returns a value of AnnotationIgnoreOrphanedDisks that ignores what the present one does, and
// all orphaned disks that hold the image.
func (d *decider) ignoringAlso() string {
	namespaces := d.ignoredNamespaces()
	for i := range d.Holders {
		if d.Holders[i].OrphanedDisk {
			namespaces = append(namespaces, d.Holders[i].namespace())
		}
	}
	slices.Sort(namespaces)
	value := strings.Join(slices.Compact(namespaces), ",")
	if len(value) > maxIgnoredBytes {
		return allNamespaces
	}
	return value
}

func (h *Holder) namespace() string {
	namespace, _, _ := strings.Cut(h.Name, "/")
	return namespace
}

// countReferences stores who references the image.
func (d *decider) countReferences() {
	refs := v1alpha1.References{Count: int32(len(d.Holders)), UnreferencedSince: d.status.References.UnreferencedSince}
	for _, holder := range d.Holders[:min(maxShownHolders, len(d.Holders))] {
		refs.Holders = append(refs.Holders, holder.Name)
	}
	if refs.Count > 0 {
		refs.UnreferencedSince = nil
	} else if refs.UnreferencedSince == nil {
		refs.UnreferencedSince = new(storedtime.Truncate(d.plausibleNow()))
	}
	d.status.References = refs
}

// plausibleNow returns now, or, where the image was created later than that, the latest time that it
// has: a node may boot with a clock of long ago, and what waits from then on would end as soon as it
// is corrected.
func (d *decider) plausibleNow() time.Time {
	latest := d.Image.CreationTimestamp.Time
	if !latest.After(d.Now) {
		return d.Now
	}
	for i := range d.Image.Status.Conditions {
		if t := d.Image.Status.Conditions[i].LastTransitionTime.Time; t.After(latest) {
			latest = t
		}
	}
	return latest
}

// pinsForAttempt returns what VirtualMachines are built from of an attempt.
func (d *decider) pinsForAttempt(attempt int32) []*v1alpha1.PinnedImage {
	var pins []*v1alpha1.PinnedImage
	for i := range d.Holders {
		for _, pin := range d.Holders[i].Pins {
			if pin.UID == d.Image.UID && pin.Attempt == attempt {
				pins = append(pins, pin)
			}
		}
	}
	return pins
}

// What ends the reference of a disk that nothing deletes. The agent does not see everything that
// may use a claim, so no text says that nothing does.
const (
	adviceOrphanedDisk = "; the VirtualMachine of an orphaned disk no longer exists: "
	adviceUnusedDisk   = "delete its DataVolume and PersistentVolumeClaim if nothing uses it, or adopt it by creating the VirtualMachine again, whose status says how"
	adviceUsedDisk     = " still uses it, so keep it, and adopt both by creating the VirtualMachine again, whose status says how"
	adviceIgnoredDisk  = "; a disk with a complete copy does not need the image, and anyone who may create claims in a namespace can make one look like an orphaned disk: to have those of the namespaces in this command hold the image no longer ('*' is all), "
	// adviceSkippedPrune has no command: PruneStatus.message is too short for one.
	adviceSkippedPrune = adviceOrphanedDisk + "delete the disk if nothing uses it, create the VirtualMachine again to adopt it, or add its namespace to annotation " +
		v1alpha1.AnnotationIgnoreOrphanedDisks + " of the image"
)

// listHolders names the holders in a status message, with a command for orphaned disks.
func (d *decider) listHolders() string {
	advice := adviceUnusedDisk
	if used := slices.IndexFunc(d.Holders, func(h Holder) bool { return h.UsedBy != "" }); used >= 0 {
		advice = d.Holders[used].UsedBy + adviceUsedDisk
	}
	return d.listHoldersWith(adviceOrphanedDisk+advice+adviceIgnoredDisk+shellword.FormatCommand("kubectl -n %s annotate vmdiskimages.pelotech.ot %s %s --overwrite",
		d.Image.Namespace, d.Image.Name, v1alpha1.AnnotationIgnoreOrphanedDisks+"="+d.ignoringAlso()), maxStatusMessageBytes)
}

// listPruneHolders names the holders in PruneStatus.message.
func (d *decider) listPruneHolders() string {
	return d.listHoldersWith(adviceSkippedPrune, maxPruneMessageBytes)
}

// listHoldersWith adds advice where one of the holders is an orphaned disk. The names are cut so that the
// message keeps all of it: nobody runs a part of a command.
func (d *decider) listHoldersWith(advice string, maxBytes int) string {
	names := v1alpha1.JoinFirst(d.status.References.Holders, maxShownHolders, int(d.status.References.Count))
	if !slices.ContainsFunc(d.Holders, func(h Holder) bool { return h.OrphanedDisk }) {
		return names
	}
	return v1alpha1.Truncate(names, maxBytes-maxReferencePrefixBytes-len(advice)) + advice
}
