package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// The opening is stored, so that it outlives the hub and the windows.
func TestWindowIsStored(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	opens := metav1.NewTime(now.Add(8 * time.Hour))
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	report := &v1alpha1.ReportRoot{}
	compute := func(at time.Time, hubKnows time.Time) *v1alpha1.MemberWindow {
		st, after := memberstatus.Compute(memberstatus.Input{Now: at, Member: member, Report: report, ReportClusterUID: "u", WindowOpensAt: hubKnows})
		member.Status = st
		if st.Window != nil && st.Window.OpensAt != nil {
			require.Positive(t, after)
			require.LessOrEqual(t, after, st.Window.OpensAt.Sub(at))
		}
		return st.Window
	}
	assert.Nil(t, compute(now, time.Time{}), "it never waited")
	report.InForce = &v1alpha1.InForceConcurrency{Concurrency: 0, OpensAt: &opens}
	assert.Equal(t, &v1alpha1.MemberWindow{OpensAt: &opens}, compute(now, time.Time{}), "as the member says")
	later := metav1.NewTime(opens.Add(time.Hour))
	assert.Equal(t, &v1alpha1.MemberWindow{OpensAt: &later}, compute(now, later.Time), "and the fleet's budget opens later")

	// The windows are removed.
	report.InForce = nil
	removed := metav1.NewTime(now.Add(time.Minute))
	assert.Equal(t, &v1alpha1.MemberWindow{OpenedAt: &removed}, compute(removed.Time, time.Time{}))
	assert.Equal(t, &v1alpha1.MemberWindow{OpenedAt: &removed}, compute(removed.Add(time.Hour), time.Time{}), "it stays")

	// A report from before the opening closes nothing.
	report.InForce = &v1alpha1.InForceConcurrency{Concurrency: 0, OpensAt: &opens}
	assert.Equal(t, &v1alpha1.MemberWindow{OpenedAt: &removed}, compute(opens.Add(time.Second), time.Time{}))
	report.InForce.Concurrency = 4
	assert.Equal(t, &v1alpha1.MemberWindow{OpenedAt: &removed}, compute(now.Add(2*time.Hour), time.Time{}), "more opens, and it could import before")

	// It closes again, and an import runs on: its deadline counts from the opening before.
	closed := opens.Add(24 * time.Hour)
	opens = metav1.NewTime(closed.Add(16 * time.Hour))
	report.InForce = &v1alpha1.InForceConcurrency{Concurrency: 0, OpensAt: &opens}
	assert.Equal(t, &v1alpha1.MemberWindow{OpensAt: &opens, OpenedAt: &removed}, compute(closed, time.Time{}))
	assert.Equal(t, &v1alpha1.MemberWindow{OpensAt: &opens, OpenedAt: &removed}, compute(closed.Add(time.Hour), time.Time{}))
	report.InForce.Concurrency = 4
	assert.Equal(t, &v1alpha1.MemberWindow{OpenedAt: &opens}, compute(opens.Time, time.Time{}))
}

// A member that goes offline within a window has not exceeded what its plan allows outside of it.
func TestReportFromWithinAWindow(t *testing.T) {
	v := healthyInput()
	v.Plan.Policy["windows"] = `[{cron: "0 0 * * *", duration: 6h, concurrency: 9}]`
	v.Now = time.Date(2026, 6, 1, 9, 0, 0, 0, time.UTC)
	v.Report.Budget, v.Report.ObservedAt = 9, metav1.NewTime(v.Now.Add(-4*time.Hour))
	withinBudget := func() metav1.ConditionStatus {
		st, _ := memberstatus.Compute(v)
		return meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWithinBudget).Status
	}
	assert.Equal(t, metav1.ConditionTrue, withinBudget())
	v.Report.ObservedAt = metav1.NewTime(v.Now.Add(-2 * time.Hour))
	assert.Equal(t, metav1.ConditionFalse, withinBudget(), "it was closed then, too")
}
