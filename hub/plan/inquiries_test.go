package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

func newInquiry(uid types.UID, epoch, sequence int64) v1alpha1.PlanInquiry {
	return v1alpha1.PlanInquiry{UID: uid, Epoch: epoch, Sequence: sequence}
}

func plannedPrune(name string) v1alpha1.PlannedPrune {
	return v1alpha1.PlannedPrune{
		Namespace: "images", Name: name, ImageUID: types.UID("image-" + name), Revision: "r1", UID: "prune", UndoWindow: metav1.Duration{Duration: time.Hour},
	}
}

// planWithInquiries returns a plan with inquiries and the hash of its content.
func planWithInquiries(v v1alpha1.PlanVersion, inquiries ...v1alpha1.PlanInquiry) *v1alpha1.ClusterPlanSpec {
	p := newPlan(v, concurrencyPolicy(3))
	p.Inquiries = inquiries
	p.Hash = plan.Hash(p)
	return p
}

func TestInquiriesKeepVersionOfFirstPlan(t *testing.T) {
	fresh := &v1alpha1.ReportRoot{}
	refused := func(p *v1alpha1.ClusterPlanSpec) *v1alpha1.ReportRoot {
		root := acknowledgingReport(p)
		root.Conditions = []metav1.Condition{policyRefused}
		return root
	}
	moved := planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3))
	moved.ClusterUID = "another"
	takenOut := planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3))
	takenOut.Inquiries = nil
	putIn := planWithInquiries(planVersion(1, 4))
	putIn.Inquiries = []v1alpha1.PlanInquiry{newInquiry("z", 0, 0)}
	for name, tt := range map[string]struct {
		current     *v1alpha1.ClusterPlanSpec
		report      *v1alpha1.ReportRoot
		ahead       v1alpha1.PlanVersion
		unconfirmed bool
		asks        []types.UID
		images      []v1alpha1.PlannedImage
		want        v1alpha1.PlanVersion
		wantAsked   []v1alpha1.PlanInquiry
		wantNone    bool // no write
	}{
		"of a member without a plan": {
			report: fresh, asks: []types.UID{"a"}, want: planVersion(1, 1), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 1)},
		},
		"of a member without a report": {asks: []types.UID{"a"}, wantNone: true},
		"the first": {
			current: planWithInquiries(planVersion(1, 4)), report: fresh, asks: []types.UID{"a"},
			want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5)},
		},
		"several at once, by UID": {
			current: planWithInquiries(planVersion(1, 4)), report: fresh, asks: []types.UID{"b", "a", "b"},
			want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5), newInquiry("b", 1, 5)},
		},
		"the same again": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3), newInquiry("b", 1, 4)), report: fresh, asks: []types.UID{"b", "a"},
			want: planVersion(1, 4), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 3), newInquiry("b", 1, 4)}, wantNone: true,
		},
		"one more": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("b", 1, 3)), report: fresh, asks: []types.UID{"b", "a"},
			want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5), newInquiry("b", 1, 3)},
		},
		"one less": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3), newInquiry("b", 1, 4)), report: fresh, asks: []types.UID{"b"},
			want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("b", 1, 4)},
		},
		"no longer any": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: fresh, want: planVersion(1, 5),
		},
		"beside another change": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: fresh, asks: []types.UID{"a"}, images: []v1alpha1.PlannedImage{plannedImage("a", "1Gi")},
			want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 3)},
		},
		"of a member that is behind": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: acknowledgingReport(newPlan(planVersion(1, 2), nil)), asks: []types.UID{"a"},
			want: planVersion(1, 4), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 3)}, wantNone: true,
		},
		"while the member's report may be older than the member": {
			current: planWithInquiries(planVersion(1, 4)), report: fresh, unconfirmed: true, asks: []types.UID{"a"}, want: planVersion(1, 4), wantNone: true,
		},

		"the hub was restored": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: acknowledgingReport(newPlan(planVersion(1, 7), concurrencyPolicy(3))), asks: []types.UID{"a", "b"},
			want: planVersion(2, 1), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 2, 1), newInquiry("b", 2, 1)},
		},
		"and has given the version to another content": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 4)), report: acknowledgingReport(planWithInquiries(planVersion(1, 4), newInquiry("z", 1, 4))), asks: []types.UID{"a"},
			want: planVersion(2, 1), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 2, 1)},
		},
		"the hub is new": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(3))), asks: []types.UID{"a"},
			want: planVersion(4, 1), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 4, 1)},
		},
		"a copy is ahead and refused": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: refused(newPlan(planVersion(1, 4), concurrencyPolicy(3))), ahead: planVersion(3, 10), asks: []types.UID{"a"},
			want: planVersion(4, 1), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 4, 1)},
		},
		"a copy is ahead and not refused": {
			current: planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3)), report: acknowledgingReport(planWithInquiries(planVersion(1, 4), newInquiry("a", 1, 3))), ahead: planVersion(3, 10), asks: []types.UID{"a"},
			want: planVersion(1, 4), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 3)}, wantNone: true,
		},
		"the plan is for the cluster that was here before": {
			current: moved, report: fresh, asks: []types.UID{"a"}, want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5)},
		},
		"somebody took it out of the plan": {
			current: takenOut, report: fresh, asks: []types.UID{"a"}, want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5)},
		},
		"somebody put another into the plan": {
			current: putIn, report: fresh, asks: []types.UID{"a"}, want: planVersion(1, 5), wantAsked: []v1alpha1.PlanInquiry{newInquiry("a", 1, 5)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := plan.Input{
				ClusterUID: uid, Current: tt.current, Report: tt.report, ReportClusterUID: uid, ReportUnconfirmed: tt.unconfirmed, NewerMemberPlan: tt.ahead,
				Images: tt.images, Inquiries: tt.asks,
			}
			if tt.current != nil {
				v.DesiredPolicy, v.PolicySource = tt.current.Policy, tt.current.PolicySource
			}
			before := tt.current.DeepCopy()
			next, write, _ := plan.Next(v)
			assert.Equal(t, before, tt.current, "the cached plan is not changed")
			got := next.PlanVersion
			got.Hash = ""
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.wantAsked, next.Inquiries)
			assert.Equal(t, !tt.wantNone, write)
			if !write {
				return
			}
			assert.Equal(t, plan.Hash(&next), next.Hash)
			v.Current = &next
			_, again, _ := plan.Next(v)
			assert.False(t, again, "a second look writes nothing")
		})
	}
}

func TestOldestInquiriesComeFirst(t *testing.T) {
	v := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}}
	for i := range v1alpha1.MaxInquiries + 1 {
		asked := types.UID(fmt.Sprintf("%03d", 999-i))
		v.Inquiries = append(v.Inquiries, asked, asked)
	}
	next, write, _ := plan.Next(v)
	require.True(t, write)
	require.Len(t, next.Inquiries, v1alpha1.MaxInquiries)
	assert.NotEqual(t, v.Inquiries[len(v.Inquiries)-1], next.Inquiries[0].UID)
	assert.Equal(t, v.Inquiries[0], next.Inquiries[len(next.Inquiries)-1].UID)
}

// A plan with more inquiries than the limit would be refused as a whole. An inquiry that
// was asked is not dropped for a later one.
func TestInquiriesBeyondLimitWait(t *testing.T) {
	of := func(names string, n int) (uids []types.UID) {
		for i := range n {
			uids = append(uids, types.UID(fmt.Sprintf("%s-%03d", names, i)))
		}
		return uids
	}
	uids := func(p v1alpha1.ClusterPlanSpec) (all []types.UID) {
		for _, asked := range p.Inquiries {
			all = append(all, asked.UID)
		}
		return all
	}
	v := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, Inquiries: of("m", v1alpha1.MaxInquiries-1)}
	first, _, _ := plan.Next(v)
	require.Len(t, first.Inquiries, v1alpha1.MaxInquiries-1)

	v.Current, v.Inquiries = &first, append(of("a", 2), v.Inquiries...)
	second, write, _ := plan.Next(v)
	require.True(t, write)
	assert.Equal(t, append([]types.UID{"a-000"}, of("m", v1alpha1.MaxInquiries-1)...), uids(second))
	assert.Equal(t, newInquiry("a-000", 1, 2), second.Inquiries[0])
	assert.Equal(t, newInquiry("m-000", 1, 1), second.Inquiries[1])

	v.Current = &second
	_, write, _ = plan.Next(v)
	assert.False(t, write, "one waits")

	v.Inquiries = v.Inquiries[1:]
	third, write, _ := plan.Next(v)
	require.True(t, write)
	assert.Equal(t, append([]types.UID{"a-001"}, of("m", v1alpha1.MaxInquiries-1)...), uids(third), "there is room for it")
}

func TestNextPlanCarriesPrunes(t *testing.T) {
	view := func(current *v1alpha1.ClusterPlanSpec) plan.Input {
		return plan.Input{
			ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, Current: current,
			Prunes: []v1alpha1.PlannedPrune{plannedPrune("b"), plannedPrune("a")},
		}
	}
	current, write, _ := plan.Next(view(nil))
	assert.True(t, write, "a plan with nothing but prunes")
	assert.Equal(t, []v1alpha1.PlannedPrune{plannedPrune("a"), plannedPrune("b")}, current.Prunes)

	for name, tt := range map[string]struct {
		change    func(*plan.Input)
		wantWrite bool
	}{
		"nothing":                  {change: func(*plan.Input) {}},
		"another order":            {change: func(v *plan.Input) { v.Prunes[0], v.Prunes[1] = v.Prunes[1], v.Prunes[0] }},
		"one is undone":            {change: func(v *plan.Input) { v.Prunes[0].Undo = true }, wantWrite: true},
		"one is withdrawn":         {change: func(v *plan.Input) { v.Prunes = v.Prunes[1:] }, wantWrite: true},
		"all are withdrawn":        {change: func(v *plan.Input) { v.Prunes = nil }, wantWrite: true},
		"another object":           {change: func(v *plan.Input) { v.Prunes[0].ImageUID = "other" }, wantWrite: true},
		"another revision":         {change: func(v *plan.Input) { v.Prunes[0].Revision = "r2" }, wantWrite: true},
		"another ImagePrune":       {change: func(v *plan.Input) { v.Prunes[0].UID = "other" }, wantWrite: true},
		"another window":           {change: func(v *plan.Input) { v.Prunes[0].UndoWindow.Duration = 0 }, wantWrite: true},
		"somebody edited the plan": {change: func(v *plan.Input) { v.Current.Prunes[0].UndoWindow.Duration = 0 }, wantWrite: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := view(current.DeepCopy())
			tt.change(&v)
			assertNextPlan(t, v, tt.wantWrite)
		})
	}
}
