package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestLastReportMovesOnceAMinute(t *testing.T) {
	v := withStoredStatus(healthyInput())
	receive := func(at time.Duration) *metav1.Time {
		received := now.Add(at)
		v.Now, v.ReceivedAt = received, &received
		got, _ := memberstatus.Compute(v)
		return got.LastReport
	}
	assert.Equal(t, timeAt(-5), receive(0), "nothing else changes")
	assert.Equal(t, timeAt(-5), receive(54*time.Second))
	assert.Equal(t, timeAt(55), receive(55*time.Second), "once a minute")
	assert.Equal(t, timeAt(-3600), receive(-time.Hour), "the clock was set back")
	v.Report.Slots = 1
	assert.Equal(t, timeAt(7), receive(7*time.Second), "something else changes")
}

func TestRecheckIsScheduled(t *testing.T) {
	v := healthyInputWith(func(v *memberstatus.Input) {
		since := now.Add(-4 * time.Second)
		v.Totals.MissingPages, v.IncompleteSince = []string{"a"}, &since
	})
	_, after := memberstatus.Compute(v)
	assert.Equal(t, 6*time.Second, after)
	v.Now = v.Now.Add(after)
	_, after = memberstatus.Compute(v)
	assert.Equal(t, 49*time.Second+time.Millisecond, after)
	v.Now = v.Now.Add(after)
	got, after := memberstatus.Compute(v)
	assert.Zero(t, after, "nothing is waited for")
	assert.True(t, meta.IsStatusConditionFalse(got.Conditions, v1alpha1.ConditionAgentHealthy))
}

// Copying pages one after the other does not make the condition flap.
func TestReportStaysCompleteWhilePagesAreCopied(t *testing.T) {
	v := withStoredStatus(healthyInput())
	since := now
	v.Totals = &inventory.Totals{Reported: true, MissingPages: []string{"p"}, Counts: v.Totals.Counts, Failing: v.Totals.Failing}
	v.IncompleteSince = &since
	got, _ := memberstatus.Compute(v)
	assert.Equal(t, v.Member.Status, got)
	v.Now = now.Add(memberstatus.IncompleteReportGrace)
	got, _ = memberstatus.Compute(v)
	assert.True(t, meta.IsStatusConditionFalse(got.Conditions, v1alpha1.ConditionReportComplete))
}

// What a former process stored is no later than when this one began to watch, unless a clock was ahead.
func TestLastReportAheadOfTheClock(t *testing.T) {
	v := withStoredStatus(healthyInput())
	v.Member.Status.LastReport = &metav1.Time{Time: now.AddDate(1, 0, 0)}
	v.ReceivedAt, v.WatchedSince = nil, now.Add(-90*time.Second)
	got, after := memberstatus.Compute(v)
	require.True(t, meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionAgentHealthy))
	v.Member.Status, v.Now = got, now.Add(after)
	got, _ = memberstatus.Compute(v)
	assert.True(t, meta.IsStatusConditionFalse(got.Conditions, v1alpha1.ConditionAgentHealthy))
	assert.Equal(t, v.WatchedSince, got.SilentSince.Time)
}
