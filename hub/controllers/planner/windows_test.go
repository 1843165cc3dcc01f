package planner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/hub/policy"
)

// memberWithWindow has concurrency 0, and 4 from 01:00 to 02:00.
func memberWithWindow(t *testing.T) (s snapshot, opens time.Time) {
	t.Helper()
	parsed, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "0", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 4}]`})
	require.Empty(t, errs)
	s = settledMember(t)
	s.policy.Policy = parsed
	return s, time.Date(2026, 6, 1, 1, 0, 0, 0, time.UTC)
}

// An agent that knows no windows is planned for anew at each edge, exactly then.
func TestPlanOfAgentWithoutWindows(t *testing.T) {
	s, opens := memberWithWindow(t)
	closes := opens.Add(time.Hour)
	for _, step := range []struct {
		at          time.Time
		concurrency string
		edge        time.Time
	}{
		{opens.Add(-10 * time.Second), "0", opens},
		{opens, "4", closes},
		{closes.Add(-time.Second), "4", closes},
		{closes, "0", closes.Add(23 * time.Hour)},
		{closes.Add(-time.Hour), "4", closes},                        // the clock is put back
		{opens.Add(24 * time.Hour), "4", closes.Add(24 * time.Hour)}, // the hub was away
	} {
		s.Now = step.at
		d := decide(s)
		if s.plan == nil || s.plan.Spec.Policy["concurrency"] != step.concurrency {
			require.NotNil(t, d.plan, step.at)
			s.plan = d.plan
		} else {
			require.Nil(t, d.plan, step.at)
		}
		assert.Equal(t, step.concurrency, s.plan.Spec.Policy["concurrency"], step.at)
		assert.NotContains(t, s.plan.Spec.Policy, "windows")
		require.Positive(t, d.recheckAfter)
		assert.LessOrEqual(t, d.recheckAfter, min(step.edge.Sub(step.at), maxEdgeDelay), "a clock may be set")
	}
}

func TestPlanOfAgentWithWindows(t *testing.T) {
	s, opens := memberWithWindow(t)
	s.root.Report.PolicyKeys = []string{"concurrency", "windows"}
	s.Now = opens.Add(-time.Second)
	d := decide(s)
	require.NotNil(t, d.plan)
	assert.Equal(t, "0", d.plan.Spec.Policy["concurrency"])
	assert.JSONEq(t, `[{"cron":"0 1 * * *","duration":"1h0m0s","concurrency":4}]`, d.plan.Spec.Policy["windows"])
	s.plan, s.Now = d.plan, opens
	assert.Nil(t, decide(s).plan, "the agent judges windows itself")

	s.root.Report.PolicyKeys = nil
	d = decide(s)
	require.NotNil(t, d.plan, "an older agent is back")
	assert.Equal(t, "4", d.plan.Spec.Policy["concurrency"])
	assert.NotContains(t, d.plan.Spec.Policy, "windows")
}
