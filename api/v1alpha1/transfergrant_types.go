package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TransferGrantSpec says how much of a fleet-wide budget a member may use.
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
	// alone counts. It is the only grant that there is so far.
	// +kubebuilder:validation:XValidation:rule="self",message="unlimited must be true: limited grants are not served by this version"
	// +required
	Unlimited bool `json:"unlimited"`
}

// TransferGrant carries a member's share of the fleet-wide budget. It is an
// object of its own because it is renewed often.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=grant,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one TransferGrant in a namespace, named default"
// +kubebuilder:printcolumn:name="Sequence",type=integer,JSONPath=`.spec.sequence`
// +kubebuilder:printcolumn:name="Unlimited",type=boolean,JSONPath=`.spec.unlimited`
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
