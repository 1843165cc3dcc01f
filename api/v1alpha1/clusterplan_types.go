package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MailboxName is the name of a member's ClusterPlan and TransferGrant and of the root
// of its ClusterReport: in the agent's namespace in the member, and in the member's
// namespace on the hub.
const MailboxName = "default"

// MaxPolicyKeys is the maximum of a plan's policy.
const MaxPolicyKeys = 64

// PlanVersion orders the plans of one member: by epoch, then by sequence.
// metadata.generation cannot, because it differs between the copies.
type PlanVersion struct {
	// epoch is raised when the hub finds that the member has a newer plan than the hub
	// knows of, as after a restore from a backup. Plans of an earlier epoch never
	// replace those of a later one.
	// +kubebuilder:validation:Minimum=0
	// +required
	Epoch int64 `json:"epoch"`
	// sequence is raised with every change of the plan's content.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
	// hash of the plan's content, to detect two different plans with the same version.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Hash string `json:"hash,omitempty"`
}

// maxClaim bounds the sequences that a member is believed to be ahead with. What the hub writes above
// them, and what the agent then reports, stays a number that JSON has exactly.
const maxClaim = 1 << 52

// ClaimedSequence returns the sequence of a grant, or the epoch of a plan, that a member says it has
// and the hub does not know; 0 for one that no hub has written.
func ClaimedSequence(claimed int64) int64 {
	if !IsCredibleClaim(claimed) {
		return 0
	}
	return claimed
}

// IsCredibleClaim reports whether a hub may have written such a sequence or epoch.
func IsCredibleClaim(claimed int64) bool { return claimed < maxClaim }

// Compare returns a negative number if v is older than other, 0 if both have the same
// epoch and sequence, and a positive number otherwise. It ignores the hash.
func (v PlanVersion) Compare(other PlanVersion) int {
	switch {
	case v.Epoch != other.Epoch:
		return compareInt64(v.Epoch, other.Epoch)
	default:
		return compareInt64(v.Sequence, other.Sequence)
	}
}

func compareInt64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// PlannedImage is a VMDiskImage that the member must have.
type PlannedImage struct {
	// namespace of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// name of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// spec of the VMDiskImage. The member's API server validates it when the agent
	// applies it.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +required
	Spec VMDiskImageSpec `json:"spec"`
	// retry is a token: with each new one, the agent starts the image over, once, if it has
	// failed. Its attempts are counted from 0 again. Older agents ignore it.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Retry string `json:"retry,omitempty"`
	// plannedAt is when the plan first asked for this revision or retry, by the hub's clock.
	// Only the hub uses it.
	// +optional
	PlannedAt *metav1.Time `json:"plannedAt,omitempty"`
}

// KeptImage is a VMDiskImage that the plan does not ask for, but that must not be
// deleted where it exists.
type KeptImage struct {
	// namespace of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// name of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// RetiredImage is a VMDiskImage that was created for a plan and that the agent deletes
// when no VirtualMachine references it.
type RetiredImage struct {
	// namespace of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// name of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// unreferencedFor is how long no VirtualMachine must have referenced it, as in
	// 168h. With 0s it is deleted as soon as it is unreferenced.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +required
	UnreferencedFor metav1.Duration `json:"unreferencedFor"`
}

// PlanInquiry names a PruneReport in progress. The member does nothing about it except
// answer the plan that has it: a report that answers such a plan was made after it.
type PlanInquiry struct {
	// uid of the PruneReport.
	// +required
	UID types.UID `json:"uid"`
	// epoch of the first plan that had this inquiry.
	// +kubebuilder:validation:Minimum=0
	// +required
	Epoch int64 `json:"epoch"`
	// sequence of the first plan that had this inquiry.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
}

// PlannedPrune is a VMDiskImage to delete for an ImagePrune, if the member finds it as
// it was reported: the same object and revision, not in the plan, and not referenced
// now or since.
type PlannedPrune struct {
	// namespace of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// name of the VMDiskImage.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// imageUID is the UID of the VMDiskImage.
	// +required
	ImageUID types.UID `json:"imageUID"`
	// revision of its source.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// unreferencedSince is the time since which no VirtualMachine had referenced the
	// image when it was reported, in Unix seconds by the member's clock. An image that
	// was referenced later is skipped.
	// +required
	UnreferencedSince int64 `json:"unreferencedSince"`
	// others allows deleting the image even if no plan created it.
	// +optional
	Others bool `json:"others,omitempty"`
	// uid of the ImagePrune.
	// +required
	UID types.UID `json:"uid"`
	// undoWindow is how long the image stays usable after the member starts the prune.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +required
	UndoWindow metav1.Duration `json:"undoWindow"`
	// undo cancels the prune; the image stays.
	// +optional
	Undo bool `json:"undo,omitempty"`
}

// Limits that keep a plan small enough for one object.
const (
	MaxPlannedImages = 500
	MaxKeptImages    = 2000
	MaxRetiredImages = 2000
	MaxInquiries     = 64
	MaxPlannedPrunes = 500
)

// ClusterPlanSpec is everything that the hub wants from one member.
type ClusterPlanSpec struct {
	PlanVersion `json:",inline"`
	// clusterUID is the UID of the member's kube-system namespace that this plan was
	// made for. Another cluster under the same name refuses it.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// policy of the member, with every key. If the member also has a policy ConfigMap,
	// the smaller concurrency applies, and the plan decides all other keys. If absent,
	// the plan sets no policy.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Policy map[string]string `json:"policy,omitempty"`
	// policySource says where the policy comes from, for people.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PolicySource string `json:"policySource,omitempty"`
	// heldPolicy is the hash of the policy in the hub's ConfigMap if this plan does not
	// apply it: the hub was restored to a state older than the member's, and the
	// ConfigMap has not been changed since.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	HeldPolicy string `json:"heldPolicy,omitempty"`
	// images that the member must have.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Images []PlannedImage `json:"images,omitempty"`
	// kept lists images that must not be deleted, although the plan does not ask for
	// them.
	// +kubebuilder:validation:MaxItems=2000
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Kept []KeptImage `json:"kept,omitempty"`
	// retired lists images that were created for plans and are deleted when
	// unreferenced. An image that is also in images or kept, or that somebody else
	// created, is left alone.
	// +kubebuilder:validation:MaxItems=2000
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Retired []RetiredImage `json:"retired,omitempty"`
	// inquiries are the PruneReports in progress.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=uid
	// +optional
	Inquiries []PlanInquiry `json:"inquiries,omitempty"`
	// prunes lists images to delete if they still are as reported. An image that is
	// also in images or kept stays. A prune that is removed from the list before the
	// image is deleted is undone.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Prunes []PlannedPrune `json:"prunes,omitempty"`
	// confirmedNonce is the pruneNonce of the report that the hub had read when it wrote this
	// plan: the prunes were requested after the member had asked. Empty if the member has not
	// asked yet. Absent without prunes, and from older hubs, whose prunes begin unconfirmed.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ConfirmedNonce *string `json:"confirmedNonce,omitempty"`
}

// ClusterPlan holds everything that the hub wants from one member. It always carries
// the full state: losing or repeating a copy is harmless, and an older one never
// replaces a newer one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=plan,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the ClusterPlan of a namespace must be named default"
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.spec.epoch`
// +kubebuilder:printcolumn:name="Sequence",type=integer,JSONPath=`.spec.sequence`
// +kubebuilder:printcolumn:name="Concurrency",type=string,JSONPath=`.spec.policy.concurrency`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.policySource`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterPlan struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ClusterPlanSpec `json:"spec"`
}

// ClusterPlanList is a list of ClusterPlans.
//
// +kubebuilder:object:root=true
type ClusterPlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterPlan `json:"items"`
}
