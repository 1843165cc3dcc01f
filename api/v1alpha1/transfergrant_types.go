package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MaxSourceGroups is how many groups of sources can have their own budget in a fleet.
const MaxSourceGroups = 16

// AssumedGrantDuration is the duration of a grant until an agent's process has had one. An agent
// requests three times in that time, with or without an answer.
const AssumedGrantDuration = 5 * time.Minute

// SourceGrant is how many imports may run from one group of sources.
type SourceGrant struct {
	// name of the group in the fleet's policy.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// slots is how many imports from the group may run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Slots int32 `json:"slots"`
}

// TransferLimits is a member's share of the fleet-wide budget for a limited time.
type TransferLimits struct {
	// slots is how many imports may run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Slots int32 `json:"slots"`
	// sources says how many of the slots each group of sources may use; a group that is
	// not listed may use 0.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceGrant `json:"sources,omitempty"`
	// nonce of the request that this grant answers. An agent process ignores a grant
	// with another nonce than its own.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:MinLength=1
	// +required
	Nonce string `json:"nonce"`
	// durationSeconds is how long the grant is valid, counted from when the agent
	// started to send the request, by the agent's monotonic clock.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +required
	DurationSeconds int32 `json:"durationSeconds"`
}

// TransferGrantSpec says how much of the fleet-wide budget a member may use.
//
// +kubebuilder:validation:XValidation:rule="self.unlimited != has(self.limits)",message="a grant must either be unlimited or have limits"
type TransferGrantSpec struct {
	// clusterUID of the member that the grant was made for, as in a ClusterPlan.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// sequence orders the grants of one member; higher is newer.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
	// unlimited: the fleet has no budget; only the policy's concurrency counts.
	// +required
	Unlimited bool `json:"unlimited"`
	// limits apply only if the plan's policy has key safeConcurrency.
	// +optional
	Limits *TransferLimits `json:"limits,omitempty"`
}

// TransferGrant holds a member's share of the fleet-wide budget. It is separate from
// the ClusterPlan because it is renewed often.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=grant,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the TransferGrant of a namespace must be named default"
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
