package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// JoinPhase of a ClusterJoin.
// +kubebuilder:validation:Enum=Pending;Issued
type JoinPhase string

// Phases of a ClusterJoin.
const (
	// JoinPending: the agent's key has not been accepted yet.
	JoinPending JoinPhase = "Pending"
	// JoinIssued: status.credential is set; only the holder of the key can open it.
	JoinIssued JoinPhase = "Issued"
)

// ClusterJoinSpec is an agent's registration request. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ClusterJoin cannot be changed: request a new join token and join again"
type ClusterJoinSpec struct {
	// clusterUID is the UID of the kube-system namespace of the agent's cluster. It is
	// not verified: any holder of the join token can choose it.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z-]{1,64}$')",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// publicKey is the agent's X25519 public key, 32 bytes in base64. The credential is
	// sealed for it, so that another holder of the join token cannot open it.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	// +required
	PublicKey string `json:"publicKey"`
	// account is the UID of the ServiceAccount of the join token. The hub deletes a
	// request that was made with another than the newest join token.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z-]{1,64}$')",message="account must be the UID of the join token's ServiceAccount"
	// +required
	Account types.UID `json:"account"`
	// agentVersion of the requesting agent.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
}

// ClusterJoinStatus is the hub's answer.
type ClusterJoinStatus struct {
	// phase is Pending until the key is accepted, then Issued.
	// +optional
	Phase JoinPhase `json:"phase,omitempty"`
	// fingerprint of the key, to compare with the agent's log and to accept in
	// spec.connection.pull.acceptedKey of the MemberCluster.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Fingerprint string `json:"fingerprint,omitempty"`
	// message says what the request waits for.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// credential is a kubeconfig with a token of the agent's ServiceAccount on the hub,
	// sealed for publicKey (NaCl anonymous box).
	// +kubebuilder:validation:MaxLength=16384
	// +optional
	Credential []byte `json:"credential,omitempty"`
}

// ClusterJoin is an agent's request to register with the hub (pull mode). The agent
// creates it with a join token in the member's namespace on the hub; the hub deletes it
// once the agent has connected with its credential.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=join,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the ClusterJoin of a namespace must be named default"
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
