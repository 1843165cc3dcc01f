package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// LedgerName is the name of the only SyncLedger of a cluster, in the agent's
	// namespace.
	LedgerName = "default"
	// MaxSlots is how many slots a SyncLedger can have, and thus the highest
	// concurrency of a cluster. The API server's cost limit for CEL rules sets it.
	MaxSlots = 256
)

// Slot is the permission to run one import.
type Slot struct {
	// image that the import is for.
	// +required
	Image ImageKey `json:"image"`
	// revision of the image.
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// attempt at the revision.
	// +kubebuilder:validation:Minimum=1
	// +required
	Attempt int32 `json:"attempt"`
	// dataVolume is the name of the slot's DataVolume, in the image's namespace. No
	// other attempt ever uses this name.
	// +kubebuilder:validation:MaxLength=63
	// +required
	DataVolume string `json:"dataVolume"`
	// startedAt is when the slot was taken.
	// +required
	StartedAt metav1.Time `json:"startedAt"`
	// ended: the attempt has an outcome. The admission policy then refuses to create
	// its DataVolume, so that a delayed write cannot start the import again after the
	// slot is freed.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// host of the import's source, which decides its group of sources.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Host string `json:"host,omitempty"`
}

// LedgerGrant is the part of the fleet-wide budget that a ledger was written under.
type LedgerGrant struct {
	// bootID of the agent process that wrote the ledger. A grant is valid for one
	// process, and only while no other has written the ledger.
	// +kubebuilder:validation:MaxLength=64
	// +required
	BootID string `json:"bootID"`
	// sequence of the newest TransferGrant that was applied.
	// +optional
	Sequence int64 `json:"sequence,omitempty"`
	// slots of that grant; 0 if it has expired or is for another process.
	// +optional
	Slots int32 `json:"slots,omitempty"`
	// sources says how many of the slots each group of sources may use.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceGrant `json:"sources,omitempty"`
}

// InForceConcurrency is the concurrency of a policy with windows at one time.
type InForceConcurrency struct {
	// concurrency that applies.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Concurrency int32 `json:"concurrency"`
	// changesAt is when a window opens or closes next.
	// +optional
	ChangesAt *metav1.Time `json:"changesAt,omitempty"`
	// opensAt is when more imports may run than now, if that is known.
	// +optional
	OpensAt *metav1.Time `json:"opensAt,omitempty"`
}

// SyncLedgerStatus is the cluster's import budget and the slots that use it.
//
// Invariant, enforced by the API server against every writer, however late its write
// arrives: a slot is added only while fewer slots than the budget are taken.
//
// +kubebuilder:validation:XValidation:rule="(has(self.slots) ? size(self.slots) : 0) <= self.budget || (oldSelf.hasValue() && has(oldSelf.value().slots) && size(self.slots) <= size(oldSelf.value().slots) && self.slots.all(s, oldSelf.value().slots.exists(o, o.dataVolume == s.dataVolume)))",optionalOldSelf=true,message="more slots than the budget: a slot can be added only while fewer slots than the budget are taken"
type SyncLedgerStatus struct {
	// budget is how many imports may run, as the agent last acknowledged it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	// +required
	Budget int32 `json:"budget"`
	// slots that are taken.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Slots []Slot `json:"slots,omitempty"`
	// policy is the last valid policy, key by key. It stays in effect while the
	// ConfigMap is invalid, also across restarts of the agent.
	// +optional
	Policy map[string]string `json:"policy,omitempty"`
	// policyVersion is the resourceVersion of the ConfigMap that the policy came from.
	// +optional
	PolicyVersion string `json:"policyVersion,omitempty"`
	// policyUID is the UID of the ConfigMap that the policy came from.
	// +optional
	PolicyUID types.UID `json:"policyUID,omitempty"`
	// ownConcurrency is what that ConfigMap sets. No plan raises the budget beyond it.
	// Absent if it sets none.
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
	// plan is the newest acknowledged ClusterPlan; older ones are refused.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// planPolicy is the policy of that plan; it is removed with the plan.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	PlanPolicy map[string]string `json:"planPolicy,omitempty"`
	// planPolicySource is the policySource of that plan.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PlanPolicySource string `json:"planPolicySource,omitempty"`
	// grant is the part of the fleet-wide budget that this was written under; absent if
	// the policy has no fleet-wide budget.
	// +optional
	Grant *LedgerGrant `json:"grant,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SyncLedger holds the import slots of a cluster in one object, so that the API server
// orders all admissions. Only the elected agent writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ledger,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the SyncLedger must be named default"
// +kubebuilder:printcolumn:name="Budget",type=integer,JSONPath=`.status.budget`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.conditions[?(@.type=="PolicyAccepted")].reason`
// +kubebuilder:printcolumn:name="Running",type=string,JSONPath=`.status.slots[*].image.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SyncLedger struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status *SyncLedgerStatus `json:"status,omitempty"`
}

// SyncLedgerList is a list of SyncLedgers.
//
// +kubebuilder:object:root=true
type SyncLedgerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncLedger `json:"items"`
}
