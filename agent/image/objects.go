package image

import (
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kinds of other projects that images are made of.
var (
	DataVolumeGVK     = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	VolumeSnapshotGVK = snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot")
)

// ImageUIDIndex is the field index of what belongs to an image; its values are the
// image's UID.
const ImageUIDIndex = "image-uid"

// UnfinishedIndex is the field index of DataVolumes that may still download;
// its one value is Unfinished.
const (
	UnfinishedIndex      = "unfinished"
	UnfinishedIndexValue = "true"
)

// AttemptObjects are what exists of one attempt.
type AttemptObjects struct {
	DataVolume *cdiv1.DataVolume
	// Claim is the one that the DataVolume fills; both have one name.
	Claim *corev1.PersistentVolumeClaim
	// CDIClaims are CDI's own while it imports: prime and scratch space.
	CDIClaims []corev1.PersistentVolumeClaim
	// Pods are importers.
	Pods      []corev1.Pod
	Snapshots []snapshotv1.VolumeSnapshot
}

// CanDownload tells whether anything of the attempt exists that can download, or
// that CDI would start a download from again.
func (o *AttemptObjects) CanDownload() bool {
	return o != nil && (o.DataVolume != nil || o.Claim != nil || len(o.CDIClaims) > 0 || len(o.Pods) > 0)
}

// podPhaseAnnotation is where CDI keeps the importer's phase on a claim (CDI 1.65).
const podPhaseAnnotation = "cdi.kubevirt.io/storage.pod.phase"

// ImportComplete tells whether the import is done and its storage is there. A
// DataVolume that is gone counts as done where its claim was filled: older CDI
// collects finished DataVolumes.
func (o *AttemptObjects) ImportComplete() bool {
	if o == nil || o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimBound || o.Claim.DeletionTimestamp != nil {
		return false
	}
	if o.DataVolume == nil {
		return isPopulated(o.Claim)
	}
	return o.DataVolume.DeletionTimestamp == nil && o.DataVolume.Status.Phase == cdiv1.Succeeded
}

// isPopulated tells that CDI has done with a claim.
func isPopulated(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[podPhaseAnnotation] == string(corev1.PodSucceeded)
}

// SnapshotReady tells whether disks can be cloned from a snapshot.
func SnapshotReady(snap *snapshotv1.VolumeSnapshot) bool { return ready(snap) }

func (o *AttemptObjects) findSnapshot(name string) *snapshotv1.VolumeSnapshot {
	if o == nil || name == "" {
		return nil
	}
	for i := range o.Snapshots {
		if o.Snapshots[i].Name == name {
			return &o.Snapshots[i]
		}
	}
	return nil
}

// ObjectLists are the objects that carry the UID of one image.
type ObjectLists struct {
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	Pods        []corev1.Pod
	Snapshots   []snapshotv1.VolumeSnapshot
}

// GroupByAttempt sorts what exists of an image by attempt. What carries no number is
// nobody's attempt and stands under 0.
func GroupByAttempt(l ObjectLists) map[int32]*AttemptObjects {
	attempts := map[int32]*AttemptObjects{}
	at := func(o metav1.Object) *AttemptObjects {
		n := attemptNumber(o)
		if attempts[n] == nil {
			attempts[n] = &AttemptObjects{}
		}
		return attempts[n]
	}
	for i := range l.DataVolumes {
		at(&l.DataVolumes[i]).DataVolume = &l.DataVolumes[i]
	}
	for i := range l.Claims {
		o := at(&l.Claims[i])
		if isTargetClaim(&l.Claims[i], o) {
			o.Claim = &l.Claims[i]
		} else {
			o.CDIClaims = append(o.CDIClaims, l.Claims[i])
		}
	}
	for i := range l.Pods {
		o := at(&l.Pods[i])
		o.Pods = append(o.Pods, l.Pods[i])
	}
	for i := range l.Snapshots {
		o := at(&l.Snapshots[i])
		o.Snapshots = append(o.Snapshots, l.Snapshots[i])
	}
	return attempts
}

// isTargetClaim tells the claim that a DataVolume fills from CDI's own: those are
// owned by a claim or a Pod, it by the DataVolume or, once that is collected,
// by nobody.
func isTargetClaim(claim *corev1.PersistentVolumeClaim, o *AttemptObjects) bool {
	if o.DataVolume != nil {
		return claim.Name == o.DataVolume.Name
	}
	owner := metav1.GetControllerOf(claim)
	return owner == nil || owner.Kind == "DataVolume"
}

func attemptNumber(o metav1.Object) int32 {
	n, err := strconv.ParseInt(o.GetLabels()[v1alpha1.LabelAttempt], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}

// AttemptLabels of what belongs to an attempt of an image.
func AttemptLabels(img v1alpha1.ImageKey, revision string, attempt int32) map[string]string {
	return map[string]string{
		v1alpha1.LabelImageUID: string(img.UID),
		v1alpha1.LabelRevision: revision,
		v1alpha1.LabelAttempt:  strconv.Itoa(int(attempt)),
	}
}
