package image_test

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
)

// lastDataVolume returns the one that was created last; nil for none.
func (w *simulation) lastDataVolume() *cdiv1.DataVolume {
	if n := len(w.lists.DataVolumes); n > 0 {
		return &w.lists.DataVolumes[n-1]
	}
	return nil
}

func (w *simulation) findClaim(name string) *corev1.PersistentVolumeClaim {
	for i := range w.lists.Claims {
		if w.lists.Claims[i].Name == name {
			return &w.lists.Claims[i]
		}
	}
	return nil
}

func (w *simulation) lastSnapshot() *snapshotv1.VolumeSnapshot {
	if n := len(w.lists.Snapshots); n > 0 {
		return &w.lists.Snapshots[n-1]
	}
	return nil
}

// reportProgress makes CDI report progress of the last DataVolume.
func (w *simulation) reportProgress(progress string) {
	dv := w.lastDataVolume()
	dv.Status.Phase = cdiv1.ImportInProgress
	dv.Status.Progress = cdiv1.DataVolumeProgress(progress)
	w.deletePods(dv.Name)
	pod := apitest.Pod(dv.Namespace + "/importer-" + dv.Name).Running().Obj()
	pod.Labels = dv.Labels
	w.lists.Pods = append(w.lists.Pods, *pod)
}

// completeImport makes CDI finish the last DataVolume.
func (w *simulation) completeImport() {
	dv := w.lastDataVolume()
	dv.Status.Phase, dv.Status.Progress = cdiv1.Succeeded, "100.0%"
	w.deletePods(dv.Name)
	if claim := w.findClaim(dv.Name); claim != nil {
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "cdi.kubevirt.io/storage.pod.phase", string(corev1.PodSucceeded))
	}
}

// failImport makes the last DataVolume's importer fail with a message.
func (w *simulation) failImport(message string) {
	w.reportProgress(string(w.lastDataVolume().Status.Progress))
	pod := &w.lists.Pods[len(w.lists.Pods)-1]
	pod.Status.ContainerStatuses = apitest.Pod("ns/x").Terminated(1, "Error", message).Obj().Status.ContainerStatuses
}

func (w *simulation) deletePods(dv string) {
	w.lists.Pods = slices.DeleteFunc(w.lists.Pods, func(p corev1.Pod) bool { return p.Name == "importer-"+dv })
	if len(w.lists.Pods) == 0 {
		w.lists.Pods = nil
	}
}

// startImport admits the image and starts its import.
func (w *simulation) startImport() {
	if w.status().ObservedGeneration != w.img.Generation {
		w.reconcile() // an edited image gets no slot before
	}
	w.stepLedger()
	w.createMissingDataVolumes()
	w.reportProgress("1.0%")
	w.reconcile()
}

// runImport takes the image through one import.
func (w *simulation) runImport() {
	w.startImport()
	w.completeImport()
	w.reconcile()
	w.stepLedgerTwice()
}

// stepLedgerTwice marks the slots of ended attempts, and frees those without objects to
// delete.
func (w *simulation) stepLedgerTwice() {
	w.stepLedger()
	w.stepLedger()
}

// runFailingAttempt takes the image through one attempt that fails with a message.
func (w *simulation) runFailingAttempt(message string) {
	w.startImport()
	w.failImport(message)
	w.reconcile()
	w.finishDeletions()
}

// finishDeletions marks slots, finishes deletions, and frees the slots.
func (w *simulation) finishDeletions() {
	for range 3 {
		w.stepLedger()
		w.reconcile()
		w.removeDeletedObjects()
	}
	w.stepLedger()
	w.reconcile()
}

// markSnapshotReady makes the last VolumeSnapshot ready.
func (w *simulation) markSnapshotReady() {
	snap := w.lastSnapshot()
	ready, content, size := true, "content-of-"+snap.Name, resource.MustParse("2Gi")
	snap.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &ready, BoundVolumeSnapshotContentName: &content, RestoreSize: &size}
}

// markForDeletion sets the deletionTimestamp of an object with finalizers.
func (w *simulation) markForDeletion(target image.DeleteTarget) {
	at := metav1.NewTime(w.now)
	mark := func(o *metav1.ObjectMeta) {
		if o.Name == target.Name && o.UID == target.UID && o.DeletionTimestamp == nil {
			o.DeletionTimestamp = &at
		}
	}
	switch target.Kind {
	case image.KindDataVolume:
		for i := range w.lists.DataVolumes {
			mark(&w.lists.DataVolumes[i].ObjectMeta)
		}
	case image.KindPersistentVolumeClaim:
		for i := range w.lists.Claims {
			mark(&w.lists.Claims[i].ObjectMeta)
		}
	case image.KindVolumeSnapshot:
		for i := range w.lists.Snapshots {
			mark(&w.lists.Snapshots[i].ObjectMeta)
		}
	}
}

// removeDeletedObjects finishes deletions, dependents included.
func (w *simulation) removeDeletedObjects() {
	l := &w.lists
	var gone []string
	l.DataVolumes = slices.DeleteFunc(l.DataVolumes, func(dv cdiv1.DataVolume) bool {
		if dv.DeletionTimestamp != nil {
			gone = append(gone, dv.Name)
		}
		return dv.DeletionTimestamp != nil
	})
	l.Claims = slices.DeleteFunc(l.Claims, func(c corev1.PersistentVolumeClaim) bool {
		owner := metav1.GetControllerOf(&c)
		return c.DeletionTimestamp != nil || (owner != nil && slices.Contains(gone, owner.Name))
	})
	for _, name := range gone {
		w.deletePods(name)
	}
	l.Snapshots = slices.DeleteFunc(l.Snapshots, func(s snapshotv1.VolumeSnapshot) bool { return s.DeletionTimestamp != nil })
	*l = copyLists(*l) // nil where it is empty
}

// loseObject deletes an object and its dependents at once, as a person may.
func (w *simulation) loseObject(kind image.ObjectKind, name string) {
	w.excuses++
	for i := range w.lists.DataVolumes {
		if o := &w.lists.DataVolumes[i]; kind == image.KindDataVolume && o.Name == name {
			w.markForDeletion(image.DeleteTarget{Kind: kind, Name: name, UID: o.UID})
		}
	}
	for i := range w.lists.Claims {
		if o := &w.lists.Claims[i]; kind == image.KindPersistentVolumeClaim && o.Name == name {
			w.markForDeletion(image.DeleteTarget{Kind: kind, Name: name, UID: o.UID})
		}
	}
	for i := range w.lists.Snapshots {
		if o := &w.lists.Snapshots[i]; kind == image.KindVolumeSnapshot && o.Name == name {
			w.markForDeletion(image.DeleteTarget{Kind: kind, Name: name, UID: o.UID})
		}
	}
	w.removeDeletedObjects()
}

// deletedNames lists what a decision deletes, as "Kind name".
func deletedNames(d image.Decision) []string {
	var list []string
	for _, target := range d.Delete {
		list = append(list, string(target.Kind)+" "+target.Name)
	}
	return list
}
