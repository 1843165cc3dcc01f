package grant

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// memberState is all that is decided upon for one member.
type memberState struct {
	member    *v1alpha1.MemberCluster
	root      report.Root
	plan      *v1alpha1.ClusterPlan // nil: none
	link      *v1alpha1.MemberLink  // nil: none
	challenge string
	// writable: there is a namespace for its grant, and its cluster is its own.
	writable bool
	// fenced: its grant was written by this process, so that no other one's
	// decision can follow.
	fenced bool
	// granted: a grant of it is stored.
	hasGrant bool
	// leaves: it is being removed, or its cluster is another member's.
	isLeaving bool
	// intendedBounds is the most that plans allow which this process may have written, and
	// which plan is not; nil for none.
	intendedBounds *budget.Bounds
	// startedAt is when this process began to look.
	startedAt time.Time
}

// learningTimeout is how long a member that has not been heard of by this process is waited
// for before anybody gets more: its report on the hub is then taken for what it was.
const learningTimeout = 2 * time.Minute

// clusterUID of the member's cluster, where its report is of it; empty where not.
func (s *memberState) clusterUID() types.UID {
	uid := memberstatus.ResolveClusterUID(s.member, s.root.ClusterUID)
	if s.root.ClusterUID != uid {
		return ""
	}
	return uid
}

// isReportRead tells that the report in the member has been read by this process.
func (s *memberState) isReportRead() bool {
	return s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Confirmed > 0 &&
		s.root.Report != nil && s.root.Sequence >= s.link.Status.Confirmed
}

// isReportUnread tells that the report in the member has not been read by this process, and
// may be read yet: the hub's copy may be of before what it has shown, be it that the
// hub was restored from a backup. That there is no copy of a member that was planned
// for says no more.
func (s *memberState) isReportUnread(now time.Time) bool {
	if s.isReportRead() {
		return false
	}
	if s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Known && !s.link.Status.Reachable {
		return false
	}
	soon := now.Before(s.startedAt.Add(learningTimeout))
	if s.root.Report == nil {
		return soon && (s.plan != nil || s.hasGrant)
	}
	return s.root.ReceivedAt != nil || soon
}

// mayBePlannedElsewhere tells that another process may yet write a plan that it has decided upon.
func (s *memberState) mayBePlannedElsewhere() bool {
	if s.plan == nil {
		return s.writable && s.root.Report != nil
	}
	return !s.isMarked()
}

// isSilent tells that a member has not been heard of for longer than it should.
func (s *memberState) isSilent(now time.Time) bool {
	if s.root.Report == nil {
		return false
	}
	last := s.startedAt
	if s.root.ReceivedAt != nil {
		last = *s.root.ReceivedAt
	}
	return now.Sub(last) > memberstatus.SilenceTimeout(s.root.Report)
}

// buildFacts of a member, for the book.
func (m *policyCache) buildFacts(s *memberState, inForce *policy.Policy, groups apipolicy.Sources, now time.Time) budget.MemberFacts {
	unfenced := s.writable && s.root.Report != nil && !s.fenced || s.mayBePlannedElsewhere()
	waited := !now.Before(s.startedAt.Add(learningTimeout))
	f := budget.MemberFacts{
		// A member whose grant cannot be written holds up the others for a while only;
		// then it is counted with all that it could be given.
		Learning:     s.isReportUnread(now) || unfenced && !waited,
		Unfenced:     unfenced && waited,
		ReportUnread: !s.isReportRead(),
		Grantable:    s.writable && s.fenced && s.clusterUID() != "",
		Silent:       s.isSilent(now),
		Weight:       m.memberWeight(inForce, s.member),
	}
	f.DesiredPolicy = m.desiredBounds(inForce, s.member)
	if s.link != nil {
		f.MemberGrantSequence = s.link.Status.AheadGrant
	}
	r := s.root.Report
	m.addPlans(s, &f)
	if r == nil {
		return f
	}
	f.Cluster, f.ReportSequence, f.BootID, f.Slots, f.Transfers = string(s.root.ClusterUID), s.root.Sequence, r.BootID, r.Slots, r.Transfers
	f.PlanAcknowledged = s.plan != nil && s.intendedBounds == nil && r.Plan != nil && *r.Plan == s.plan.Spec.PlanVersion
	if len(r.Policy) > 0 {
		b, sources := m.reported.parse(r.Policy)
		b.Concurrency = max(b.Concurrency, r.Budget)
		f.ReportedPolicy, f.SourcesCurrent = &b, sources.Equal(groups)
	} else {
		f.ReportedPolicy = &budget.Bounds{Concurrency: r.Budget}
	}
	return f
}

// addPlans takes in what the plans of a member allow. One that is of another cluster is
// carried to none.
func (m *policyCache) addPlans(s *memberState, f *budget.MemberFacts) {
	if s.plan != nil {
		b, _ := m.planned.parse(s.plan.Spec.Policy)
		if s.root.Report == nil || s.root.ClusterUID == s.plan.Spec.ClusterUID {
			f.PlannedPolicy, f.SupersededPolicy = &b, budget.UnacknowledgedBounds(s.plan)
		} else {
			f.DesiredPolicy.AttemptTimeout = max(f.DesiredPolicy.AttemptTimeout, b.AttemptTimeout)
		}
	}
	if s.intendedBounds == nil {
		return
	}
	if f.PlannedPolicy == nil {
		f.PlannedPolicy = s.intendedBounds
	}
	f.SupersededPolicy = f.SupersededPolicy.Max(*s.intendedBounds)
}

// policyCache is what was made of the policies of one member, which rarely change.
type policyCache struct {
	// memberUID is its UID.
	memberUID types.UID

	planned, reported, desired parsedPolicy
	policy                     *policy.Policy
	labels                     map[string]string
	weight                     int32
}

// parsedPolicy is a policy and what it says.
type parsedPolicy struct {
	data    map[string]string
	bounds  budget.Bounds
	sources apipolicy.Sources
}

func (p *parsedPolicy) parse(data map[string]string) (budget.Bounds, apipolicy.Sources) {
	if p.data != nil && maps.Equal(p.data, data) {
		return p.bounds, p.sources
	}
	p.data = maps.Clone(data)
	p.bounds, p.sources = budget.ParseBounds(data)
	return p.bounds, p.sources
}

// refresh reads the fleet's policy for a member where that, or the member, is another.
func (m *policyCache) refresh(p *policy.Policy, member *v1alpha1.MemberCluster) {
	if m.policy == p && maps.Equal(m.labels, member.Labels) {
		return
	}
	m.policy, m.labels, m.weight = p, maps.Clone(member.Labels), p.MemberWeight(member.Name, member.Labels)
	data, _, errs := p.ForMember(member.Name, member.Labels)
	m.desired = parsedPolicy{}
	if len(errs) == 0 {
		m.desired.parse(data)
	}
}

func (m *policyCache) memberWeight(p *policy.Policy, member *v1alpha1.MemberCluster) int32 {
	m.refresh(p, member)
	return m.weight
}

func (m *policyCache) desiredBounds(p *policy.Policy, member *v1alpha1.MemberCluster) budget.Bounds {
	m.refresh(p, member)
	return m.desired.bounds
}
