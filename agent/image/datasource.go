package image

import (
	"cmp"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DataSourceGVK is CDI's pointer to a claim or snapshot that disks are cloned from.
var DataSourceGVK = cdiv1.SchemeGroupVersion.WithKind("DataSource")

const (
	// maxDataSourceReferences is how many DataSources are followed from one to the next, as CDI
	// does (1.65).
	maxDataSourceReferences = 1
	// architectureLabel is set on DataSources and their claims by those who keep them.
	architectureLabel = "template.kubevirt.io/architecture"
)

// UsesDataSource reports whether an image is what a DataSource of others points at.
func UsesDataSource(spec *v1alpha1.VMDiskImageSpec) bool {
	return spec.SourceType == v1alpha1.SourceDataSource
}

// DataSourceKey returns the DataSource that an image uses.
func DataSourceKey(img *v1alpha1.VMDiskImage) types.NamespacedName {
	if img.Spec.DataSource == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: cmp.Or(img.Spec.DataSource.Namespace, img.Namespace), Name: img.Spec.DataSource.Name}
}

// SourceReader reads what a DataSource leads to; nil for what does not exist. A kind that is not
// served has no objects.
type SourceReader struct {
	DataSource func(types.NamespacedName) (*cdiv1.DataSource, error)
	Claim      func(types.NamespacedName) (*corev1.PersistentVolumeClaim, error)
	Snapshot   func(types.NamespacedName) (*snapshotv1.VolumeSnapshot, error)
}

// FollowDataSource finds out what an image's DataSource points at now. Of the result either
// Blocker or Serving is set. namespaces are those that the agent may clone from.
//
// Invariant: nothing is read, and so nothing can be cloned, outside the namespace of the
// DataSource, which is the one that the author of the image needed a right in. CDI checks each
// namespace against whoever clones, which would be the agent.
func FollowDataSource(img *v1alpha1.VMDiskImage, namespaces []string, read SourceReader) (FollowedDataSource, error) {
	first := DataSourceKey(img)
	if !slices.Contains(namespaces, first.Namespace) {
		return blockedSource(v1alpha1.ReasonDataSourceForbidden, "the agent clones nothing from namespace %s, which DataSource %s is in: name a DataSource elsewhere, or add the namespace to dataSources.namespaces of the agent's chart, unless protectedNamespaces has it", first.Namespace, first), nil
	}
	source, err := read.DataSource(first)
	if err != nil {
		return FollowedDataSource{}, err
	}
	if source == nil {
		return blockedSource(v1alpha1.ReasonDataSourceMissing, "DataSource %s does not exist: create it, or correct spec.dataSource", first), nil
	}
	pointer := source
	for followed := 0; pointer.Spec.Source.DataSource != nil; followed++ {
		next := types.NamespacedName{Namespace: cmp.Or(pointer.Spec.Source.DataSource.Namespace, pointer.Namespace), Name: pointer.Spec.Source.DataSource.Name}
		switch {
		case next.Namespace != first.Namespace:
			return elsewhere(pointer, next.Namespace), nil
		case next.Name == pointer.Name:
			return blockedSource(v1alpha1.ReasonDataSourceInvalid, "DataSource %s/%s points at itself: have it point at a claim or snapshot", pointer.Namespace, pointer.Name), nil
		case followed == maxDataSourceReferences:
			return blockedSource(v1alpha1.ReasonDataSourceInvalid, "DataSource %s points at a DataSource that points at another, %s, and CDI follows only one: have it point at a claim, a snapshot, or a DataSource with one", first, quote(next.String())), nil
		}
		if pointer, err = read.DataSource(next); err != nil {
			return FollowedDataSource{}, err
		}
		if pointer == nil {
			return blockedSource(v1alpha1.ReasonDataSourceMissing, "DataSource %s, which DataSource %s points at, does not exist: create it, or correct the latter", quote(next.String()), first), nil
		}
	}
	if blocker := findArchitectureBlocker(img, source, source.Labels, pointer.Labels); blocker != nil {
		return FollowedDataSource{Blocker: blocker}, nil
	}
	switch target := pointer.Spec.Source; {
	case target.PVC != nil:
		if ns := cmp.Or(target.PVC.Namespace, pointer.Namespace); ns != first.Namespace {
			return elsewhere(pointer, ns), nil
		}
		return followToClaim(img, source, target.PVC.Name, read)
	case target.Snapshot != nil:
		if ns := cmp.Or(target.Snapshot.Namespace, pointer.Namespace); ns != first.Namespace {
			return elsewhere(pointer, ns), nil
		}
		return followToSnapshot(img, source, target.Snapshot.Name, read)
	default:
		return blockedSource(v1alpha1.ReasonDataSourceInvalid, "DataSource %s/%s points at nothing: have it point at a claim or snapshot", pointer.Namespace, pointer.Name), nil
	}
}

func followToClaim(img *v1alpha1.VMDiskImage, source *cdiv1.DataSource, name string, read SourceReader) (FollowedDataSource, error) {
	if blocker := describeUnready(source, func(s cdiv1.DataSourceSource) bool { return s.PVC != nil && s.PVC.Name == name }); blocker != nil {
		return FollowedDataSource{Blocker: blocker}, nil
	}
	claim, err := read.Claim(types.NamespacedName{Namespace: source.Namespace, Name: name})
	switch {
	case err != nil:
		return FollowedDataSource{}, err
	case claim == nil:
		return waitingFor(source, "PersistentVolumeClaim "+quote(name)+", which does not exist"), nil
	case !IsClaimReady(claim):
		return waitingFor(source, "PersistentVolumeClaim "+quote(name)+", which is not bound and filled"), nil
	}
	if blocker := cmp.Or(findOwnStorage(img, source, claim.Labels), findArchitectureBlocker(img, source, claim.Labels)); blocker != nil {
		return FollowedDataSource{Blocker: blocker}, nil
	}
	serving := newDataSourceServing(img, source)
	serving.PersistentVolumeClaim = claim.Name
	size := claim.Status.Capacity[corev1.ResourceStorage]
	if requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]; requested.Cmp(size) > 0 {
		size = requested
	}
	if size.Sign() > 0 {
		serving.RestoreSize = &size
		if size.Cmp(*serving.DiskSize) > 0 { // CDI refuses to clone into less
			serving.DiskSize = &size
		}
	}
	return FollowedDataSource{Serving: serving}, nil
}

func followToSnapshot(img *v1alpha1.VMDiskImage, source *cdiv1.DataSource, name string, read SourceReader) (FollowedDataSource, error) {
	if blocker := describeUnready(source, func(s cdiv1.DataSourceSource) bool { return s.Snapshot != nil && s.Snapshot.Name == name }); blocker != nil {
		return FollowedDataSource{Blocker: blocker}, nil
	}
	snapshot, err := read.Snapshot(types.NamespacedName{Namespace: source.Namespace, Name: name})
	switch {
	case err != nil:
		return FollowedDataSource{}, err
	case snapshot == nil:
		return waitingFor(source, "VolumeSnapshot "+quote(name)+", which does not exist"), nil
	case !IsSnapshotReady(snapshot):
		return waitingFor(source, "VolumeSnapshot "+quote(name)+", which is not ready"), nil
	}
	if blocker := cmp.Or(findOwnStorage(img, source, snapshot.Labels), findArchitectureBlocker(img, source, snapshot.Labels)); blocker != nil {
		return FollowedDataSource{Blocker: blocker}, nil
	}
	serving := newDataSourceServing(img, source)
	serving.VolumeSnapshot = snapshot.Name
	if size := snapshot.Status.RestoreSize; size != nil && size.Sign() > 0 {
		serving.RestoreSize = size
		if size.Cmp(*serving.DiskSize) > 0 {
			serving.DiskSize = size
		}
	}
	return FollowedDataSource{Serving: serving}, nil
}

// FollowedDataSource is what a DataSource leads to: what is served, or what is in the way.
type FollowedDataSource struct {
	Blocker *Blocker
	Serving *v1alpha1.Serving
}

func newDataSourceServing(img *v1alpha1.VMDiskImage, source *cdiv1.DataSource) *v1alpha1.Serving {
	size := img.Spec.DiskSize.DeepCopy()
	return &v1alpha1.Serving{
		Revision: img.Spec.Revision(), Namespace: source.Namespace, DiskSize: &size,
		Architecture: cmp.Or(img.Spec.Architecture, labelledArchitecture(source.Labels)),
	}
}

// IsClaimReady reports whether disks can be cloned from a claim of others: it is bound, and CDI,
// if it fills it, has finished.
func IsClaimReady(claim *corev1.PersistentVolumeClaim) bool {
	phase, filledByCDI := claim.Annotations[PodPhaseAnnotation]
	return claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound && (!filledByCDI || phase == string(corev1.PodSucceeded))
}

// describeUnready returns why CDI does not take a DataSource as ready. Its condition has no
// generation: where its status names another target than its spec, it is about the former one.
func describeUnready(source *cdiv1.DataSource, isTarget func(cdiv1.DataSourceSource) bool) *Blocker {
	var ready *cdiv1.DataSourceCondition
	for i := range source.Status.Conditions {
		if source.Status.Conditions[i].Type == cdiv1.DataSourceReady {
			ready = &source.Status.Conditions[i]
		}
	}
	name := source.Namespace + "/" + source.Name
	observed := source.Status.Source
	switch {
	case source.DeletionTimestamp != nil:
		return newBlocker(v1alpha1.ReasonDataSourceNotReady, "DataSource %s is being deleted", name)
	case ready == nil:
		return newBlocker(v1alpha1.ReasonDataSourceNotReady, "DataSource %s has no condition Ready yet, which CDI sets", name)
	case ready.Status != corev1.ConditionTrue:
		return newBlocker(v1alpha1.ReasonDataSourceNotReady, "DataSource %s is not ready: %s", name, quote(cmp.Or(ready.Message, ready.Reason, "CDI does not say why")))
	case (observed.PVC != nil || observed.Snapshot != nil) && !isTarget(observed):
		return newBlocker(v1alpha1.ReasonDataSourceNotReady, "DataSource %s points at another source than before, and CDI has not processed it yet", name)
	}
	return nil
}

// findOwnStorage refuses what the image has made itself, for a former source: it is deleted once
// it does not serve.
func findOwnStorage(img *v1alpha1.VMDiskImage, source *cdiv1.DataSource, labels map[string]string) *Blocker {
	if labels[v1alpha1.LabelImageUID] != string(img.UID) {
		return nil
	}
	return newBlocker(v1alpha1.ReasonDataSourceInvalid, "DataSource %s/%s points at what this image has downloaded itself: name another DataSource", source.Namespace, source.Name)
}

// findArchitectureBlocker compares the image with the labels of what its DataSource leads to.
func findArchitectureBlocker(img *v1alpha1.VMDiskImage, source *cdiv1.DataSource, labels ...map[string]string) *Blocker {
	for _, l := range labels {
		if labelled := l[architectureLabel]; labelled != "" && img.Spec.Architecture != "" && labelled != string(img.Spec.Architecture) {
			return newBlocker(v1alpha1.ReasonArchitectureMismatch, "spec.architecture is %s, and label %s of what DataSource %s/%s points at is %s: correct spec.architecture, or name another DataSource",
				img.Spec.Architecture, architectureLabel, source.Namespace, source.Name, quote(labelled))
		}
	}
	return nil
}

// labelledArchitecture is that of a label, where a VirtualMachine can have it too.
func labelledArchitecture(labels map[string]string) v1alpha1.Architecture {
	switch a := v1alpha1.Architecture(labels[architectureLabel]); a {
	case v1alpha1.ArchitectureAMD64, v1alpha1.ArchitectureARM64, v1alpha1.ArchitectureS390X:
		return a
	default:
		return ""
	}
}

func newBlocker(reason v1alpha1.Reason, format string, args ...any) *Blocker {
	return &Blocker{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func blockedSource(reason v1alpha1.Reason, format string, args ...any) FollowedDataSource {
	return FollowedDataSource{Blocker: newBlocker(reason, format, args...)}
}

func waitingFor(source *cdiv1.DataSource, what string) FollowedDataSource {
	return blockedSource(v1alpha1.ReasonDataSourceNotReady, "DataSource %s/%s points at %s", source.Namespace, source.Name, what)
}

func elsewhere(pointer *cdiv1.DataSource, namespace string) FollowedDataSource {
	return blockedSource(v1alpha1.ReasonDataSourceInvalid, "DataSource %s/%s points at namespace %s, and the agent clones only from its own: name the DataSource that is there", pointer.Namespace, pointer.Name, quote(namespace))
}
