package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MaxSourceGroups is how many groups of sources a fleet may have budgets of their
// own for.
const MaxSourceGroups = 16

// SourceGrant is how many imports may run at a time from one group of sources.
type SourceGrant struct {
	// name of the group in the fleet's policy.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Slots int32 `json:"slots"`
}

// TransferLimits are a member's share of the fleet-wide budget, for a while.
type TransferLimits struct {
	// slots is how many imports may run at a time.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Slots int32 `json:"slots"`
	// sources are parts of slots for groups of sources; a group that is not there has 0.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceGrant `json:"sources,omitempty"`
	// nonce of the request that this answers. Another than the process knows that
	// reads it gives nothing.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:MinLength=1
	// +required
	Nonce string `json:"nonce"`
	// durationSeconds is how long it holds, counted from when the agent began to send
	// that request, by its own clock that nobody sets.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +required
	DurationSeconds int32 `json:"durationSeconds"`
}

// TransferGrantSpec says how much of a fleet-wide budget a member may use.
//
// +kubebuilder:validation:XValidation:rule="self.unlimited != has(self.limits)",message="a grant is either unlimited or has limits"
type TransferGrantSpec struct {
	// clusterUID is that of the member it was made for, as in a ClusterPlan.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// sequence orders the grants of one member.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
	// unlimited: the fleet has no budget of its own, the policy's concurrency
	// alone counts.
	// +required
	Unlimited bool `json:"unlimited"`
	// limits hold where the plan's policy has key safeConcurrency; elsewhere they are of
	// no account.
	// +optional
	Limits *TransferLimits `json:"limits,omitempty"`
}

// TransferGrant carries a member's share of the fleet-wide budget. It is an
// object of its own because it is renewed often.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=grant,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one TransferGrant in a namespace, named default"
// +kubebuilder:printcolumn:name="Sequence",type=integer,JSONPath=`.spec.sequence`
// +kubebuilder:printcolumn:name="Unlimited",type=boolean,JSONPath=`.spec.unlimited`
// +kubebuilder:printcolumn:name="Slots",type=integer,JSONPath=`.spec.limits.slots`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TransferGrant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec TransferGrantSpec `json:"spec"`
}

// TransferGrantList is a list of TransferGrants.
//
// +kubebuilder:object:root=true
type TransferGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TransferGrant `json:"items"`
}
