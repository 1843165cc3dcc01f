package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RolloutPhase is the phase of the rollout of a version.
//
// +kubebuilder:validation:Enum=Progressing;Waiting;Succeeded;Failed
type RolloutPhase string

// Phases of a rollout. A Succeeded or Failed rollout continues when another cluster
// joins or a failed one recovers.
const (
	// RolloutProgressing: clusters are in progress, and not all of them have waited for a
	// person for a minute.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutWaiting: no cluster proceeds, and the rollout waits; see the reason.
	RolloutWaiting RolloutPhase = "Waiting"
	// RolloutSucceeded: every selected cluster that is online has the image, and at
	// most maxFailures failed.
	RolloutSucceeded RolloutPhase = "Succeeded"
	// RolloutFailed: more than maxFailures clusters failed, and no other proceeds.
	RolloutFailed RolloutPhase = "Failed"
)

// ClusterState is the state of one cluster in a rollout.
//
// +kubebuilder:validation:Enum=ToApply;Progressing;Succeeded;Failed;TimedOut;Deferred
type ClusterState string

// States of a cluster in a rollout.
const (
	// ClusterToApply: not started yet.
	ClusterToApply ClusterState = "ToApply"
	// ClusterProgressing: the image is in the cluster's plan and not ready yet.
	ClusterProgressing ClusterState = "Progressing"
	// ClusterSucceeded: the cluster reports that the revision is ready.
	ClusterSucceeded ClusterState = "Succeeded"
	// ClusterFailed: the image failed there, or cannot be created.
	ClusterFailed ClusterState = "Failed"
	// ClusterTimedOut: progressDeadline has passed. The cluster continues and can still
	// succeed.
	ClusterTimedOut ClusterState = "TimedOut"
	// ClusterDeferred: the cluster is offline. It does not count for maxConcurrency and
	// catches up later.
	ClusterDeferred ClusterState = "Deferred"
)

// ClusterCounts counts clusters by state.
type ClusterCounts struct {
	// +optional
	Total int32 `json:"total"`
	// +optional
	ToApply int32 `json:"toApply"`
	// +optional
	Progressing int32 `json:"progressing"`
	// +optional
	Succeeded int32 `json:"succeeded"`
	// +optional
	Failed int32 `json:"failed"`
	// +optional
	TimedOut int32 `json:"timedOut"`
	// +optional
	Deferred int32 `json:"deferred"`
}

// ClusterStates lists all states.
func ClusterStates() []ClusterState {
	return []ClusterState{ClusterToApply, ClusterProgressing, ClusterSucceeded, ClusterFailed, ClusterTimedOut, ClusterDeferred}
}

// AllFailed counts the clusters that failed, also by their deadline.
func (c *ClusterCounts) AllFailed() int32 { return c.Failed + c.TimedOut }

// CountOf returns the counter of a state.
func (c *ClusterCounts) CountOf(state ClusterState) *int32 {
	switch state {
	case ClusterToApply:
		return &c.ToApply
	case ClusterProgressing:
		return &c.Progressing
	case ClusterSucceeded:
		return &c.Succeeded
	case ClusterFailed:
		return &c.Failed
	case ClusterTimedOut:
		return &c.TimedOut
	default:
		return &c.Deferred
	}
}

// WaveStatus is the progress of a wave.
type WaveStatus struct {
	// +required
	Name string `json:"name"`
	// +required
	Clusters ClusterCounts `json:"clusters"`
	// doneAt is when the wave became done, by the hub's clock. Absent while it is not done.
	// +optional
	DoneAt *metav1.Time `json:"doneAt,omitempty"`
	// firstDoneAt keeps doneAt while clusters that were offline finish; the wave gets it back
	// then. Absent once a cluster of the wave starts, or an image there
	// starts over. Hubs of older versions did not record it.
	// +optional
	FirstDoneAt *metav1.Time `json:"firstDoneAt,omitempty"`
	// awaitedClusters are the first clusters, by name, that were in progress and offline at
	// doneAt or firstDoneAt, and have not finished since: when they come back, minSuccessTime
	// does not start again.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	AwaitedClusters []string `json:"awaitedClusters,omitempty"`
}

// ClusterSummary describes one cluster in short.
type ClusterSummary struct {
	// +required
	Cluster string `json:"cluster"`
	// +required
	State ClusterState `json:"state"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// VersionStatus is a version that was rolled out.
type VersionStatus struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Version string `json:"version"`
	// namespace of the VMDiskImage in the members.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// image is the name of the VMDiskImage in the members.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Image string `json:"image"`
	// succeeded: at least one cluster has had it.
	// +optional
	Succeeded bool `json:"succeeded,omitempty"`
	// taken: an older FleetDiskImage has, or had, images of this name, and protects them. The
	// version may be renamed, which ends the conflict.
	// +optional
	Taken bool `json:"taken,omitempty"`
	// revision of its source.
	// +required
	Revision string `json:"revision"`
	// since is when it became the current version.
	// +required
	Since metav1.Time `json:"since"`
	// template that the version was made from, without priority and
	// deleteUnreferencedAfter; secrets are named, never copied. Writing it and version back
	// makes the same revision. Hubs of older versions did not record it.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Template *VMDiskImageSpec `json:"template,omitempty"`
	// overrides that the version had. They are recorded with the template, of the versions that
	// are kept.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Overrides *RecordedOverrides `json:"overrides,omitempty"`
	// templateOmitted says why template is not recorded.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	TemplateOmitted string `json:"templateOmitted,omitempty"`
}

// RecordedOverrides are the overrides of a version. The items are spec.overrides as they were.
type RecordedOverrides struct {
	// +listType=atomic
	// +optional
	Items []ImageOverride `json:"items,omitempty"`
}

// PendingApproval is what an approval has to name for a wave to start.
type PendingApproval struct {
	// +required
	Wave string `json:"wave"`
	// sources that clusters of the wave get and that no approval covers yet, by their
	// digests, sorted. The template's own is among them; an approval that names no sources
	// covers it.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32
	// +listType=set
	// +optional
	Sources []string `json:"sources,omitempty"`
}

// Limits of the status of a FleetDiskImage.
const (
	// MaxVersions is how many versions a FleetDiskImage remembers. Images of older
	// versions are kept.
	MaxVersions = 20
	// MaxTemplateBytes is the size up to which the template of a version is recorded, as
	// JSON. MaxTemplatesBytes bounds those of all versions of a FleetDiskImage: the versions
	// that a retention can keep always fit.
	MaxTemplateBytes  = 8 << 10
	MaxTemplatesBytes = 80 << 10
	// MaxPendingSources is how many sources an approval can name.
	MaxPendingSources = 256
	// MaxAwaitedClusters is how many offline clusters a wave names.
	MaxAwaitedClusters = 64
	// MaxPendingRetries is how many clusters that cannot be reached a retry does not wait for.
	MaxPendingRetries = 256
	// MaxFailingClusters is how many failing clusters the status lists.
	MaxFailingClusters = 10
	// MaxBlockedClusters is how many blocked clusters the status lists.
	MaxBlockedClusters = 10
)

// FleetDiskImageStatus is the progress of the rollout.
type FleetDiskImageStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the rollout of the current version.
	// +optional
	Phase RolloutPhase `json:"phase,omitempty"`
	// reason for the phase, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the reason and says what to do, if anything.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// versions, the current one first.
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=version
	// +optional
	Versions []VersionStatus `json:"versions,omitempty"`
	// successesRecorded: versions say which of them succeeded. A hub of an older version did not
	// record that: its versions count as succeeded.
	// +optional
	SuccessesRecorded bool `json:"successesRecorded,omitempty"`
	// clusters by their state with the current version.
	// +optional
	Clusters ClusterCounts `json:"clusters"`
	// currentWave is the first wave that is not done; empty if all are.
	// +optional
	CurrentWave string `json:"currentWave,omitempty"`
	// waves that have clusters or are named in the spec, in order.
	// +kubebuilder:validation:MaxItems=21
	// +listType=map
	// +listMapKey=name
	// +optional
	Waves []WaveStatus `json:"waves,omitempty"`
	// pendingApproval is what clusters of the current wave wait for, with reason
	// AwaitingApproval or while others of the wave start.
	// +optional
	PendingApproval *PendingApproval `json:"pendingApproval,omitempty"`
	// observedRetry is the last token of spec.retry that the plans of all clusters have that
	// had failed, but those in pendingRetries.
	// +optional
	ObservedRetry string `json:"observedRetry,omitempty"`
	// pendingRetries are the clusters, by name, that had failed when observedRetry was set,
	// or an earlier token, and whose plans could not have it because they were offline, or
	// because the API server refused their plans. They get the latest token when they are back,
	// or their plans are accepted.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	PendingRetries []string `json:"pendingRetries,omitempty"`
	// lastSuccessAt is when a cluster last succeeded, by the hub's clock.
	// +optional
	LastSuccessAt *metav1.Time `json:"lastSuccessAt,omitempty"`
	// expectedAt is when the rollout is expected to be done, to the minute, by what the
	// clusters import and queue, else by its pace until lastSuccessAt. It is never in the past
	// when it is written, and moves when it is off by a tenth of the time left.
	// +optional
	ExpectedAt *metav1.Time `json:"expectedAt,omitempty"`
	// expectedReason is why expectedAt is absent while clusters are unfinished: what the
	// rollout waits for, such as AwaitingApproval, or why no time can be given, such as
	// TooFewSamples.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ExpectedReason string `json:"expectedReason,omitempty"`
	// failing lists the first clusters that failed or timed out, by name.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Failing []ClusterSummary `json:"failing,omitempty"`
	// blocked lists the first clusters, by name, that wait until a person acts there: in
	// progress, or not started with reason FieldsUnknown, LabelMissing or SourceInvalid.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Blocked []ClusterSummary `json:"blocked,omitempty"`
	// blockedSince is since when every cluster in progress is blocked, and no other can
	// start, by the hub's clock. After a minute, the rollout is Stalled.
	// +optional
	BlockedSince *metav1.Time `json:"blockedSince,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
