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

// memberState is everything that is known of one member.
type memberState struct {
	member    *v1alpha1.MemberCluster
	root      report.Root
	plan      *v1alpha1.ClusterPlan // nil for none
	link      *v1alpha1.MemberLink  // nil for none
	challenge string
	// writable: the namespace of the grant exists, and the cluster belongs to this
	// member.
	writable bool
	// fenced: this process wrote the stored grant, so that no write of an earlier leader
	// can follow.
	fenced bool
	// hasGrant: a grant is stored.
	hasGrant bool
	// isLeaving: the member is being removed, or its cluster belongs to another member.
	isLeaving bool
	// intents are plans that this process may have written and the cache does not show.
	intents []planIntent
	// startedAt is when this process was elected.
	startedAt time.Time
}

// learningTimeout is how long a newly elected process waits for a member's report before
// it counts the hub's copy as current.
const learningTimeout = 2 * time.Minute

// maxConfirmDelay is how long it waits for a member that reports and does not confirm
// that the hub's copy is current.
const maxConfirmDelay = 30 * time.Minute

// clusterUID returns the member's cluster if its report is of it; otherwise empty.
func (s *memberState) clusterUID() types.UID {
	uid := memberstatus.ResolveClusterUID(s.member, s.root.ClusterUID)
	if s.root.ClusterUID != uid {
		return ""
	}
	return uid
}

// isReportRead reports whether this process has read the report in the member.
func (s *memberState) isReportRead() bool {
	return s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Confirmed > 0 &&
		s.root.Report != nil && s.root.Sequence >= s.link.Status.Confirmed
}

// isReportUnread reports whether the report in the member has not been read but may still
// be: the hub's copy may be older than what the member has shown, for instance after a
// restore from a backup.
func (s *memberState) isReportUnread(now time.Time) bool {
	if s.isReportRead() {
		return false
	}
	if s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Known && !s.link.Status.Reachable {
		return false
	}
	learning := now.Before(s.startedAt.Add(learningTimeout))
	if s.root.Report == nil {
		return learning && (s.plan != nil || s.hasGrant)
	}
	// A member that reports and never confirms delays the others only for so long.
	return learning || s.root.ReceivedAt != nil && now.Before(s.startedAt.Add(maxConfirmDelay))
}

// mayBePlannedElsewhere reports whether another process may still write a plan that it
// decided.
func (s *memberState) mayBePlannedElsewhere() bool {
	if s.plan == nil {
		return s.writable && s.root.Report != nil
	}
	return !s.isMarked()
}

// isSilent reports whether the member has not reported for longer than it should.
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

// buildFacts returns the facts of a member for the accountant.
func (m *policyCache) buildFacts(s *memberState, inForce *policy.Policy, groups apipolicy.Sources, now time.Time) budget.MemberFacts {
	unfenced := s.writable && s.root.Report != nil && !s.fenced || s.mayBePlannedElsewhere()
	waited := !now.Before(s.startedAt.Add(learningTimeout))
	f := budget.MemberFacts{
		Quarantined: s.member.Spec.Quarantine != nil,
		// A member whose grant cannot be written blocks the others only for
		// learningTimeout; then it counts with everything that it may have been given.
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
	f.ReportUID = string(s.root.UID)
	f.Cluster, f.ReportSequence, f.BootID, f.Slots, f.Transfers = string(s.root.ClusterUID), s.root.Sequence, r.BootID, r.Slots, r.Transfers
	f.PlanAcknowledged = s.plan != nil && len(s.intents) == 0 && r.Plan != nil && *r.Plan == s.plan.Spec.PlanVersion
	if len(r.Policy) > 0 {
		b, sources := m.reported.parse(r.Policy)
		b.Concurrency = max(b.Concurrency, r.Budget)
		f.ReportedPolicy, f.SourcesCurrent = &b, sources.Equal(groups)
	} else {
		f.ReportedPolicy = &budget.Bounds{Concurrency: r.Budget}
	}
	return f
}

// addPlans adds what the plans of a member allow. A plan for another cluster is never
// synced to it.
func (m *policyCache) addPlans(s *memberState, f *budget.MemberFacts) {
	if s.plan != nil {
		b, _ := m.planned.parse(s.plan.Spec.Policy)
		superseded := budget.UnacknowledgedBounds(s.plan)
		if m.isMembersWord(b, s.plan.Spec.HeldPolicy != "") {
			b = b.LimitTo(f.DesiredPolicy)
			if superseded != nil {
				*superseded = superseded.LimitTo(f.DesiredPolicy)
			}
		}
		if s.root.Report == nil || s.root.ClusterUID == s.plan.Spec.ClusterUID {
			f.PlannedPolicy, f.SupersededPolicy = &b, superseded
		} else {
			f.DesiredPolicy.AttemptTimeout = max(f.DesiredPolicy.AttemptTimeout, b.AttemptTimeout)
		}
	}
	var intended *budget.Bounds
	for _, i := range s.intents {
		if m.isMembersWord(i.bounds, i.held) {
			i.bounds = i.bounds.LimitTo(f.DesiredPolicy)
		}
		intended = intended.Max(i.bounds)
	}
	if intended == nil {
		return
	}
	if f.PlannedPolicy == nil {
		f.PlannedPolicy = intended
	}
	f.SupersededPolicy = f.SupersededPolicy.Max(*intended)
}

// isMembersWord: what a held policy permits without grants, only the member says. With grants the hub
// has limited it when it planned it.
func (m *policyCache) isMembersWord(b budget.Bounds, isHeld bool) bool {
	return isHeld && !b.Limited && m.desired.data != nil
}

// policyCache has the parsed policies of one member, which rarely change.
type policyCache struct {
	// memberUID is the UID of the MemberCluster.
	memberUID types.UID

	planned, reported, desired parsedPolicy
	policy                     *policy.Policy
	labels                     map[string]string
	weight                     int32
}

// parsedPolicy is a policy and its parsed form.
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

// refresh parses the fleet's policy if it or the member's labels have changed.
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
