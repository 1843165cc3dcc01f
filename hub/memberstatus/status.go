package memberstatus

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

const (
	// IncompleteReportGrace is how long a report may be incomplete before the status
	// says so: pages are copied one after the other, and would make it flap.
	IncompleteReportGrace = 10 * time.Second
	// lastReportInterval is how often status.lastReport is moved while nothing else
	// changes.
	lastReportInterval = time.Minute
	// An agent is silent when this many heartbeats are missing, and no sooner or
	// later than these bounds: a report may ask for any heartbeat.
	maxMissedHeartbeats = 3
	minSilence          = 30 * time.Second
	maxSilence          = 10 * time.Minute
)

// Connection is how the hub gets on with a member's API server. Without Known it
// has not been tried yet. Reason is one of v1alpha1, Message says what to do. With
// Pull it is the agent that dials in: whether it does, its reports tell.
type Connection struct {
	PullMode         bool
	Known, Reachable bool
	Reason, Message  string
}

// Input is all that a member's status rests on.
type Input struct {
	Now time.Time
	// Member as it is stored.
	Member     *v1alpha1.MemberCluster
	Connection Connection
	// Joined says how far an agent that dials in is with that; nil for one that does
	// not.
	Joined *metav1.Condition
	// Installed says whether the agent is installed as the hub would have it; nil where
	// the hub is not asked to install it.
	Installed *metav1.Condition
	// HubVersion is the hub's own.
	HubVersion string
	// Shard is who carries for it, Transfers its part in the fleet-wide budget.
	Shard     string
	Transfers *v1alpha1.MemberTransfers
	// SyncStalled says that the member is up and reports while nobody carries that;
	// empty: nothing is known of that kind.
	SyncStalled string
	// Report is the hub's copy of the member's report, nil for none;
	// ReportClusterUID is the clusterUID of that copy.
	Report           *v1alpha1.ReportRoot
	ReportClusterUID types.UID
	// ReceivedAt is when this process saw the copy get newer last, by its own
	// clock. Nil after a start: then what the status says counts.
	ReceivedAt *time.Time
	// WatchedSince is when this process began to read reports, by the same clock.
	WatchedSince time.Time
	// OtherClusterUID is the clusterUID of a report in the member that was not copied,
	// because it is not that of the cluster that is known.
	OtherClusterUID types.UID
	// Holder names the other member that its cluster belongs to, see the function
	// Holder. Nothing is planned for it then, and what it reports is the other's.
	Holder string
	// Older: the member shows a report that is older than the hub's copy.
	ReportOlder bool
	// UnsupportedFields are fields of its plan and grant that the member's API server does not store.
	UnsupportedFields []string
	// Totals of the member's pages, nil for none.
	Totals *inventory.Totals
	// IncompleteSince is since when Totals.Missing names any page. Nil: for long.
	IncompleteSince *time.Time
	// Plan is the one on the hub, after Next was followed; nil for none.
	Plan *v1alpha1.ClusterPlanSpec
	// Desired, Source and PolicyErrors are what Policy.For returns.
	DesiredPolicy map[string]string
	PolicySource  string
	PolicyErrors  []policy.KeyError
}

// ResolveClusterUID returns which cluster a member is taken to be: the one that a
// person accepted by annotation, or else the one that it was, or else the one
// that reports first.
func ResolveClusterUID(member *v1alpha1.MemberCluster, reported types.UID) types.UID {
	return cmp.Or(types.UID(member.Annotations[v1alpha1.AnnotationAcceptCluster]), member.Status.ClusterUID, reported)
}

// Compute returns the status that a member is to have, and after which time
// it is to be worked out again although nothing happened; 0 for never.
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
		s.duplicateCluster, uid = uid, "" // recorded, it would be a claim
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
	s.setConditions()

	if at := v.ReceivedAt; at != nil && s.Report != nil {
		last := s.status.LastReport
		moved := last == nil || at.Sub(last.Time).Abs() >= lastReportInterval
		if moved || !equality.Semantic.DeepEqual(s.status, v.Member.Status) {
			t := metav1.NewTime(at.UTC().Truncate(time.Second))
			s.status.LastReport = &t
		}
	}
	return s.status, s.recheckAfter
}

// statusBuilder works out one status.
type statusBuilder struct {
	Input
	status       v1alpha1.MemberClusterStatus
	recheckAfter time.Duration
	// duplicateCluster is the cluster that Holder has.
	duplicateCluster types.UID
}

// recheckAt asks for another look at a time to come.
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

// setReport copies numbers. Where there is no report they are unknown, and not
// there.
func (s *statusBuilder) setReport() {
	r := s.Report
	if r == nil {
		return
	}
	s.status.AgentVersion = r.AgentVersion
	if r.Plan != nil {
		version := *r.Plan
		s.status.AcknowledgedPlan = &version
	}
	if !r.NoLedger {
		budget, slots := r.Budget, r.Slots
		s.status.Budget, s.status.SlotsUsed = &budget, &slots
	}
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

// StaleReason returns why what is known of a member may no longer hold, by its
// conditions; empty where there is no reason to doubt.
func StaleReason(member *v1alpha1.MemberCluster) string {
	for _, c := range member.Status.Conditions {
		identity := c.Type == v1alpha1.ConditionIdentityConfirmed
		if (identity || c.Type == v1alpha1.ConditionAgentHealthy) && c.Status != metav1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}
