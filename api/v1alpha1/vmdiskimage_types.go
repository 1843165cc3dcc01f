package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SourceType is the kind of place a disk image comes from.
//
// +kubebuilder:validation:Enum=s3;http;registry;blank
type SourceType string

// Source types, each one of CDI's.
const (
	SourceS3       SourceType = "s3"
	SourceHTTP     SourceType = "http"
	SourceRegistry SourceType = "registry"
	// SourceBlank is an empty disk, without a URL. It is meant for tests.
	SourceBlank SourceType = "blank"
)

// VMDiskImageSpec says which disk image the cluster is to have.
//
// A change of url, sourceType, checksum, diskSize or storageClass is a new
// revision: it is synced through the queue beside the old one, which serves
// until the new one is ready. A change of secretRef, certConfigMap,
// snapshotClass, priority or deleteUnreferencedAfter is none.
//
// +kubebuilder:validation:XValidation:rule="self.sourceType == 'blank' || (has(self.url) && size(self.url) > 0)",message="url is required: say where the image is downloaded from (only sourceType blank has none)"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'blank' || !has(self.url) || size(self.url) == 0",message="sourceType blank is an empty disk and takes no url: remove url, or set sourceType to s3, http or registry"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'http' || !has(self.url) || self.url.startsWith('http://') || self.url.startsWith('https://')",message="url must start with http:// or https:// for sourceType http"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 's3' || !has(self.url) || self.url.startsWith('s3://') || self.url.startsWith('http://') || self.url.startsWith('https://')",message="url must start with s3://, https:// or http:// for sourceType s3"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'registry' || !has(self.url) || self.url.startsWith('docker://') || self.url.startsWith('oci-archive://')",message="url must start with docker:// or oci-archive:// for sourceType registry"
// +kubebuilder:validation:XValidation:rule="!has(self.url) || !self.url.matches('^[a-z0-9-]+://[^/?#]*@')",message="url must not carry a user name or password: put them into a Secret and name it in secretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.url) || size(self.url) == 0 || self.url.matches('^[a-z0-9-]+:///?[^/?#]+')",message="url must name a host, as in https://images.example.com/ubuntu.qcow2"
// +kubebuilder:validation:XValidation:rule="!has(self.checksum) || self.sourceType == 'http'",message="checksum works with sourceType http only (CDI 1.65 or later)"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'blank' || (!has(self.secretRef) && !has(self.certConfigMap))",message="sourceType blank downloads nothing: remove secretRef and certConfigMap"
type VMDiskImageSpec struct {
	// name is what people call the disk. It need not be unique.
	// +kubebuilder:validation:XValidation:rule="size(self) >= 1 && size(self) <= 253",message="name must have 1 to 253 characters"
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Name string `json:"name"`

	// sourceType says how url is read.
	// +required
	SourceType SourceType `json:"sourceType"`

	// url of the image. http: http:// or https://; s3: s3://, https:// or
	// http://; registry: docker:// or oci-archive://; blank: none.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	URL string `json:"url,omitempty"`

	// checksum of the file at url, "algorithm:hex" with md5, sha1, sha256 or
	// sha512. Only for sourceType http, from CDI 1.65.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(md5:[0-9a-fA-F]{32}|sha1:[0-9a-fA-F]{40}|sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$')",message="checksum must be an algorithm and a hash of its length, as in sha256:<64 hex digits>; algorithms are md5, sha1, sha256 and sha512"
	// +optional
	Checksum string `json:"checksum,omitempty"`

	// secretRef names a Secret in the image's namespace with the credentials of
	// the source, in CDI's form (keys accessKeyId and secretKey).
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap names a ConfigMap in the image's namespace with the
	// certificate authorities to trust for url.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	CertConfigMap string `json:"certConfigMap,omitempty"`

	// storageClass that the image is stored in. Default: the cluster's default
	// StorageClass.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	StorageClass string `json:"storageClass,omitempty"`

	// snapshotClass is the VolumeSnapshotClass of the snapshot that VMs are
	// cloned from. Without one they are cloned from the PersistentVolumeClaim.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	SnapshotClass string `json:"snapshotClass,omitempty"`

	// diskSize is the virtual size of the disk, from 1Mi to 64Ti.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="diskSize must be a quantity such as 24Gi (units are Mi, Gi and Ti; GB or GiB are none)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || !quantity(string(self)).isLessThan(quantity('1Mi'))",message="diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || !quantity(string(self)).isGreaterThan(quantity('64Ti'))",message="diskSize must be at most 64Ti"
	// +required
	DiskSize resource.Quantity `json:"diskSize"`

	// priority lets an image pass those of a lower one in the queue. It counts up
	// to the policy's maxPriority, which is 0 unless set; below 0 it always
	// counts.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// deleteUnreferencedAfter has the image deleted once no VirtualMachine has
	// referenced it for so long, as in 72h. Never one that a ClusterPlan wants.
	// Default: it is not deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('1m')",message="deleteUnreferencedAfter must be a duration of at least 1m in hours, minutes and seconds, as in 72h or 1h30m"
	// +optional
	DeleteUnreferencedAfter *metav1.Duration `json:"deleteUnreferencedAfter,omitempty"`
}

// Phase is where a ImageNameForVersion is in its life.
//
// +kubebuilder:validation:Enum=Queued;Syncing;Succeeded;Failed;PrunePending;Terminating;Deleting
type Phase string

// Phases of a ImageNameForVersion.
const (
	// PhaseQueued: waits for a slot, also while it backs off.
	PhaseQueued Phase = "Queued"
	// PhaseSyncing: an attempt runs, or its snapshot is being made.
	PhaseSyncing Phase = "Syncing"
	// PhaseSucceeded: the current revision is there.
	PhaseSucceeded Phase = "Succeeded"
	// PhaseFailed: the current revision is not there and nothing more is tried.
	PhaseFailed Phase = "Failed"
	// PhasePrunePending: serves on, will be deleted when its undo window ends.
	PhasePrunePending Phase = "PrunePending"
	// PhaseTerminating: to be deleted, serves on while it is referenced.
	PhaseTerminating Phase = "Terminating"
	// PhaseDeleting: unreferenced when marked; can no longer be acquired.
	PhaseDeleting Phase = "Deleting"
)

// OrderingKey is a revision's place in the queue, given when it is first seen
// and never changed: smaller time first, then smaller sequence.
type OrderingKey struct {
	// time is the image's creation time, or the time of the last key given
	// before it where that is later, so that clocks that differ cannot reorder
	// what the agent saw arrive.
	// +required
	Time metav1.Time `json:"time"`
	// sequence counts the keys given.
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

// RevisionStatus is what is known of one revision of an image.
//
// Attempts are numbered from 1 and set by value, from the slot that carried
// them, never incremented: a repeated or late write says the same. They count
// through all revisions of an image, so that no number is used twice in its
// life.
type RevisionStatus struct {
	// revision is the hash of the source-defining fields.
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// source is the url, for people.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Source string `json:"source,omitempty"`
	// orderingKey is its place in the queue.
	// +required
	OrderingKey OrderingKey `json:"orderingKey"`
	// attempt is the highest attempt that was begun.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// attemptEnded is the highest attempt whose outcome is known.
	// +optional
	AttemptEnded int32 `json:"attemptEnded,omitempty"`
	// outcome of attemptEnded.
	// +optional
	Outcome Outcome `json:"outcome,omitempty"`
	// attemptsBefore is the number of attempts that do not count against
	// retryLimit any more: those before a person started the image over, or
	// before its storage was lost.
	// +optional
	AttemptsBefore int32 `json:"attemptsBefore,omitempty"`
	// failure of the last attempt that failed, until one succeeds.
	// +optional
	Failure *Failure `json:"failure,omitempty"`
	// notBefore is when the next attempt may start.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`

	// startedAt is when the attempt that runs got its slot.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// progressedAt is when the attempt that runs was last seen to get on.
	// +optional
	ProgressedAt *metav1.Time `json:"progressedAt,omitempty"`
	// importedAt is when the last successful attempt ended.
	// +optional
	ImportedAt *metav1.Time `json:"importedAt,omitempty"`

	// importPhase is the phase of the DataVolume of the attempt that runs.
	// +optional
	ImportPhase string `json:"importPhase,omitempty"`
	// dataVolume of the attempt, and its PersistentVolumeClaim of the same name.
	// +optional
	DataVolume string `json:"dataVolume,omitempty"`
	// volumeSnapshot of the attempt, where spec.snapshotClass asks for one.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// snapshotAttempt counts the VolumeSnapshots tried for this attempt.
	// +optional
	SnapshotAttempt int32 `json:"snapshotAttempt,omitempty"`
	// snapshotSince is when the VolumeSnapshot being waited for was wanted.
	// +optional
	SnapshotSince *metav1.Time `json:"snapshotSince,omitempty"`

	// resyncs is how often lost storage was synced again since resyncsSince.
	// +optional
	Resyncs int32 `json:"resyncs,omitempty"`
	// resyncsSince is when the count of resyncs began.
	// +optional
	ResyncsSince *metav1.Time `json:"resyncsSince,omitempty"`
}

// Serving names what VMs are cloned from.
type Serving struct {
	// +required
	Revision string `json:"revision"`
	// +required
	Attempt int32 `json:"attempt"`
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// volumeSnapshot, where there is one, is the better source of clones.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// diskSize is the virtual size of the disk that is served.
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// restoreSize is the least size of the volume of a clone, the overhead of a
	// filesystem included.
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
}

// References counts who needs the image. It is recomputed, never incremented.
type References struct {
	// +optional
	Count int32 `json:"count"`
	// unreferencedSince is when count was last seen to become 0.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// holders are the first few, as namespace/name.
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	// +optional
	Holders []string `json:"holders,omitempty"`
}

// MaxEndedPrunes is how many ImagePrunes are remembered that have ended at an image.
const MaxEndedPrunes = 16

// MaxRevisions bounds the revisions that an image keeps beside each other.
const MaxRevisions = 4

// VMDiskImageStatus is what the agent knows of the image.
type VMDiskImageStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason says why it is in this phase, from a closed set.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message says the same in words, and what to do where something is to be done.
	// +optional
	Message string `json:"message,omitempty"`
	// progress of the attempt that runs, as CDI tells it: "42.0%" or "N/A".
	// +optional
	Progress string `json:"progress,omitempty"`
	// bytesDone of bytesTotal, of the attempt that runs or the last that
	// succeeded, worked out from progress.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal is the size of the download where the source tells it, else
	// spec.diskSize.
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// queuePosition is at most how many images will go first, 0 for the head. It
	// is written anew only when it falls below another power of ten.
	// +optional
	QueuePosition *int32 `json:"queuePosition,omitempty"`
	// lastAttempt is the highest attempt of any revision that was begun.
	// +optional
	LastAttempt int32 `json:"lastAttempt,omitempty"`
	// attempts that count against the policy's retryLimit.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// revision that the spec asks for.
	// +optional
	Revision string `json:"revision,omitempty"`
	// serving is what VMs are cloned from; it can be older than revision.
	// +optional
	Serving *Serving `json:"serving,omitempty"`
	// revisions that are wanted or still there, the current one first.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=revision
	// +optional
	Revisions []RevisionStatus `json:"revisions,omitempty"`
	// observedRetry is the value of annotation pelotech.ot/retry that was acted on.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ObservedRetry string `json:"observedRetry,omitempty"`
	// +optional
	References References `json:"references"`
	// tearDown: nothing held the image when its holders were listed after it had
	// been marked as Deleting. There is no way back from here.
	// +optional
	TearDown bool `json:"tearDown,omitempty"`
	// prune is how far the prune is that a ClusterPlan asked for last.
	// +optional
	Prune *PruneStatus `json:"prune,omitempty"`
	// endedPrunes are the ImagePrunes, the last first, that were skipped or undone
	// here: none of them begins again, whatever an older plan says.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	EndedPrunes []types.UID `json:"endedPrunes,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ImageNameForVersion is a disk image that VMs of a cluster boot from: downloaded once,
// cloned for every VM.
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
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`,priority=1
type VMDiskImage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec VMDiskImageSpec `json:"spec"`
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

// ImageKey names one ImageNameForVersion for good: a name that is used again has
// another UID.
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
