package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Placement selects clusters of the fleet: those that the selector matches and those
// that are named, except the excluded ones.
type Placement struct {
	// clusterSelector selects MemberClusters by their labels; {} selects all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// clusterNames adds MemberClusters by name, whatever their labels.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no MemberCluster can have this name, so nothing is selected: it must consist of a-z, 0-9 and -, as in bergen"
	// +listType=set
	// +optional
	ClusterNames []string `json:"clusterNames,omitempty"`
	// excludedClusters removes MemberClusters by name.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no MemberCluster can have this name, so nothing is selected: it must consist of a-z, 0-9 and -, as in bergen"
	// +listType=set
	// +optional
	ExcludedClusters []string `json:"excludedClusters,omitempty"`
}

// Wave is a part of the fleet that gets the image before the next part. A cluster
// belongs to the first wave whose selector matches it. Clusters that no selector
// matches form the last wave, named rest.
type Wave struct {
	// name of the wave, as in canary. The name rest is reserved.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a wave must consist of a-z, 0-9 and -, as in canary"
	// +kubebuilder:validation:XValidation:rule="self != 'rest'",message="rest is reserved for the clusters that no other wave selects: choose another name"
	// +required
	Name string `json:"name"`
	// clusterSelector selects MemberClusters of the placement by their labels.
	// +required
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// maxConcurrency is how many clusters of the wave may be in progress at a time: a
	// number, or a percentage of the wave as in 25%; at least 1. Default: the rollout's
	// maxConcurrency.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]?|100)%$`
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.endsWith('%') && !self.startsWith('0') && (size(self) <= 3 || self == '100%')",message="maxConcurrency must be at least 1, or a percentage as in 25%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime is how long the wave must have been done before the next one
	// starts, as in 1h. Default: the rollout's minSuccessTime.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m"
	// +optional
	MinSuccessTime *metav1.Duration `json:"minSuccessTime,omitempty"`
	// requireApproval stops the rollout before this wave until spec.approvals has an
	// approval for it.
	// +optional
	RequireApproval bool `json:"requireApproval,omitempty"`
}

// WaveRest is the name of the wave of clusters that no other wave selects.
const WaveRest = "rest"

// OfflineClusters says how a wave treats clusters that are offline.
//
// +kubebuilder:validation:Enum=Defer;Wait
type OfflineClusters string

// Treatment of clusters that are offline.
const (
	// OfflineDefer: the wave continues without them; they catch up when they are back.
	OfflineDefer OfflineClusters = "Defer"
	// OfflineWait: the wave is not done before they are.
	OfflineWait OfflineClusters = "Wait"
)

// Rollout says in which order and how fast the clusters get the image. The terms are
// those of Open Cluster Management.
type Rollout struct {
	// waves, in order. Default: all clusters are in wave rest.
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=name
	// +optional
	Waves []Wave `json:"waves,omitempty"`
	// maxConcurrency of wave rest and of waves that set none: a number, or a percentage
	// of the wave as in 25%. Default: unlimited; each cluster's own budget still
	// applies.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.matches('^([1-9][0-9]?|100)%$')",message="maxConcurrency must be at least 1, or a percentage as in 25%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime of waves that set none, as in 1h. Default: 0s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m"
	// +optional
	MinSuccessTime *metav1.Duration `json:"minSuccessTime,omitempty"`
	// maxFailures is how many clusters may fail before no more clusters are started: a
	// number, or a percentage of the placement as in 5%, rounded down. Default: 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="maxFailures must be at least 0, or a percentage as in 5%"
	// +optional
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`
	// progressDeadline is how long a cluster may take, counted while it is online,
	// before it counts as failed, as in 6h. Default: unlimited.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) > duration('0s')",message="progressDeadline must be a duration in hours, minutes and seconds, as in 6h"
	// +optional
	ProgressDeadline *metav1.Duration `json:"progressDeadline,omitempty"`
	// paused starts no more clusters. Clusters in progress continue.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// offlineClusters says how a wave treats offline clusters: Defer continues without
	// them, Wait waits for them. Default: Defer.
	// +kubebuilder:default=Defer
	// +optional
	OfflineClusters OfflineClusters `json:"offlineClusters,omitempty"`
}

// Approval allows one wave to start with one version.
type Approval struct {
	// wave that may start.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Wave string `json:"wave"`
	// version that may start. An approval does not apply to later versions.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Version string `json:"version"`
	// by is the user who approves. With the hub chart's admission policy it must be the
	// user who writes the approval.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	By string `json:"by"`
	// at is the time of the approval, for people, as in 2026-01-02T15:04:05Z.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9-]{10}T[0-9:]{8}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// RetryRequest starts an image over in the clusters where it has failed.
type RetryRequest struct {
	// token of the request, as in 2026-01-02T15:04:05Z. Each new one starts the image over,
	// once, in clusters where it has failed or timed out by then; its attempts are counted
	// from 0 again.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([-A-Za-z0-9._:+]*[A-Za-z0-9])?$')",message="token must consist of letters, digits and -._:+, as in 2026-01-02T15:04:05Z"
	// +required
	Token string `json:"token"`
	// clusters in which it starts over. Default: all in which it has failed.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no MemberCluster can have this name: it must consist of a-z, 0-9 and -, as in bergen"
	// +listType=set
	// +optional
	Clusters []string `json:"clusters,omitempty"`
}

// Retention says what happens to versions that a newer one replaced.
type Retention struct {
	// keepVersions is how many versions are kept, including the current one. They are
	// never deleted for being unreferenced. Default: 2.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	// +kubebuilder:default=2
	// +optional
	KeepVersions int32 `json:"keepVersions,omitempty"`
	// keepUnreferencedFor deletes images of older versions in each cluster once no
	// VirtualMachine has referenced them for this long, as in 168h, and the current
	// version is ready there if the cluster is to have it. Default: they are not
	// deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="keepUnreferencedFor must be a duration in hours, minutes and seconds, as in 168h"
	// +optional
	KeepUnreferencedFor *metav1.Duration `json:"keepUnreferencedFor,omitempty"`
}

// DefaultKeepVersions is how many versions are kept without spec.retention.
const DefaultKeepVersions = 2

// DeletionPolicy says what happens to the images of a FleetDiskImage when it is
// deleted.
//
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// Deletion policies.
const (
	// DeletionRetain keeps the images in the members; nothing protects them any more.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes the images of every version, each once no VirtualMachine
	// references it. The FleetDiskImage stays until every cluster has confirmed that.
	DeletionDelete DeletionPolicy = "Delete"
)

// FleetDiskImageSpec says which disk image which clusters get, and how it is rolled
// out.
//
// +kubebuilder:validation:XValidation:rule="!has(self.approvals) || self.approvals.all(a, a.wave == 'rest' || (has(self.rollout) && has(self.rollout.waves) && self.rollout.waves.exists(w, w.name == a.wave)))",message="approvals name a wave that is not in spec.rollout.waves: correct the name, or add the wave"
type FleetDiskImageSpec struct {
	// version of the image, as in 2.1.0. Each version is a VMDiskImage of its own in
	// the members, named <imageName>-<version>, beside those of earlier versions.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="version becomes part of a name: it must consist of a-z, 0-9, - and ., as in 2.1.0"
	// +required
	Version string `json:"version"`
	// imageName is the first part of the VMDiskImages' names. Default: the name of the
	// FleetDiskImage.
	// +kubebuilder:validation:MaxLength=180
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="imageName must consist of a-z, 0-9, - and ., as in ubuntu"
	// +optional
	ImageName string `json:"imageName,omitempty"`
	// targetNamespace is the namespace of the VMDiskImages in the members. It must
	// exist there.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="targetNamespace must be the name of a namespace"
	// +required
	TargetNamespace string `json:"targetNamespace"`
	// template of the VMDiskImages. Changing its source without a new version is also
	// rolled out, as a new revision of the same VMDiskImages.
	// +required
	Template VMDiskImageSpec `json:"template"`
	// placement selects the clusters that get the image. A cluster that is no longer
	// selected keeps its images, unprotected.
	// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || (has(self.clusterNames) && size(self.clusterNames) > 0)",message="placement selects no cluster: set clusterSelector ({} for all) or clusterNames"
	// +required
	Placement Placement `json:"placement"`
	// rollout says in which order and how fast clusters get the image.
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
	// approvals of waves that have requireApproval. It is there from the start, so that a JSON
	// patch can add the first entry as any other.
	// +default=[]
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=wave
	// +listMapKey=version
	// +optional
	Approvals []Approval `json:"approvals,omitempty"`
	// retry starts the image over in clusters where it has failed.
	// +optional
	Retry *RetryRequest `json:"retry,omitempty"`
	// retention says what happens to replaced versions. Default: keep 2 versions and
	// delete none.
	// +optional
	Retention *Retention `json:"retention,omitempty"`
	// deletionPolicy says what happens to the images in the members when this object is
	// deleted: Retain keeps them, Delete deletes each once it is unreferenced. Default:
	// Retain.
	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

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
	// doneAt is when the wave became done, by the hub's clock.
	// +optional
	DoneAt *metav1.Time `json:"doneAt,omitempty"`
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
	// +required
	Version string `json:"version"`
	// namespace of the VMDiskImage in the members.
	// +required
	Namespace string `json:"namespace"`
	// image is the name of the VMDiskImage in the members.
	// +required
	Image string `json:"image"`
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
	// templateOmitted says why template is not recorded.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	TemplateOmitted string `json:"templateOmitted,omitempty"`
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
	// observedRetry is the last token of spec.retry that the plans of all clusters have that
	// had failed.
	// +optional
	ObservedRetry string `json:"observedRetry,omitempty"`
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
	// progress, or not started with reason FieldsUnknown.
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

// FleetDiskImage brings a disk image to many clusters before VMs need it there.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fdi,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 180",message="the name of a FleetDiskImage must have at most 180 characters: with its version it becomes the name of its images"
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Wave",type=string,JSONPath=`.status.currentWave`
// +kubebuilder:printcolumn:name="Clusters",type=integer,JSONPath=`.status.clusters.total`
// +kubebuilder:printcolumn:name="Succeeded",type=integer,JSONPath=`.status.clusters.succeeded`
// +kubebuilder:printcolumn:name="Progressing",type=integer,JSONPath=`.status.clusters.progressing`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.clusters.failed`
// +kubebuilder:printcolumn:name="Deferred",type=integer,JSONPath=`.status.clusters.deferred`
// +kubebuilder:printcolumn:name="Expected",type=string,JSONPath=`.status.expectedAt`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FleetDiskImage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec FleetDiskImageSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status FleetDiskImageStatus `json:"status,omitempty"`
}

// FleetDiskImageList is a list of FleetDiskImages.
//
// +kubebuilder:object:root=true
type FleetDiskImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FleetDiskImage `json:"items"`
}

// ImageNameForVersion returns the name of a version's VMDiskImage in the members.
func (f *FleetDiskImage) ImageNameForVersion(version string) string {
	if f.Spec.ImageName != "" {
		return f.Spec.ImageName + "-" + version
	}
	return f.Name + "-" + version
}
