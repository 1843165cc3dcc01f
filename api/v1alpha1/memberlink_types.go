package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LinkMode tells who carries the mailbox of a member.
// +kubebuilder:validation:Enum=Push;Pull
type LinkMode string

// Modes.
const (
	// LinkPush: a replica of the hub reaches the member and carries.
	LinkPush LinkMode = "Push"
	// LinkPull: the member's agent dials in and carries.
	LinkPull LinkMode = "Pull"
)

// MemberLinkSpec says who is to carry for a member. The elected replica of the hub
// writes it.
type MemberLinkSpec struct {
	// +required
	Mode LinkMode `json:"mode"`
	// replica of the hub that the member is assigned to; empty where mode is Pull, and
	// while no replica is known to be alive.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Replica string `json:"replica,omitempty"`
	// challenge is of the elected process alone: whoever carries repeats it once it
	// has compared the member's report with the hub's copy after having read it. What
	// was confirmed to another is of no account: the hub's store may have been restored
	// from a backup since.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Challenge string `json:"challenge,omitempty"`
	// leaving: plan and grant are to be removed in the member, and nothing is to be
	// carried down any more.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
}

// MaxDroppedFields is how many fields a MemberLink names.
const MaxDroppedFields = 8

// MemberLinkStatus is what whoever carries says of that. It is written when it
// changes, and is no sign of life: the report is.
type MemberLinkStatus struct {
	// observedGeneration of spec that this was written under.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// carrier that wrote this: a replica of the hub by its name, or agent/ and the
	// agent's boot ID.
	// +kubebuilder:validation:MaxLength=320
	// +optional
	Carrier string `json:"carrier,omitempty"`
	// known is false before the first attempt to reach the member has come to an end.
	// +optional
	Known bool `json:"known,omitempty"`
	// reachable: the member answers, and its mailbox is being watched. In mode Pull it
	// is so whenever this is written.
	// +optional
	Reachable bool `json:"reachable,omitempty"`
	// reason is one of condition Reachable's.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what to do; it is the same for the same cause.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// challenge of spec under which confirmed is.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Challenge string `json:"challenge,omitempty"`
	// confirmed: since challenge was read, the hub's copy of the report was compared
	// with the member's own, and was not of before this sequence then. 0 for not yet.
	// +optional
	Confirmed int64 `json:"confirmed,omitempty"`
	// another is the cluster that answers in place of the one that is known.
	// +optional
	Another types.UID `json:"another,omitempty"`
	// older: the member shows a report from before the hub's copy.
	// +optional
	Older bool `json:"older,omitempty"`
	// ahead is the version of a plan in the member that is newer than the hub's.
	// +optional
	Ahead *PlanVersion `json:"ahead,omitempty"`
	// aheadGrant is the sequence of a grant in the member that is newer than the
	// hub's; 0 for none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	// +optional
	AheadGrant int64 `json:"aheadGrant,omitempty"`
	// dropped are fields of plan and grant that the member's API server does not store,
	// by kind and path: its kinds are older than whoever carries. The first of them.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Dropped []string `json:"dropped,omitempty"`

	// cleanedUp: with spec.leaving, plan and grant are gone in the member.
	// +optional
	CleanedUp bool `json:"cleanedUp,omitempty"`
	// cleanUpError says why they may be left; then nothing more is tried.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	CleanUpError string `json:"cleanUpError,omitempty"`
}

// MemberLink says who carries the mailbox of a member, and how that goes. It is in
// the member's namespace on the hub.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=link,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one MemberLink in a namespace, named default"
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
