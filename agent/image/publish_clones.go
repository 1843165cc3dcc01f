package image

import (
	"cmp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// cloneMargin is how long after the end of a publication a DataVolume may be created and still be
// cloned from it: API servers whose clocks differ stamp the two times, and CDI reads DataSources
// from a cache.
const cloneMargin = time.Minute

// cloneHolder marks a holder that is a DataVolume.
const cloneHolder = " (clone)"

// CloneHolders returns the clones in flight of what an image publishes or has published.
//
// A DataVolume with sourceRef can be cloned from all that the DataSource has pointed at since it
// was created: CDI resolves it when it comes to it, and again until the clone has begun. KubeVirt
// resolves the DataSource itself and names the storage in source, which can be no other then.
func CloneHolders(img *v1alpha1.VMDiskImage, dataVolumes []cdiv1.DataVolume, dataSources []cdiv1.DataSource) (holders []Holder) {
	for i := range dataVolumes {
		dv := &dataVolumes[i]
		if !IsClone(dv) || isDiskOfHolder(dv, img.UID) {
			continue
		}
		holder := Holder{Name: dv.Namespace + "/" + dv.Name + cloneHolder}
		for j := range img.Status.Publications {
			if p := &img.Status.Publications[j]; canCloneFrom(dv, img.Namespace, p, dataSources) {
				holder.Pins = append(holder.Pins, pinOf(img, p))
			}
		}
		if len(holder.Pins) > 0 {
			holders = append(holders, holder)
		}
	}
	return holders
}

// DataSourcesInFlight adds the names of the DataSources of a namespace that unfinished DataVolumes
// refer to, or that those refer to.
func DataSourcesInFlight(inFlight map[string]bool, namespace string, dataVolumes []cdiv1.DataVolume, dataSources []cdiv1.DataSource) {
	for i := range dataVolumes {
		dv := &dataVolumes[i]
		if dv.Spec.SourceRef == nil || !IsClone(dv) {
			continue
		}
		for j := range dataSources {
			if name := dataSources[j].Name; refersTo(dv, namespace, name, dataSources) {
				inFlight[name] = true
			}
		}
		if refersTo(dv, namespace, dv.Spec.SourceRef.Name, nil) {
			inFlight[dv.Spec.SourceRef.Name] = true // of one that does not exist
		}
	}
}

// IsClone reports whether a DataVolume is cloned from a claim, a snapshot or a DataSource, and is
// not finished. One that is being deleted is still being cloned.
//
// CDI admits annotations AnnPrePopulated and AnnCheckStaticVolume from whoever may not clone. It
// never clones what has the former, and what has the latter only once it has verified the token of
// an author that may, before any later phase: until then nobody is kept from anything by it.
func IsClone(dv *cdiv1.DataVolume) bool {
	_, prePopulated := dv.Annotations[cdiv1.AnnPrePopulated]
	_, static := dv.Annotations[cdiv1.AnnCheckStaticVolume]
	switch phase := dv.Status.Phase; {
	case phase == cdiv1.Succeeded || phase == cdiv1.Failed || prePopulated:
		return false
	case static && (phase == cdiv1.PhaseUnset || phase == cdiv1.Pending):
		return false
	}
	return dv.Spec.SourceRef != nil || (dv.Spec.Source != nil && (dv.Spec.Source.PVC != nil || dv.Spec.Source.Snapshot != nil))
}

// isDiskOfHolder reports whether a DataVolume is a disk of one of our VirtualMachines, which is the
// holder then. One whose image uses the DataSource of another image holds the former only.
func isDiskOfHolder(dv *cdiv1.DataVolume, uid types.UID) bool {
	owner := metav1.GetControllerOf(dv)
	if owner == nil || owner.Kind != "VirtualMachine" || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return false
	}
	clonedFrom := dv.Annotations[v1alpha1.AnnotationClonedFrom]
	return clonedFrom == "" || strings.HasPrefix(clonedFrom, string(uid)+"/")
}

// isPublishedStorage reports whether a source names the storage that p publishes in a namespace. A
// source that names no namespace is of the namespace of its object.
func isPublishedStorage(p *v1alpha1.Publication, namespace string, claim *cdiv1.DataVolumeSourcePVC, snapshot *cdiv1.DataVolumeSourceSnapshot, ofObject string) bool {
	switch {
	case snapshot != nil:
		return p.VolumeSnapshot != "" && snapshot.Name == p.VolumeSnapshot && cmp.Or(snapshot.Namespace, ofObject) == namespace
	case claim != nil:
		return claim.Name == p.PersistentVolumeClaim && cmp.Or(claim.Namespace, ofObject) == namespace
	default:
		return false
	}
}

func canCloneFrom(dv *cdiv1.DataVolume, namespace string, p *v1alpha1.Publication, dataSources []cdiv1.DataSource) bool {
	if source := dv.Spec.Source; source != nil && (source.PVC != nil || source.Snapshot != nil) {
		return isPublishedStorage(p, namespace, source.PVC, source.Snapshot, dv.Namespace)
	}
	if !refersTo(dv, namespace, p.DataSource, dataSources) {
		return false
	}
	return p.Until == nil || !dv.CreationTimestamp.After(p.Until.Add(cloneMargin))
}

// refersTo reports whether a DataVolume is cloned from a DataSource, or from one that refers to it.
func refersTo(dv *cdiv1.DataVolume, namespace, name string, dataSources []cdiv1.DataSource) bool {
	ref := dv.Spec.SourceRef
	if ref == nil || ref.Kind != cdiv1.DataVolumeDataSource {
		return false
	}
	refNamespace := dv.Namespace
	if ref.Namespace != nil && *ref.Namespace != "" {
		refNamespace = *ref.Namespace
	}
	if refNamespace != namespace {
		return false
	}
	if ref.Name == name {
		return true
	}
	for i := range dataSources {
		if target := dataSources[i].Spec.Source.DataSource; dataSources[i].Name == ref.Name && target != nil {
			return target.Name == name
		}
	}
	return false
}

// pinOf is the pin of a clone: it keeps the published storage as one of a VirtualMachine does.
func pinOf(img *v1alpha1.VMDiskImage, p *v1alpha1.Publication) *v1alpha1.PinnedImage {
	return &v1alpha1.PinnedImage{
		ImageKey: KeyOf(img), Attempt: p.Attempt, PersistentVolumeClaim: p.PersistentVolumeClaim, VolumeSnapshot: p.VolumeSnapshot,
	}
}
