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

// dataVolume is the one that was created last, nil for none.
func (w *world) dataVolume() *cdiv1.DataVolume {
	if n := len(w.lists.DataVolumes); n > 0 {
		return &w.lists.DataVolumes[n-1]
	}
	return nil
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	for i := range w.lists.Claims {
		if w.lists.Claims[i].Name == name {
			return &w.lists.Claims[i]
		}
	}
	return nil
}

func (w *world) snapshot() *snapshotv1.VolumeSnapshot {
	if n := len(w.lists.Snapshots); n > 0 {
		return &w.lists.Snapshots[n-1]
	}
	return nil
}

// download has CDI get on with the last DataVolume.
func (w *world) download(progress string) {
	dv := w.dataVolume()
	dv.Status.Phase = cdiv1.ImportInProgress
	dv.Status.Progress = cdiv1.DataVolumeProgress(progress)
	w.dropPods(dv.Name)
	pod := apitest.Pod(dv.Namespace + "/importer-" + dv.Name).Running().Obj()
	pod.Labels = dv.Labels
	w.lists.Pods = append(w.lists.Pods, *pod)
}

// complete has CDI finish the last DataVolume.
func (w *world) complete() {
	dv := w.dataVolume()
	dv.Status.Phase, dv.Status.Progress = cdiv1.Succeeded, "100.0%"
	w.dropPods(dv.Name)
	if claim := w.claim(dv.Name); claim != nil {
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "cdi.kubevirt.io/storage.pod.phase", string(corev1.PodSucceeded))
	}
}

// breakOff has the last DataVolume's importer end with a message.
func (w *world) breakOff(message string) {
	w.download(string(w.dataVolume().Status.Progress))
	pod := &w.lists.Pods[len(w.lists.Pods)-1]
	pod.Status.ContainerStatuses = apitest.Pod("ns/x").Terminated(1, "Error", message).Obj().Status.ContainerStatuses
}

func (w *world) dropPods(dv string) {
	w.lists.Pods = slices.DeleteFunc(w.lists.Pods, func(p corev1.Pod) bool { return p.Name == "importer-"+dv })
	if len(w.lists.Pods) == 0 {
		w.lists.Pods = nil
	}
}

// begun admits the image and has its import started and noticed.
func (w *world) begun() {
	w.ledger()
	w.rollForward()
	w.download("1.0%")
	w.reconcile()
}

// imported takes the image through one import.
func (w *world) imported() {
	w.begun()
	w.complete()
	w.reconcile()
	w.freeSlots()
}

// freeSlots has the ledger mark the slots of what is over, and free those of
// which nothing is to go any more.
func (w *world) freeSlots() {
	w.ledger()
	w.ledger()
}

// failed takes the image through one attempt that ends with a message.
func (w *world) failed(message string) {
	w.begun()
	w.breakOff(message)
	w.reconcile()
	w.settleStorage()
}

// settleStorage marks slots, removes what is being deleted, and frees them.
func (w *world) settleStorage() {
	for range 3 {
		w.ledger()
		w.reconcile()
		w.collect()
	}
	w.ledger()
	w.reconcile()
}

// readySnapshot has the snapshot controller finish the last VolumeSnapshot.
func (w *world) readySnapshot() {
	snap := w.snapshot()
	ready, content, size := true, "content-of-"+snap.Name, resource.MustParse("2Gi")
	snap.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &ready, BoundVolumeSnapshotContentName: &content, RestoreSize: &size}
}

// delete marks one object, as the API server does for what has finalizers.
func (w *world) delete(target image.Target) {
	at := metav1.NewTime(w.now)
	mark := func(o *metav1.ObjectMeta) {
		if o.Name == target.Name && o.UID == target.UID && o.DeletionTimestamp == nil {
			o.DeletionTimestamp = &at
		}
	}
	switch target.Kind {
	case image.DataVolume:
		for i := range w.lists.DataVolumes {
			mark(&w.lists.DataVolumes[i].ObjectMeta)
		}
	case image.PersistentVolumeClaim:
		for i := range w.lists.Claims {
			mark(&w.lists.Claims[i].ObjectMeta)
		}
	case image.VolumeSnapshot:
		for i := range w.lists.Snapshots {
			mark(&w.lists.Snapshots[i].ObjectMeta)
		}
	}
}

// collect finishes deletions, and takes what their objects owned.
func (w *world) collect() {
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
		w.dropPods(name)
	}
	l.Snapshots = slices.DeleteFunc(l.Snapshots, func(s snapshotv1.VolumeSnapshot) bool { return s.DeletionTimestamp != nil })
	*l = copyLists(*l) // nil where it is empty
}

// lose takes an object away at once, as somebody may by hand, and what it owned.
func (w *world) lose(kind image.Kind, name string) {
	w.excuses++
	for i := range w.lists.DataVolumes {
		if o := &w.lists.DataVolumes[i]; kind == image.DataVolume && o.Name == name {
			w.delete(image.Target{Kind: kind, Name: name, UID: o.UID})
		}
	}
	for i := range w.lists.Claims {
		if o := &w.lists.Claims[i]; kind == image.PersistentVolumeClaim && o.Name == name {
			w.delete(image.Target{Kind: kind, Name: name, UID: o.UID})
		}
	}
	for i := range w.lists.Snapshots {
		if o := &w.lists.Snapshots[i]; kind == image.VolumeSnapshot && o.Name == name {
			w.delete(image.Target{Kind: kind, Name: name, UID: o.UID})
		}
	}
	w.collect()
}

// deletes lists what a decision deletes, as "Kind name".
func deletes(d image.Decision) []string {
	var list []string
	for _, target := range d.Delete {
		list = append(list, string(target.Kind)+" "+target.Name)
	}
	return list
}
