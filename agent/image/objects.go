package image

import (
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kinds of other projects that belong to images.
var (
	DataVolumeGVK     = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	VolumeSnapshotGVK = snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot")
)

// ImageUIDIndex is the field index of the objects that belong to an image, by the
// image's UID.
const ImageUIDIndex = "image-uid"

// UnfinishedIndex is the field index of DataVolumes that may still download; its
// only value is UnfinishedIndexValue.
const (
	UnfinishedIndex      = "unfinished"
	UnfinishedIndexValue = "true"
)

// AttemptObjects are the objects that exist of one attempt.
type AttemptObjects struct {
	DataVolume *cdiv1.DataVolume
	// Claim is the one that the DataVolume populates; both have the same name.
	Claim *corev1.PersistentVolumeClaim
	// CDIClaims are CDI's own during an import: prime and scratch space.
	CDIClaims []corev1.PersistentVolumeClaim
	// Pods are importers.
	Pods      []corev1.Pod
	Snapshots []snapshotv1.VolumeSnapshot
}

// CanDownload reports whether any object of the attempt can download, or would make
// CDI start a download again.
func (o *AttemptObjects) CanDownload() bool {
	return o != nil && (o.DataVolume != nil || o.Claim != nil || len(o.CDIClaims) > 0 || len(o.Pods) > 0)
}

// ImportComplete reports whether the import has succeeded and its claim is bound. A
// missing DataVolume is complete where its claim is populated: older CDI
// garbage-collects finished DataVolumes.
func (o *AttemptObjects) ImportComplete() bool {
	if o == nil || o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimBound || o.Claim.DeletionTimestamp != nil {
		return false
	}
	if o.DataVolume == nil {
		return isPopulated(o.Claim)
	}
	return o.DataVolume.DeletionTimestamp == nil && o.DataVolume.Status.Phase == cdiv1.Succeeded
}

// claimExists reports whether the claim is neither missing, lost nor being deleted.
func (o *AttemptObjects) claimExists() bool {
	return o != nil && o.Claim != nil && o.Claim.DeletionTimestamp == nil && o.Claim.Status.Phase != corev1.ClaimLost
}

// StorageClassOfClaim returns the StorageClass of the claim of the current revision's attempt, which runs
// or has succeeded; empty where there is none yet.
func StorageClassOfClaim(img *v1alpha1.VMDiskImage, attempts map[int32]*AttemptObjects) string {
	rev := findRevision(img.Status.Revisions, img.Spec.Revision())
	if rev == nil || rev.Attempt == rev.AttemptEnded && rev.Outcome != v1alpha1.OutcomeSucceeded {
		return "" // the next attempt has a claim of its own
	}
	if o := attempts[rev.Attempt]; o != nil && o.Claim != nil {
		return ptr.Deref(o.Claim.Spec.StorageClassName, "")
	}
	return ""
}

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

// allClaims are the attempt's claim and those of CDI.
func (o *AttemptObjects) allClaims() []corev1.PersistentVolumeClaim {
	if o.Claim == nil {
		return o.CDIClaims
	}
	return append(slices.Clone(o.CDIClaims), *o.Claim)
}

// PodPhaseAnnotation of a claim has the phase of the Pod that fills it (CDI 1.65).
const PodPhaseAnnotation = "cdi.kubevirt.io/storage.pod.phase"

// isPopulated reports whether CDI has finished a claim.
func isPopulated(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[PodPhaseAnnotation] == string(corev1.PodSucceeded)
}

// ObjectLists are the objects that carry the UID of one image.
type ObjectLists struct {
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	Pods        []corev1.Pod
	Snapshots   []snapshotv1.VolumeSnapshot
}

// GroupByAttempt groups the objects of an image by attempt number. Objects without
// a valid number belong to no attempt and are under 0.
func GroupByAttempt(lists ObjectLists) map[int32]*AttemptObjects {
	attempts := map[int32]*AttemptObjects{}
	objectsOf := func(o metav1.Object) *AttemptObjects {
		n := attemptNumber(o)
		if attempts[n] == nil {
			attempts[n] = &AttemptObjects{}
		}
		return attempts[n]
	}
	for i := range lists.DataVolumes {
		objectsOf(&lists.DataVolumes[i]).DataVolume = &lists.DataVolumes[i]
	}
	for i := range lists.Claims {
		o := objectsOf(&lists.Claims[i])
		if isTargetClaim(&lists.Claims[i], o) {
			o.Claim = &lists.Claims[i]
		} else {
			o.CDIClaims = append(o.CDIClaims, lists.Claims[i])
		}
	}
	for i := range lists.Pods {
		o := objectsOf(&lists.Pods[i])
		o.Pods = append(o.Pods, lists.Pods[i])
	}
	for i := range lists.Snapshots {
		o := objectsOf(&lists.Snapshots[i])
		o.Snapshots = append(o.Snapshots, lists.Snapshots[i])
	}
	return attempts
}

// isTargetClaim distinguishes the claim that a DataVolume populates from CDI's own.
// The latter are owned by a claim or a Pod; the former by the DataVolume or, once
// that is garbage-collected, by nothing.
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

// AttemptLabels are the labels of the objects of an attempt.
func AttemptLabels(img v1alpha1.ImageKey, revision string, attempt int32) map[string]string {
	return map[string]string{
		v1alpha1.LabelImageUID: string(img.UID),
		v1alpha1.LabelRevision: revision,
		v1alpha1.LabelAttempt:  strconv.Itoa(int(attempt)),
	}
}
