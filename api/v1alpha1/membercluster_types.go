package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MemberNamespacePrefix followed by a member's name is the member's namespace on the
// hub, which holds its ClusterPlan, TransferGrant, ClusterReports and MemberLink.
const MemberNamespacePrefix = "ot-member-"

// SecretKeyRef names one key of a Secret in the hub's namespace.
type SecretKeyRef struct {
	// name of the Secret.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be that of a Secret: a-z, 0-9, - and ., with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// key that holds the kubeconfig. Default: kubeconfig.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:default=kubeconfig
	// +optional
	Key string `json:"key,omitempty"`
}

// ClusterAPIRef names a Cluster of Cluster API on the hub's API server.
type ClusterAPIRef struct {
	// namespace of the Cluster.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be the name of a namespace"
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// name of the Cluster.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be that of a Cluster: a-z, 0-9, - and ., with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// MemberPull selects pull mode: the member's agent connects to the hub, with its own
// credential that can access only the member's mailbox.
type MemberPull struct {
	// autoAccept admits the first agent that presents the join token. If false,
	// somebody must accept the agent's key in acceptedKey.
	// +optional
	AutoAccept bool `json:"autoAccept,omitempty"`
	// acceptedKey is the fingerprint of the agent key to admit, as in SHA256:…. The
	// agent's log and ClusterJoin default in the member's namespace on the hub show it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	AcceptedKey string `json:"acceptedKey,omitempty"`
	// revoked invalidates all credentials of the agent and all join tokens at once. It
	// can be unset only after condition Joined has reason Revoked, so that a hub that
	// has not seen it cannot skip the revocation. The agent then registers again with a
	// new join token.
	// +optional
	Revoked bool `json:"revoked,omitempty"`
}

// MemberConnection says how hub and member reach each other. Exactly one field must be
// set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.kubeconfigSecretRef), has(self.clusterAPI), has(self.pull)].filter(x, x).size() == 1",message="set exactly one of kubeconfigSecretRef, clusterAPI and pull: with pull the agent connects to the hub, else the hub connects to the cluster"
type MemberConnection struct {
	// kubeconfigSecretRef names a Secret in the hub's namespace with a kubeconfig for
	// the member. It needs access only to ClusterPlan, TransferGrant and ClusterReports
	// in the agent's namespace.
	// +optional
	KubeconfigSecretRef *SecretKeyRef `json:"kubeconfigSecretRef,omitempty"`
	// clusterAPI names a Cluster of Cluster API. The hub uses its kubeconfig Secret
	// once, to create a ServiceAccount that can access only the kinds above and renew
	// its own token, and then uses only that token.
	// +optional
	ClusterAPI *ClusterAPIRef `json:"clusterAPI,omitempty"`
	// pull selects pull mode: the member's agent connects to the hub, for members that
	// the hub cannot reach.
	// +optional
	Pull *MemberPull `json:"pull,omitempty"`
}

// MemberQuarantine excludes a member from the fleet without removing it.
type MemberQuarantine struct {
	// reason for the quarantine, for people.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:MinLength=1
	// +required
	Reason string `json:"reason"`
}

// MemberClusterSpec says which cluster belongs to the fleet and how it is reached.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.connection.pull) && has(self.insecureSkipTLSVerify) && self.insecureSkipTLSVerify)",message="insecureSkipTLSVerify is for kubeconfigs: with connection.pull the agent always verifies the hub's certificate"
type MemberClusterSpec struct {
	// connection between hub and member.
	// +required
	Connection MemberConnection `json:"connection"`
	// quarantine cuts the member off: nothing is synced, it gets no grants, and what it
	// may be running does not count for fleetConcurrency. Rollouts pass it over; for
	// prunes it is unknown. In pull mode its credentials are revoked: neither the field nor
	// connection.pull can be removed before condition Joined has reason Revoked.
	// +optional
	Quarantine *MemberQuarantine `json:"quarantine,omitempty"`
	// agentNamespace is the namespace of ot-agent in the member. Default: ot-agent.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="agentNamespace must be the name of a namespace"
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:default=ot-agent
	// +optional
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// insecureSkipTLSVerify allows a kubeconfig with insecure-skip-tls-verify. A machine
	// between hub and member can then read the hub's credential and act as the member:
	// condition ServerVerified is False as long as this is set. Without it, the hub
	// refuses such a kubeconfig.
	// +optional
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// MemberPolicy is the policy that the hub plans for a member.
type MemberPolicy struct {
	// data of the policy, with every key.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Data map[string]string `json:"data,omitempty"`
	// source of the policy: "fleet default" or the overrides that apply.
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
	// leaving counts images that are being deleted or pruned.
	// +optional
	Leaving int32 `json:"leaving"`
	// unreferenced counts images that no VirtualMachine needs.
	// +optional
	Unreferenced int32 `json:"unreferenced"`
	// bytes of storage that the images take, as provisioned.
	// +optional
	Bytes int64 `json:"bytes"`
}

// MemberTransfers is a member's part of the fleet-wide budget.
type MemberTransfers struct {
	// granted is how many imports the newest grant allows.
	// +optional
	Granted int32 `json:"granted"`
	// held is how many slots the budget reserves for the member: the most it may be
	// running, even while it is silent.
	// +optional
	Held int32 `json:"held"`
	// wanted is how many slots the member requested last.
	// +optional
	Wanted int32 `json:"wanted"`
	// excess is how many slots the member reports beyond what the hub has planned or
	// granted. They count for fleetExcessTolerance, once.
	// +optional
	Excess int32 `json:"excess,omitempty"`
	// heldUntil is the latest time, by the hub's clock, until which the slots stay
	// reserved if the member stays silent.
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// reason for these numbers, from a closed set.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the reason.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// ImageSummary describes one image in short.
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

// MemberWindow is where a member is in the windows of its policies, or of the fleet's budget.
type MemberWindow struct {
	// opensAt is when it may import again. Absent while it may.
	// +optional
	OpensAt *metav1.Time `json:"opensAt,omitempty"`
	// openedAt is since when it may import, or could until the window closed. Absent where no
	// window has opened yet.
	// +optional
	OpenedAt *metav1.Time `json:"openedAt,omitempty"`
}

// MaxMemberStretches bounds each list of stretches of a member.
const MaxMemberStretches = 64

// MemberStretch is a time without interruption.
type MemberStretch struct {
	// from is when it began.
	// +required
	From metav1.Time `json:"from"`
	// until is when it ended. Absent while it lasts.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// secondsBefore is how long all earlier stretches lasted together, listed or not.
	// +kubebuilder:validation:Minimum=0
	// +optional
	SecondsBefore int64 `json:"secondsBefore,omitempty"`
}

// MemberUptime is when a member could make progress, by the hub's clock. A progressDeadline
// counts this time. Of earlier stretches, those are listed during or before which an image of
// the plan was planned.
type MemberUptime struct {
	// online are the stretches in which it was online: it reported, its identity was
	// confirmed, and it was not in quarantine. Absent before the first one.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Online []MemberStretch `json:"online,omitempty"`
	// open are the stretches in which it was also waiting for no window. Absent before the
	// first one.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Open []MemberStretch `json:"open,omitempty"`
}

// MemberClusterStatus is what the hub knows about a member.
type MemberClusterStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// namespace of the member on the hub.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// shard is the hub replica that syncs the member's mailbox, or "agent" in pull
	// mode.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Shard string `json:"shard,omitempty"`
	// transfers is the member's part of the fleet-wide budget; absent without one.
	// +optional
	Transfers *MemberTransfers `json:"transfers,omitempty"`
	// clusterUID is the UID of the member's kube-system namespace, from its first
	// report or from annotation pelotech.ot/accept-cluster.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	// agentVersion of the agent that reports.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// policy that the hub plans for the member.
	// +optional
	Policy *MemberPolicy `json:"policy,omitempty"`
	// plan is the version of the newest plan.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// acknowledgedPlan is the plan under which the member's ledger was last written.
	// +optional
	AcknowledgedPlan *PlanVersion `json:"acknowledgedPlan,omitempty"`
	// budget of the member's SyncLedger: how many imports may run. Absent without a
	// report.
	// +optional
	Budget *int32 `json:"budget,omitempty"`
	// ownConcurrency is the concurrency of the member's own policy ConfigMap. The smaller
	// of it and the hub's is the budget. Absent if it sets none, and without a report.
	// +optional
	OwnConcurrency *int32 `json:"ownConcurrency,omitempty"`
	// window says whether the member may import by the windows of the policy. Absent while it
	// has always been able to.
	// +optional
	Window *MemberWindow `json:"window,omitempty"`
	// uptime is when the member was online, and when no window held it up. Absent before it was
	// first online, and of a cluster that was rebuilt. Hubs of older versions did not record it.
	// +optional
	Uptime *MemberUptime `json:"uptime,omitempty"`
	// slotsUsed is how many slots of the SyncLedger are taken. Absent without a report.
	// +optional
	SlotsUsed *int32 `json:"slotsUsed,omitempty"`
	// images of the member, counted. Absent without a report.
	// +optional
	Images *MemberImages `json:"images,omitempty"`
	// references is how many VirtualMachines need an image, summed over all images.
	// +optional
	References *int32 `json:"references,omitempty"`
	// failing lists the first failed images, by namespace and name.
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	// +optional
	Failing []ImageSummary `json:"failing,omitempty"`
	// lastReport is when the hub last received a report, by the hub's clock. Without
	// other changes it is updated at most once a minute.
	// +optional
	LastReport *metav1.Time `json:"lastReport,omitempty"`
	// silentSince is when a member whose agent no longer reports was last heard, by the
	// hub's clock. Absent while the agent reports.
	// +optional
	SilentSince *metav1.Time `json:"silentSince,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberCluster is a cluster of the fleet. Policies and placements select it by its
// labels.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=member;members,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 53 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a MemberCluster must have at most 53 characters, of a-z, 0-9 and -: ot-member-<name> is its namespace"
// +kubebuilder:validation:XValidation:rule="!oldSelf.spec.connection.?pull.?revoked.orValue(false) || self.spec.connection.?pull.?revoked.orValue(false) || has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Joined' && c.reason == 'Revoked')",message="spec.connection.pull.revoked can be unset only after condition Joined has reason Revoked: until then issued credentials may still be valid"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.quarantine) || !has(oldSelf.spec.connection.pull) || has(self.spec.quarantine) && has(self.spec.connection.pull) || has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Joined' && c.reason == 'Revoked')",message="a member in quarantine can leave quarantine or pull mode only after condition Joined has reason Revoked: until then issued credentials may still be valid"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.quarantine) || has(oldSelf.spec.connection.pull) || has(self.spec.quarantine) || !(has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Joined' && c.reason != 'Revoked'))",message="a member that has left pull mode can leave quarantine only after the hub has removed condition Joined: until then issued credentials may still be valid"
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
// +kubebuilder:printcolumn:name="Silent",type=date,JSONPath=`.status.silentSince`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Transfers",type=string,JSONPath=`.status.transfers.reason`,priority=1
// +kubebuilder:printcolumn:name="OwnLimit",type=integer,JSONPath=`.status.ownConcurrency`,priority=1
// +kubebuilder:printcolumn:name="Quarantine",type=string,JSONPath=`.spec.quarantine.reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,priority=1
type MemberCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec MemberClusterSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
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
