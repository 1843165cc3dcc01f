package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of a report.
const (
	// MaxReportPages is how many pages a report can have.
	MaxReportPages = 256
	// MaxReportedImages is how many images a page can have.
	MaxReportedImages = 128
	// MaxReportedOrphans is how many orphans the root names.
	MaxReportedOrphans = 32
)

// PlanItemState is what the agent did about a planned image.
//
// +kubebuilder:validation:Enum=Applied;NotOurs;Rejected;Waiting
type PlanItemState string

// States of a planned image.
const (
	// PlanItemApplied: the ImageNameForVersion is as the plan says.
	PlanItemApplied PlanItemState = "Applied"
	// PlanItemNotOurs: somebody else has made a ImageNameForVersion of that name; it is
	// left alone.
	PlanItemNotOurs PlanItemState = "NotOurs"
	// PlanItemRejected: the member's API server refuses it as the plan says it.
	PlanItemRejected PlanItemState = "Rejected"
	// PlanItemWaiting: not done yet; the message says what for.
	PlanItemWaiting PlanItemState = "Waiting"
)

// PlanItemReport is what became of a planned image.
type PlanItemReport struct {
	// +required
	State PlanItemState `json:"state"`
	// revision that the plan asked for; an older agent does not say it.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// ImageOrigin says who has made a ImageNameForVersion.
//
// +kubebuilder:validation:Enum=Plan;Template
type ImageOrigin string

// Origins of a ImageNameForVersion; empty for one that somebody else has made.
const (
	// OriginPlan: the agent, because a plan asked for it.
	OriginPlan ImageOrigin = "Plan"
	// OriginTemplate: the agent, from the template of a VirtualMachine.
	OriginTemplate ImageOrigin = "Template"
)

// ReportedPrune is what became of a PlannedPrune.
type ReportedPrune struct {
	PruneStatus `json:",inline"`
	// imageUID is that of the ImageNameForVersion that was to be pruned.
	// +required
	ImageUID types.UID `json:"imageUID"`
}

// ReportedImage is one ImageNameForVersion of a member, or one that is not there and that
// the plan names: as one that is to be there, or to be pruned.
type ReportedImage struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// uid of the ImageNameForVersion; empty where there is none.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// origin says who has made it.
	// +optional
	Origin ImageOrigin `json:"origin,omitempty"`
	// source is what the image is downloaded from: sourceType, url and checksum in
	// one text. Two images of one source are the same image under two names.
	// +kubebuilder:validation:MaxLength=2560
	// +optional
	Source string `json:"source,omitempty"`
	// revision that phase and reason are about: what the spec asked for when the
	// agent looked at it last.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// servingRevision is the one that VMs are cloned from; empty for none.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	ServingRevision string `json:"servingRevision,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message as in the image's status, cut to fit.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// references is how many VirtualMachines need the image.
	// +optional
	References int32 `json:"references"`
	// unreferencedSince is when that was last seen to become 0, by the member's
	// clock.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// bytes that the image's storage takes, as provisioned: spec.diskSize for each
	// revision that is imported.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// downloadBytes is the size of the download, as far as it is known.
	// +optional
	DownloadBytes int64 `json:"downloadBytes,omitempty"`
	// attempts that were begun for the current revision.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// syncedAt is when the current revision was imported, by the member's clock.
	// +optional
	SyncedAt *metav1.Time `json:"syncedAt,omitempty"`
	// plan is what became of the plan's wish for it; empty for images that the
	// plan does not name.
	// +optional
	Plan *PlanItemReport `json:"plan,omitempty"`
	// prune is what became of the prune that the plan asks for, or that it asked for
	// last.
	// +optional
	Prune *ReportedPrune `json:"prune,omitempty"`
}

// ReportPage holds the images of a member whose key falls into it.
type ReportPage struct {
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Images []ReportedImage `json:"images,omitempty"`
}

// PageRef names a page as it was when the root was written.
type PageRef struct {
	// name of the ClusterReport.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// sequence of the page.
	// +required
	Sequence int64 `json:"sequence"`
	// images on it.
	// +optional
	Images int32 `json:"images"`
}

// SourceDemand is how many imports a member runs, and could run, from one group of
// sources.
type SourceDemand struct {
	// name of the group in the plan's policy.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Running int32 `json:"running"`
	// wanted includes running.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Wanted int32 `json:"wanted"`
}

// ReportedTransfers is a member's request for a part of the fleet-wide budget, and
// what it goes by.
type ReportedTransfers struct {
	// limited: the acknowledged plan has the member go by grants. Otherwise it goes by
	// its policy's concurrency alone.
	// +optional
	Limited bool `json:"limited,omitempty"`
	// safe is how many imports it may run without a grant, from no group of sources.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Safe int32 `json:"safe,omitempty"`
	// nonce of the newest request; empty while nothing is asked for. It tells the boot
	// of the process that asks.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Nonce string `json:"nonce,omitempty"`
	// wanted is how many imports could run, those that run included, were there no
	// fleet-wide budget: never more than the policy's concurrency, unless more run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Wanted int32 `json:"wanted"`
	// sources are the parts of that which are from a group, in the plan's order.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceDemand `json:"sources,omitempty"`
	// grant is the sequence of the newest grant that was taken up; what came before it
	// is not gone by any more. The ledger was written under it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	// +optional
	Grant int64 `json:"grant,omitempty"`
	// slots of it; 0 once it has ended, or where it answers another process's request.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Slots int32 `json:"slots,omitempty"`
}

// ReportRoot is a member in short, and the list of its pages.
type ReportRoot struct {
	// observedAt is when the agent last looked, by the member's clock. It moves
	// with every heartbeat.
	// +required
	ObservedAt metav1.Time `json:"observedAt"`
	// heartbeatSeconds is how often observedAt moves at least.
	// +kubebuilder:validation:Minimum=1
	// +required
	HeartbeatSeconds int32 `json:"heartbeatSeconds"`
	// bootID of the agent process that wrote this.
	// +kubebuilder:validation:MaxLength=64
	// +required
	BootID string `json:"bootID"`
	// agentVersion is the version of that process.
	// +kubebuilder:validation:MaxLength=128
	// +required
	AgentVersion string `json:"agentVersion"`

	// plan under which the member's ledger was last written: it is acknowledged.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// answeredPlan is the plan that this report answers: it was acknowledged before
	// the images were looked at that the pages tell of, and all pages are as the agent
	// has them. An agent that does not know prunes does not say it.
	// +optional
	AnsweredPlan *PlanVersion `json:"answeredPlan,omitempty"`
	// planPolicy is what that plan said about the policy, so that a hub that was
	// restored from a backup does not undo what it has forgotten; none where the plan
	// is gone.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	PlanPolicy map[string]string `json:"planPolicy,omitempty"`
	// planPolicySource is that plan's policySource.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PlanPolicySource string `json:"planPolicySource,omitempty"`
	// policy that is in force in the member, every key.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Policy map[string]string `json:"policy,omitempty"`

	// budget and slots are those of the member's SyncLedger; noLedger says that
	// there is none yet.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Budget int32 `json:"budget"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Slots int32 `json:"slots"`
	// +optional
	NoLedger bool `json:"noLedger,omitempty"`
	// transfers is what it asks of the fleet-wide budget; an agent that knows of none
	// does not say it.
	// +optional
	Transfers *ReportedTransfers `json:"transfers,omitempty"`
	// phases counts the member's images per phase.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Phases map[Phase]int32 `json:"phases,omitempty"`
	// images is how many there are.
	// +optional
	Images int32 `json:"images"`
	// omittedImages is how many the pages have no room for.
	// +optional
	OmittedImages int32 `json:"omittedImages,omitempty"`
	// references is how many VirtualMachines need an image, over all images.
	// +optional
	References int32 `json:"references"`
	// oldestQueuedSince is when the image that waits longest was created.
	// +optional
	OldestQueuedSince *metav1.Time `json:"oldestQueuedSince,omitempty"`

	// orphans are the first objects of storage that were made for images which are
	// not there any more, by kind, namespace and name.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Orphans []OrphanedObject `json:"orphans,omitempty"`
	// orphanCount is how many there are, and orphanBytes what they take.
	// +optional
	OrphanCount int32 `json:"orphanCount,omitempty"`
	// +optional
	OrphanBytes int64 `json:"orphanBytes,omitempty"`

	// conditions of the member's SyncLedger, and of what the agent made of the plan.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// pages that the report consists of.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Pages []PageRef `json:"pages,omitempty"`
}

// ClusterReport is what a member tells the hub: a root named default, and pages
// that it lists. They carry full state. A page is written before the root that
// lists it; what the root does not list is of no account.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=report,categories=ot
// +kubebuilder:validation:XValidation:rule="(self.metadata.name == 'default') == has(self.root)",message="the ClusterReport named default is the root, all others are pages"
// +kubebuilder:validation:XValidation:rule="has(self.root) != has(self.page)",message="a ClusterReport is either the root or a page"
// +kubebuilder:printcolumn:name="Sequence",type=integer,JSONPath=`.sequence`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.root.agentVersion`
// +kubebuilder:printcolumn:name="Budget",type=integer,JSONPath=`.root.budget`
// +kubebuilder:printcolumn:name="Slots",type=integer,JSONPath=`.root.slots`
// +kubebuilder:printcolumn:name="Images",type=integer,JSONPath=`.root.images`
// +kubebuilder:printcolumn:name="Observed",type=date,JSONPath=`.root.observedAt`
type ClusterReport struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// clusterUID is the UID of the member's kube-system namespace.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// sequence is higher in every later write of this object. It is at least the
	// member's clock in milliseconds, so that an agent whose cluster was restored
	// from a backup goes on above what it had written before.
	// +kubebuilder:validation:Minimum=1
	// +required
	Sequence int64 `json:"sequence"`
	// +optional
	Root *ReportRoot `json:"root,omitempty"`
	// +optional
	Page *ReportPage `json:"page,omitempty"`
}

// ClusterReportList is a list of ClusterReports.
//
// +kubebuilder:object:root=true
type ClusterReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterReport `json:"items"`
}
