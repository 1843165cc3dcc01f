package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Limits of a report.
const (
	// MaxReportPages is the maximum number of pages.
	MaxReportPages = 256
	// MaxReportedImages is the maximum number of images on a page.
	MaxReportedImages = 128
	// MaxReportedOrphans is the maximum number of orphans that the root lists.
	MaxReportedOrphans = 32
	// MaxReportObjectBytes is the maximum size of one ClusterReport, root or page.
	MaxReportObjectBytes = 512 << 10
	// MaxReportBytes is the maximum size of all pages of a member's report. What does not
	// fit is omitted by the agent, and ignored by the hub.
	MaxReportBytes = 32 << 20
)

// Bounds of a member's mailbox, in which hub and agent keep everything in memory. Who
// exceeds them is cut off.
const (
	// MaxMailboxObjects bounds the number of objects: all pages of a report, and those
	// of a report before it that are not deleted yet.
	MaxMailboxObjects = 2 * MaxReportPages
	// MaxMailboxObjectBytes bounds the decoded size of one object.
	MaxMailboxObjectBytes = 4 << 20
	// MaxMailboxBytes bounds the decoded size of all objects.
	MaxMailboxBytes = 48 << 20
)

// PlanFieldRetry in ReportRoot.planFields: the agent starts images over by
// PlannedImage.retry.
const PlanFieldRetry = "retry"

// PlanItemState is what the agent did with a planned image.
//
// +kubebuilder:validation:Enum=Applied;NotOurs;Rejected;Waiting
type PlanItemState string

// States of a planned image.
const (
	// PlanItemApplied: the VMDiskImage has the planned spec.
	PlanItemApplied PlanItemState = "Applied"
	// PlanItemNotOurs: somebody else created a VMDiskImage with that name; the agent
	// leaves it alone.
	PlanItemNotOurs PlanItemState = "NotOurs"
	// PlanItemRejected: the member's API server refused the planned spec.
	PlanItemRejected PlanItemState = "Rejected"
	// PlanItemWaiting: not applied yet; see the message.
	PlanItemWaiting PlanItemState = "Waiting"
)

// Reasons why a planned image waits until a person acts in the member, beside
// QuotaExceeded.
const (
	// ReasonNamespaceMissing: the planned image's namespace does not exist in the member, or
	// the member's namespace on the hub cannot be created.
	ReasonNamespaceMissing Reason = "NamespaceMissing"
	// ReasonNamespaceTerminating: the namespace of the planned image, or the member's
	// namespace on the hub, is being deleted.
	ReasonNamespaceTerminating Reason = "NamespaceTerminating"
)

// PlanItemReport is what the agent did with a planned image.
type PlanItemReport struct {
	// +required
	State PlanItemState `json:"state"`
	// reason is set while the image waits until a person acts. Agents of older versions do
	// not set it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// revision that the plan asked for. Agents of older versions do not set it.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// ImageOrigin says who created a VMDiskImage.
//
// +kubebuilder:validation:Enum=Plan;Template
type ImageOrigin string

// Origins of a VMDiskImage; empty if somebody else created it.
const (
	// OriginPlan: the agent created it for a plan.
	OriginPlan ImageOrigin = "Plan"
	// OriginTemplate: the agent created it from the template of a VirtualMachine.
	OriginTemplate ImageOrigin = "Template"
)

// ReportedPrune is the progress of a PlannedPrune.
type ReportedPrune struct {
	PruneStatus `json:",inline"`
	// imageUID is the UID of the VMDiskImage to prune.
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="imageUID must have at most 64 characters"
	// +required
	ImageUID types.UID `json:"imageUID"`
}

// ReportedImage is one VMDiskImage of a member. It also stands for an image that does
// not exist but that the plan lists, to create or to prune.
type ReportedImage struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// uid of the VMDiskImage; empty if it does not exist.
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="uid must have at most 64 characters"
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// origin says who created it; empty for people and CI.
	// +optional
	Origin ImageOrigin `json:"origin,omitempty"`
	// source is what the image is downloaded from: sourceType, url and checksum in one
	// string. A fingerprint replaces the url's query, which may be a signature. Images with
	// the same source are the same image under several names.
	// +kubebuilder:validation:MaxLength=2560
	// +optional
	Source string `json:"source,omitempty"`
	// revision that phase and reason are about: the one that the spec asked for when
	// the agent last reconciled it.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// servingRevision is the revision that VMs are cloned from; empty if none.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	ServingRevision string `json:"servingRevision,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="reason must have at most 64 characters"
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message of the image's status, truncated.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// stalled: condition Stalled of the image is True, so a person has to correct
	// something. Older agents leave it out.
	// +optional
	Stalled bool `json:"stalled,omitempty"`
	// opensAt is when the window of the policy opens that the image waits for. Absent unless
	// reason is WaitingForWindow.
	// +optional
	OpensAt *metav1.Time `json:"opensAt,omitempty"`
	// references is how many VirtualMachines need the image.
	// +optional
	References int32 `json:"references"`
	// holders are the first VirtualMachines that need the image, as namespace/name. A root
	// disk without a VirtualMachine is marked "(orphaned disk)". Older agents leave them out.
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:MaxLength=384
	// +listType=atomic
	// +optional
	Holders []string `json:"holders,omitempty"`
	// unreferencedSince is when references last became 0, by the member's clock.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// bytes of storage that the image takes, as provisioned: spec.diskSize for each
	// imported revision.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// downloadBytes is the size of the download, if known.
	// +optional
	DownloadBytes int64 `json:"downloadBytes,omitempty"`
	// attempts started for the current revision.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// retry is the token of the plan's item under which the image was last started over, or
	// found not to have failed.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Retry string `json:"retry,omitempty"`
	// syncedAt is when the current revision was imported, by the member's clock.
	// +optional
	SyncedAt *metav1.Time `json:"syncedAt,omitempty"`
	// plan says what the agent did with the planned image; absent if the plan does not
	// list it.
	// +optional
	Plan *PlanItemReport `json:"plan,omitempty"`
	// prune is the progress of the current or last prune of the image.
	// +optional
	Prune *ReportedPrune `json:"prune,omitempty"`
}

// ReportPage holds some of a member's images: those whose key hashes to this page.
type ReportPage struct {
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Images []ReportedImage `json:"images,omitempty"`
}

// PageRef names a page as of when the root was written.
type PageRef struct {
	// name of the ClusterReport that is the page.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// sequence of the page.
	// +required
	Sequence int64 `json:"sequence"`
	// images is how many images the page has.
	// +optional
	Images int32 `json:"images"`
}

// SourceDemand is how many imports from one group of sources a member runs and could
// run.
type SourceDemand struct {
	// name of the group in the plan's policy.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// running is how many imports run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Running int32 `json:"running"`
	// wanted is how many could run, including the running ones.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Wanted int32 `json:"wanted"`
}

// ReportedTransfers is a member's request for a part of the fleet-wide budget, and the
// grant that it uses.
type ReportedTransfers struct {
	// limited: the acknowledged plan makes the member use grants. Otherwise only its
	// policy's concurrency counts.
	// +optional
	Limited bool `json:"limited,omitempty"`
	// safe is how many imports may run without a grant. Imports from a group of sources
	// always need one.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Safe int32 `json:"safe,omitempty"`
	// nonce of the newest request; empty while the member requests nothing. It contains
	// the boot ID of the requesting process.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Nonce string `json:"nonce,omitempty"`
	// wanted is how many imports could run without a fleet-wide budget, including the
	// running ones. It is at most the policy's concurrency, and one more for each group
	// of sources that has no room, unless more imports run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Wanted int32 `json:"wanted"`
	// sources are the parts of wanted that belong to groups of sources, in the plan's
	// order.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceDemand `json:"sources,omitempty"`
	// grant is the sequence of the newest grant that the ledger was written under. The
	// member uses no earlier grant any more.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	// +optional
	Grant int64 `json:"grant,omitempty"`
	// slots of that grant; 0 if it has expired or answers another process.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Slots int32 `json:"slots,omitempty"`
}

// ReportRoot is the summary of a member and the list of its report pages.
type ReportRoot struct {
	// observedAt is when the agent last observed this state, by the member's clock. It
	// changes with every heartbeat.
	// +required
	ObservedAt metav1.Time `json:"observedAt"`
	// heartbeatSeconds is the longest time between two updates of observedAt.
	// +kubebuilder:validation:Minimum=1
	// +required
	HeartbeatSeconds int32 `json:"heartbeatSeconds"`
	// bootID identifies the agent process that wrote this.
	// +kubebuilder:validation:MaxLength=64
	// +required
	BootID string `json:"bootID"`
	// agentVersion of that process.
	// +kubebuilder:validation:MaxLength=128
	// +required
	AgentVersion string `json:"agentVersion"`
	// imageFields are the fields of a VMDiskImage's spec that the agent knows and its API
	// server stores, and each value of a closed set as field=value. Agents that do not set
	// it know those of version 0.2.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=atomic
	// +optional
	ImageFields []string `json:"imageFields,omitempty"`

	// planFields are the fields of a planned image, beside its spec, that the agent follows
	// and that not every older agent knows.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=atomic
	// +optional
	PlanFields []string `json:"planFields,omitempty"`

	// policyKeys are the keys of a plan's policy that the agent knows. Agents that do not set
	// it know those of version 0.2, which has no windows.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=atomic
	// +optional
	PolicyKeys []string `json:"policyKeys,omitempty"`

	// plan is the acknowledged plan: the one under which the ledger was last written.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// answeredPlan is the plan that this report answers: the plan was acknowledged
	// before the reported images were read, and all pages are complete. Agents that do
	// not support prunes do not set it.
	// +optional
	AnsweredPlan *PlanVersion `json:"answeredPlan,omitempty"`
	// pruneNonce is what the agent drew last to ask whether the prunes of its plan, which have
	// not begun, are still requested. It contains the boot ID; see confirmedNonce of a
	// ClusterPlan. Older hubs ignore it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PruneNonce string `json:"pruneNonce,omitempty"`
	// planPolicy is the policy of that plan, so that a hub that was restored from a
	// backup does not revert it. Absent if the plan was deleted.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) <= 64 && size(self[key]) <= 16384)",message="a key of a policy must have at most 64 characters, its value at most 16384"
	// +optional
	PlanPolicy map[string]string `json:"planPolicy,omitempty"`
	// planPolicySource is the policySource of that plan.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PlanPolicySource string `json:"planPolicySource,omitempty"`
	// policy that the member applies, with every key.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) <= 64 && size(self[key]) <= 16384)",message="a key of a policy must have at most 64 characters, its value at most 16384"
	// +optional
	Policy map[string]string `json:"policy,omitempty"`

	// ownConcurrency is the concurrency of the member's own policy ConfigMap, which no
	// plan exceeds. Absent if it sets none, and from agents of older versions.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	OwnConcurrency *int32 `json:"ownConcurrency,omitempty"`
	// ownConcurrencyUnset: that ConfigMap sets none, or does not exist. Where neither
	// field is set, an agent of an older version read it.
	// +optional
	OwnConcurrencyUnset bool `json:"ownConcurrencyUnset,omitempty"`
	// ownWindows are the windows of that ConfigMap, as in its key windows. Absent if it sets none.
	// +kubebuilder:validation:MaxLength=16384
	// +optional
	OwnWindows string `json:"ownWindows,omitempty"`
	// inForce is the concurrency that applies now, by the windows of plan and ConfigMap.
	// Absent if neither has windows.
	// +optional
	InForce *InForceConcurrency `json:"inForce,omitempty"`

	// budget of the member's SyncLedger.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Budget int32 `json:"budget"`
	// slots taken in the member's SyncLedger.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +optional
	Slots int32 `json:"slots"`
	// noLedger: the SyncLedger does not exist yet.
	// +optional
	NoLedger bool `json:"noLedger,omitempty"`
	// transfers is the member's request for the fleet-wide budget. Agents that do not
	// support budgets do not set it.
	// +optional
	Transfers *ReportedTransfers `json:"transfers,omitempty"`
	// phases counts the member's images per phase.
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(phase, size(phase) <= 64)",message="the name of a phase must have at most 64 characters"
	// +optional
	Phases map[Phase]int32 `json:"phases,omitempty"`
	// images is how many images the member has.
	// +optional
	Images int32 `json:"images"`
	// omittedImages is how many images do not fit into the pages, or are on pages that the
	// agent cannot write.
	// +optional
	OmittedImages int32 `json:"omittedImages,omitempty"`
	// references is how many VirtualMachines need an image, summed over all images.
	// +optional
	References int32 `json:"references"`
	// oldestQueuedSince is the creation time of the image that has been queued longest.
	// +optional
	OldestQueuedSince *metav1.Time `json:"oldestQueuedSince,omitempty"`

	// orphans lists, by kind, namespace and name, the first storage objects of images
	// that no longer exist.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Orphans []OrphanedObject `json:"orphans,omitempty"`
	// orphanCount is how many orphans exist.
	// +optional
	OrphanCount int32 `json:"orphanCount,omitempty"`
	// orphanBytes is the storage that they take.
	// +optional
	OrphanBytes int64 `json:"orphanBytes,omitempty"`

	// conditions of the member's SyncLedger and of its handling of the plan.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, size(c.message) <= 8192)",message="the message of a reported condition must have at most 8192 characters"
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// pages of the report.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Pages []PageRef `json:"pages,omitempty"`
}

// ClusterReport is what a member reports to the hub: a root named default, and pages
// that the root lists. It always carries the full state. A page is written before the
// root that lists it. The hub ignores a page that the root does not list, and deletes it
// after a while.
//
// A third object, named activity, says what is imported at the moment; nothing else
// depends on it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=report,categories=ot
// +kubebuilder:validation:XValidation:rule="(self.metadata.name == 'default') == has(self.root)",message="the ClusterReport named default must have root, and no other"
// +kubebuilder:validation:XValidation:rule="(self.metadata.name == 'activity') == has(self.activity)",message="the ClusterReport named activity must have activity, and no other"
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default' || self.metadata.name == 'activity' || self.metadata.name.matches('^page(-[01]{1,32})?$')",message="a ClusterReport must be named default, activity, page, or page- and up to 32 digits 0 and 1"
// +kubebuilder:validation:XValidation:rule="[has(self.root), has(self.page), has(self.activity)].filter(x, x).size() == 1",message="a ClusterReport must have one of root, page and activity"
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
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="clusterUID must have at most 64 characters"
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// sequence is higher in every later write of this object. It is at least the
	// member's clock in milliseconds, so that it also rises after the cluster is
	// restored from a backup.
	// +kubebuilder:validation:Minimum=1
	// +required
	Sequence int64 `json:"sequence"`
	// root is set in the ClusterReport named default only.
	// +optional
	Root *ReportRoot `json:"root,omitempty"`
	// page is set in the ClusterReports that the root lists.
	// +optional
	Page *ReportPage `json:"page,omitempty"`
	// activity is set in the ClusterReport named activity only. The root does not list it.
	// +optional
	Activity *ReportedActivity `json:"activity,omitempty"`
}

// ClusterReportList is a list of ClusterReports.
//
// +kubebuilder:object:root=true
type ClusterReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterReport `json:"items"`
}
