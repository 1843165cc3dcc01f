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

// Storage is what orphans are looked for in.
type Storage struct {
	// Objects that carry the UID of an image; Pods are of no account.
	Objects image.Lists
	// Images that are there, by a look that came after that at the objects.
	Images map[types.UID]bool
	// Gone are images that a live read has told to be gone.
	Gone map[v1alpha1.ImageKey]bool
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
	// Gone are those images of Storage.Gone of which there are objects.
	Gone map[v1alpha1.ImageKey]bool
	// Held: there are objects of images that are gone, of an attempt that still has a
	// slot: the ledger sees to them.
	Held bool
}

// FindOrphans tells what of the storage belongs to no image. It is for a person to
// judge: somebody has taken the finalizer off an image, and the data may be what they
// wanted to keep.
func FindOrphans(s Storage) Orphans {
	f := finding{
		Storage: s, counted: map[types.NamespacedName]bool{},
		suspected: map[v1alpha1.ImageKey]bool{}, gone: map[v1alpha1.ImageKey]bool{},
	}
	// Claims come first: what they take, the DataVolume that has made them and the
	// snapshot that was made of them do not take once more.
	for i := range s.Objects.Claims {
		claim := &s.Objects.Claims[i]
		f.look(claim, v1alpha1.OrphanedObject{Kind: "PersistentVolumeClaim", Bytes: bytesOf(claim)}, "")
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
		f.look(dv, v1alpha1.OrphanedObject{Kind: "DataVolume", Bytes: bytes}, dv.Name)
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
		f.look(snap, v1alpha1.OrphanedObject{Kind: "VolumeSnapshot", Bytes: bytes}, of)
	}
	return f.done()
}

type finding struct {
	Storage
	found     []v1alpha1.OrphanedObject
	held      bool
	suspected map[v1alpha1.ImageKey]bool
	gone      map[v1alpha1.ImageKey]bool
	// counted are the claims whose bytes are.
	counted map[types.NamespacedName]bool
}

// look tells whether an object is an orphan. claim names the one that counts its bytes
// if it is an orphan itself; empty for a claim.
func (f *finding) look(o metav1.Object, orphan v1alpha1.OrphanedObject, claim string) {
	uid := types.UID(o.GetLabels()[v1alpha1.LabelImageUID])
	if uid == "" || f.Images[uid] || o.GetDeletionTimestamp() != nil || !isOwn(o) {
		return
	}
	img := v1alpha1.ImageKey{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[v1alpha1.AnnotationImageName], UID: uid}
	if f.hasSlot(o, uid) {
		f.held = true
		return
	}
	if img.Name != "" && !f.Gone[img] { // one that has no name nobody can ask for
		f.suspected[img] = true
		return
	}
	f.gone[img] = true
	orphan.Namespace, orphan.Name, orphan.Image, orphan.ImageUID = img.Namespace, o.GetName(), img.Name, uid
	switch {
	case claim == "":
		f.counted[types.NamespacedName{Namespace: orphan.Namespace, Name: orphan.Name}] = true
	case f.counted[types.NamespacedName{Namespace: orphan.Namespace, Name: claim}]:
		orphan.Bytes = 0
	}
	f.found = append(f.found, orphan)
}

// isOwn tells what was made for an image itself from what was made on the way, which
// goes with its owner: CDI's prime claims and scratch space, and its snapshots; and from
// what was made for a machine.
func isOwn(o metav1.Object) bool {
	owner := metav1.GetControllerOf(o)
	return o.GetLabels()[v1alpha1.LabelMachineUID] == "" && (owner == nil || owner.Kind == image.DataVolumeKind.Kind)
}

// hasSlot tells that the attempt that an object is of stands in the ledger.
func (f *finding) hasSlot(o metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(f.Slots, func(slot v1alpha1.Slot) bool {
		return slot.Image.UID == uid && strconv.Itoa(int(slot.Attempt)) == o.GetLabels()[v1alpha1.LabelAttempt]
	})
}

func bytesOf(claim *corev1.PersistentVolumeClaim) int64 {
	if has, known := claim.Status.Capacity[corev1.ResourceStorage]; known {
		return has.Value()
	}
	return claim.Spec.Resources.Requests.Storage().Value()
}

func (f *finding) done() Orphans {
	slices.SortFunc(f.found, func(a, b v1alpha1.OrphanedObject) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := Orphans{Count: int32(len(f.found)), Held: f.held, Gone: f.gone}
	for i := range f.found {
		out.Bytes += f.found[i].Bytes
	}
	out.First = f.found[:min(len(f.found), v1alpha1.MaxReportedOrphans)]
	for img := range f.suspected {
		out.Suspects = append(out.Suspects, img)
	}
	slices.SortFunc(out.Suspects, func(a, b v1alpha1.ImageKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}
