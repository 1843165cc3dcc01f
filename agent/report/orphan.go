package report

import (
	"cmp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// StorageSnapshot is what orphans are looked for in.
type StorageSnapshot struct {
	// Objects that carry the UID of an image; Pods are of no account.
	Objects image.ObjectLists
	// ExistingImages that are there, by a look that came after that at the objects.
	ExistingImages map[types.UID]bool
	// GoneImages are images that a live read has told to be gone.
	GoneImages map[v1alpha1.ImageKey]bool
	// Slots of the ledger.
	Slots []v1alpha1.Slot
}

// Orphans are objects of storage that were made for images which are not there any
// more.
type Orphans struct {
	// First of them by kind, namespace and name.
	First []v1alpha1.OrphanedObject
	Count int32
	Bytes int64
	// Suspects are images that seem to be gone, and that no live read has told to be.
	Suspects []v1alpha1.ImageKey
	// GoneImages are those images of Storage.Gone of which there are objects.
	GoneImages map[v1alpha1.ImageKey]bool
	// Held: there are objects of images that are gone, of an attempt that still has a
	// slot: the ledger sees to them.
	HasSlots bool
}

// FindOrphans tells what of the storage belongs to no image. It is for a person to
// judge: somebody has taken the finalizer off an image, and the data may be what they
// wanted to keep.
func FindOrphans(s StorageSnapshot) Orphans {
	f := orphanSearch{
		StorageSnapshot: s, countedClaims: map[types.NamespacedName]bool{},
		suspectedImages: map[v1alpha1.ImageKey]bool{}, goneImages: map[v1alpha1.ImageKey]bool{},
	}
	// Claims come first: what they take, the DataVolume that has made them and the
	// snapshot that was made of them do not take once more.
	for i := range s.Objects.Claims {
		claim := &s.Objects.Claims[i]
		f.checkObject(claim, v1alpha1.OrphanedObject{Kind: "PersistentVolumeClaim", Bytes: claimBytes(claim)}, "")
	}
	for i := range s.Objects.DataVolumes {
		dv := &s.Objects.DataVolumes[i]
		var bytes int64
		switch {
		case dv.Spec.Storage != nil:
			bytes = dv.Spec.Storage.Resources.Requests.Storage().Value()
		case dv.Spec.PVC != nil:
			bytes = dv.Spec.PVC.Resources.Requests.Storage().Value()
		}
		f.checkObject(dv, v1alpha1.OrphanedObject{Kind: "DataVolume", Bytes: bytes}, dv.Name)
	}
	for i := range s.Objects.Snapshots {
		snap := &s.Objects.Snapshots[i]
		var bytes int64
		if snap.Status != nil && snap.Status.RestoreSize != nil {
			bytes = snap.Status.RestoreSize.Value()
		}
		of := ""
		if claim := snap.Spec.Source.PersistentVolumeClaimName; claim != nil {
			of = *claim
		}
		f.checkObject(snap, v1alpha1.OrphanedObject{Kind: "VolumeSnapshot", Bytes: bytes}, of)
	}
	return f.collectOrphans()
}

type orphanSearch struct {
	StorageSnapshot
	found           []v1alpha1.OrphanedObject
	hasSlots        bool
	suspectedImages map[v1alpha1.ImageKey]bool
	goneImages      map[v1alpha1.ImageKey]bool
	// countedClaims are the claims whose bytes are.
	countedClaims map[types.NamespacedName]bool
}

// checkObject tells whether an object is an orphan. claim names the one that counts its bytes
// if it is an orphan itself; empty for a claim.
func (f *orphanSearch) checkObject(o metav1.Object, orphan v1alpha1.OrphanedObject, claim string) {
	uid := types.UID(o.GetLabels()[v1alpha1.LabelImageUID])
	if uid == "" || f.ExistingImages[uid] || o.GetDeletionTimestamp() != nil || !isImageChild(o) {
		return
	}
	img := v1alpha1.ImageKey{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[v1alpha1.AnnotationImageName], UID: uid}
	if f.attemptHasSlot(o, uid) {
		f.hasSlots = true
		return
	}
	if img.Name != "" && !f.GoneImages[img] { // one that has no name nobody can ask for
		f.suspectedImages[img] = true
		return
	}
	f.goneImages[img] = true
	orphan.Namespace, orphan.Name, orphan.Image, orphan.ImageUID = img.Namespace, o.GetName(), img.Name, uid
	switch {
	case claim == "":
		f.countedClaims[types.NamespacedName{Namespace: orphan.Namespace, Name: orphan.Name}] = true
	case f.countedClaims[types.NamespacedName{Namespace: orphan.Namespace, Name: claim}]:
		orphan.Bytes = 0
	}
	f.found = append(f.found, orphan)
}

// isImageChild tells what was made for an image itself from what was made on the way, which
// goes with its owner: CDI's prime claims and scratch space, and its snapshots; and from
// what was made for a machine.
func isImageChild(o metav1.Object) bool {
	owner := metav1.GetControllerOf(o)
	return o.GetLabels()[v1alpha1.LabelMachineUID] == "" && (owner == nil || owner.Kind == image.DataVolumeGVK.Kind)
}

// attemptHasSlot tells that the attempt that an object is of stands in the ledger.
func (f *orphanSearch) attemptHasSlot(o metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(f.Slots, func(slot v1alpha1.Slot) bool {
		return slot.Image.UID == uid && strconv.Itoa(int(slot.Attempt)) == o.GetLabels()[v1alpha1.LabelAttempt]
	})
}

func claimBytes(claim *corev1.PersistentVolumeClaim) int64 {
	if has, known := claim.Status.Capacity[corev1.ResourceStorage]; known {
		return has.Value()
	}
	return claim.Spec.Resources.Requests.Storage().Value()
}

func (f *orphanSearch) collectOrphans() Orphans {
	slices.SortFunc(f.found, func(a, b v1alpha1.OrphanedObject) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := Orphans{Count: int32(len(f.found)), HasSlots: f.hasSlots, GoneImages: f.goneImages}
	for i := range f.found {
		out.Bytes += f.found[i].Bytes
	}
	out.First = f.found[:min(len(f.found), v1alpha1.MaxReportedOrphans)]
	for img := range f.suspectedImages {
		out.Suspects = append(out.Suspects, img)
	}
	slices.SortFunc(out.Suspects, func(a, b v1alpha1.ImageKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}
