package plan_test

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// windowed has concurrency 2, and 8 from 01:00 to 02:00.
func windowed(t *testing.T) (written, closed, open data) {
	t.Helper()
	p, _, errs := policy.ParsePolicy(data{"concurrency": "2", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 8}]`})
	require.Empty(t, errs)
	written, _, errs = p.ForMember("a", nil)
	require.Empty(t, errs)
	midnight := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	closed, _ = policy.InForce(written, false, midnight)
	open, _ = policy.InForce(written, false, midnight.Add(time.Hour))
	require.Equal(t, "2", closed["concurrency"])
	require.Equal(t, "8", open["concurrency"])
	return written, closed, open
}

// The plan of an agent that knows no windows changes at each edge.
func TestPlanFollowsWindows(t *testing.T) {
	written, closed, open := windowed(t)
	current := newPlan(planVersion(1, 4), closed)
	for name, tt := range map[string]struct {
		now       data
		want      data
		wantWrite bool
	}{
		"nothing has changed":           {closed, closed, false},
		"a window has opened":           {open, open, true},
		"the agent knows windows since": {nil, written, true},
	} {
		t.Run(name, func(t *testing.T) {
			next, write, isHeld := plan.Next(plan.Input{
				ClusterUID: uid, ReportClusterUID: uid, Current: current, Report: acknowledgingReport(current), DesiredPolicy: written, PolicyNow: tt.now, PolicySource: "fleet default",
			})
			assert.Equal(t, tt.wantWrite, write)
			assert.Equal(t, tt.want, next.Policy)
			assert.False(t, isHeld)
		})
	}
}

// A hub that was restored beside the same ConfigMap holds nothing back, whichever window was
// open when the member got its plan. Another policy is held back, whatever opens or closes.
func TestRestoredHubWithWindows(t *testing.T) {
	written, closed, open := windowed(t)
	backup := newPlan(planVersion(1, 4), closed)
	other := maps.Clone(open)
	other["concurrency"] = "5"
	for name, tt := range map[string]struct {
		member, now data
		want        data
		wantHeld    bool
	}{
		"the plan of a window that has closed":   {open, closed, closed, false},
		"the plan of before a window has opened": {closed, open, open, false},
		"the plan with the windows":              {written, closed, closed, false},
		"the plan of an agent that knows them":   {written, nil, written, false},
		"the plan of another ConfigMap":          {other, closed, other, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := plan.Input{
				ClusterUID: uid, ReportClusterUID: uid, Current: backup, Report: acknowledgingReport(newPlan(planVersion(1, 7), tt.member)),
				DesiredPolicy: written, PolicyNow: tt.now, PolicySource: "fleet default",
			}
			next, write, isHeld := plan.Next(v)
			require.True(t, write)
			assert.Equal(t, tt.want, next.Policy)
			assert.Equal(t, tt.wantHeld, isHeld)
			assert.Equal(t, planVersion(2, 1).Epoch, next.Epoch)
			if !tt.wantHeld {
				return
			}
			// At the edges, too.
			for _, now := range []data{open, closed, written} {
				v.Current, v.Report, v.PolicyNow = &next, acknowledgingReport(&next), now
				after, write, isHeld := plan.Next(v)
				assert.True(t, isHeld)
				assert.False(t, write)
				assert.Equal(t, tt.want, after.Policy)
			}
			v.DesiredPolicy = maps.Clone(written)
			v.DesiredPolicy["retryLimit"], v.PolicyNow = "9", nil
			after, write, isHeld := plan.Next(v)
			assert.True(t, write, "the ConfigMap asks for something else")
			assert.False(t, isHeld)
			assert.Equal(t, "9", after.Policy["retryLimit"])
		})
	}
}
