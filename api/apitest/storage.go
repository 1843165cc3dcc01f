package apitest

import (
	"strconv"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// setAttemptLabels are those of what belongs to an attempt.
func setAttemptLabels(o *metav1.ObjectMeta, image types.UID, revision string, attempt int32) {
	o.Labels = map[string]string{
		v1alpha1.LabelImageUID: string(image), v1alpha1.LabelRevision: revision,
		v1alpha1.LabelAttempt: strconv.Itoa(int(attempt)),
	}
}

func setDeletionTimestamp(o *metav1.ObjectMeta, t time.Time) {
	at := metav1.NewTime(t)
	o.DeletionTimestamp = &at
}

// DataVolumeBuilder builds a DataVolume.
type DataVolumeBuilder struct{ dv cdiv1.DataVolume }

// DataVolume is "namespace/name"; CDI has not reconciled it yet.
func DataVolume(key string) *DataVolumeBuilder {
	return &DataVolumeBuilder{cdiv1.DataVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: "DataVolume"},
		ObjectMeta: newObjectMeta(key),
	}}
}

// Obj returns the DataVolume.
func (b *DataVolumeBuilder) Obj() *cdiv1.DataVolume { return b.dv.DeepCopy() }

// ForAttempt labels it as belonging to an attempt.
func (b *DataVolumeBuilder) ForAttempt(image types.UID, revision string, attempt int32) *DataVolumeBuilder {
	setAttemptLabels(&b.dv.ObjectMeta, image, revision, attempt)
	return b
}

// Phase sets the phase.
func (b *DataVolumeBuilder) Phase(p cdiv1.DataVolumePhase) *DataVolumeBuilder {
	b.dv.Status.Phase = p
	return b
}

// Progress sets the progress, as "12.3%".
func (b *DataVolumeBuilder) Progress(p string) *DataVolumeBuilder {
	b.dv.Status.Progress = cdiv1.DataVolumeProgress(p)
	return b
}

// Restarts sets how often its importer was restarted.
func (b *DataVolumeBuilder) Restarts(n int32) *DataVolumeBuilder {
	b.dv.Status.RestartCount = n
	return b
}

// Condition adds a condition.
func (b *DataVolumeBuilder) Condition(t cdiv1.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string) *DataVolumeBuilder {
	b.dv.Status.Conditions = append(b.dv.Status.Conditions, cdiv1.DataVolumeCondition{Type: t, Status: status, Reason: reason, Message: message})
	return b
}

// Deleted sets the time of a deletion that waits for finalizers.
func (b *DataVolumeBuilder) Deleted(t time.Time) *DataVolumeBuilder {
	setDeletionTimestamp(&b.dv.ObjectMeta, t)
	return b
}

// ClaimBuilder builds a PersistentVolumeClaim.
type ClaimBuilder struct{ claim corev1.PersistentVolumeClaim }

// PersistentVolumeClaim is "namespace/name", Pending.
func PersistentVolumeClaim(key string) *ClaimBuilder {
	b := &ClaimBuilder{corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: newObjectMeta(key),
	}}
	b.claim.Status.Phase = corev1.ClaimPending
	return b
}

// Obj returns the claim.
func (b *ClaimBuilder) Obj() *corev1.PersistentVolumeClaim { return b.claim.DeepCopy() }

// ForAttempt labels it as belonging to an attempt.
func (b *ClaimBuilder) ForAttempt(image types.UID, revision string, attempt int32) *ClaimBuilder {
	setAttemptLabels(&b.claim.ObjectMeta, image, revision, attempt)
	return b
}

// OwnedBy sets its controller.
func (b *ClaimBuilder) OwnedBy(kind, name string) *ClaimBuilder {
	isController := true
	b.claim.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &isController}}
	return b
}

// Phase sets the phase.
func (b *ClaimBuilder) Phase(p corev1.PersistentVolumeClaimPhase) *ClaimBuilder {
	b.claim.Status.Phase = p
	return b
}

// Bound binds it to a volume of a size.
func (b *ClaimBuilder) Bound(size string) *ClaimBuilder {
	b.claim.Status.Phase = corev1.ClaimBound
	b.claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	return b
}

// ImporterPhase sets what CDI notes of the importer on the claim.
func (b *ClaimBuilder) ImporterPhase(p corev1.PodPhase) *ClaimBuilder {
	metav1.SetMetaDataAnnotation(&b.claim.ObjectMeta, "cdi.kubevirt.io/storage.pod.phase", string(p))
	return b
}

// Deleted sets the time of a deletion that waits for finalizers.
func (b *ClaimBuilder) Deleted(t time.Time) *ClaimBuilder {
	setDeletionTimestamp(&b.claim.ObjectMeta, t)
	return b
}

// PodBuilder builds an importer Pod.
type PodBuilder struct{ pod corev1.Pod }

// Pod is "namespace/name", Pending.
func Pod(key string) *PodBuilder {
	b := &PodBuilder{corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: newObjectMeta(key)}}
	b.pod.Status.Phase = corev1.PodPending
	return b
}

// Obj returns the Pod.
func (b *PodBuilder) Obj() *corev1.Pod { return b.pod.DeepCopy() }

// ForAttempt labels it as belonging to an attempt.
func (b *PodBuilder) ForAttempt(image types.UID, revision string, attempt int32) *PodBuilder {
	setAttemptLabels(&b.pod.ObjectMeta, image, revision, attempt)
	return b
}

// Phase sets the phase.
func (b *PodBuilder) Phase(p corev1.PodPhase) *PodBuilder { b.pod.Status.Phase = p; return b }

// Reason says why the Pod as a whole failed, as the kubelet does on eviction.
func (b *PodBuilder) Reason(reason, message string) *PodBuilder {
	b.pod.Status.Reason, b.pod.Status.Message = reason, message
	return b
}

// Gate adds a scheduling gate.
func (b *PodBuilder) Gate(name string) *PodBuilder {
	b.pod.Spec.SchedulingGates = append(b.pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	return b
}

func (b *PodBuilder) importerStatus() *corev1.ContainerStatus {
	if len(b.pod.Status.ContainerStatuses) == 0 {
		b.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "importer"}}
	}
	return &b.pod.Status.ContainerStatuses[0]
}

// Running makes its container run.
func (b *PodBuilder) Running() *PodBuilder {
	b.pod.Status.Phase = corev1.PodRunning
	b.importerStatus().State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	return b
}

// Waiting makes its container wait.
func (b *PodBuilder) Waiting(reason, message string) *PodBuilder {
	b.importerStatus().State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	return b
}

// Terminated ends its container.
func (b *PodBuilder) Terminated(exitCode int32, reason, message string) *PodBuilder {
	b.importerStatus().State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Reason: reason, Message: message}}
	return b
}

// LastTerminated says how its container ended before it was restarted.
func (b *PodBuilder) LastTerminated(exitCode int32, reason, message string) *PodBuilder {
	b.importerStatus().LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Reason: reason, Message: message}}
	return b
}

// Restarts sets how often its container was restarted.
func (b *PodBuilder) Restarts(n int32) *PodBuilder { b.importerStatus().RestartCount = n; return b }

// SnapshotBuilder builds a VolumeSnapshot.
type SnapshotBuilder struct{ snap snapshotv1.VolumeSnapshot }

// VolumeSnapshot is "namespace/name"; no controller has reconciled it yet.
func VolumeSnapshot(key string) *SnapshotBuilder {
	return &SnapshotBuilder{snapshotv1.VolumeSnapshot{
		TypeMeta:   metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: newObjectMeta(key),
	}}
}

// Obj returns the VolumeSnapshot.
func (b *SnapshotBuilder) Obj() *snapshotv1.VolumeSnapshot { return b.snap.DeepCopy() }

// ForAttempt labels it as belonging to an attempt.
func (b *SnapshotBuilder) ForAttempt(image types.UID, revision string, attempt int32) *SnapshotBuilder {
	setAttemptLabels(&b.snap.ObjectMeta, image, revision, attempt)
	return b
}

func (b *SnapshotBuilder) ensureStatus() *snapshotv1.VolumeSnapshotStatus {
	if b.snap.Status == nil {
		b.snap.Status = &snapshotv1.VolumeSnapshotStatus{}
	}
	return b.snap.Status
}

// ReadyToUse says whether it can be restored.
func (b *SnapshotBuilder) ReadyToUse(ready bool) *SnapshotBuilder {
	b.ensureStatus().ReadyToUse = &ready
	return b
}

// Content names the content it is bound to.
func (b *SnapshotBuilder) Content(name string) *SnapshotBuilder {
	b.ensureStatus().BoundVolumeSnapshotContentName = &name
	return b
}

// Error says why it is not ready.
func (b *SnapshotBuilder) Error(message string) *SnapshotBuilder {
	b.ensureStatus().Error = &snapshotv1.VolumeSnapshotError{Message: &message}
	return b
}
