package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Placement says which clusters of the fleet are meant: those that the selector
// selects and those that are named, without those that are excluded.
type Placement struct {
	// clusterSelector selects MemberClusters by their labels; {} selects all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// clusterNames are MemberClusters that are meant whatever their labels.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +listType=set
	// +optional
	ClusterNames []string `json:"clusterNames,omitempty"`
	// excludedClusters are never meant.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +listType=set
	// +optional
	ExcludedClusters []string `json:"excludedClusters,omitempty"`
}

// Wave is a part of the fleet that is rolled out to before the next one. A
// cluster belongs to the first wave whose selector selects it. Those that none
// selects make up a last wave, named rest.
type Wave struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a wave must consist of a-z, 0-9 and -, as in canary"
	// +kubebuilder:validation:XValidation:rule="self != 'rest'",message="rest is the wave of the clusters that no other wave selects: give this one another name"
	// +required
	Name string `json:"name"`
	// clusterSelector selects MemberClusters of the placement by their labels.
	// +required
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// maxConcurrency is how many clusters of the wave may be on their way at a time,
	// a number or a part of the wave as in 25%, at least 1. Default: that of the
	// rollout.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]?|100)%$`
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.endsWith('%') && !self.startsWith('0') && (size(self) <= 3 || self == '100%')",message="maxConcurrency must be a number from 1 or a part as in 25%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime is how long the wave has to have been done before the next one
	// begins, as in 1h. Default: that of the rollout.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m"
	// +optional
	MinSuccessTime *metav1.Duration `json:"minSuccessTime,omitempty"`
	// requireApproval keeps the wave from beginning before somebody has approved of
	// it in spec.approvals.
	// +optional
	RequireApproval bool `json:"requireApproval,omitempty"`
}

// WaveRest is the name of the wave of the clusters that no other wave selects.
const WaveRest = "rest"

// OfflineClusters says what becomes of a wave with clusters that are offline.
//
// +kubebuilder:validation:Enum=Defer;Wait
type OfflineClusters string

// What becomes of a wave with clusters that are offline.
const (
	// OfflineDefer: the wave goes on without them; they catch up when they are back.
	OfflineDefer OfflineClusters = "Defer"
	// OfflineWait: the wave is not done before they are.
	OfflineWait OfflineClusters = "Wait"
)

// Rollout says in which order and how fast the clusters get the image. The words
// are those of Open Cluster Management.
type Rollout struct {
	// waves, in their order. Without any, all clusters are in wave rest.
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=name
	// +optional
	Waves []Wave `json:"waves,omitempty"`
	// maxConcurrency of a wave that says nothing else, and of wave rest. Default: no
	// limit but each cluster's own budget.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.matches('^([1-9][0-9]?|100)%$')",message="maxConcurrency must be a number from 1 or a part as in 25%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime of a wave that says nothing else. Default: 0s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m"
	// +optional
	MinSuccessTime *metav1.Duration `json:"minSuccessTime,omitempty"`
	// maxFailures is how many clusters may have failed before no more are begun, a
	// number or a part of the placement as in 5%, rounded down. Default: 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="maxFailures must be a number from 0 or a part as in 5%"
	// +optional
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`
	// progressDeadline is how long a cluster may take, counted while it is online,
	// until it counts as failed. Default: as long as it needs.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) > duration('0s')",message="progressDeadline must be a duration in hours, minutes and seconds, as in 6h"
	// +optional
	ProgressDeadline *metav1.Duration `json:"progressDeadline,omitempty"`
	// paused: no further cluster is begun. What is on its way goes on.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// offlineClusters says whether a wave waits for clusters that are offline.
	// +kubebuilder:default=Defer
	// +optional
	OfflineClusters OfflineClusters `json:"offlineClusters,omitempty"`
}

// Approval lets a wave of one version begin.
type Approval struct {
	// wave that may begin.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Wave string `json:"wave"`
	// version that it may begin with: what was approved of one does not hold for
	// the next.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Version string `json:"version"`
	// by is the user who approves. The hub's chart has it be the one who writes it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	By string `json:"by"`
	// at is when, for people, as in 2026-01-02T15:04:05Z.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9-]{10}T[0-9:]{8}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// Retention says what becomes of versions that newer ones have taken the place of.
type Retention struct {
	// keepVersions is how many versions are kept, the current one included. Those
	// are never deleted for want of references.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	// +kubebuilder:default=2
	// +optional
	KeepVersions int32 `json:"keepVersions,omitempty"`
	// keepUnreferencedFor has the images of older versions deleted in each cluster
	// once no VirtualMachine has referenced them for so long, as in 168h, and, where
	// the current version is to come, once that is there. Without it
	// they stay until somebody deletes them.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="keepUnreferencedFor must be a duration in hours, minutes and seconds, as in 168h"
	// +optional
	KeepUnreferencedFor *metav1.Duration `json:"keepUnreferencedFor,omitempty"`
}

// DefaultKeepVersions is how many versions are kept where spec.retention is not set.
const DefaultKeepVersions = 2

// DeletionPolicy says what becomes of a FleetDiskImage's images when it is deleted.
//
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// What becomes of the images in the members.
const (
	// DeletionRetain leaves them, though nobody wants them any more.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes those of every version, each one when no VirtualMachine
	// references it any more. The FleetDiskImage stays until each cluster has said so.
	DeletionDelete DeletionPolicy = "Delete"
)

// FleetDiskImageSpec says which disk image which clusters are to have, and how it
// gets there.
//
// +kubebuilder:validation:XValidation:rule="!has(self.approvals) || self.approvals.all(a, a.wave == 'rest' || (has(self.rollout) && has(self.rollout.waves) && self.rollout.waves.exists(w, w.name == a.wave)))",message="approvals name a wave that spec.rollout.waves does not have"
type FleetDiskImageSpec struct {
	// version of the image. Each version is a ImageNameForVersion of its own in the members,
	// <imageName>-<version>, beside those of the versions before it.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="version becomes part of a name: it must consist of a-z, 0-9, - and ., as in 2.1.0"
	// +required
	Version string `json:"version"`
	// imageName is the first part of the VMDiskImages' names. Default: the name of
	// the FleetDiskImage.
	// +kubebuilder:validation:MaxLength=180
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="imageName must consist of a-z, 0-9, - and ., as in ubuntu"
	// +optional
	ImageName string `json:"imageName,omitempty"`
	// targetNamespace of the VMDiskImages in the members. It is not created.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="targetNamespace must be the name of a namespace"
	// +required
	TargetNamespace string `json:"targetNamespace"`
	// template of the VMDiskImages. A change of its source without another version is
	// rolled out, too, as another revision of the same VMDiskImages.
	// +required
	Template VMDiskImageSpec `json:"template"`
	// placement says which clusters get the image. One that is not placed any more
	// keeps what it has, unprotected.
	// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || (has(self.clusterNames) && size(self.clusterNames) > 0)",message="placement names no cluster: set clusterSelector ({} for all) or clusterNames"
	// +required
	Placement Placement `json:"placement"`
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
	// approvals of waves that have requireApproval.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=wave
	// +listMapKey=version
	// +optional
	Approvals []Approval `json:"approvals,omitempty"`
	// +optional
	Retention *Retention `json:"retention,omitempty"`
	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// RolloutPhase is where the rollout of a version is.
//
// +kubebuilder:validation:Enum=Progressing;Waiting;Succeeded;Failed
type RolloutPhase string

// Phases of a rollout. What is Succeeded or Failed goes on by itself when another
// cluster joins, or a failed one heals.
const (
	// RolloutProgressing: clusters are on their way.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutWaiting: none is, and something is waited for: see reason.
	RolloutWaiting RolloutPhase = "Waiting"
	// RolloutSucceeded: every cluster that is placed and online has the image, and no
	// more have failed than may.
	RolloutSucceeded RolloutPhase = "Succeeded"
	// RolloutFailed: more clusters have failed than may, and none is on its way.
	RolloutFailed RolloutPhase = "Failed"
)

// Reasons of a FleetDiskImage, for which a rollout does not begin with another
// cluster, or is over: a closed set.
const (
	// ReasonRolledOut: all that can be done is done.
	ReasonRolledOut = "RolledOut"
	// ReasonMaxConcurrency: as many clusters of the wave are on their way as may be.
	ReasonMaxConcurrency = "MaxConcurrency"
	// ReasonMaxFailures: more clusters have failed than may.
	ReasonMaxFailures = "MaxFailures"
	// ReasonRolloutPaused: spec.rollout.paused.
	ReasonRolloutPaused = "Paused"
	// ReasonAwaitingApproval: the wave is to be approved first.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonMinSuccessTime: the wave before has not been done for long enough.
	ReasonMinSuccessTime = "MinSuccessTime"
	// ReasonAwaitingClusters: all clusters of the wave are on their way or over.
	ReasonAwaitingClusters = "AwaitingClusters"
	// ReasonOfflineClusters: the wave waits for clusters that are offline.
	ReasonOfflineClusters = "OfflineClusters"
	// ReasonPlanFull: the plans of the clusters that are left have no room for
	// another image.
	ReasonPlanFull = "PlanFull"
	// ReasonNoClusters: no MemberCluster is placed.
	ReasonNoClusters = "NoClusters"
	// ReasonNameConflict: another FleetDiskImage makes VMDiskImages of that name.
	ReasonNameConflict = "NameConflict"
	// ReasonSelectorInvalid: a label selector cannot be read.
	ReasonSelectorInvalid = "SelectorInvalid"
	// ReasonDeletingImages: the FleetDiskImage is to go and waits for clusters that
	// still have its images.
	ReasonDeletingImages = "DeletingImages"
)

// Conditions of a FleetDiskImage.
const (
	// ConditionFinished: the rollout is Succeeded or Failed; status.phase says which.
	// It is for kubectl wait.
	ConditionFinished = "Finished"
	// ConditionSucceeded: the rollout is Succeeded.
	ConditionSucceeded = "Succeeded"
	// ConditionProgressing: clusters are on their way, or will be by themselves.
	ConditionProgressing = "Progressing"
)

// ClusterState is how far one cluster is with the image.
//
// +kubebuilder:validation:Enum=ToApply;Progressing;Succeeded;Failed;TimedOut;Deferred
type ClusterState string

// States of a cluster.
const (
	// ClusterToApply: its turn has not come.
	ClusterToApply ClusterState = "ToApply"
	// ClusterProgressing: planned, and not there yet.
	ClusterProgressing ClusterState = "Progressing"
	// ClusterSucceeded: its report says that the revision is there.
	ClusterSucceeded ClusterState = "Succeeded"
	// ClusterFailed: the image has failed there, or cannot be made.
	ClusterFailed ClusterState = "Failed"
	// ClusterTimedOut: progressDeadline has passed. It goes on, and can still succeed.
	ClusterTimedOut ClusterState = "TimedOut"
	// ClusterDeferred: offline. It holds no concurrency and catches up.
	ClusterDeferred ClusterState = "Deferred"
)

// ClusterCounts counts clusters by their state.
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

// ClusterStates are all states of a cluster.
func ClusterStates() []ClusterState {
	return []ClusterState{ClusterToApply, ClusterProgressing, ClusterSucceeded, ClusterFailed, ClusterTimedOut, ClusterDeferred}
}

// CountOf is the count of a state.
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

// WaveStatus is how far a wave is.
type WaveStatus struct {
	// +required
	Name string `json:"name"`
	// +required
	Clusters ClusterCounts `json:"clusters"`
	// doneAt is since when the wave is done, by the hub's clock.
	// +optional
	DoneAt *metav1.Time `json:"doneAt,omitempty"`
}

// ClusterSummary is one cluster in short.
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
	// namespace and image name the ImageNameForVersion in the members.
	// +required
	Namespace string `json:"namespace"`
	// +required
	Image string `json:"image"`
	// revision of its source.
	// +required
	Revision string `json:"revision"`
	// since is when it became the current one.
	// +required
	Since metav1.Time `json:"since"`
}

// Bounds of the status of a FleetDiskImage.
const (
	// MaxVersions is how many versions a FleetDiskImage knows of. Images of those
	// that it has forgotten stay.
	MaxVersions = 20
	// MaxFailingClusters is how many of the failing clusters are named.
	MaxFailingClusters = 10
)

// FleetDiskImageStatus is how far the rollout is.
type FleetDiskImageStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase RolloutPhase `json:"phase,omitempty"`
	// reason says why it is in this phase, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says the same in words, and what to do where something is to be done.
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
	// currentWave is the first that is not done; empty where all are.
	// +optional
	CurrentWave string `json:"currentWave,omitempty"`
	// waves that have clusters or are named in the spec, in their order.
	// +kubebuilder:validation:MaxItems=21
	// +listType=map
	// +listMapKey=name
	// +optional
	Waves []WaveStatus `json:"waves,omitempty"`
	// lastSuccessAt is when a cluster was last seen to succeed, by the hub's clock.
	// +optional
	LastSuccessAt *metav1.Time `json:"lastSuccessAt,omitempty"`
	// expectedAt is when the rollout is done if it goes on as fast as until
	// lastSuccessAt. It is absent where nothing can be said.
	// +optional
	ExpectedAt *metav1.Time `json:"expectedAt,omitempty"`
	// failing are the first clusters that have failed or timed out, by name.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Failing []ClusterSummary `json:"failing,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FleetDiskImage has a disk image be in many clusters before it is needed there.
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
// +kubebuilder:printcolumn:name="Expected",type=date,JSONPath=`.status.expectedAt`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FleetDiskImage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec FleetDiskImageSpec `json:"spec"`
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

// ImageNameForVersion returns the name that a version's image has in the members.
func (f *FleetDiskImage) ImageNameForVersion(version string) string {
	if f.Spec.ImageName != "" {
		return f.Spec.ImageName + "-" + version
	}
	return f.Name + "-" + version
}
