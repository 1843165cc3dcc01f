package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// View is all that a decision about one FleetDiskImage rests on.
type View struct {
	// Image with the status that was decided last, be it written yet or not: what
	// an older one has forgotten, as that a wave is done, starts over.
	Image *v1alpha1.FleetDiskImage
	// Clusters are all MemberClusters there are, placed or not, in order of name.
	Clusters []Cluster
	// Conflict is what the function Rival returns.
	Conflict string
	// NameTaken is what the function Taken returns; there is no Taken without a Rival.
	NameTaken bool
	// Holders are the clusters that still report any of its images which plans have
	// asked for, in order of name. They count while it is being deleted.
	Holders []string
	// ApprovalGuarded is condition ApprovalGuarded as it is now, zero where that is not known.
	ApprovalGuarded metav1.Condition
	Now             time.Time
}

// Cluster is what is known of one member with regard to the current image of one
// FleetDiskImage: the VMDiskImage that CurrentImage names.
type Cluster struct {
	Name   string
	Labels map[string]string
	// OfflineReason says why it is, by a condition's reason; empty: it is online.
	OfflineReason string
	// OnlineSince is zero where it is not known.
	OnlineSince time.Time
	// PlannedRevision is the revision that its plan asks for under the current name; empty
	// for none. What was started and is not in the plan that is seen yet counts.
	PlannedRevision string
	// PlannedAt is since when, zero where Planned is empty.
	PlannedAt time.Time
	// Full: its plan has no room for another image. It does not begin then.
	PlanFull bool
	Report   Report
}

// Report is what a member reports of the VMDiskImage of the current name. It is
// zero where the report has none.
type Report struct {
	// There: there is such a VMDiskImage.
	Exists                    bool
	Revision, ServingRevision string
	Phase                     v1alpha1.Phase
	Reason                    v1alpha1.Reason
	Message                   string
	// ItemState is what the agent did about it, empty where its plan does not name it.
	ItemState   v1alpha1.PlanItemState
	ItemMessage string
	// ItemRevision is the revision that Item is about; empty for one that an older
	// agent tells of.
	ItemRevision string
}

// NewReport returns what a member reports of an image; nil is for none.
func NewReport(img *v1alpha1.ReportedImage) Report {
	if img == nil {
		return Report{}
	}
	r := Report{
		Exists: img.UID != "", Revision: img.Revision, ServingRevision: img.ServingRevision,
		Phase: img.Phase, Reason: img.Reason, Message: img.Message,
	}
	if img.Plan != nil {
		r.ItemState, r.ItemMessage, r.ItemRevision = img.Plan.State, img.Plan.Message, img.Plan.Revision
	}
	return r
}

// Availability tells why a member is offline, by a condition's reason, or since when it
// is online where reason is empty. A member is online while its agent reports and
// it is the cluster that it was.
func Availability(member *v1alpha1.MemberCluster) (reason string, since time.Time) {
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		c := meta.FindStatusCondition(member.Status.Conditions, t)
		switch {
		case c == nil:
			return v1alpha1.ReasonUnknown, time.Time{}
		case c.Status != metav1.ConditionTrue:
			return c.Reason, time.Time{}
		case c.LastTransitionTime.After(since):
			since = c.LastTransitionTime.Time
		}
	}
	return "", since
}

// PlacedCluster is one cluster that the FleetDiskImage is placed in.
type PlacedCluster struct {
	Cluster string
	Wave    string
	State   v1alpha1.ClusterState
	// Begun: its plan asks for the current revision, or is to from now on.
	Started bool
	// Reason and Message say more where there is more to say.
	Reason, Message string
}

// Decision is what is to be done about one FleetDiskImage.
type Decision struct {
	Status v1alpha1.FleetDiskImageStatus
	// Start are the clusters that begin now, by name. Status and Placed count them
	// as Progressing already.
	Start []string
	// Placed are all clusters it is placed in, by wave, then name.
	Placed []PlacedCluster
	// Hold: plans keep what they have of this FleetDiskImage, for it cannot be told
	// where it is placed. Placed is empty then.
	Freeze bool
	// RequeueAfter is when to look again although nothing happened; 0 for never.
	RequeueAfter time.Duration
}

// CurrentImage returns the VMDiskImage of the version that is to be rolled out.
func CurrentImage(img *v1alpha1.FleetDiskImage) types.NamespacedName {
	return types.NamespacedName{Namespace: img.Spec.TargetNamespace, Name: img.ImageNameForVersion(img.Spec.Version)}
}
