package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LinkMode says who syncs the mailbox of a member.
// +kubebuilder:validation:Enum=Push;Pull
type LinkMode string

// Link modes.
const (
	// LinkPush: a hub replica connects to the member and syncs.
	LinkPush LinkMode = "Push"
	// LinkPull: the member's agent connects to the hub and syncs.
	LinkPull LinkMode = "Pull"
)

// MemberLinkSpec says who syncs the mailbox of a member. The elected hub replica writes
// it.
type MemberLinkSpec struct {
	// mode is Push if a hub replica syncs, Pull if the member's agent does.
	// +required
	Mode LinkMode `json:"mode"`
	// replica of the hub that the member is assigned to. Empty in mode Pull, and while
	// no replica is alive.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Replica string `json:"replica,omitempty"`
	// challenge is chosen by the elected hub process. The syncing process repeats it
	// after it has compared the member's report with the hub's copy, both read after
	// the challenge. Confirmations of another challenge are ignored: the hub may have
	// been restored from a backup since.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Challenge string `json:"challenge,omitempty"`
	// connection is the ConnectionID of the MemberCluster in mode Pull, which the agent
	// repeats. A replica reads the MemberCluster itself.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Connection string `json:"connection,omitempty"`
	// leaving asks to delete plan and grant in the member and to copy nothing to it any
	// more.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
}

// CarrierAgentPrefix starts the carrier of a MemberLink that an agent syncs.
const CarrierAgentPrefix = "agent/"

// MaxDroppedFields is how many dropped fields a MemberLink lists.
const MaxDroppedFields = 8

// MemberLinkStatus is written by the syncing process, only when it changes. It is not a
// heartbeat; the report is.
type MemberLinkStatus struct {
	// observedGeneration of the spec that this status is for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// carrier is the process that wrote this status: the name of a hub replica, or
	// agent/<boot ID>.
	// +kubebuilder:validation:MaxLength=320
	// +optional
	Carrier string `json:"carrier,omitempty"`
	// connection is the ConnectionID of the MemberCluster that known, reachable, reason and
	// message are about. Older versions do not set it.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Connection string `json:"connection,omitempty"`
	// reportConnection is the ConnectionID with which the member's report was last read.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	ReportConnection string `json:"reportConnection,omitempty"`
	// known is false until the first attempt to reach the member has ended.
	// +optional
	Known bool `json:"known,omitempty"`
	// reachable: the member answers and its mailbox is watched. Always true in mode
	// Pull.
	// +optional
	Reachable bool `json:"reachable,omitempty"`
	// reason, one of those of condition Reachable of MemberCluster.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what to do. It is always the same for the same cause.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// challenge of the spec that confirmed is for.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Challenge string `json:"challenge,omitempty"`
	// confirmed is a report sequence: since the challenge was read, the hub's copy of
	// the report was compared with the member's own and is at least this new. 0 if not
	// compared yet.
	// +optional
	Confirmed int64 `json:"confirmed,omitempty"`
	// another is the UID of the cluster that answers instead of the expected one.
	// +kubebuilder:validation:XValidation:rule="size(self) <= 64",message="another must have at most 64 characters"
	// +optional
	Another types.UID `json:"another,omitempty"`
	// older: the member's report is older than the hub's copy.
	// +optional
	Older bool `json:"older,omitempty"`
	// ahead is the version of the member's plan if it is newer than the hub's.
	// +optional
	Ahead *PlanVersion `json:"ahead,omitempty"`
	// aheadGrant is the sequence of the member's grant if it is newer than the hub's; 0
	// otherwise.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	// +optional
	AheadGrant int64 `json:"aheadGrant,omitempty"`
	// dropped lists the first fields of plan and grant, by kind and path, that the
	// member's API server drops because its CustomResourceDefinitions are older than
	// the syncing process.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Dropped []string `json:"dropped,omitempty"`

	// syncError says why plan and grant are not written in the member, or its report is
	// not copied; empty if they are. It is always the same for the same cause.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SyncError string `json:"syncError,omitempty"`
	// reportRefused: syncError is about what the member's report says, how much it changes,
	// or what the member answers. No other replica of the hub could copy it.
	// +optional
	ReportRefused bool `json:"reportRefused,omitempty"`

	// cleanedUp: after spec.leaving, plan and grant are gone from the member.
	// +optional
	CleanedUp bool `json:"cleanedUp,omitempty"`
	// cleanUpError says why plan and grant may still exist in the member; no more
	// attempts are made.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	CleanUpError string `json:"cleanUpError,omitempty"`
}

// MemberLink says who syncs the mailbox of a member, and with what result. There is one
// in each member's namespace on the hub, named default.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=link,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the MemberLink of a namespace must be named default"
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Replica",type=string,JSONPath=`.spec.replica`
// +kubebuilder:printcolumn:name="Carrier",type=string,JSONPath=`.status.carrier`
// +kubebuilder:printcolumn:name="Reachable",type=boolean,JSONPath=`.status.reachable`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type MemberLink struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec MemberLinkSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status MemberLinkStatus `json:"status,omitempty"`
}

// MemberLinkList is a list of MemberLinks.
//
// +kubebuilder:object:root=true
type MemberLinkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MemberLink `json:"items"`
}
