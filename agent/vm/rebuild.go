package vm

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// isRebuilt reports whether an unfinished disk is replaced since its size or StorageClass is not
// what the spec or the image says now: the former may be why it is unfinished. Invariant: a clone is
// replaced only where a live read finds what it is cloned from, and either no claim of its name or
// one that isUnfilled. Backups restore DataVolumes without a status and claims that are bound late, so
// neither phase nor status tell a clone that never began from one that the guest has written to.
func (d *diskDecider) isRebuilt(dv *cdiv1.DataVolume) bool {
	if d.isBlank() {
		return d.isBuiltOtherwise(dv)
	}
	return d.mayRebuildClone(dv) && d.Live && d.Claim == d.LiveClaim && d.SourceExists
}

// awaitsRebuildCheck reports whether only a live read can tell whether a clone is replaced.
func (d *diskDecider) awaitsRebuildCheck(dv *cdiv1.DataVolume) bool {
	return !d.isBlank() && !d.Live && d.mayRebuildClone(dv)
}

// mayRebuildClone leaves a clone failedCloneRetryDelay, so that one which a webhook changes at its
// creation is not replaced without a pause.
func (d *diskDecider) mayRebuildClone(dv *cdiv1.DataVolume) bool {
	if (d.Claim != nil && !d.isUnfilled(dv)) || d.Pinned == nil || d.wasReady() || !d.isBuiltOtherwise(dv) {
		return false
	}
	if left := failedCloneRetryDelay - d.ageOf(dv); left > 0 {
		d.requeueWithin(left)
		return false
	}
	return true
}

// createdForAnnotation of a claim is the UID of the DataVolume that CDI has made it for (CDI 1.65).
const createdForAnnotation = "cdi.kubevirt.io/createdForDataVolume"

// isUnfilled reports whether CDI has made the claim for this very DataVolume and it has never had a
// volume: CDI clones into another claim and gives its volume to this one once it is complete. A
// restored claim names another DataVolume, or the snapshot that it is restored from.
//
// A DataVolume of an earlier release is not replaced: what was asked for is unknown, and one that a
// webhook changes at its creation, and that clones for longer than failedCloneRetryDelay, would never
// be complete.
func (d *diskDecider) isUnfilled(dv *cdiv1.DataVolume) bool {
	return dv.Annotations[v1alpha1.AnnotationRequestedStorage] != "" && d.hasNewClaim(dv)
}

// hasNewClaim is isUnfilled, also for a DataVolume of an earlier release.
func (d *diskDecider) hasNewClaim(dv *cdiv1.DataVolume) bool {
	claim := d.Claim
	source := claim.Spec.DataSourceRef
	return d.ownsObject(claim) && metav1.IsControlledBy(claim, dv) &&
		claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimPending && claim.Spec.VolumeName == "" &&
		claim.Annotations[createdForAnnotation] == string(dv.UID) &&
		source != nil && source.Kind == cdiv1.VolumeCloneSourceRef && ptr.Deref(source.APIGroup, "") == cdiv1.SchemeGroupVersion.Group
}

// keptStorage says how to correct a clone that is held up and keeps a size or StorageClass which spec or
// image no longer has; empty for none. Invariant: it names no disk that may be restored from a backup.
func (d *diskDecider) keptStorage(dv *cdiv1.DataVolume) string {
	if d.isRemoved() || d.isBlank() || d.Claim == nil || d.Pinned == nil || d.wasReady() || dv.Spec.Storage == nil || !d.hasNewClaim(dv) {
		return ""
	}
	if sizeDiffers, classDiffers := d.compareStorage(dv); !sizeDiffers && !classDiffers {
		return ""
	}
	if d.isUnfilled(dv) && d.isBuiltOtherwise(dv) {
		return "" // it is replaced
	}
	return fmt.Sprintf("it keeps the size and storageClass that it was requested with, and others are asked for now: to have it cloned with these, delete DataVolume %s", dv.Name)
}

// isBuiltOtherwise reports whether a disk was requested with another size or StorageClass than it would
// be if it were created now. A StorageClass that is no longer asked for is kept. So is that of a clone
// with a claim, which may be on its way, once an edit of the image has made another revision than the one
// that is cloned.
func (d *diskDecider) isBuiltOtherwise(dv *cdiv1.DataVolume) bool {
	if dv.Spec.Storage == nil {
		return false
	}
	sizeDiffers, classDiffers := d.compareStorage(dv)
	isFormerRevision := !d.isBlank() && d.pinned != nil && d.Pinned != nil && d.Pinned.Spec.Revision() != d.pinned.Revision
	return sizeDiffers || (classDiffers && (d.Claim == nil || !isFormerRevision))
}

// compareStorage reports what a disk would be requested with otherwise if it were created now.
func (d *diskDecider) compareStorage(dv *cdiv1.DataVolume) (sizeDiffers, classDiffers bool) {
	source := d.pinned
	if d.isBlank() {
		source = nil
	}
	disk, _ := d.buildDisk(source)
	size, class := requestedStorage(dv)
	wantedSize, wantedClass := requestedStorage(disk)
	return size.Cmp(wantedSize) != 0, wantedClass != "" && class != wantedClass
}

// requestedStorage returns what the agent asked for, which a webhook may have changed. A DataVolume of
// an earlier release says only what it has.
func requestedStorage(dv *cdiv1.DataVolume) (size resource.Quantity, class string) {
	asked, class, found := strings.Cut(dv.Annotations[v1alpha1.AnnotationRequestedStorage], kubevirt.RequestedStorageSeparator)
	if size, err := resource.ParseQuantity(asked); found && err == nil {
		return size, class
	}
	return dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage], ptr.Deref(dv.Spec.Storage.StorageClassName, "")
}
