package answers

import (
	"time"

	"github.com/pelotech/ot-fleet/api/eta"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// Bounds of a BlastRadius, beside its rows.
const (
	maxRefusals  = 20
	maxListed    = 20
	maxTextBytes = 512
)

// PolicyMembers returns the parts of MemberClusters that policies depend on.
func PolicyMembers(stored []v1alpha1.MemberCluster) []policy.Member {
	members := make([]policy.Member, len(stored))
	for i := range stored {
		members[i] = policy.Member{Name: stored[i].Name, Labels: stored[i].Labels, OwnConcurrency: stored[i].Status.OwnConcurrency}
	}
	return members
}

// RefusePolicy returns the answer for a policy that cannot be read.
func RefusePolicy(errs []apipolicy.KeyError, members int) readapi.BlastRadius {
	r := readapi.BlastRadius{Members: members, Rows: []readapi.BlastRow{}}
	for _, e := range firstOf(errs, maxRefusals) {
		r.Refused = append(r.Refused, v1alpha1.SanitizeText(e.Error(), maxTextBytes))
	}
	return r
}

// CompareBlast is what a BlastRadius is made of.
type CompareBlast struct {
	// Now is the policy in force, nil for none, and Then the one in question.
	Now, Then  *policy.Policy
	Members    []v1alpha1.MemberCluster
	Unknown    map[string]string
	Activities map[string]inventory.Activity
	Limit      int
	Time       time.Time
}

// BlastRadius returns what would change.
func BlastRadius(in *CompareBlast) readapi.BlastRadius {
	c := policy.Compare(in.Now, in.Then, PolicyMembers(in.Members))
	if refused := append(c.Refused, c.OverBudget...); len(refused) > 0 {
		return RefusePolicy(refused, c.Members)
	}
	r := readapi.BlastRadius{
		Members: c.Members, Changed: len(c.Changed), Gain: c.Gain, Lose: c.Lose, ConcurrencyNow: c.SumNow, ConcurrencyThen: c.SumThen,
		BudgetChange: v1alpha1.SanitizeText(c.BudgetChange, maxTextBytes), Rows: []readapi.BlastRow{},
		HeldMembers: firstOf(c.Held, maxListed), FleetThen: fleetConcurrency(in.Then), FleetNow: fleetConcurrency(in.Now),
	}
	for _, override := range firstOf(c.Unmatched, maxListed) {
		r.Unmatched = append(r.Unmatched, v1alpha1.SanitizeText(override, maxTextBytes))
	}
	stored := make(map[string]*v1alpha1.MemberCluster, len(in.Members))
	for i := range in.Members {
		stored[in.Members[i].Name] = &in.Members[i]
	}
	most := c.MostChanged(in.Limit)
	for i := range most {
		r.Rows = append(r.Rows, in.newRow(&most[i], stored[most[i].Name]))
	}
	r.Omitted = len(c.Changed) - len(r.Rows)
	return r
}

func fleetConcurrency(p *policy.Policy) *int64 {
	if p == nil || p.Budget() == nil {
		return nil
	}
	n := int64(p.Budget().Concurrency)
	return &n
}

func (in *CompareBlast) newRow(c *policy.ChangedMember, m *v1alpha1.MemberCluster) readapi.BlastRow {
	row := readapi.BlastRow{
		Member: c.Name, Then: c.Then.Effective, OtherChanges: c.OtherChanges, From: c.Source,
		Running: m.Status.SlotsUsed, Unknown: in.Unknown[c.Name],
	}
	if c.Now.Known {
		row.Now = &c.Now.Effective
		if c.Now.Effective < c.Now.Planned {
			row.PlannedNow = &c.Now.Planned
		}
	}
	if c.Then.Effective < c.Then.Planned {
		row.PlannedThen = &c.Then.Planned
	}
	if m.Status.Images != nil {
		row.Queued = &m.Status.Images.Queued
	}
	a := in.Activities[c.Name]
	if a.Unknown != "" || a.Reported == nil || len(a.Reported.Head) == 0 {
		return row
	}
	oldest := 0
	for i := range a.Reported.Head {
		if a.Reported.Head[i].QueuedAt.Before(&a.Reported.Head[oldest].QueuedAt) {
			oldest = i
		}
	}
	row.OldestQueuedAt = &a.Reported.Head[oldest].QueuedAt
	row.WaitNow = newEstimate(eta.Snapshot{Activity: a.Reported, Now: in.Time}.Queued(oldest))
	then := *a.Reported
	then.Budget = int32(min(c.Then.Effective, v1alpha1.MaxSlots))
	row.WaitThen = newEstimate(eta.Snapshot{Activity: &then, Now: in.Time}.Queued(oldest))
	return row
}
