package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PruneReportRef names a PruneReport as it was reviewed.
type PruneReportRef struct {
	// name of the PruneReport.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="no PruneReport can have this name: it must consist of a-z, 0-9, - and ., as in cleanup-2026-01"
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

// ImagePruneSpec says which candidates of a PruneReport to delete. Only undo can be
// changed. Durations are compared by value, because clients write the same duration in
// several ways.
//
// +kubebuilder:validation:XValidation:rule="self.reportRef == oldSelf.reportRef && self.approvedBy == oldSelf.approvedBy && self.includeOthers == oldSelf.includeOthers && duration(self.undoWindow) == duration(oldSelf.undoWindow) && duration(self.deadline) == duration(oldSelf.deadline) && has(self.clusters) == has(oldSelf.clusters) && (!has(self.clusters) || self.clusters == oldSelf.clusters) && has(self.images) == has(oldSelf.images) && (!has(self.images) || self.images == oldSelf.images)",message="only undo can be changed: create another ImagePrune"
// +kubebuilder:validation:XValidation:rule="!oldSelf.undo || self.undo",message="undo cannot be unset: create another ImagePrune"
type ImagePruneSpec struct {
	// reportRef names the reviewed PruneReport. Only images that it lists as candidates
	// are pruned.
	// +required
	ReportRef PruneReportRef `json:"reportRef"`
	// clusters of the report to prune in. Default: all.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no MemberCluster can have this name, so nothing is selected: it must consist of a-z, 0-9 and -, as in bergen"
	// +listType=set
	// +optional
	Clusters []string `json:"clusters,omitempty"`
	// images of the report to prune, as namespace/name; * matches any characters except
	// /, as in vmdi-farm/ubuntu-*. Default: all candidates.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9*]+/[-a-z0-9.*]+$`
	// +listType=set
	// +optional
	Images []string `json:"images,omitempty"`
	// includeOthers also prunes images that no plan created, but people, CI or the
	// template of a VirtualMachine. Default: false.
	// +kubebuilder:default=false
	// +optional
	IncludeOthers bool `json:"includeOthers"`
	// undoWindow is how long an image stays usable, and the prune can be undone, after
	// the image's cluster starts the prune, as in 24h. Default: 24h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('0s')",message="undoWindow must be a duration in hours, minutes and seconds, as in 24h, up to 999999h"
	// +kubebuilder:default="24h"
	// +optional
	UndoWindow *metav1.Duration `json:"undoWindow,omitempty"`
	// deadline is how long to wait for clusters beyond the undo window. Images not
	// reported by then become Unknown and are no longer requested: a cluster that
	// returns later prunes only what it had started and whose undo window has ended
	// there or, after the hub restarted, what its plan names. Default: 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('1s')",message="deadline must be a duration of at least 1s in hours, minutes and seconds, as in 1h, up to 999999h"
	// +kubebuilder:default="1h"
	// +optional
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// approvedBy is the user who reviewed the report. With the hub chart's admission
	// policy it must be the user who creates this object, who needs the right to
	// approve.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	ApprovedBy string `json:"approvedBy"`
	// undo cancels the prune of all images that have not been deleted yet. It cannot be
	// unset.
	// +kubebuilder:default=false
	// +optional
	Undo bool `json:"undo"`
}

// Defaults of an ImagePrune, as the API server sets them.
const (
	DefaultUndoWindow    = 24 * time.Hour
	DefaultPruneDeadline = time.Hour
)

// UndoWindowOrDefault returns how long an image stays usable after the prune starts.
func (s *ImagePruneSpec) UndoWindowOrDefault() time.Duration {
	if s.UndoWindow == nil {
		return DefaultUndoWindow
	}
	return s.UndoWindow.Duration
}

// TotalDuration returns undo window plus deadline: how long clusters are asked after
// the first one is.
func (s *ImagePruneSpec) TotalDuration() time.Duration {
	if s.Deadline == nil {
		return s.UndoWindowOrDefault() + DefaultPruneDeadline
	}
	return s.UndoWindowOrDefault() + s.Deadline.Duration
}

// ImagePrunePhase is the phase of an ImagePrune.
//
// +kubebuilder:validation:Enum=Pending;Running;Complete;Undone;Failed
type ImagePrunePhase string

// Phases of an ImagePrune.
const (
	// ImagePrunePending: no cluster has been asked yet.
	ImagePrunePending ImagePrunePhase = "Pending"
	// ImagePruneRunning: clusters have been asked, and some are not done.
	ImagePruneRunning ImagePrunePhase = "Running"
	// ImagePruneComplete: no cluster is asked for anything any more.
	ImagePruneComplete ImagePrunePhase = "Complete"
	// ImagePruneUndone: the prune was undone, and no cluster is asked for anything any
	// more.
	ImagePruneUndone ImagePrunePhase = "Undone"
	// ImagePruneFailed: the prune cannot be done; see the message.
	ImagePruneFailed ImagePrunePhase = "Failed"
)

// IsFinal reports whether the ImagePrune does nothing more.
func (p ImagePrunePhase) IsFinal() bool {
	return p == ImagePruneComplete || p == ImagePruneUndone || p == ImagePruneFailed
}

// Reasons of an ImagePrune.
const (
	// ReasonReportMissing: the PruneReport does not exist.
	ReasonReportMissing = "ReportMissing"
	// ReasonReportIncomplete: the PruneReport is not complete yet.
	ReasonReportIncomplete = "ReportIncomplete"
	// ReasonReportChanged: the PruneReport or one of its pages differs from what was
	// reviewed.
	ReasonReportChanged = "ReportChanged"
	// ReasonNothingSelected: the spec selects no candidate of the report.
	ReasonNothingSelected = "NothingSelected"
	// ReasonAwaitingMembers: some clusters have not started the prune yet.
	ReasonAwaitingMembers = "AwaitingMembers"
	// ReasonUndoWindow: images wait for the end of their undo window.
	ReasonUndoWindow = "UndoWindow"
	// ReasonPruned: all selected images are gone.
	ReasonPruned = "Pruned"
	// ReasonPartlyPruned: some images were skipped or are unknown.
	ReasonPartlyPruned = "PartlyPruned"
	// ReasonUndone: the prune was undone.
	ReasonUndone = "Undone"
)

// PruneState is the state of one image of an ImagePrune.
//
// +kubebuilder:validation:Enum=Waiting;Pending;Pruned;Skipped;Undone;Unknown
type PruneState string

// States of an image of an ImagePrune. The agent reports Pending, Pruned, Skipped and
// Undone, and Waiting where no hub confirms the prune in time.
const (
	// PruneWaiting: the image's cluster has not started the prune yet.
	PruneWaiting PruneState = "Waiting"
	// PrunePending: the image stays usable and is deleted when its undo window ends.
	PrunePending PruneState = "Pending"
	// PrunePruned: the image no longer exists, whoever deleted it.
	PrunePruned PruneState = "Pruned"
	// PruneSkipped: the image stays, because it is no longer as reported, or no candidate.
	PruneSkipped PruneState = "Skipped"
	// PruneUndone: the image stays, because the prune was undone or the cluster is no
	// longer asked for it.
	PruneUndone PruneState = "Undone"
	// PruneUnknown: the image's cluster did not report in time.
	PruneUnknown PruneState = "Unknown"
)

// PruneStates lists all states.
func PruneStates() []PruneState {
	return []PruneState{PruneWaiting, PrunePending, PrunePruned, PruneSkipped, PruneUndone, PruneUnknown}
}

// IsFinal reports whether the state is final.
func (s PruneState) IsFinal() bool { return s != PruneWaiting && s != PrunePending }

// Reasons why an image was not pruned, or not yet: a closed set.
const (
	// PruneReferenced: a VirtualMachine references the image.
	PruneReferenced = "Referenced"
	// PruneWanted: the ClusterPlan asks for the image.
	PruneWanted = "Wanted"
	// PruneChanged: the image's source differs from the report.
	PruneChanged = "Changed"
	// PruneInTransition: the image is being synced again.
	PruneInTransition = "InTransition"
	// PruneTooMany: the cluster has more images to prune than fit into a plan.
	PruneTooMany = "TooMany"
	// PruneAnotherPrune: another ImagePrune is pruning the same image.
	PruneAnotherPrune = "AnotherPrune"
	// PruneWithdrawn: the plan no longer asks for the prune.
	PruneWithdrawn = "Withdrawn"
	// PruneUndoAsked: spec.undo of the ImagePrune is set.
	PruneUndoAsked = "UndoAsked"
	// PruneClusterGone: the MemberCluster was deleted, or is another cluster now.
	PruneClusterGone = "ClusterGone"
	// PruneNeedsIncludeOthers: spec.images names the image, but no plan created it, and
	// spec.includeOthers is false.
	PruneNeedsIncludeOthers = "NeedsIncludeOthers"
	// PruneNotReported: the report has no image of a name in spec.images, or does not cover a
	// cluster in spec.clusters.
	PruneNotReported = "NotReported"
	// PruneDeadline: the cluster did not report before the deadline.
	PruneDeadline = "Deadline"
)

// TargetCounts counts the images of an ImagePrune by state.
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

// CountOf returns the counter of a state.
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

// TargetSummary describes an image that was not pruned.
type TargetSummary struct {
	// cluster is the name of the MemberCluster; empty for a name in spec.images that the
	// report has in none.
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

// MaxSkippedTargets is how many images that were not pruned the status lists.
const MaxSkippedTargets = 50

// ImagePruneStatus is the progress of an ImagePrune.
type ImagePruneStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the prune.
	// +optional
	Phase ImagePrunePhase `json:"phase,omitempty"`
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
	// finishedAt is when the phase became final, by the hub's clock.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// pendingUntil is when the last known undo window ends, by its cluster's clock.
	// +optional
	PendingUntil *metav1.Time `json:"pendingUntil,omitempty"`
	// clusters is how many clusters have images to prune.
	// +optional
	Clusters int32 `json:"clusters"`
	// targets counts the images by state.
	// +optional
	Targets TargetCounts `json:"targets"`
	// bytes of storage of all targets.
	// +optional
	Bytes int64 `json:"bytes"`
	// prunedBytes is the storage of the pruned targets.
	// +optional
	PrunedBytes int64 `json:"prunedBytes"`
	// skipped lists the first skipped or unknown images, by cluster, namespace and name.
	// Then come those that spec.images names and that are no candidates, and the clusters
	// in spec.clusters that the report does not cover, without a name.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Skipped []TargetSummary `json:"skipped,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ImagePrune deletes images that a PruneReport lists as candidates, and only those that
// their cluster still finds as reported: not in a plan and not referenced by a
// VirtualMachine. Each image stays usable until its undo window ends; a VirtualMachine
// that references it before then cancels its prune.
//
// Deleting an ImagePrune that is not finished undoes it.
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
	// +kubebuilder:default={"observedGeneration":-1}
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

// PruneStatus is the progress of pruning one image.
type PruneStatus struct {
	// uid of the ImagePrune.
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="uid must have at most 64 characters"
	// +required
	UID types.UID `json:"uid"`
	// +required
	State PruneState `json:"state"`
	// reason why the image is not pruned, or not yet.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the reason.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// until is when the undo window ends, by the member's clock.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}
