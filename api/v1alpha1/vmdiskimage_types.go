package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Phase is the phase of a VMDiskImage.
//
// +kubebuilder:validation:Enum=Queued;Syncing;Succeeded;Failed;PrunePending;Terminating;Deleting
type Phase string

// Phases of a VMDiskImage.
const (
	// PhaseQueued: waits for a slot, or for its backoff.
	PhaseQueued Phase = "Queued"
	// PhaseSyncing: an attempt runs, or its snapshot is being created, or the DataSource that
	// the image uses is not ready.
	PhaseSyncing Phase = "Syncing"
	// PhaseSucceeded: the current revision is ready.
	PhaseSucceeded Phase = "Succeeded"
	// PhaseFailed: the current revision failed and is not retried.
	PhaseFailed Phase = "Failed"
	// PhasePrunePending: stays usable, and is deleted when its undo window ends.
	PhasePrunePending Phase = "PrunePending"
	// PhaseTerminating: is to be deleted, and stays usable while referenced.
	PhaseTerminating Phase = "Terminating"
	// PhaseDeleting: is being deleted, and can no longer be acquired.
	PhaseDeleting Phase = "Deleting"
)

// OrderingKey is a revision's place in the queue: smaller time first, then smaller
// sequence. It is set when the agent first sees the revision and never changes.
type OrderingKey struct {
	// time is the image's creation time, or the time of the previous key if that is
	// later, so that clock differences cannot reorder images.
	// +required
	Time metav1.Time `json:"time"`
	// sequence numbers the keys.
	// +required
	Sequence int64 `json:"sequence"`
}

// Outcome of an attempt.
//
// +kubebuilder:validation:Enum=Succeeded;Failed
type Outcome string

// Outcomes of an attempt.
const (
	OutcomeSucceeded Outcome = "Succeeded"
	OutcomeFailed    Outcome = "Failed"
)

// Failure says why an attempt failed.
type Failure struct {
	// +required
	Reason Reason `json:"reason"`
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Message string `json:"message"`
	// +required
	Time metav1.Time `json:"time"`
}

// RevisionStatus is the state of one revision of an image.
//
// Attempts are numbered from 1 across all revisions of an image, so no number is used
// twice. Invariant: attempt numbers are set by value, from the slot of the attempt,
// never incremented; a repeated or late write changes nothing.
type RevisionStatus struct {
	// revision is the hash of the fields that define the source.
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// source is the url without its query, for people.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Source string `json:"source,omitempty"`
	// orderingKey is the revision's place in the queue.
	// +required
	OrderingKey OrderingKey `json:"orderingKey"`
	// attempt is the highest attempt that was started.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// attemptEnded is the highest attempt with an outcome.
	// +optional
	AttemptEnded int32 `json:"attemptEnded,omitempty"`
	// outcome of attemptEnded.
	// +optional
	Outcome Outcome `json:"outcome,omitempty"`
	// attemptsBefore is how many attempts no longer count against retryLimit: those
	// before somebody restarted or corrected the image, the running one included, or
	// before its storage was lost.
	// +optional
	AttemptsBefore int32 `json:"attemptsBefore,omitempty"`
	// failure of the last failed attempt, until one succeeds.
	// +optional
	Failure *Failure `json:"failure,omitempty"`
	// notBefore is the earliest time of the next attempt.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`

	// startedAt is when the running attempt got its slot.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// progressedAt is when the running attempt last made progress, or ran where CDI
	// measures none.
	// +optional
	ProgressedAt *metav1.Time `json:"progressedAt,omitempty"`
	// importedAt is when the last successful attempt ended.
	// +optional
	ImportedAt *metav1.Time `json:"importedAt,omitempty"`

	// importPhase is the phase of the running attempt's DataVolume.
	// +optional
	ImportPhase string `json:"importPhase,omitempty"`
	// dataVolume of the attempt; its PersistentVolumeClaim has the same name.
	// +optional
	DataVolume string `json:"dataVolume,omitempty"`
	// volumeSnapshot of the attempt, if spec.snapshotClass is set.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// snapshotAttempt counts the VolumeSnapshots tried for this attempt.
	// +optional
	SnapshotAttempt int32 `json:"snapshotAttempt,omitempty"`
	// snapshotSince is when the agent started to wait for the VolumeSnapshot.
	// +optional
	SnapshotSince *metav1.Time `json:"snapshotSince,omitempty"`

	// resyncs is how often lost storage was synced again since resyncsSince.
	// +optional
	Resyncs int32 `json:"resyncs,omitempty"`
	// resyncsSince is when counting resyncs started.
	// +optional
	ResyncsSince *metav1.Time `json:"resyncsSince,omitempty"`
}

// Serving names what VMs are cloned from.
type Serving struct {
	// +required
	Revision string `json:"revision"`
	// +required
	Attempt int32 `json:"attempt"`
	// namespace of claim and snapshot. It is set where a DataSource names them: they belong to
	// others, and the agent neither keeps nor deletes them. Default: the image's.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// persistentVolumeClaim is empty where a DataSource names a snapshot.
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// architecture of the machines that can boot the disk, where the image says one.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`
	// volumeSnapshot to clone from; if absent, VMs are cloned from the claim.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// diskSize is the virtual size of the disk.
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// restoreSize is the minimum size of a clone's volume, including filesystem
	// overhead.
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
}

// References counts the VirtualMachines that need the image, the root disks whose
// VirtualMachine no longer exists, and the clones in flight of what is published. It is
// recomputed, never incremented.
type References struct {
	// +optional
	Count int32 `json:"count"`
	// unreferencedSince is when count last became 0.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// holders are the first VirtualMachines, as namespace/name. A root disk without a
	// VirtualMachine is marked "(orphaned disk)", a DataVolume that is being cloned from
	// what is published "(clone)".
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	// +optional
	Holders []string `json:"holders,omitempty"`
}

// MaxEndedPrunes is how many ended ImagePrunes an image remembers.
const MaxEndedPrunes = 16

// MaxRevisions is how many revisions an image can have at a time.
const MaxRevisions = 4

// VMDiskImageStatus is what the agent knows about the image.
type VMDiskImageStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason for the phase, from a closed set.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message explains the reason and says what to do, if anything.
	// +optional
	Message string `json:"message,omitempty"`
	// progress of the running attempt as CDI reports it: "42.0%" or "N/A".
	// +optional
	Progress string `json:"progress,omitempty"`
	// bytesDone of bytesTotal, for the running or last successful attempt, computed
	// from progress.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal is the size of the download if the source reports it, else
	// spec.diskSize.
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// queuePosition is an upper bound of how many images go first; 0 for the head of
	// the queue. It is updated only when it has fallen below another power of ten: later, the more
	// images still go first.
	// +optional
	QueuePosition *int32 `json:"queuePosition,omitempty"`
	// opensAt is when the window of the policy opens that the image waits for. Absent unless
	// reason is WaitingForWindow.
	// +optional
	OpensAt *metav1.Time `json:"opensAt,omitempty"`
	// lastAttempt is the highest attempt of any revision that was started.
	// +optional
	LastAttempt int32 `json:"lastAttempt,omitempty"`
	// attempts that count against the policy's retryLimit.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// revision that the spec asks for.
	// +optional
	Revision string `json:"revision,omitempty"`
	// serving names what VMs are cloned from; it can be older than revision.
	// +optional
	Serving *Serving `json:"serving,omitempty"`
	// revisions that are needed or still exist, the current one first.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=revision
	// +optional
	Revisions []RevisionStatus `json:"revisions,omitempty"`
	// observedRetry is the last value of annotation pelotech.ot/retry that was applied.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ObservedRetry string `json:"observedRetry,omitempty"`
	// observedPlanRetry is the last retry of the ClusterPlan's item that was applied.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ObservedPlanRetry string `json:"observedPlanRetry,omitempty"`
	// +optional
	References References `json:"references"`
	// publications are storage of the image that DataSources point at, or have pointed at.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Publications []Publication `json:"publications,omitempty"`
	// tearDown: after the image was marked Deleting, a live list found no
	// VirtualMachine that holds it. Its deletion can no longer be cancelled.
	// +optional
	TearDown bool `json:"tearDown,omitempty"`
	// prune is the progress of the last prune that a ClusterPlan asked for.
	// +optional
	Prune *PruneStatus `json:"prune,omitempty"`
	// endedPrunes are the ImagePrunes, newest first, that were skipped or undone for
	// this image. None of them starts again, even if an older plan asks for it.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	EndedPrunes []types.UID `json:"endedPrunes,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True while the object is
	// not being deleted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMDiskImage is a disk image that VMs of a cluster boot from: downloaded once, cloned
// for every VM.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vmdi,categories=ot
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Ahead",type=integer,JSONPath=`.status.queuePosition`
// +kubebuilder:printcolumn:name="Attempts",type=integer,JSONPath=`.status.attempts`
// +kubebuilder:printcolumn:name="Refs",type=integer,JSONPath=`.status.references.count`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=0
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.revisions[0].source`,priority=1
type VMDiskImage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec VMDiskImageSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status VMDiskImageStatus `json:"status,omitempty"`
}

// VMDiskImageList is a list of VMDiskImages.
//
// +kubebuilder:object:root=true
type VMDiskImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VMDiskImage `json:"items"`
}

// ImageKey identifies one VMDiskImage: a name that is reused has another UID.
type ImageKey struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// +required
	UID types.UID `json:"uid"`
}
