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
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.endsWith('%') && !self.startsWith('0') && (size(self) <= 3 || self == '100%')",message="maxConcurrency must be at least 1, or a percentage as in 25%, up to 100%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime is how long the wave must have been done before the next one
	// starts, as in 1h. Default: the rollout's minSuccessTime.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m, up to 999999h"
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
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000000 : self.matches('^([1-9][0-9]?|100)%$')",message="maxConcurrency must be at least 1, or a percentage as in 25%, up to 100%"
	// +optional
	MaxConcurrency *intstr.IntOrString `json:"maxConcurrency,omitempty"`
	// minSuccessTime of waves that set none, as in 1h. Default: 0s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m, up to 999999h"
	// +optional
	MinSuccessTime *metav1.Duration `json:"minSuccessTime,omitempty"`
	// maxFailures is how many clusters may fail before no more clusters are started: a
	// number, or a percentage of the placement as in 5%, rounded down. Default: 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="maxFailures must be at least 0, or a percentage as in 5%, up to 100%"
	// +optional
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`
	// progressDeadline is how long a cluster may take, counted while it is online,
	// before it counts as failed, as in 6h. Default: unlimited.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) > duration('0s')",message="progressDeadline must be a duration in hours, minutes and seconds, as in 6h, up to 999999h"
	// +optional
	ProgressDeadline *metav1.Duration `json:"progressDeadline,omitempty"`
	// paused: while true, no further cluster starts. Clusters in progress continue.
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
	// sources that may start, by their digests as status.pendingApproval has them. Default:
	// that of the template alone. Clusters to which spec.overrides give another one wait for an
	// approval that has it, also where a label of the cluster has changed.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:MinLength=1
	// +listType=set
	// +optional
	Sources []string `json:"sources,omitempty"`
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
	// +kubebuilder:validation:MinItems=1
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
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="keepUnreferencedFor must be a duration in hours, minutes and seconds, as in 168h, up to 999999h"
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
// +kubebuilder:validation:XValidation:rule="!has(self.template.url) || !self.template.url.contains('${')",message="the template's url is the same for all clusters: write a url with variables such as ${labels.site} into spec.overrides, with clusterSelector {} for all clusters"
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
	// overrides change fields of the template for some clusters, where storage, links or
	// architectures differ. Later ones win, field by field.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Overrides []ImageOverride `json:"overrides,omitempty"`
	// placement selects the clusters that get the image. A cluster that is no longer
	// selected keeps its images, unprotected; while none is selected, plans keep them.
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

// FleetDiskImage brings a disk image to many clusters before VMs need it there.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fdi,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 180",message="the name of a FleetDiskImage must have at most 180 characters: with its version it becomes the name of its images"
// +kubebuilder:validation:XValidation:rule="self.spec.version == oldSelf.spec.version && self.spec.targetNamespace == oldSelf.spec.targetNamespace && has(self.spec.imageName) == has(oldSelf.spec.imageName) && (!has(self.spec.imageName) || self.spec.imageName == oldSelf.spec.imageName) || !has(self.status) || !has(self.status.versions) || self.status.versions.all(v, v.version != self.spec.version || has(self.status.successesRecorded) && (!has(v.succeeded) || !v.succeeded) || has(v.taken) && v.taken || v.namespace == self.spec.targetNamespace && (has(self.spec.imageName) ? v.image == self.spec.imageName + '-' + v.version : self.metadata.name == v.image.substring(0, size(v.image) - size(v.version) - 1)))",message="clusters have had this version under another name, and a rename would remove its protection: give the image a new version, or leave targetNamespace and imageName as they were for it"
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

// ImageNameWithoutVersion returns the first part of the VMDiskImages' names in the members.
func (f *FleetDiskImage) ImageNameWithoutVersion() string {
	if f.Spec.ImageName != "" {
		return f.Spec.ImageName
	}
	return f.Name
}

// ImageNameForVersion returns the name of a version's VMDiskImage in the members.
func (f *FleetDiskImage) ImageNameForVersion(version string) string {
	return f.ImageNameWithoutVersion() + "-" + version
}
