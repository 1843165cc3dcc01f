package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// JoinPhase of a ClusterJoin.
// +kubebuilder:validation:Enum=Pending;Issued
type JoinPhase string

// Phases.
const (
	// JoinPending: the platform team has not accepted the agent's key.
	JoinPending JoinPhase = "Pending"
	// JoinIssued: the credential is in the status, for the holder of that key alone.
	JoinIssued JoinPhase = "Issued"
)

// ClusterJoinSpec is what an agent says that asks to be let in.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ClusterJoin does not change: whoever presents a join token first has used it up"
type ClusterJoinSpec struct {
	// clusterUID is the UID of the kube-system namespace of the agent's cluster.
	// It stands in what people are told to compare: whoever has a join token chooses it.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z-]{1,64}$')",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// publicKey is the agent's X25519 key, 32 bytes in base64: what is issued is
	// sealed for it, so that who else has the join token gets nothing.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	// +required
	PublicKey string `json:"publicKey"`
	// account is the UID of the ServiceAccount that the join token is of. What was
	// presented with another token than the hub has made last is removed.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z-]{1,64}$')",message="account must be the UID of the ServiceAccount that the join token is of"
	// +required
	Account types.UID `json:"account"`
	// agentVersion that asks.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
}

// ClusterJoinStatus is the hub's answer.
type ClusterJoinStatus struct {
	// +optional
	Phase JoinPhase `json:"phase,omitempty"`
	// fingerprint of the key, to be compared with what the agent tells of its own and
	// accepted in the MemberCluster.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Fingerprint string `json:"fingerprint,omitempty"`
	// message says what is waited for.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// credential is a token of the agent's ServiceAccount on the hub, sealed for
	// publicKey (NaCl anonymous box).
	// +kubebuilder:validation:MaxLength=16384
	// +optional
	Credential []byte `json:"credential,omitempty"`
}

// ClusterJoin is an agent's request to be let into the fleet. It is made with a join
// token, in the member's namespace on the hub, and goes once the agent has dialled
// in with the credential that comes of it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=join,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one ClusterJoin in a namespace, named default"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterUID`
// +kubebuilder:printcolumn:name="Fingerprint",type=string,JSONPath=`.status.fingerprint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterJoin struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ClusterJoinSpec `json:"spec"`
	// +optional
	Status ClusterJoinStatus `json:"status,omitempty"`
}

// ClusterJoinList is a list of ClusterJoins.
//
// +kubebuilder:object:root=true
type ClusterJoinList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterJoin `json:"items"`
}
