package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MemberNamespacePrefix and a member's name make the namespace of its plan, its
// grant and its report on the hub.
const MemberNamespacePrefix = "ot-member-"

// SecretKeyRef names one key of a Secret in the hub's namespace.
type SecretKeyRef struct {
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// key with the kubeconfig.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:default=kubeconfig
	// +optional
	Key string `json:"key,omitempty"`
}

// ClusterAPIRef names a Cluster of Cluster API on the hub's API server.
type ClusterAPIRef struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// MemberPull lets the member's agent dial in, with a credential of its own on the
// hub that reaches nothing but the member's mailbox there.
type MemberPull struct {
	// autoAccept has whoever presents the join token first be let in. Without it the
	// platform team accepts the key of the agent that asks.
	// +optional
	AutoAccept bool `json:"autoAccept,omitempty"`
	// acceptedKey is the fingerprint of the agent's key that is let in; ClusterJoin
	// default in the member's namespace on the hub, and the agent's log, tell it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	AcceptedKey string `json:"acceptedKey,omitempty"`
	// revoked makes all credentials of the agent worthless at once, and join tokens
	// with them. It cannot be taken back before condition Joined says Revoked: a hub that
	// had not seen it would have revoked nothing. Then the agent joins anew with a new
	// join token.
	// +optional
	Revoked bool `json:"revoked,omitempty"`
}

// MemberConnection says how the hub reaches a member, or is reached by it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.kubeconfigSecretRef), has(self.clusterAPI), has(self.pull)].filter(x, x).size() == 1",message="name exactly one of kubeconfigSecretRef, clusterAPI and pull: how does the hub reach this cluster, or does its agent dial in?"
type MemberConnection struct {
	// kubeconfigSecretRef names a Secret with a kubeconfig, which need not be
	// allowed more than the ClusterPlan, TransferGrant and ClusterReports in the
	// agent's namespace.
	// +optional
	KubeconfigSecretRef *SecretKeyRef `json:"kubeconfigSecretRef,omitempty"`
	// clusterAPI names a Cluster. Its kubeconfig Secret is used once, to make a
	// ServiceAccount that may touch the kinds above and renew its own token; then
	// the hub works with that token alone.
	// +optional
	ClusterAPI *ClusterAPIRef `json:"clusterAPI,omitempty"`
	// pull: the hub does not reach the member; its agent dials in.
	// +optional
	Pull *MemberPull `json:"pull,omitempty"`
}

// MemberClusterSpec says which cluster belongs to the fleet.
type MemberClusterSpec struct {
	// +required
	Connection MemberConnection `json:"connection"`
	// agentNamespace is where ot-agent runs in the member.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:default=ot-agent
	// +optional
	AgentNamespace string `json:"agentNamespace,omitempty"`
}

// MemberPolicy is the policy that the hub plans for a member.
type MemberPolicy struct {
	// data of the policy, every key.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Data map[string]string `json:"data,omitempty"`
	// source says where it comes from: "fleet default" or the overrides that
	// apply.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Source string `json:"source,omitempty"`
}

// MemberImages counts the images of a member.
type MemberImages struct {
	// +optional
	Total int32 `json:"total"`
	// +optional
	Queued int32 `json:"queued"`
	// +optional
	Syncing int32 `json:"syncing"`
	// +optional
	Ready int32 `json:"ready"`
	// +optional
	Failed int32 `json:"failed"`
	// leaving are those that are to be deleted.
	// +optional
	Leaving int32 `json:"leaving"`
	// unreferenced are those that no VirtualMachine needs.
	// +optional
	Unreferenced int32 `json:"unreferenced"`
	// bytes of storage that they take, as provisioned.
	// +optional
	Bytes int64 `json:"bytes"`
}

// MemberTransfers is a member's part in the fleet-wide budget.
type MemberTransfers struct {
	// granted is how many imports it may run by the grant that the hub has made last.
	// +optional
	Granted int32 `json:"granted"`
	// held is how many it is counted with: what it may be running, dark or not.
	// +optional
	Held int32 `json:"held"`
	// wanted is how many it could make use of, as it has said last.
	// +optional
	Wanted int32 `json:"wanted"`
	// heldUntil is when less is held for it at the latest, by the hub's clock, if it is
	// not heard of until then.
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// reason is one of a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// ImageSummary is one image in short.
type ImageSummary struct {
	// +required
	Namespace string `json:"namespace"`
	// +required
	Name string `json:"name"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// MemberClusterStatus is what the hub knows of a member.
type MemberClusterStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// namespace of the member on the hub.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// shard is the replica of the hub that carries for it; agent where its agent dials
	// in.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Shard string `json:"shard,omitempty"`
	// transfers is its part in the fleet-wide budget; not there where there is none.
	// +optional
	Transfers *MemberTransfers `json:"transfers,omitempty"`
	// clusterUID is the UID of the member's kube-system namespace, as its first
	// report told it, or as annotation pelotech.ot/accept-cluster accepted it.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	// agentVersion of the agent that reports.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// policy that is planned for it.
	// +optional
	Policy *MemberPolicy `json:"policy,omitempty"`
	// plan that the hub has made last.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// acknowledgedPlan is the one that the member's ledger was written under last.
	// +optional
	AcknowledgedPlan *PlanVersion `json:"acknowledgedPlan,omitempty"`
	// budget and slotsUsed are those of the member's SyncLedger. Without a report
	// they are unknown, and not there.
	// +optional
	Budget *int32 `json:"budget,omitempty"`
	// +optional
	SlotsUsed *int32 `json:"slotsUsed,omitempty"`
	// images are not there while no report is.
	// +optional
	Images *MemberImages `json:"images,omitempty"`
	// references is how many VirtualMachines need an image, over all images.
	// +optional
	References *int32 `json:"references,omitempty"`
	// failing are the first images that have failed, by namespace and name.
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	// +optional
	Failing []ImageSummary `json:"failing,omitempty"`
	// lastReport is when a report was last carried to the hub, by the hub's clock.
	// It is written at most once a minute while nothing else changes.
	// +optional
	LastReport *metav1.Time `json:"lastReport,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberCluster is a cluster of the fleet. Its labels are what policies and
// placements select it by.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=member;members,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 53 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a MemberCluster must have at most 53 characters, of a-z, 0-9 and -: ot-member-<name> is its namespace"
// +kubebuilder:validation:XValidation:rule="!oldSelf.spec.connection.?pull.?revoked.orValue(false) || self.spec.connection.?pull.?revoked.orValue(false) || has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Joined' && c.reason == 'Revoked')",message="spec.connection.pull.revoked is taken back once condition Joined says Revoked: until then something that was issued may still be good"
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="AgentHealthy")].status`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agentVersion`
// +kubebuilder:printcolumn:name="Budget",type=integer,JSONPath=`.status.budget`
// +kubebuilder:printcolumn:name="Slots",type=integer,JSONPath=`.status.slotsUsed`
// +kubebuilder:printcolumn:name="Granted",type=integer,JSONPath=`.status.transfers.granted`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.transfers.held`
// +kubebuilder:printcolumn:name="Queued",type=integer,JSONPath=`.status.images.queued`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.images.ready`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.images.failed`
// +kubebuilder:printcolumn:name="Refs",type=integer,JSONPath=`.status.references`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.policy.source`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.status.shard`
// +kubebuilder:printcolumn:name="Report",type=date,JSONPath=`.status.lastReport`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,priority=1
type MemberCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec MemberClusterSpec `json:"spec"`
	// +optional
	Status MemberClusterStatus `json:"status,omitempty"`
}

// MemberClusterList is a list of MemberClusters.
//
// +kubebuilder:object:root=true
type MemberClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MemberCluster `json:"items"`
}
