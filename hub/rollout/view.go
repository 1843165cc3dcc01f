package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// View is everything that a decision about one FleetDiskImage depends on.
type View struct {
	// Image has the status of the last decision, written or not: what an older status
	// lacks, such as when a wave was done, would start over.
	Image *v1alpha1.FleetDiskImage
	// Clusters are all MemberClusters, placed or not, sorted by name.
	Clusters []Cluster
	// Conflict is the result of FindConflict.
	Conflict string
	// Taken is the result of FindTakenNames; empty without a Conflict.
	Taken []types.NamespacedName
	// Holders are the clusters that may still have planned images of it, sorted by
	// name. They count while it is being deleted.
	Holders []string
	// ApprovalGuarded is the condition as it is now; zero where that is unknown.
	ApprovalGuarded metav1.Condition
	// Budget is the fleet-wide budget; nil for none.
	Budget *policy.Budget
	Now    time.Time
}

// Cluster is what is known of one member about the VMDiskImage that CurrentImage names.
type Cluster struct {
	Name   string
	Labels map[string]string
	// OfflineReason is a condition's reason; empty: the member is online.
	OfflineReason string
	// OnlineSince is zero where that is unknown.
	OnlineSince time.Time
	// Online and Open are those of v1alpha1.MemberUptime. They are shared, and must not be changed.
	Online, Open []v1alpha1.MemberStretch
	// WindowOpensAt is when the member may import again by its windows; zero while it may.
	// WindowOpenedAt is since when it may, or could until the window closed; zero for long.
	WindowOpensAt, WindowOpenedAt time.Time
	// Effective is what it is to have: the template with the overrides that select it. nil:
	// Decide computes it. It is shared, and must not be changed.
	Effective *override.Effective
	// PlannedDigest and PlannedRevision are those of the spec in its plan, or of the started
	// one that the plan does not show yet; empty for none. PlannedAt is zero without them.
	PlannedDigest, PlannedRevision string
	PlannedAt                      time.Time
	// HadImage: it had the image by the last decision of this process.
	HadImage bool
	// Loss is when a later decision found that it no longer had the image; the zero value for never,
	// or not since this process started.
	Loss Loss
	// PlannedRetry is the token of that item. KnowsRetry: its agent follows tokens.
	PlannedRetry string
	KnowsRetry   bool
	// PlanFull: its plan has no room for another image, so it cannot start.
	PlanFull bool
	// PlanRefused: the API server refuses its next plan, so that it gets nothing new.
	PlanRefused bool
	// AgentVersion of the member's agent; empty where it is unknown. UnknownFields are what
	// Effective uses, as in v1alpha1.ImageFields, that the member does not take, and its
	// plan does not have: its plan stays as it is.
	AgentVersion  string
	UnknownFields []string
	Report        Report
	// Activity is what the member imports and queues, observed at ActivityAt by the hub's
	// clock; nil where that is unknown. Its budget is within the member's grant.
	Activity   *v1alpha1.ReportedActivity
	ActivityAt time.Time
	// SourceLimits are how many imports from each group of sources its grant allows; nil where
	// none is limited.
	SourceLimits map[string]int32
}

// Report is what a member reports of the current VMDiskImage. It is zero where the
// member reports nothing.
type Report struct {
	// Exists: the VMDiskImage exists.
	Exists                    bool
	Revision, ServingRevision string
	Phase                     v1alpha1.Phase
	Reason                    v1alpha1.Reason
	Message                   string
	// Stalled: the image's condition is True; never by older agents.
	Stalled bool
	// OpensAt is when the window opens that the image waits for; zero for none.
	OpensAt time.Time
	// Retry is the last token that the agent followed.
	Retry string
	// ItemState is how the agent handled the plan's item; empty where its plan has none.
	ItemState   v1alpha1.PlanItemState
	ItemMessage string
	// ItemReason is set while the item waits until a person acts; never by older agents.
	ItemReason v1alpha1.Reason
	// ItemRevision is the revision that ItemState is about; empty from older agents.
	ItemRevision string
}

// NewReport returns what a member reports of an image; nil: nothing.
func NewReport(img *v1alpha1.ReportedImage) Report {
	if img == nil {
		return Report{}
	}
	r := Report{
		Exists: img.UID != "", Revision: img.Revision, ServingRevision: img.ServingRevision,
		Phase: img.Phase, Reason: img.Reason, Message: img.Message, Stalled: img.Stalled, Retry: img.Retry,
	}
	if img.OpensAt != nil {
		r.OpensAt = img.OpensAt.Time
	}
	if img.Plan != nil {
		r.ItemState, r.ItemReason, r.ItemMessage, r.ItemRevision = img.Plan.State, img.Plan.Reason, img.Plan.Message, img.Plan.Revision
	}
	return r
}

// Availability returns the condition's reason why a member is offline, or an empty
// reason and since when it is online. A member is online while its agent reports and its
// identity is confirmed, unless it is in quarantine.
func Availability(member *v1alpha1.MemberCluster) (offlineReason string, onlineSince time.Time) {
	if member.Spec.Quarantine != nil {
		return v1alpha1.ReasonQuarantined, time.Time{}
	}
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		c := meta.FindStatusCondition(member.Status.Conditions, t)
		switch {
		case c == nil:
			return v1alpha1.ReasonUnknown, time.Time{}
		case c.Status != metav1.ConditionTrue:
			return c.Reason, time.Time{}
		case c.LastTransitionTime.After(onlineSince):
			onlineSince = c.LastTransitionTime.Time
		}
	}
	return "", onlineSince
}

// PlacedCluster is one cluster that the FleetDiskImage is placed in.
type PlacedCluster struct {
	Cluster string
	Wave    string
	State   v1alpha1.ClusterState
	// Effective is what it is to have. It is shared, and must not be changed.
	Effective *override.Effective
	// Started: its plan has the source of Effective, or gets it now.
	Started bool
	// KeepsItem: its plan has that source, and keeps its item although Effective has changed
	// in fields that are no source, such as publish: the member does not know them.
	KeepsItem bool
	// Retry is the token that its plan's item has, or gets now.
	Retry string
	// Reason and Message explain State; both may be empty.
	Reason, Message string
}

// Decision is what to do about one FleetDiskImage.
type Decision struct {
	Status v1alpha1.FleetDiskImageStatus
	// Start are the clusters that start now, by name. Status and Placed already count
	// them as Progressing.
	Start []string
	// Placed are all placed clusters, by wave, then name.
	Placed []PlacedCluster
	// Freeze: plans keep what they have of this FleetDiskImage, because its placement
	// cannot be read. Placed is empty then.
	Freeze bool
	// NoneSelected: the placement selects no cluster. A mistake there must not remove what it
	// had placed: plans keep what they have, as in a conflict.
	NoneSelected bool
	// RequeueAfter is when to decide again without an event; 0 for never.
	RequeueAfter time.Duration
	// EstimateAfter is when to decide again only for expectedAt; 0 for never.
	EstimateAfter time.Duration
}

// CurrentImage returns the name of the VMDiskImage of the current version.
func CurrentImage(img *v1alpha1.FleetDiskImage) types.NamespacedName {
	return types.NamespacedName{Namespace: img.Spec.TargetNamespace, Name: img.ImageNameForVersion(img.Spec.Version)}
}

// Loss is when a cluster lost an image that it had, and what Online and Open counted then from
// PlannedAt on: a MemberCluster keeps the stretches in which an image was planned, not those in
// which one was lost.
type Loss struct {
	At           time.Time
	online, open stretchCount
}

// stretchCount is how long stretches lasted together; isKnown is false where there were none.
type stretchCount struct {
	time    time.Duration
	isKnown bool
}

// RecordLoss records that a cluster no longer has the image.
func (c *Cluster) RecordLoss(now time.Time) {
	count := func(list []v1alpha1.MemberStretch) stretchCount {
		return stretchCount{v1alpha1.StretchTimeSince(list, c.PlannedAt, now), len(list) > 0}
	}
	c.Loss = Loss{At: now, online: count(c.Online), open: count(c.Open)}
}
