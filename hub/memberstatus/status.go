package memberstatus

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

const (
	// IncompleteReportGrace is how long a report may be incomplete before ReportComplete
	// turns False: pages are copied one after the other, and the condition would flap.
	IncompleteReportGrace = 10 * time.Second
	// lastReportInterval is how often status.lastReport moves while nothing else changes.
	lastReportInterval = time.Minute
	// An agent is silent after this many missed heartbeats, within these bounds: a report
	// may name any heartbeat.
	maxMissedHeartbeats = 3
	minSilence          = 30 * time.Second
	maxSilence          = 10 * time.Minute
	// twoAgentsHold is how long after they last reported in turns two agents count as such. Both may
	// have the longest heartbeat.
	twoAgentsHold = 2 * maxSilence
	// maxVersionBytes bounds a version, which the member chooses.
	maxVersionBytes = 64
)

// Obstacle keeps a member from being Ready. Reason is NamespaceTaken, which needs a person,
// NamespaceMissing or NamespaceTerminating.
type Obstacle struct{ Reason, Message string }

// Input is all that the status of a member depends on.
type Input struct {
	Now time.Time
	// Member as it is stored.
	Member     *v1alpha1.MemberCluster
	Connection Connection
	// Joined is the condition of the registration in pull mode; nil in push mode.
	Joined *metav1.Condition
	// Installed is condition AgentInstalled; nil if the hub does not install the agent.
	Installed *metav1.Condition
	// Rotated is condition CredentialRotated; nil in pull mode.
	Rotated *metav1.Condition
	// HubVersion is the version of the hub itself.
	HubVersion string
	// Shard is the replica that syncs the member. Transfers is its share of the
	// fleet-wide budget.
	Shard     string
	Transfers *v1alpha1.MemberTransfers
	// Obstacle is why the member's namespace on the hub cannot be used; zero for none.
	Obstacle Obstacle
	// SyncStalled explains that the member is up and reports while no replica syncs its
	// report; empty if nothing of that kind is known.
	SyncStalled string
	// Report is the hub's copy of the member's report, nil for none, and ReportClusterUID
	// the clusterUID of that copy.
	Report           *v1alpha1.ReportRoot
	ReportClusterUID types.UID
	// ReceivedAt is when this process last saw the copy change, by its own clock. Nil
	// after a start: then status.lastReport counts.
	ReceivedAt *time.Time
	// TwoAgentsAt is when this process last saw that two agents report in turns, by the same clock;
	// zero if it has not.
	TwoAgentsAt time.Time
	// WatchedSince is when this process began to read reports, by the same clock.
	WatchedSince time.Time
	// PlanRefused: the next plan waits, since it would exceed the member's share of the fleet's
	// budget.
	PlanRefused bool
	// WaitingFor is what the hub itself has to know before it plans; empty for nothing.
	WaitingFor string
	// InvalidPlan is why the next plan cannot be written or, with Holder, the plan not be withdrawn; empty
	// for nothing.
	InvalidPlan string
	// Contested: another hub writes plans or grants of the member, too.
	Contested bool
	// NewerMemberPlan is the version of the member's plan if it is newer than the hub's.
	NewerMemberPlan v1alpha1.PlanVersion
	// OtherClusterUID is the clusterUID of a report in the member that was not copied,
	// since it is of another cluster than the known one.
	OtherClusterUID types.UID
	// Holder is the other member that the cluster belongs to, see FindHolder. Then
	// nothing is planned for this one, and its report counts for the other.
	Holder string
	// ReportOlder: the report in the member is older than the hub's copy.
	ReportOlder bool
	// SyncError says why the mailbox is not synced; empty if it is.
	SyncError string
	// ReportRefused: SyncError is about the report itself.
	ReportRefused bool
	// UnsupportedFields are the fields of plan and grant that the member's API server
	// does not store.
	UnsupportedFields []string
	// Totals of the member's pages; nil for none.
	Totals *inventory.Totals
	// IncompleteSince is since when Totals.MissingPages has had entries; nil for long.
	IncompleteSince *time.Time
	// Excess is what the member's namespace on the hub has beyond the limits.
	Excess ReportExcess
	// Plan on the hub, after the decision of this reconcile; nil for none.
	Plan *v1alpha1.ClusterPlanSpec
	// DesiredPolicy, PolicySource and PolicyErrors are the results of Policy.ForMember.
	DesiredPolicy map[string]string
	PolicySource  string
	PolicyErrors  []policy.KeyError
	// WindowOpensAt is when the member may import again by the windows that the hub knows; zero:
	// it may.
	WindowOpensAt time.Time
	// PolicyRefused says why the fleet's policy ConfigMap is not in force; empty if it is.
	PolicyRefused string
}

// ReportExcess is what lies in a member's namespace on the hub and is not used.
type ReportExcess struct {
	// RootTooLarge: the root exceeds MaxReportObjectBytes.
	RootTooLarge bool
	// Undecodable: the hub cannot decode the root or a page.
	Undecodable bool
	// IgnoredPages is how many listed pages do not fit into the limits.
	IgnoredPages int
	// FloodedAt is when more unlisted pages than an agent writes were last deleted; nil
	// for not lately.
	FloodedAt *time.Time
}

// ResolveClusterUID returns which cluster a member is: the one that a person accepted by
// annotation, or else the recorded one, or else the one that reports first.
func ResolveClusterUID(member *v1alpha1.MemberCluster, reported types.UID) types.UID {
	return cmp.Or(types.UID(member.Annotations[v1alpha1.AnnotationAcceptCluster]), member.Status.ClusterUID, reported)
}

// Compute returns the status of a member, and after how long to compute it again if
// nothing happens; 0 for never.
func Compute(v Input) (status v1alpha1.MemberClusterStatus, after time.Duration) {
	s := &statusBuilder{Input: v}
	uid := ResolveClusterUID(v.Member, v.ReportClusterUID)
	if v.ReportClusterUID != uid {
		s.Report, s.Totals = nil, nil
	}
	if v.OtherClusterUID == uid {
		s.OtherClusterUID = ""
	}
	if v.Holder != "" {
		s.Report, s.Totals, s.Plan, s.OtherClusterUID = nil, nil, nil, ""
		s.duplicateCluster, uid = uid, "" // recording it would claim it
	}
	s.status = v1alpha1.MemberClusterStatus{
		ObservedGeneration: v.Member.Generation,
		Namespace:          v1alpha1.MemberNamespacePrefix + v.Member.Name,
		ClusterUID:         uid,
		Shard:              v.Shard,
		Transfers:          v.Transfers,
		LastReport:         v.Member.Status.LastReport,
		Conditions:         slices.Clone(v.Member.Status.Conditions),
	}
	s.setPolicy()
	s.setReport()
	s.setWindow()
	s.setConditions()
	s.setUptime()

	if at := v.ReceivedAt; at != nil && s.Report != nil {
		last := s.status.LastReport
		moved := last == nil || at.Sub(last.Time).Abs() >= lastReportInterval
		if moved || !equality.Semantic.DeepEqual(s.status, v.Member.Status) {
			t := storedtime.Truncate(*at)
			s.status.LastReport = &t
		}
	}
	return s.status, s.recheckAfter
}

// statusBuilder computes one status.
type statusBuilder struct {
	Input
	status       v1alpha1.MemberClusterStatus
	recheckAfter time.Duration
	// duplicateCluster is the cluster of Holder.
	duplicateCluster types.UID
}

// recheckAt requests another computation at a future time.
func (s *statusBuilder) recheckAt(at time.Time) {
	if wait := at.Sub(s.Now); wait > 0 && (s.recheckAfter == 0 || wait < s.recheckAfter) {
		s.recheckAfter = wait
	}
}

func (s *statusBuilder) setPolicy() {
	switch {
	case s.Plan != nil && len(s.Plan.Policy) > 0:
		s.status.Policy = &v1alpha1.MemberPolicy{Data: s.Plan.Policy, Source: s.Plan.PolicySource}
	case s.DesiredPolicy != nil:
		s.status.Policy = &v1alpha1.MemberPolicy{Data: s.DesiredPolicy, Source: s.PolicySource}
	}
	if s.Plan != nil {
		version := s.Plan.PlanVersion
		s.status.Plan = &version
	}
}

// setReport copies the numbers of the report. Without a report they are unknown, and stay
// absent.
func (s *statusBuilder) setReport() {
	r := s.Report
	if r == nil {
		return
	}
	s.status.AgentVersion = v1alpha1.SanitizeText(r.AgentVersion, maxVersionBytes)
	if r.Plan != nil {
		version := *r.Plan
		s.status.AcknowledgedPlan = &version
	}
	if !r.NoLedger {
		budget, slots := r.Budget, r.Slots
		s.status.Budget, s.status.SlotsUsed = &budget, &slots
	}
	s.status.OwnConcurrency = ownConcurrency(r, s.Now)
	references := r.References
	s.status.References = &references
	if s.Totals == nil {
		return
	}
	s.status.Images = &v1alpha1.MemberImages{
		Total:        r.Images,
		Queued:       r.Phases[v1alpha1.PhaseQueued],
		Syncing:      r.Phases[v1alpha1.PhaseSyncing],
		Ready:        r.Phases[v1alpha1.PhaseSucceeded],
		Failed:       r.Phases[v1alpha1.PhaseFailed],
		Leaving:      r.Phases[v1alpha1.PhasePrunePending] + r.Phases[v1alpha1.PhaseTerminating] + r.Phases[v1alpha1.PhaseDeleting],
		Unreferenced: int32(s.Totals.Unreferenced),
		Bytes:        s.Totals.Bytes,
	}
	s.status.Failing = s.Totals.Failing
}

// StaleReason returns why what is known of a member may be out of date, by its
// conditions or its quarantine; empty if it is current.
func StaleReason(member *v1alpha1.MemberCluster) string {
	if member.Spec.Quarantine != nil {
		return v1alpha1.ReasonQuarantined
	}
	for _, c := range member.Status.Conditions {
		identity := c.Type == v1alpha1.ConditionIdentityConfirmed
		if (identity || c.Type == v1alpha1.ConditionAgentHealthy) && c.Status != metav1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}
