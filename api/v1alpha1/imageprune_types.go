package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PruneReportRef names a PruneReport as it was reviewed.
type PruneReportRef struct {
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// digest of the report, from its status.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:MinLength=1
	// +required
	Digest string `json:"digest"`
}

// ImagePruneSpec says what of a PruneReport is to go. But for undo, it does not
// change. Clients write one duration in many ways: it is the duration that is
// compared.
//
// +kubebuilder:validation:XValidation:rule="self.reportRef == oldSelf.reportRef && self.approvedBy == oldSelf.approvedBy && self.includeOthers == oldSelf.includeOthers && duration(self.undoWindow) == duration(oldSelf.undoWindow) && duration(self.deadline) == duration(oldSelf.deadline) && has(self.clusters) == has(oldSelf.clusters) && (!has(self.clusters) || self.clusters == oldSelf.clusters) && has(self.images) == has(oldSelf.images) && (!has(self.images) || self.images == oldSelf.images)",message="only undo can be changed: make another ImagePrune"
// +kubebuilder:validation:XValidation:rule="!oldSelf.undo || self.undo",message="what is undone stays so: make another ImagePrune"
type ImagePruneSpec struct {
	// reportRef names the PruneReport that was reviewed. Nothing that it does not
	// list as a candidate is pruned.
	// +required
	ReportRef PruneReportRef `json:"reportRef"`
	// clusters of the report in which images are pruned. Default: all.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:MinLength=1
	// +listType=set
	// +optional
	Clusters []string `json:"clusters,omitempty"`
	// images of the report that are pruned, as namespace/name; * stands for any
	// characters but /, as in vmdi-farm/ubuntu-*. Default: all candidates.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9*]+/[-a-z0-9.*]+$`
	// +listType=set
	// +optional
	Images []string `json:"images,omitempty"`
	// includeOthers: images go as well that no plan has made, but people or the
	// template of a VirtualMachine.
	// +kubebuilder:default=false
	// +optional
	IncludeOthers bool `json:"includeOthers"`
	// undoWindow is how long an image still serves, and the prune can be undone, from
	// when its cluster took it up, as in 24h. Default: 24h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="undoWindow must be a duration in hours, minutes and seconds, as in 24h"
	// +kubebuilder:default="24h"
	// +optional
	UndoWindow *metav1.Duration `json:"undoWindow,omitempty"`
	// deadline is how long beyond the undo window clusters are waited for. Then what
	// they have not told of is Unknown, and they are not asked any more: one that
	// comes back later prunes nothing but what it had been asked for already, and
	// whose undo window has ended there. Default: 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('1s')",message="deadline must be a duration of at least 1s in hours, minutes and seconds, as in 1h"
	// +kubebuilder:default="1h"
	// +optional
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// approvedBy is the user who has reviewed the report. The hub's chart has it be
	// the one who creates this, with the right to approve.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	ApprovedBy string `json:"approvedBy"`
	// undo takes back what has not been deleted yet.
	// +kubebuilder:default=false
	// +optional
	Undo bool `json:"undo"`
}

// Defaults of an ImagePrune, as the API server sets them.
const (
	DefaultUndoWindow    = 24 * time.Hour
	DefaultPruneDeadline = time.Hour
)

// UndoWindowOrDefault is how long an image still serves.
func (s *ImagePruneSpec) UndoWindowOrDefault() time.Duration {
	if s.UndoWindow == nil {
		return DefaultUndoWindow
	}
	return s.UndoWindow.Duration
}

// TotalDuration is how long clusters are asked, from when the first one is.
func (s *ImagePruneSpec) TotalDuration() time.Duration {
	if s.Deadline == nil {
		return s.UndoWindowOrDefault() + DefaultPruneDeadline
	}
	return s.UndoWindowOrDefault() + s.Deadline.Duration
}

// ImagePrunePhase is where an ImagePrune is.
//
// +kubebuilder:validation:Enum=Pending;Running;Complete;Undone;Failed
type ImagePrunePhase string

// Phases of an ImagePrune.
const (
	// ImagePrunePending: nothing has been asked of a cluster yet.
	ImagePrunePending ImagePrunePhase = "Pending"
	// ImagePruneRunning: clusters have been asked, and some are not done.
	ImagePruneRunning ImagePrunePhase = "Running"
	// ImagePruneComplete: nothing more is asked of any cluster.
	ImagePruneComplete ImagePrunePhase = "Complete"
	// ImagePruneUndone: so it is, and it was undone.
	ImagePruneUndone ImagePrunePhase = "Undone"
	// ImagePruneFailed: it cannot be carried out; the message says why.
	ImagePruneFailed ImagePrunePhase = "Failed"
)

// IsFinal tells that nothing more comes of an ImagePrune.
func (p ImagePrunePhase) IsFinal() bool {
	return p == ImagePruneComplete || p == ImagePruneUndone || p == ImagePruneFailed
}

// Reasons of an ImagePrune: a closed set.
const (
	// ReasonReportMissing: there is no PruneReport of that name, or not any more.
	ReasonReportMissing = "ReportMissing"
	// ReasonReportIncomplete: the PruneReport is not complete yet.
	ReasonReportIncomplete = "ReportIncomplete"
	// ReasonReportChanged: the PruneReport or one of its pages is not as it was
	// reviewed.
	ReasonReportChanged = "ReportChanged"
	// ReasonNothingSelected: no candidate of the report is selected.
	ReasonNothingSelected = "NothingSelected"
	// ReasonAwaitingMembers: clusters have not taken up yet what they are asked.
	ReasonAwaitingMembers = "AwaitingMembers"
	// ReasonUndoWindow: images wait for the end of their undo window.
	ReasonUndoWindow = "UndoWindow"
	// ReasonPruned: all that could go is gone.
	ReasonPruned = "Pruned"
	// ReasonPartlyPruned: some were skipped, or are unknown.
	ReasonPartlyPruned = "PartlyPruned"
	// ReasonUndone: it was undone.
	ReasonUndone = "Undone"
)

// PruneState is how far an image is that is to be pruned.
//
// +kubebuilder:validation:Enum=Waiting;Pending;Pruned;Skipped;Undone;Unknown
type PruneState string

// States of an image that is to be pruned. The agent reports Pending to Undone.
const (
	// PruneWaiting: its cluster has not taken it up yet.
	PruneWaiting PruneState = "Waiting"
	// PrunePending: it serves on, and goes when its undo window ends.
	PrunePending PruneState = "Pending"
	// PrunePruned: the image is not there any more, whoever has deleted it.
	PrunePruned PruneState = "Pruned"
	// PruneSkipped: it stays, for it is not as it was when it was reported.
	PruneSkipped PruneState = "Skipped"
	// PruneUndone: it stays, for the prune was undone, or its cluster is not asked
	// for it any more.
	PruneUndone PruneState = "Undone"
	// PruneUnknown: its cluster has not told in time.
	PruneUnknown PruneState = "Unknown"
)

// PruneStates are all states of an image that is to be pruned.
func PruneStates() []PruneState {
	return []PruneState{PruneWaiting, PrunePending, PrunePruned, PruneSkipped, PruneUndone, PruneUnknown}
}

// IsFinal tells that a state is the last one.
func (s PruneState) IsFinal() bool { return s != PruneWaiting && s != PrunePending }

// Reasons for which an image was not pruned, or not yet: a closed set.
const (
	// PruneReferenced: a VirtualMachine references it.
	PruneReferenced = "Referenced"
	// PruneWanted: a ClusterPlan wants it to be there.
	PruneWanted = "Wanted"
	// PruneChanged: its source is another than that of the report.
	PruneChanged = "Changed"
	// PruneInTransition: it is being synced again.
	PruneInTransition = "InTransition"
	// PruneTooMany: more images of its cluster are to be pruned than fit into a plan.
	PruneTooMany = "TooMany"
	// PruneAnotherPrune: another ImagePrune is at the same image.
	PruneAnotherPrune = "AnotherPrune"
	// PruneWithdrawn: no plan asks for it any more.
	PruneWithdrawn = "Withdrawn"
	// PruneUndoAsked: spec.undo of its ImagePrune.
	PruneUndoAsked = "UndoAsked"
	// PruneClusterGone: there is no MemberCluster of that name any more, or it is
	// another cluster.
	PruneClusterGone = "ClusterGone"
	// PruneDeadline: its cluster has not told until the deadline.
	PruneDeadline = "Deadline"
)

// TargetCounts counts the images of an ImagePrune by their state.
type TargetCounts struct {
	// +optional
	Total int32 `json:"total"`
	// +optional
	Waiting int32 `json:"waiting"`
	// +optional
	Pending int32 `json:"pending"`
	// +optional
	Pruned int32 `json:"pruned"`
	// +optional
	Skipped int32 `json:"skipped"`
	// +optional
	Undone int32 `json:"undone"`
	// +optional
	Unknown int32 `json:"unknown"`
}

// CountOf is the count of a state.
func (c *TargetCounts) CountOf(state PruneState) *int32 {
	switch state {
	case PruneWaiting:
		return &c.Waiting
	case PrunePending:
		return &c.Pending
	case PrunePruned:
		return &c.Pruned
	case PruneSkipped:
		return &c.Skipped
	case PruneUndone:
		return &c.Undone
	default:
		return &c.Unknown
	}
}

// TargetSummary is an image that was not pruned, in short.
type TargetSummary struct {
	// +required
	Cluster string `json:"cluster"`
	// +required
	Namespace string `json:"namespace"`
	// +required
	Name string `json:"name"`
	// +required
	State PruneState `json:"state"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// MaxSkippedTargets is how many of the images that were not pruned the status of an
// ImagePrune names.
const MaxSkippedTargets = 50

// ImagePruneStatus is how far an ImagePrune is.
type ImagePruneStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase ImagePrunePhase `json:"phase,omitempty"`
	// reason says why it is in this phase, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says the same in words, and what to do where something is to be done.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// startedAt is since when clusters are asked, by the hub's clock.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// finishedAt is when nothing more was asked, by the hub's clock.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// pendingUntil is when the last undo window ends that is known of, by its
	// cluster's clock.
	// +optional
	PendingUntil *metav1.Time `json:"pendingUntil,omitempty"`
	// clusters that have images to be pruned.
	// +optional
	Clusters int32 `json:"clusters"`
	// targets by their state.
	// +optional
	Targets TargetCounts `json:"targets"`
	// bytes of all targets, and prunedBytes of those that are pruned.
	// +optional
	Bytes int64 `json:"bytes"`
	// +optional
	PrunedBytes int64 `json:"prunedBytes"`
	// skipped are the first that were skipped or are unknown, by cluster, namespace
	// and name.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Skipped []TargetSummary `json:"skipped,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ImagePrune deletes images that a PruneReport lists as candidates: exactly those,
// and of them only what its cluster finds as it was reported, wanted by no plan and
// held by no VirtualMachine (DESIGN, S7). Each serves on until its undo window ends,
// and a VirtualMachine that comes to name it cancels.
//
// Deleting an ImagePrune that has not ended undoes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ipr,categories=ot
// +kubebuilder:printcolumn:name="Report",type=string,JSONPath=`.spec.reportRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Targets",type=integer,JSONPath=`.status.targets.total`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.targets.pending`
// +kubebuilder:printcolumn:name="Pruned",type=integer,JSONPath=`.status.targets.pruned`
// +kubebuilder:printcolumn:name="Skipped",type=integer,JSONPath=`.status.targets.skipped`
// +kubebuilder:printcolumn:name="Unknown",type=integer,JSONPath=`.status.targets.unknown`
// +kubebuilder:printcolumn:name="ApprovedBy",type=string,JSONPath=`.spec.approvedBy`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type ImagePrune struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ImagePruneSpec `json:"spec"`
	// +optional
	Status ImagePruneStatus `json:"status,omitempty"`
}

// ImagePruneList is a list of ImagePrunes.
//
// +kubebuilder:object:root=true
type ImagePruneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ImagePrune `json:"items"`
}

// PruneStatus is how far one image is that is to be pruned.
type PruneStatus struct {
	// uid of the ImagePrune.
	// +required
	UID types.UID `json:"uid"`
	// +required
	State PruneState `json:"state"`
	// reason for which it is not pruned, or not yet.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says the same in words.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// until is when the undo window ends, by the member's clock.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}
