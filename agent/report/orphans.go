package report

import (
	"cmp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of what objects say that they request, so that no sum overflows.
const (
	maxObjectBytes = 128 << 40 // twice the largest disk
	maxOrphanBytes = 1<<53 - 1
)

// StorageSnapshot is the input of FindOrphans.
type StorageSnapshot struct {
	// Objects that carry the UID of an image; Pods are ignored.
	Objects image.ObjectLists
	// ExistingImages are the images that exist, read after Objects.
	ExistingImages map[types.UID]bool
	// GoneImages are those that a live read has confirmed to be gone.
	GoneImages map[v1alpha1.ImageKey]bool
	// Slots of the ledger.
	Slots []v1alpha1.Slot
}

// Orphans are storage objects whose image no longer exists.
type Orphans struct {
	// First of them by kind, namespace and name.
	First []v1alpha1.OrphanedObject
	Count int32
	Bytes int64
	// Suspects are images that seem to be gone, and that no live read has confirmed.
	Suspects []v1alpha1.ImageKey
	// GoneImages are those of the snapshot's GoneImages that have objects.
	GoneImages map[v1alpha1.ImageKey]bool
	// HasSlots: some objects of images that are gone belong to an attempt with a slot. They
	// are no orphans; the ledger's controller deletes them.
	HasSlots bool
}

// FindOrphans returns the storage that belongs to no image. A person has to judge it:
// somebody has removed an image's finalizer, and may want to keep the data.
//
// PVCs are searched first: the DataVolume that made one, and the snapshot that was made of
// it, do not count its bytes again.
func FindOrphans(s StorageSnapshot) Orphans {
	search := orphanSearch{
		StorageSnapshot: s, countedClaims: map[types.NamespacedName]bool{},
		suspectedImages: map[v1alpha1.ImageKey]bool{}, goneImages: map[v1alpha1.ImageKey]bool{},
	}
	for i := range s.Objects.Claims {
		claim := &s.Objects.Claims[i]
		search.checkObject(claim, v1alpha1.OrphanedObject{Kind: "PersistentVolumeClaim", Bytes: claimBytes(claim)}, "")
	}
	for i := range s.Objects.DataVolumes {
		dv := &s.Objects.DataVolumes[i]
		search.checkObject(dv, v1alpha1.OrphanedObject{Kind: "DataVolume", Bytes: dataVolumeBytes(dv)}, dv.Name)
	}
	for i := range s.Objects.Snapshots {
		snapshot := &s.Objects.Snapshots[i]
		var bytes int64
		if snapshot.Status != nil && snapshot.Status.RestoreSize != nil {
			bytes = snapshot.Status.RestoreSize.Value()
		}
		claim := ""
		if name := snapshot.Spec.Source.PersistentVolumeClaimName; name != nil {
			claim = *name
		}
		search.checkObject(snapshot, v1alpha1.OrphanedObject{Kind: "VolumeSnapshot", Bytes: bytes}, claim)
	}
	return search.collectOrphans()
}

type orphanSearch struct {
	StorageSnapshot
	found           []v1alpha1.OrphanedObject
	hasSlots        bool
	suspectedImages map[v1alpha1.ImageKey]bool
	goneImages      map[v1alpha1.ImageKey]bool
	// countedClaims are the PVCs whose bytes are counted.
	countedClaims map[types.NamespacedName]bool
}

// checkObject adds an object if it is an orphan. claim is the PVC that counts its bytes if
// that is an orphan too; empty for a PVC.
func (s *orphanSearch) checkObject(o metav1.Object, orphan v1alpha1.OrphanedObject, claim string) {
	uid := types.UID(o.GetLabels()[v1alpha1.LabelImageUID])
	if uid == "" || s.ExistingImages[uid] || o.GetDeletionTimestamp() != nil || !isImageChild(o) {
		return
	}
	img := v1alpha1.ImageKey{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[v1alpha1.AnnotationImageName], UID: uid}
	if s.attemptHasSlot(o, uid) {
		s.hasSlots = true
		return
	}
	if img.Name != "" && !s.GoneImages[img] { // without a name it cannot be confirmed
		s.suspectedImages[img] = true
		return
	}
	s.goneImages[img] = true
	orphan.Namespace, orphan.Name, orphan.ImageUID = img.Namespace, o.GetName(), uid
	if len(validation.IsDNS1123Subdomain(img.Name)) == 0 { // anybody may annotate a claim
		orphan.Image = img.Name
	}
	orphan.Bytes = max(0, min(orphan.Bytes, maxObjectBytes))
	switch {
	case claim == "":
		s.countedClaims[types.NamespacedName{Namespace: orphan.Namespace, Name: orphan.Name}] = true
	case s.countedClaims[types.NamespacedName{Namespace: orphan.Namespace, Name: claim}]:
		orphan.Bytes = 0
	}
	s.found = append(s.found, orphan)
}

// isImageChild: an object was made for an image. It was not if it belongs to a
// VirtualMachine, or has an owner that it is deleted with: CDI's prime PVCs, scratch space
// and snapshots.
func isImageChild(o metav1.Object) bool {
	owner := metav1.GetControllerOf(o)
	return o.GetLabels()[v1alpha1.LabelMachineUID] == "" && (owner == nil || owner.Kind == image.DataVolumeGVK.Kind)
}

func (s *orphanSearch) attemptHasSlot(o metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(s.Slots, func(slot v1alpha1.Slot) bool {
		return slot.Image.UID == uid && strconv.Itoa(int(slot.Attempt)) == o.GetLabels()[v1alpha1.LabelAttempt]
	})
}

func claimBytes(claim *corev1.PersistentVolumeClaim) int64 {
	if size, known := claim.Status.Capacity[corev1.ResourceStorage]; known {
		return size.Value()
	}
	return claim.Spec.Resources.Requests.Storage().Value()
}

func dataVolumeBytes(dv *cdiv1.DataVolume) int64 {
	switch {
	case dv.Spec.Storage != nil:
		return dv.Spec.Storage.Resources.Requests.Storage().Value()
	case dv.Spec.PVC != nil:
		return dv.Spec.PVC.Resources.Requests.Storage().Value()
	default:
		return 0
	}
}

func (s *orphanSearch) collectOrphans() Orphans {
	slices.SortFunc(s.found, func(a, b v1alpha1.OrphanedObject) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	orphans := Orphans{Count: int32(len(s.found)), HasSlots: s.hasSlots, GoneImages: s.goneImages}
	for i := range s.found {
		orphans.Bytes = min(orphans.Bytes+s.found[i].Bytes, maxOrphanBytes)
	}
	orphans.First = s.found[:min(len(s.found), v1alpha1.MaxReportedOrphans)]
	for img := range s.suspectedImages {
		orphans.Suspects = append(orphans.Suspects, img)
	}
	slices.SortFunc(orphans.Suspects, func(a, b v1alpha1.ImageKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return orphans
}
