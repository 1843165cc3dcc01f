package answers

import (
	"slices"
	"time"

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
	// InForce is the policy in force, and Then the one in question.
	InForce    PolicyInForce
	Then       *policy.Policy
	Members    []v1alpha1.MemberCluster
	Unknown    map[string]string
	Activities map[string]inventory.Activity
	// Clocks and Grants of the members, by name.
	Clocks map[string]Clock
	Grants map[string]*v1alpha1.TransferGrant
	Limit  int
}

// BlastRadius returns what would change.
func BlastRadius(in *CompareBlast) readapi.BlastRadius {
	c := policy.Compare(in.InForce.Policy, in.Then, PolicyMembers(in.Members), in.InForce.Now)
	if refused := slices.Concat(c.Refused, c.OverBudget); len(refused) > 0 {
		return RefusePolicy(refused, c.Members)
	}
	r := readapi.BlastRadius{
		Members: c.Members, Changed: len(c.Changed), Gain: c.Gain, Lose: c.Lose, ConcurrencyNow: c.SumNow, ConcurrencyThen: c.SumThen,
		BudgetChange: v1alpha1.SanitizeText(c.BudgetChange, maxTextBytes), Rows: []readapi.BlastRow{},
		HeldMembers: firstOf(c.Held, maxListed), FleetThen: fleetConcurrency(in.Then, in.InForce.Now), FleetNow: fleetConcurrency(in.InForce.Policy, in.InForce.Now),
		Windows: v1alpha1.SanitizeText(c.DescribeWindows(), maxTextBytes), Ineffective: in.Then.DescribeIneffective(),
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

func fleetConcurrency(p *policy.Policy, now time.Time) *int64 {
	if p == nil {
		return nil
	}
	b := p.Budget(now)
	if b == nil {
		return nil
	}
	n := int64(b.Concurrency)
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
	clock := in.Clocks[c.Name]
	oldest := -1
	for i := range a.Reported.Head {
		at := clock.toHub(&a.Reported.Head[i].QueuedAt)
		if at != nil && (oldest < 0 || at.Before(row.OldestQueuedAt)) {
			oldest, row.OldestQueuedAt = i, at
		}
	}
	if oldest < 0 {
		return row
	}
	now := clock.snapshot(a.Reported, in.Grants[c.Name], in.InForce)
	row.WaitNow = readapi.NewEstimate(now.Queued(oldest))
	then := now
	if then.Activity != nil {
		changed := *a.Reported
		changed.Budget = int32(min(c.Then.Effective, v1alpha1.MaxSlots))
		then.Activity = &changed
	}
	row.WaitThen = readapi.NewEstimate(then.Queued(oldest))
	return row
}
