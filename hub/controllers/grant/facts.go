package grant

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// seen is all that is decided upon for one member.
type seen struct {
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
	granted bool
	// leaves: it is being removed, or its cluster is another member's.
	leaves bool
	// intended is the most that plans allow which this process may have written, and
	// which plan is not; nil for none.
	intended *budget.Bounds
	// began is when this process began to look.
	began time.Time
}

// learning is how long a member that has not been heard of by this process is waited
// for before anybody gets more: its report on the hub is then taken for what it was.
const learning = 2 * time.Minute

// uid of the member's cluster, where its report is of it; empty where not.
func (s *seen) uid() types.UID {
	uid := fleet.ClusterUID(s.member, s.root.ClusterUID)
	if s.root.ClusterUID != uid {
		return ""
	}
	return uid
}

// read tells that the report in the member has been read by this process.
func (s *seen) read() bool {
	return s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Confirmed > 0 &&
		s.root.Report != nil && s.root.Sequence >= s.link.Status.Confirmed
}

// unread tells that the report in the member has not been read by this process, and
// may be read yet: the hub's copy may be of before what it has shown, be it that the
// hub was restored from a backup. That there is no copy of a member that was planned
// for says no more.
func (s *seen) unread(now time.Time) bool {
	if s.read() {
		return false
	}
	if s.link != nil && s.link.Status.Challenge == s.challenge && s.link.Status.Known && !s.link.Status.Reachable {
		return false
	}
	soon := now.Before(s.began.Add(learning))
	if s.root.Report == nil {
		return soon && (s.plan != nil || s.granted)
	}
	return s.root.ReceivedAt != nil || soon
}

// unplanned tells that another process may yet write a plan that it has decided upon.
func (s *seen) unplanned() bool {
	if s.plan == nil {
		return s.writable && s.root.Report != nil
	}
	return !s.marked()
}

// dark tells that a member has not been heard of for longer than it should.
func (s *seen) dark(now time.Time) bool {
	if s.root.Report == nil {
		return false
	}
	last := s.began
	if s.root.ReceivedAt != nil {
		last = *s.root.ReceivedAt
	}
	return now.Sub(last) > fleet.Silence(s.root.Report)
}

// facts of a member, for the book.
func (m *memory) facts(s *seen, inForce *fleet.Policy, groups apipolicy.Sources, now time.Time) budget.Facts {
	unfenced := s.writable && s.root.Report != nil && !s.fenced || s.unplanned()
	waited := !now.Before(s.began.Add(learning))
	f := budget.Facts{
		// A member whose grant cannot be written holds up the others for a while only;
		// then it is counted with all that it could be given.
		Learning:  s.unread(now) || unfenced && !waited,
		Unguarded: unfenced && waited,
		Unread:    !s.read(),
		Grantable: s.writable && s.fenced && s.uid() != "",
		Dark:      s.dark(now),
		Weight:    m.weight(inForce, s.member),
	}
	f.Desired = m.desired(inForce, s.member)
	if s.link != nil {
		f.AheadGrant = s.link.Status.AheadGrant
	}
	r := s.root.Report
	m.plan(s, &f)
	if r == nil {
		return f
	}
	f.Cluster, f.Report, f.Boot, f.Slots, f.Transfers = string(s.root.ClusterUID), s.root.Sequence, r.BootID, r.Slots, r.Transfers
	f.Acknowledged = s.plan != nil && s.intended == nil && r.Plan != nil && *r.Plan == s.plan.Spec.PlanVersion
	if len(r.Policy) > 0 {
		b, sources := m.reported.read(r.Policy)
		b.Concurrency = max(b.Concurrency, r.Budget)
		f.InForce, f.SameSources = &b, sources.Equal(groups)
	} else {
		f.InForce = &budget.Bounds{Concurrency: r.Budget}
	}
	return f
}

// plan takes in what the plans of a member allow. One that is of another cluster is
// carried to none.
func (m *memory) plan(s *seen, f *budget.Facts) {
	if s.plan != nil {
		b, _ := m.planned.read(s.plan.Spec.Policy)
		if s.root.Report == nil || s.root.ClusterUID == s.plan.Spec.ClusterUID {
			f.Planned, f.Superseded = &b, budget.Unacknowledged(s.plan)
		} else {
			f.Desired.AttemptTimeout = max(f.Desired.AttemptTimeout, b.AttemptTimeout)
		}
	}
	if s.intended == nil {
		return
	}
	if f.Planned == nil {
		f.Planned = s.intended
	}
	f.Superseded = f.Superseded.Or(*s.intended)
}

// memory is what was made of the policies of one member, which rarely change.
type memory struct {
	// member is its UID.
	member types.UID

	planned, reported, asked parsed
	of                       *fleet.Policy
	labels                   map[string]string
	heavy                    int32
}

// parsed is a policy and what it says.
type parsed struct {
	data    map[string]string
	bounds  budget.Bounds
	sources apipolicy.Sources
}

func (p *parsed) read(data map[string]string) (budget.Bounds, apipolicy.Sources) {
	if p.data != nil && maps.Equal(p.data, data) {
		return p.bounds, p.sources
	}
	p.data = maps.Clone(data)
	p.bounds, p.sources = budget.BoundsOf(data)
	return p.bounds, p.sources
}

// look reads the fleet's policy for a member where that, or the member, is another.
func (m *memory) look(p *fleet.Policy, member *v1alpha1.MemberCluster) {
	if m.of == p && maps.Equal(m.labels, member.Labels) {
		return
	}
	m.of, m.labels, m.heavy = p, maps.Clone(member.Labels), p.Weight(member.Name, member.Labels)
	data, _, errs := p.For(member.Name, member.Labels)
	m.asked = parsed{}
	if len(errs) == 0 {
		m.asked.read(data)
	}
}

func (m *memory) weight(p *fleet.Policy, member *v1alpha1.MemberCluster) int32 {
	m.look(p, member)
	return m.heavy
}

func (m *memory) desired(p *fleet.Policy, member *v1alpha1.MemberCluster) budget.Bounds {
	m.look(p, member)
	return m.asked.bounds
}
