package vm

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// isRebuilt reports whether an unfinished disk is replaced since its size or StorageClass is not
// what the spec or the image says now: the former may be why it is unfinished. Invariant: a clone is
// replaced only where a live read finds no claim of its name, so no data, and finds what it is cloned
// from. Backups restore DataVolumes without a status and claims that are bound late, so neither phase
// nor status tell a clone that never began from one that the guest has written to.
func (d *diskDecider) isRebuilt(dv *cdiv1.DataVolume) bool {
	if d.isBlank() {
		return d.isBuiltOtherwise(dv)
	}
	return d.mayRebuildClone(dv) && d.Live && d.ClaimAbsent && d.SourceExists
}

// awaitsRebuildCheck reports whether only a live read can tell whether a clone is replaced.
func (d *diskDecider) awaitsRebuildCheck(dv *cdiv1.DataVolume) bool {
	return !d.isBlank() && !d.Live && d.mayRebuildClone(dv)
}

// mayRebuildClone leaves a clone failedCloneRetryDelay, so that one which a webhook changes at its
// creation is not replaced without a pause.
func (d *diskDecider) mayRebuildClone(dv *cdiv1.DataVolume) bool {
	if d.Claim != nil || d.Pinned == nil || d.wasReady() || !d.isBuiltOtherwise(dv) {
		return false
	}
	if left := failedCloneRetryDelay - d.Now.Sub(dv.CreationTimestamp.Time); left > 0 {
		d.requeueWithin(left)
		return false
	}
	return true
}

// isBuiltOtherwise reports whether a disk requests another size or StorageClass than it would if it
// were created now. A StorageClass that is no longer asked for is kept.
func (d *diskDecider) isBuiltOtherwise(dv *cdiv1.DataVolume) bool {
	if dv.Spec.Storage == nil {
		return false
	}
	source := d.pinned
	if d.isBlank() {
		source = nil
	}
	wanted, _ := d.buildDisk(source)
	size := func(storage *cdiv1.StorageSpec) resource.Quantity {
		return storage.Resources.Requests[corev1.ResourceStorage]
	}
	requested, class := size(dv.Spec.Storage), ptr.Deref(dv.Spec.Storage.StorageClassName, "")
	wantedClass := ptr.Deref(wanted.Spec.Storage.StorageClassName, "")
	return requested.Cmp(size(wanted.Spec.Storage)) != 0 || (wantedClass != "" && class != wantedClass)
}
