package image

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kinds of other projects that images are made of.
var (
	DataVolumeKind     = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	VolumeSnapshotKind = snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot")
)

// UIDIndex is the field index of what belongs to an image; its values are the
// image's UID.
const UIDIndex = "image-uid"

// UnfinishedIndex is the field index of DataVolumes that may still download;
// its one value is Unfinished.
const (
	UnfinishedIndex = "unfinished"
	Unfinished      = "true"
)

// MayRun tells, by the image as stored, whether an attempt that stands in no
// slot is one that the ledger has lost: it has no outcome, and it is not one of
// a revision that has been forgotten.
func MayRun(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) bool {
	outcome, begun := OutcomeOf(img, slot)
	return outcome == "" && (begun || slot.Attempt > img.Status.LastAttempt)
}

// StoreRefusal writes into an image's status that the API server refused the
// DataVolume of a slot. It tells whether there was anything to write: an
// outcome that is stored already is not changed.
func StoreRefusal(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot, f v1alpha1.Failure, p *policy.Policy, now metav1.Time) bool {
	if outcome, begun := OutcomeOf(img, slot); outcome != "" || begun {
		return false
	}
	e := find(img.Status.Revisions, slot.Revision)
	if e == nil {
		return false
	}
	if p == nil {
		d := policy.Default()
		p = &d
	}
	f.Message = cut(f.Message)
	Fail(&img.Status, img.UID, e, slot.Attempt, f, *p, now)
	return true
}
