package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// LedgerName is the name of the one SyncLedger of a cluster, in the agent's namespace.
	LedgerName = "default"
	// MaxSlots is the most that a SyncLedger can hold, and so the highest
	// concurrency of a cluster. The API server's limit on the cost of CEL rules
	// sets it.
	MaxSlots = 256
)

// Slot is the right to run one import.
type Slot struct {
	// +required
	Image ImageKey `json:"image"`
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// +kubebuilder:validation:Minimum=1
	// +required
	Attempt int32 `json:"attempt"`
	// dataVolume is the name of the DataVolume that this slot is for, in the
	// image's namespace. It is never used for another attempt.
	// +kubebuilder:validation:MaxLength=63
	// +required
	DataVolume string `json:"dataVolume"`
	// +required
	StartedAt metav1.Time `json:"startedAt"`
	// ended: the attempt has an outcome. From here on the admission policy refuses
	// to create its DataVolume, so that a write that was held up cannot bring it
	// back after the slot is given to another.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// host that it imports from, by which it is counted to a group of sources.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Host string `json:"host,omitempty"`
}

// LedgerGrant is what a ledger was written under of the fleet-wide budget.
type LedgerGrant struct {
	// bootID of the agent process that wrote it. A grant answers one process, and only
	// while no other has written the ledger.
	// +kubebuilder:validation:MaxLength=64
	// +required
	BootID string `json:"bootID"`
	// sequence of the newest TransferGrant that was taken up.
	// +optional
	Sequence int64 `json:"sequence,omitempty"`
	// slots of it; 0 where it is not in force: it has ended, or is not for this process.
	// +optional
	Slots int32 `json:"slots,omitempty"`
	// sources are parts of slots for groups of sources.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []SourceGrant `json:"sources,omitempty"`
}

// SyncLedgerStatus is the cluster's budget and who uses it.
//
// The rule is the API server's own guard of the budget: it holds against any
// writer, however late its write arrives.
//
// +kubebuilder:validation:XValidation:rule="(has(self.slots) ? size(self.slots) : 0) <= self.budget || (oldSelf.hasValue() && has(oldSelf.value().slots) && size(self.slots) <= size(oldSelf.value().slots) && self.slots.all(s, oldSelf.value().slots.exists(o, o.dataVolume == s.dataVolume)))",optionalOldSelf=true,message="more slots than the budget: a slot is given only while fewer than budget are taken"
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
	// policy is the last valid policy, key by key: it stays in force while the
	// ConfigMap is invalid, also over a restart of the agent.
	// +optional
	Policy map[string]string `json:"policy,omitempty"`
	// policyVersion is the resourceVersion of the ConfigMap that policy came from.
	// +optional
	PolicyVersion string `json:"policyVersion,omitempty"`
	// policyUID is the UID of the ConfigMap that policy came from.
	// +optional
	PolicyUID types.UID `json:"policyUID,omitempty"`
	// plan is the newest ClusterPlan that was acknowledged: one that is older is
	// refused.
	// +optional
	Plan *PlanVersion `json:"plan,omitempty"`
	// planPolicy is what that plan said about the policy; it goes when there is no
	// plan any more.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	PlanPolicy map[string]string `json:"planPolicy,omitempty"`
	// planPolicySource is that plan's policySource.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PlanPolicySource string `json:"planPolicySource,omitempty"`
	// grant is what it was written under of the fleet-wide budget; none where the
	// policy knows no such.
	// +optional
	Grant *LedgerGrant `json:"grant,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SyncLedger holds the slots of a cluster: one object, so that the API server
// orders all admissions. Only the elected agent writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ledger,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one SyncLedger, named default"
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
