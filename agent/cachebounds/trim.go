// Package cachebounds bounds what the agent's caches keep of an object. Anybody may give an object the
// labels by which the agent caches it, with annotations of 256 KiB and labels of more: kept whole, some 30
// of them filled the agent's memory, and again after each start.
package cachebounds

import (
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxValueBytes bounds a label's or an annotation's value. Invariant: no value is compared beyond it,
	// since objects that are read live have the whole.
	maxValueBytes = 4096
	// maxListedNames is for lists of names: of items in an overlay, of volumes, of namespaces.
	maxListedNames = 64 << 10
	// maxKeysOfRestore is more than KubeVirt sets.
	maxKeysOfRestore = 4
	// maxTrimmedKeys is how many keys are removed from a map in its place: a map never gives memory back.
	maxTrimmedKeys = 64
)

// MaxFinalizers bounds the finalizers of an object in a cache, beside those that decisions read. Invariant: a
// list of that length may be cut, and is never written; fewer, of names that objects can have, are within
// maxContentBytes.
const MaxFinalizers = 16

var readFinalizers = []string{v1alpha1.FinalizerImage, metav1.FinalizerDeleteDependents}

// MaxOwners bounds the owners of an object in a cache. Invariant: a list of that length may be cut, and is
// never written; fewer, of names that objects can have, are within maxContentBytes.
const MaxOwners = 64

// keys are the labels and annotations of others' objects and the agent's own that decisions read. A key
// that another decision needs is added here.
var keys = []string{
	v1alpha1.LabelImageUID, v1alpha1.LabelRevision, v1alpha1.LabelAttempt,
	v1alpha1.LabelMachineUID, v1alpha1.LabelDisk, v1alpha1.LabelPlanned,
	v1alpha1.LabelBaseVM, v1alpha1.LabelBaseVMVersion, v1alpha1.LabelVersion,

	v1alpha1.AnnotationImageName, v1alpha1.AnnotationSourceDigest, v1alpha1.AnnotationRetry,
	v1alpha1.AnnotationClonedFrom, v1alpha1.AnnotationRequestedStorage, v1alpha1.AnnotationAcceptClaim,
	v1alpha1.AnnotationAppliedDigest, v1alpha1.AnnotationAppliedSpec, v1alpha1.AnnotationAppliedGuest,
	v1alpha1.AnnotationAppliedInstancetype, v1alpha1.AnnotationOverlaid, v1alpha1.AnnotationCreatedFor,
	v1alpha1.AnnotationIgnoreOrphanedDisks, v1alpha1.AnnotationMigratedVolumes,

	// CDI's and KubeVirt's.
	"app", "cdi.kubevirt.io", "kubevirt.io", "velero.io/exclude-from-backup",
	"cdi.kubevirt.io/storage.pod.phase", "cdi.kubevirt.io/createdForDataVolume",
	"cdi.kubevirt.io/storage.extended.clone.token", cdiv1.AnnPrePopulated, cdiv1.AnnCheckStaticVolume, importcause.AnnotationPrimeClaim,
	"instancetype.kubevirt.io/default-instancetype", "instancetype.kubevirt.io/default-instancetype-kind",
	"instancetype.kubevirt.io/default-preference", "instancetype.kubevirt.io/default-preference-kind",
	"template.kubevirt.io/architecture",
}

// keysOfMachineLists are those of KubeVirt's VirtualMachine whose values are lists of names.
var keysOfMachineLists = []string{v1alpha1.AnnotationOverlaid, v1alpha1.AnnotationMigratedVolumes}

// valueLimits bound the values of keys. Trim is called for each event: it looks up the few keys of an object.
var valueLimits = func() map[string]int {
	limits := map[string]int{restoreUID: maxValueBytes}
	for _, key := range keys {
		limits[key] = maxValueBytes
	}
	return limits
}()

// restorePrefix is of keys that say by their presence that KubeVirt restored an object. One has a value
// that is read.
const (
	restorePrefix = "restore.kubevirt.io/"
	restoreUID    = restorePrefix + "lastRestoreUID"
)

// Trim is the transform of the agent's caches. Kinds that only administrators write, it leaves whole.
//
// The API server stores more than the cache has of an object: it is patched, applied or has its status
// updated, and never updated as a whole.
func Trim(obj any) (any, error) {
	o, isObject := obj.(metav1.Object)
	if !isObject {
		return obj, nil
	}
	o.SetManagedFields(nil)
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{RestartPolicy: o.Spec.RestartPolicy, SchedulingGates: o.Spec.SchedulingGates, Volumes: namedVolumes(o.Spec.Volumes), Containers: containerNames(o.Spec.Containers)}
		trimMetadata(o)
		boundContent(o)
	case *corev1.PersistentVolumeClaim, *cdiv1.DataVolume, *cdiv1.DataSource, *snapshotv1.VolumeSnapshot:
		trimMetadata(o.(metav1.Object))
		boundContent(o)
	case *v1alpha1.VMDiskImage: // the CRD bounds the rest
		trimMetadata(o, v1alpha1.AnnotationIgnoreOrphanedDisks)
		boundContent(&o.ObjectMeta)
	case *v1alpha1.VirtualMachine:
		trimMetadata(o)
		boundContent(&o.ObjectMeta)
	case *metav1.PartialObjectMetadata:
		trimMetadata(o)
		boundContent(o)
	case *unstructured.Unstructured: // KubeVirt's VirtualMachine
		trimMetadata(o, keysOfMachineLists...)
		trimUnstructured(o)
	}
	return obj, nil
}

// namedVolumes returns those that name a Secret or a ConfigMap: a Pod's Events say which is missing.
func namedVolumes(volumes []corev1.Volume) (named []corev1.Volume) {
	for _, v := range volumes {
		if v.Secret != nil || v.ConfigMap != nil || v.Projected != nil {
			named = append(named, v)
		}
	}
	return named
}

// containerNames returns containers with their names alone: by these the admission policies know whether
// to set the restartPolicy.
func containerNames(containers []corev1.Container) (named []corev1.Container) {
	for i := range containers {
		named = append(named, corev1.Container{Name: containers[i].Name})
	}
	return named
}

// trimMetadata keeps what decisions read, in memory of its own: a part of a string holds the whole.
// keysOfLists are the annotations of its kind whose values are lists of names.
func trimMetadata(o metav1.Object, keysOfLists ...string) {
	o.SetLabels(trimKeys(o.GetLabels()))
	o.SetAnnotations(trimKeys(o.GetAnnotations(), keysOfLists...))
	if owners := o.GetOwnerReferences(); len(owners) > MaxOwners {
		o.SetOwnerReferences(slices.Clone(owners[:MaxOwners]))
	}
	if all := o.GetFinalizers(); len(all) > MaxFinalizers {
		kept := slices.Clone(all[:MaxFinalizers])
		for _, name := range readFinalizers {
			if slices.Contains(all[MaxFinalizers:], name) {
				kept = append(kept, name)
			}
		}
		o.SetFinalizers(kept)
	}
}

func trimKeys(all map[string]string, keysOfLists ...string) map[string]string {
	kept := all
	if len(all) > maxTrimmedKeys {
		kept = map[string]string{}
	}
	restored := 0
	for key, value := range all {
		limit, isRead := valueLimits[key]
		if slices.Contains(keysOfLists, key) {
			limit = maxListedNames
		}
		if !isRead && restored < maxKeysOfRestore && strings.HasPrefix(key, restorePrefix) {
			restored++
			isRead = true
		}
		switch {
		case !isRead:
			delete(kept, key)
		case len(value) > limit || len(all) > maxTrimmedKeys:
			kept[key] = cut(value, limit)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// cut returns a text of at most so many bytes that shares no memory with a longer one.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:limit], ""))
}
