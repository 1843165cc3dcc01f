package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MailboxName is the name of the one ClusterPlan and TransferGrant of a member,
// and of the root of its ClusterReport: in the agent's namespace in the member,
// in the member's namespace on the hub.
const MailboxName = "default"

// PlanVersion orders the plans of one member: a higher epoch is newer, in one
// epoch a higher sequence. Metadata does not tell, for it differs per copy.
type PlanVersion struct {
	// epoch is raised when the hub finds the member ahead of what it knows to have
	// planned itself: it was restored from a backup, or set up anew. Nothing of
	// the former epoch that is still on its way can win then.
	// +kubebuilder:validation:Minimum=0
	// +required
	Epoch int64 `json:"epoch"`
	// sequence is raised with every change of the plan's content.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
	// hash of the plan's content: two hubs, or one before and after a restore, can
	// have given one version to two plans.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Hash string `json:"hash,omitempty"`
}

// Compare orders two versions: below 0 where v is older than other. The hash
// orders nothing.
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

// PlannedImage is a ImageNameForVersion that the member is to have.
type PlannedImage struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// spec of the ImageNameForVersion. The member's API server validates it when the agent
	// applies it.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +required
	Spec VMDiskImageSpec `json:"spec"`
	// plannedAt is since when the plan has asked for this revision, by the hub's
	// clock. It is for the hub alone.
	// +optional
	PlannedAt *metav1.Time `json:"plannedAt,omitempty"`
}

// KeptImage is a ImageNameForVersion that the member need not have, but that is not to go
// where it has it.
type KeptImage struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// RetiredImage is a ImageNameForVersion that was made because a plan asked for it, and
// that is to go where nobody references it.
type RetiredImage struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// unreferencedFor is how long no VirtualMachine must have referenced it. At 0 it
	// is deleted at once; while it is referenced it serves on.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +required
	UnreferencedFor metav1.Duration `json:"unreferencedFor"`
}

// PlanInquiry is a PruneReport that is being made. The member does nothing about
// it: a plan with another inquiry is another plan, and a report that answers it was
// made after it.
type PlanInquiry struct {
	// uid of the PruneReport.
	// +required
	UID types.UID `json:"uid"`
	// epoch and sequence of the first plan that carried it.
	// +kubebuilder:validation:Minimum=0
	// +required
	Epoch int64 `json:"epoch"`
	// +kubebuilder:validation:Minimum=0
	// +required
	Sequence int64 `json:"sequence"`
}

// PlannedPrune is a ImageNameForVersion that an ImagePrune has deleted, if the member finds
// it as it was reported: this very object, of this revision, wanted by no plan, and
// held by nobody now and since.
type PlannedPrune struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// imageUID is that of the ImageNameForVersion.
	// +required
	ImageUID types.UID `json:"imageUID"`
	// revision of its source.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Revision string `json:"revision,omitempty"`
	// unreferencedSince is since when no VirtualMachine had referenced it when it was
	// reported, in seconds since 1970 by the member's clock: one that was referenced
	// since is not what was reviewed.
	// +required
	UnreferencedSince int64 `json:"unreferencedSince"`
	// others: it goes also where no plan has made it.
	// +optional
	Others bool `json:"others,omitempty"`
	// uid of the ImagePrune.
	// +required
	UID types.UID `json:"uid"`
	// undoWindow is how long it serves on from when the member takes this up.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +required
	UndoWindow metav1.Duration `json:"undoWindow"`
	// undo: it is to stay after all.
	// +optional
	Undo bool `json:"undo,omitempty"`
}

// Bounds of a plan, so that it fits into one object.
const (
	MaxPlannedImages = 500
	MaxKeptImages    = 2000
	MaxRetiredImages = 2000
	MaxInquiries     = 64
	MaxPlannedPrunes = 500
)

// ClusterPlanSpec is all that the hub wants of a member.
type ClusterPlanSpec struct {
	PlanVersion `json:",inline"`
	// clusterUID is the UID of the member's kube-system namespace, for which this
	// plan was made: another cluster under the same name refuses it.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="clusterUID must be the UID of the cluster's kube-system namespace"
	// +required
	ClusterUID types.UID `json:"clusterUID"`
	// policy of the member, every key. Where the member has a policy ConfigMap of
	// its own, the smaller concurrency holds, and this plan wins for all other
	// keys. Without it the plan says nothing about the policy.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Policy map[string]string `json:"policy,omitempty"`
	// policySource says where policy comes from, for people.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	PolicySource string `json:"policySource,omitempty"`
	// heldPolicy is the hash of the policy that the hub's ConfigMap asks for and
	// that this plan does not carry: the hub was restored to an older state than
	// the member's, and the ConfigMap was not changed since.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	HeldPolicy string `json:"heldPolicy,omitempty"`
	// images that the member is to have.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Images []PlannedImage `json:"images,omitempty"`
	// kept are images that are not to go, though the plan does not ask for them.
	// +kubebuilder:validation:MaxItems=2000
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Kept []KeptImage `json:"kept,omitempty"`
	// retired are images that plans have asked for, and that are to go where nobody
	// references them. What images or kept names, or what somebody else has made, is
	// left alone.
	// +kubebuilder:validation:MaxItems=2000
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Retired []RetiredImage `json:"retired,omitempty"`
	// inquiries are PruneReports that are being made.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=uid
	// +optional
	Inquiries []PlanInquiry `json:"inquiries,omitempty"`
	// prunes are images that are to go where they are still as they were reported.
	// What images or kept names stays. One that is not named any more and has not
	// been deleted is undone.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +optional
	Prunes []PlannedPrune `json:"prunes,omitempty"`
}

// ClusterPlan carries what the hub wants of one member, in full. Losing or
// repeating a copy does no harm, and an older one never replaces a newer one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=plan,categories=ot
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="there is one ClusterPlan in a namespace, named default"
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
