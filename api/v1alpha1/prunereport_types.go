package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ImageSelector selects VMDiskImages of a cluster.
type ImageSelector struct {
	// namespaces of the images. Default: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no namespace can have this name, so nothing is selected: it must consist of a-z, 0-9 and -, as in vmdi-farm"
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// names of the images; * matches any characters, as in ubuntu-*. Default: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9.*]+$`
	// +listType=set
	// +optional
	Names []string `json:"names,omitempty"`
}

// PruneReportSpec says what a report covers and, with schedule, when reports are made.
// Without a schedule it cannot be changed. Durations are compared by value, because
// clients write the same duration in several ways.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(oldSelf.schedule)",message="schedule can be changed, but not added or removed: create another PruneReport"
// +kubebuilder:validation:XValidation:rule="has(self.schedule) || (has(self.placement) == has(oldSelf.placement) && (!has(self.placement) || self.placement == oldSelf.placement) && has(self.imageSelector) == has(oldSelf.imageSelector) && (!has(self.imageSelector) || self.imageSelector == oldSelf.imageSelector) && has(self.unreferencedFor) == has(oldSelf.unreferencedFor) && (!has(self.unreferencedFor) || duration(self.unreferencedFor) == duration(oldSelf.unreferencedFor)) && has(self.answerDeadline) == has(oldSelf.answerDeadline) && (!has(self.answerDeadline) || duration(self.answerDeadline) == duration(oldSelf.answerDeadline)))",message="a PruneReport without a schedule cannot be changed: create another one"
// +kubebuilder:validation:XValidation:rule="has(self.schedule) || !(has(self.timeZone) || has(self.suspend) || has(self.historyLimit))",message="timeZone, suspend and historyLimit need a schedule: set schedule, or remove them"
type PruneReportSpec struct {
	// placement selects the clusters to ask. Default: all.
	// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || (has(self.clusterNames) && size(self.clusterNames) > 0)",message="placement selects no cluster: set clusterSelector ({} for all) or clusterNames, or remove placement"
	// +optional
	Placement *Placement `json:"placement,omitempty"`
	// imageSelector selects the images that the report covers. Default: all.
	// +optional
	ImageSelector *ImageSelector `json:"imageSelector,omitempty"`
	// unreferencedFor is how long no VirtualMachine must have referenced an image for
	// it to be a candidate, by its cluster's clock, as in 168h. Default: 0s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="unreferencedFor must be a duration in hours, minutes and seconds, as in 168h, up to 999999h"
	// +optional
	UnreferencedFor *metav1.Duration `json:"unreferencedFor,omitempty"`
	// answerDeadline is how long to wait for online clusters that have not answered, as
	// in 10m. Clusters without an answer by then are listed as unknown and have no
	// candidates. Default: 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('1s')",message="answerDeadline must be a duration of at least 1s in hours, minutes and seconds, as in 10m, up to 999999h"
	// +optional
	AnswerDeadline *metav1.Duration `json:"answerDeadline,omitempty"`

	// schedule makes reports at these times, in Cron format, as in "0 6 * * 1". Each
	// report is a PruneReport of its own, owned by this one.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:MinLength=1
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// timeZone of the schedule, as in Europe/Berlin. Default: UTC.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:MinLength=1
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// suspend stops making reports for the schedule.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`
	// historyLimit is how many finished reports of the schedule are kept. Reports that
	// an unfinished ImagePrune uses are kept in addition. Default: 3.
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

// PruneReportPhase is the phase of a PruneReport.
//
// +kubebuilder:validation:Enum=Scheduled;Collecting;Complete;Failed
type PruneReportPhase string

// Phases of a PruneReport.
const (
	// PruneReportScheduled: it makes reports by its schedule and is not a report
	// itself.
	PruneReportScheduled PruneReportPhase = "Scheduled"
	// PruneReportCollecting: clusters are being asked.
	PruneReportCollecting PruneReportPhase = "Collecting"
	// PruneReportComplete: the report is complete and immutable.
	PruneReportComplete PruneReportPhase = "Complete"
	// PruneReportFailed: the report cannot be made; see the message.
	PruneReportFailed PruneReportPhase = "Failed"
)

// Reasons of a PruneReport, beside NoClusters and SelectorInvalid.
const (
	// ReasonAwaitingAnswers: clusters have not answered yet.
	ReasonAwaitingAnswers = "AwaitingAnswers"
	// ReasonReported: the report is complete.
	ReasonReported = "Reported"
	// ReasonReportTooLarge: the report, or the part of one cluster, needs more pages than allowed.
	ReasonReportTooLarge = "ReportTooLarge"
	// ReasonScheduleInvalid: the schedule or its timeZone cannot be parsed, or the API server
	// refuses the reports of the schedule.
	ReasonScheduleInvalid = "ScheduleInvalid"
	// ReasonScheduled: the next report is not due yet.
	ReasonScheduled = "Scheduled"
	// ReasonSuspended: the schedule is suspended by spec.suspend, or is being deleted.
	ReasonSuspended = "Suspended"
)

// Conditions of a PruneReport, beside Ready, Reconciling and Stalled.
const (
	// ConditionComplete: the report is complete, for kubectl wait.
	ConditionComplete = "Complete"
)

// Reasons why a cluster is unknown to a PruneReport, beside those of conditions of its
// MemberCluster.
const (
	// ReasonNotAnswered: the cluster's report does not answer a plan with the inquiry
	// yet.
	ReasonNotAnswered = "NotAnswered"
	// ReasonOffline: the cluster's agent does not report; the PruneReport does not wait
	// for it.
	ReasonOffline = "Offline"
	// ReasonAgentTooOld: the cluster's agent does not support prunes.
	ReasonAgentTooOld = "AgentTooOld"
)

// KeptReason says why an image is not a candidate.
//
// +kubebuilder:validation:Enum=Referenced;Wanted;TooRecent;InTransition;Leaving
type KeptReason string

// Reasons why an image is kept.
const (
	// KeptReferenced: VirtualMachines need it.
	KeptReferenced KeptReason = "Referenced"
	// KeptWanted: the ClusterPlan or a FleetDiskImage asks for it.
	KeptWanted KeptReason = "Wanted"
	// KeptTooRecent: it has not been unreferenced for long enough, or it is not known
	// since when.
	KeptTooRecent KeptReason = "TooRecent"
	// KeptInTransition: it is not synced yet.
	KeptInTransition KeptReason = "InTransition"
	// KeptLeaving: it is already being deleted or pruned.
	KeptLeaving KeptReason = "Leaving"
)

// KeptReasons lists all reasons.
func KeptReasons() []KeptReason {
	return []KeptReason{KeptReferenced, KeptWanted, KeptTooRecent, KeptInTransition, KeptLeaving}
}

// PruneCandidate is an image that can be pruned.
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
	// origin says who created it; empty for people and CI. An ImagePrune prunes images
	// that no plan created only with includeOthers.
	// +optional
	Origin ImageOrigin `json:"origin,omitempty"`
	// declaredBy is the FleetDiskImage that the image is a version of; empty if none.
	// +optional
	DeclaredBy string `json:"declaredBy,omitempty"`
	// bytes of storage that it takes, as provisioned.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// unreferencedSince is when the last VirtualMachine stopped referencing it, by its
	// cluster's clock.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
}

// KeptImages are images that are kept for the same reason.
type KeptImages struct {
	// +required
	Reason KeptReason `json:"reason"`
	// detail of the reason, as in "2 VirtualMachines" or "FleetDiskImage ubuntu".
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Detail string `json:"detail,omitempty"`
	// bytes of storage of all these images.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// images as namespace/name.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +required
	Images []string `json:"images"`
}

// OrphanedObject is storage that was created for a VMDiskImage that no longer exists.
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
	// image is the name of the VMDiskImage that it was created for.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Image string `json:"image,omitempty"`
	// imageUID is the UID of that VMDiskImage.
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="imageUID must have at most 64 characters"
	// +optional
	ImageUID types.UID `json:"imageUID,omitempty"`
	// bytes that it takes, as provisioned; 0 if another object counts them.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
}

// ReportedCluster is the part of a PruneReport about one cluster. A cluster with many
// images has several parts, on one page or on consecutive pages.
type ReportedCluster struct {
	// cluster is the name of the MemberCluster.
	// +required
	Cluster string `json:"cluster"`
	// clusterUID is the UID of the cluster's kube-system namespace.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	// unknown is the reason why nothing is known about the cluster; empty if it
	// answered.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Unknown string `json:"unknown,omitempty"`
	// message explains why the cluster is unknown.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// plan that the cluster answered.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// observedAt is when it answered, by its own clock.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
	// candidates to prune, by namespace and name.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +optional
	Candidates []PruneCandidate `json:"candidates,omitempty"`
	// kept are the images that are not candidates, by reason.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +optional
	Kept []KeptImages `json:"kept,omitempty"`
	// orphans are the first storage objects that belong to no image.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Orphans []OrphanedObject `json:"orphans,omitempty"`
	// omittedOrphans is how many more orphans exist.
	// +optional
	OmittedOrphans int32 `json:"omittedOrphans,omitempty"`
	// omittedOrphanBytes is the storage that the omitted orphans take.
	// +optional
	OmittedOrphanBytes int64 `json:"omittedOrphanBytes,omitempty"`
}

// PruneReportPage holds a part of a PruneReport: some of its clusters, by name. The
// report owns it. Its name is <report>-<digest>-<number>, numbered from 0. The digest
// covers all pages, so a page that was changed later is not part of the report any
// more.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=prp,categories=ot
// +kubebuilder:printcolumn:name="Report",type=string,JSONPath=`.metadata.ownerReferences[0].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PruneReportPage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// clusters on this page, by name.
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

// PruneTotal is the number and size of images or storage objects.
type PruneTotal struct {
	// +optional
	Count int32 `json:"count"`
	// +optional
	Bytes int64 `json:"bytes"`
}

// KeptTotal is the number and size of images that are kept for one reason.
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

// UnknownCluster is a cluster that nothing current is known about.
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

// Limits of a PruneReport.
const (
	// MaxPruneReportPages is the maximum number of pages.
	MaxPruneReportPages = 250
	// MaxUnknownClusters is how many unknown clusters the status lists.
	MaxUnknownClusters = 20
)

// PruneReportStatus is the summary of a report.
type PruneReportStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the report, or Scheduled.
	// +optional
	Phase PruneReportPhase `json:"phase,omitempty"`
	// reason for the phase, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the reason and says what to do, if anything.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// startedAt is when the first cluster was asked, by the hub's clock.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// completedAt is when the report became complete, by the hub's clock.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
	// clusters of the report, counted.
	// +optional
	Clusters AnswerCounts `json:"clusters"`
	// unknownClusters lists the first unknown clusters, by name.
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=cluster
	// +optional
	UnknownClusters []UnknownCluster `json:"unknownClusters,omitempty"`
	// candidates are the images that can be pruned.
	// +optional
	Candidates PruneTotal `json:"candidates"`
	// others are the candidates that no plan created, but people, CI or the template of
	// a VirtualMachine. An ImagePrune prunes them only with includeOthers.
	// +optional
	Others PruneTotal `json:"others"`
	// undeclared are the candidates that a plan created and that no FleetDiskImage
	// declares any more.
	// +optional
	Undeclared PruneTotal `json:"undeclared"`
	// kept are the images that are not candidates, by reason.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=reason
	// +optional
	Kept []KeptTotal `json:"kept,omitempty"`
	// orphans are storage objects that belong to no image.
	// +optional
	Orphans PruneTotal `json:"orphans"`
	// pages is the number of PruneReportPages.
	// +optional
	Pages int32 `json:"pages"`
	// digest of the report's UID and pages. An ImagePrune names it, so that exactly
	// what was reviewed is pruned.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Digest string `json:"digest,omitempty"`

	// lastScheduleTime is the scheduled time of the newest report.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// nextScheduleTime is when the next report is due.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// lastReport is the name of the newest PruneReport of the schedule.
	// +optional
	LastReport string `json:"lastReport,omitempty"`

	// conditions; exactly one of Ready, Reconciling and Stalled is True.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PruneReport lists which images in which clusters nothing needs, and why each other
// image is kept. It deletes nothing.
//
// A cluster is included only with a report that answers a plan with this inquiry;
// clocks are not compared. All other clusters are unknown and have no candidates.
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
	// +kubebuilder:default={"observedGeneration":-1}
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
