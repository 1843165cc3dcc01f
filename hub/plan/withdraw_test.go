package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// A member that returns is synced before the planner sees what it says: prunes that have ended must
// not be in its plan then.
func TestEndedPrunesAreWithdrawnWithoutConfirmation(t *testing.T) {
	a, b, undone := plannedPrune("a"), plannedPrune("b"), plannedPrune("a")
	undone.Undo = true
	for name, tt := range map[string]struct {
		current, requested []v1alpha1.PlannedPrune
		change             func(*plan.Input)
		want               bool
	}{
		"none is requested":                   {current: []v1alpha1.PlannedPrune{a, b}, want: true},
		"all are undone":                      {current: []v1alpha1.PlannedPrune{a}, requested: []v1alpha1.PlannedPrune{undone}, want: true},
		"another one is requested":            {current: []v1alpha1.PlannedPrune{a}, requested: []v1alpha1.PlannedPrune{b}, want: true},
		"one is requested":                    {current: []v1alpha1.PlannedPrune{a, b}, requested: []v1alpha1.PlannedPrune{b}},
		"one is, of a member that is cut off": {current: []v1alpha1.PlannedPrune{a, b}, requested: []v1alpha1.PlannedPrune{b}, change: func(v *plan.Input) { v.CutOff = true }, want: true},
		"all are, of one that is cut off":     {current: []v1alpha1.PlannedPrune{a, b}, requested: []v1alpha1.PlannedPrune{a, b}, change: func(v *plan.Input) { v.CutOff = true }},
		"one is, beside one that was undone":  {current: []v1alpha1.PlannedPrune{undone, b}, requested: []v1alpha1.PlannedPrune{undone, b}, change: func(v *plan.Input) { v.CutOff = true }},
		"nothing was planned":                 {requested: []v1alpha1.PlannedPrune{a}},
		"it never reported":                   {current: []v1alpha1.PlannedPrune{a}, change: func(v *plan.Input) { v.Report = nil }, want: true},
		"the member has a later plan":         {current: []v1alpha1.PlannedPrune{a}, change: func(v *plan.Input) { v.Report = acknowledgingReport(newPlan(planVersion(1, 9), nil)) }},
		"the member's copy is later":          {current: []v1alpha1.PlannedPrune{a}, change: func(v *plan.Input) { v.NewerMemberPlan = planVersion(1, 6) }},
		"everything else has changed":         {current: []v1alpha1.PlannedPrune{a}, change: func(v *plan.Input) { v.DesiredPolicy, v.Images = concurrencyPolicy(9), nil }, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			current := newPlan(planVersion(1, 5), concurrencyPolicy(4), plannedImage("x", "1Gi"))
			current.Prunes = tt.current
			current.Hash = plan.Hash(current)
			v := plan.Input{
				ClusterUID: uid, Current: current, Report: acknowledgingReport(newPlan(planVersion(1, 4), nil)), ReportClusterUID: uid, ReportUnconfirmed: true,
				DesiredPolicy: current.Policy, PolicySource: current.PolicySource, Images: current.Images, Prunes: tt.requested,
			}
			if tt.change != nil {
				tt.change(&v)
			}
			next, write, _ := plan.Next(v)
			assert.Equal(t, tt.want, write)
			want := *current
			if tt.want {
				want.Prunes, want.PlanVersion = nil, v1alpha1.PlanVersion{Epoch: 1, Sequence: 6}
				want.Hash = plan.Hash(&want)
			}
			assert.Equal(t, want, next)
		})
	}
}
