package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ImageSelector says which VMDiskImages of a cluster are meant.
type ImageSelector struct {
	// namespaces that the images are in. Default: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// names of the images; * stands for any characters, as in ubuntu-*. Default: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9.*]+$`
	// +listType=set
	// +optional
	Names []string `json:"names,omitempty"`
}

// PruneReportSpec says what a report is to be about, and with schedule, when
// reports are to be made. That of a report that is made once does not change.
// Clients write one duration in many ways: it is the duration that is compared.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(oldSelf.schedule)",message="schedule can be changed, but neither be added nor removed: make another PruneReport"
// +kubebuilder:validation:XValidation:rule="has(self.schedule) || (has(self.placement) == has(oldSelf.placement) && (!has(self.placement) || self.placement == oldSelf.placement) && has(self.imageSelector) == has(oldSelf.imageSelector) && (!has(self.imageSelector) || self.imageSelector == oldSelf.imageSelector) && has(self.unreferencedFor) == has(oldSelf.unreferencedFor) && (!has(self.unreferencedFor) || duration(self.unreferencedFor) == duration(oldSelf.unreferencedFor)) && has(self.answerDeadline) == has(oldSelf.answerDeadline) && (!has(self.answerDeadline) || duration(self.answerDeadline) == duration(oldSelf.answerDeadline)))",message="a PruneReport without a schedule tells of one moment and cannot be changed: make another one"
// +kubebuilder:validation:XValidation:rule="has(self.schedule) || !(has(self.timeZone) || has(self.suspend) || has(self.historyLimit))",message="timeZone, suspend and historyLimit belong to a schedule: set schedule, or remove them"
type PruneReportSpec struct {
	// placement says which clusters are asked. Default: all.
	// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || (has(self.clusterNames) && size(self.clusterNames) > 0)",message="placement names no cluster: set clusterSelector ({} for all) or clusterNames, or remove placement"
	// +optional
	Placement *Placement `json:"placement,omitempty"`
	// imageSelector says which images the report is about. Default: all.
	// +optional
	ImageSelector *ImageSelector `json:"imageSelector,omitempty"`
	// unreferencedFor is how long no VirtualMachine must have referenced an image for
	// it to be a candidate, by its cluster's clock, as in 168h. Default: 0s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="unreferencedFor must be a duration in hours, minutes and seconds, as in 168h"
	// +optional
	UnreferencedFor *metav1.Duration `json:"unreferencedFor,omitempty"`
	// answerDeadline is how long clusters are waited for that are online and have not
	// answered. Those that have not by then are listed as unknown, and nothing of
	// theirs is a candidate. Default: 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('1s')",message="answerDeadline must be a duration of at least 1s in hours, minutes and seconds, as in 10m"
	// +optional
	AnswerDeadline *metav1.Duration `json:"answerDeadline,omitempty"`

	// schedule has a report be made at these times, in Cron's form as in "0 6 * * 1".
	// Each is a PruneReport of its own, owned by this one.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:MinLength=1
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// timeZone of the schedule, as in Europe/Berlin. Default: UTC.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:MinLength=1
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// suspend: no further report is made.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`
	// historyLimit is how many finished reports of the schedule stay; one that an
	// ImagePrune goes by that has not ended stays as well. Default: 3.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`
}

// Defaults of a PruneReport.
const (
	DefaultAnswerDeadline = "10m"
	DefaultHistoryLimit   = 3
)

// PruneReportPhase is where a PruneReport is.
//
// +kubebuilder:validation:Enum=Scheduled;Collecting;Complete;Failed
type PruneReportPhase string

// Phases of a PruneReport.
const (
	// PruneReportScheduled: it makes reports and is none itself.
	PruneReportScheduled PruneReportPhase = "Scheduled"
	// PruneReportCollecting: clusters are asked.
	PruneReportCollecting PruneReportPhase = "Collecting"
	// PruneReportComplete: it does not change any more.
	PruneReportComplete PruneReportPhase = "Complete"
	// PruneReportFailed: it cannot be made; the message says why.
	PruneReportFailed PruneReportPhase = "Failed"
)

// Reasons of a PruneReport: a closed set.
const (
	// ReasonAwaitingAnswers: clusters have not answered yet.
	ReasonAwaitingAnswers = "AwaitingAnswers"
	// ReasonReported: the report is there.
	ReasonReported = "Reported"
	// ReasonReportTooLarge: it has more rows than it may have pages for.
	ReasonReportTooLarge = "ReportTooLarge"
	// ReasonScheduleInvalid: schedule or timeZone cannot be read.
	ReasonScheduleInvalid = "ScheduleInvalid"
	// ReasonScheduled: the next report is waited for.
	ReasonScheduled = "Scheduled"
	// ReasonSuspended: spec.suspend.
	ReasonSuspended = "Suspended"
)

// ConditionComplete of a PruneReport: it is there, for kubectl wait.
const ConditionComplete = "Complete"

// Reasons for which a cluster is unknown to a PruneReport, beside those for which
// it is to the fleet: a closed set.
const (
	// ReasonNotAnswered: its report does not answer a plan with the inquiry yet.
	ReasonNotAnswered = "NotAnswered"
	// ReasonOffline: its agent does not report, and it is not waited for.
	ReasonOffline = "Offline"
	// ReasonAgentTooOld: its agent reports and does not say which plan it answers.
	ReasonAgentTooOld = "AgentTooOld"
)

// KeptReason says why an image is no candidate.
//
// +kubebuilder:validation:Enum=Referenced;Wanted;TooRecent;InTransition;Leaving
type KeptReason string

// Reasons for which an image is kept.
const (
	// KeptReferenced: VirtualMachines need it.
	KeptReferenced KeptReason = "Referenced"
	// KeptWanted: a ClusterPlan or a FleetDiskImage wants it to be there.
	KeptWanted KeptReason = "Wanted"
	// KeptTooRecent: it has not been unreferenced for long enough, or since when it
	// is so is not known.
	KeptTooRecent KeptReason = "TooRecent"
	// KeptInTransition: it is still to be synced.
	KeptInTransition KeptReason = "InTransition"
	// KeptLeaving: it is on its way out already.
	KeptLeaving KeptReason = "Leaving"
)

// KeptReasons are all reasons for which an image is kept.
func KeptReasons() []KeptReason {
	return []KeptReason{KeptReferenced, KeptWanted, KeptTooRecent, KeptInTransition, KeptLeaving}
}

// PruneCandidate is an image that could go.
type PruneCandidate struct {
	// +required
	Namespace string `json:"namespace"`
	// +required
	Name string `json:"name"`
	// +required
	UID types.UID `json:"uid"`
	// revision of its source.
	// +optional
	Revision string `json:"revision,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// origin says who has made it; empty for people. Only those that plans have made
	// are pruned unless an ImagePrune says otherwise.
	// +optional
	Origin ImageOrigin `json:"origin,omitempty"`
	// declaredBy is the FleetDiskImage that it is a version of; empty for none.
	// +optional
	DeclaredBy string `json:"declaredBy,omitempty"`
	// bytes that its storage takes, as provisioned.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// unreferencedSince is since when no VirtualMachine references it, by its
	// cluster's clock.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
}

// KeptImages are images that are kept for one reason.
type KeptImages struct {
	// +required
	Reason KeptReason `json:"reason"`
	// detail says more, as in "2 VirtualMachines" or "FleetDiskImage ubuntu".
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Detail string `json:"detail,omitempty"`
	// bytes of all of them.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// images as namespace/name.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +required
	Images []string `json:"images"`
}

// OrphanedObject is storage that was made for a ImageNameForVersion that is not there any
// more.
type OrphanedObject struct {
	// kind is DataVolume, PersistentVolumeClaim or VolumeSnapshot.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// image is the name of the ImageNameForVersion it was made for.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Image string `json:"image,omitempty"`
	// +optional
	ImageUID types.UID `json:"imageUID,omitempty"`
	// bytes that it takes, as provisioned; 0 where another object counts them.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
}

// ReportedCluster is what a PruneReport says of one cluster. One with many images
// stands in several parts, on one page or on pages that follow each other.
type ReportedCluster struct {
	// cluster is the name of the MemberCluster.
	// +required
	Cluster string `json:"cluster"`
	// clusterUID is the UID of its kube-system namespace.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	// unknown is why nothing is said of it; empty where it has answered.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Unknown string `json:"unknown,omitempty"`
	// message says the same in words.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// plan that it has answered.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// observedAt is when it did, by its own clock.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
	// candidates by namespace and name.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +optional
	Candidates []PruneCandidate `json:"candidates,omitempty"`
	// kept are the images that are no candidates, by reason.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +optional
	Kept []KeptImages `json:"kept,omitempty"`
	// orphans are the first objects of storage that belong to no image.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Orphans []OrphanedObject `json:"orphans,omitempty"`
	// omittedOrphans is how many more there are.
	// +optional
	OmittedOrphans int32 `json:"omittedOrphans,omitempty"`
	// omittedOrphanBytes is what those take.
	// +optional
	OmittedOrphanBytes int64 `json:"omittedOrphanBytes,omitempty"`
}

// PruneReportPage holds a part of a PruneReport: its clusters, by name. It is owned
// by its report and named <report>-<digest>-<number>, from 0. The digest is over all
// pages: what is changed afterwards is no part of the report any more.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=prp,categories=ot
// +kubebuilder:printcolumn:name="Report",type=string,JSONPath=`.metadata.ownerReferences[0].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PruneReportPage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +required
	Clusters []ReportedCluster `json:"clusters"`
}

// PruneReportPageList is a list of PruneReportPages.
//
// +kubebuilder:object:root=true
type PruneReportPageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PruneReportPage `json:"items"`
}

// PruneTotal adds up images, or objects of storage.
type PruneTotal struct {
	// +optional
	Count int32 `json:"count"`
	// +optional
	Bytes int64 `json:"bytes"`
}

// KeptTotal adds up the images that are kept for one reason.
type KeptTotal struct {
	// +required
	Reason     KeptReason `json:"reason"`
	PruneTotal `json:",inline"`
}

// AnswerCounts counts the clusters of a report.
type AnswerCounts struct {
	// +optional
	Total int32 `json:"total"`
	// +optional
	Answered int32 `json:"answered"`
	// +optional
	Unknown int32 `json:"unknown"`
}

// UnknownCluster is a cluster of which nothing is known that holds, and why.
type UnknownCluster struct {
	// +required
	Cluster string `json:"cluster"`
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// Bounds of a PruneReport.
const (
	// MaxPruneReportPages is how many pages a PruneReport can have.
	MaxPruneReportPages = 250
	// MaxUnknownClusters is how many clusters that are unknown its status names.
	MaxUnknownClusters = 20
)

// PruneReportStatus is what a report says in short.
type PruneReportStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase PruneReportPhase `json:"phase,omitempty"`
	// reason says why it is in this phase, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says the same in words, and what to do where something is to be done.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// startedAt is when clusters were first asked, by the hub's clock.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// completedAt is when the report was there, by the hub's clock.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
	// +optional
	Clusters AnswerCounts `json:"clusters"`
	// unknownClusters are the first that nothing is said of, by name.
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=cluster
	// +optional
	UnknownClusters []UnknownCluster `json:"unknownClusters,omitempty"`
	// candidates are the images that could go.
	// +optional
	Candidates PruneTotal `json:"candidates"`
	// others are those of the candidates that no plan has made: people, or the
	// template of a VirtualMachine. They go only with includeOthers.
	// +optional
	Others PruneTotal `json:"others"`
	// undeclared are those of the candidates that plans have made and that no
	// FleetDiskImage declares any more.
	// +optional
	Undeclared PruneTotal `json:"undeclared"`
	// kept are the images that are no candidates, by reason.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=reason
	// +optional
	Kept []KeptTotal `json:"kept,omitempty"`
	// orphans are objects of storage that belong to no image.
	// +optional
	Orphans PruneTotal `json:"orphans"`
	// pages is how many PruneReportPages there are.
	// +optional
	Pages int32 `json:"pages"`
	// digest over the report's UID and its pages. An ImagePrune names it: what was
	// reviewed is what is pruned.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Digest string `json:"digest,omitempty"`

	// lastScheduleTime is the time of the schedule that a report was last made for.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// nextScheduleTime is when the next is made.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// lastReport is the PruneReport that was made last.
	// +optional
	LastReport string `json:"lastReport,omitempty"`

	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PruneReport tells which images in which clusters nobody needs, and why each of
// the others is kept. It deletes nothing.
//
// A cluster counts with a report only that answers a plan which carried the
// inquiry; clocks are not compared. All others are unknown, and nothing of theirs
// is a candidate.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=prr,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 180",message="the name of a PruneReport must have at most 180 characters: with a time and a number it becomes the name of its pages"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`,priority=1
// +kubebuilder:printcolumn:name="Clusters",type=integer,JSONPath=`.status.clusters.total`
// +kubebuilder:printcolumn:name="Unknown",type=integer,JSONPath=`.status.clusters.unknown`
// +kubebuilder:printcolumn:name="Candidates",type=integer,JSONPath=`.status.candidates.count`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.status.candidates.bytes`
// +kubebuilder:printcolumn:name="Others",type=integer,JSONPath=`.status.others.count`,priority=1
// +kubebuilder:printcolumn:name="Orphans",type=integer,JSONPath=`.status.orphans.count`
// +kubebuilder:printcolumn:name="Digest",type=string,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type PruneReport struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PruneReportSpec `json:"spec"`
	// +optional
	Status PruneReportStatus `json:"status,omitempty"`
}

// PruneReportList is a list of PruneReports.
//
// +kubebuilder:object:root=true
type PruneReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PruneReport `json:"items"`
}
