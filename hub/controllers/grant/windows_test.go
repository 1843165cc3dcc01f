package grant

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/policy"
)

func TestBudgetRulesFollowWindows(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "2", "windows": `[{cron: "0 1 * * *", duration: 1h, fleetConcurrency: 9}]`})
	require.Empty(t, errs)
	opens := time.Date(2026, 6, 1, 1, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		at            time.Duration // after the opening
		want          int64
		wantEndsIn    time.Duration
		wantChangesIn time.Duration
	}{
		"long before":                {-10 * time.Hour, 2, 0, maxEdgeDelay},
		"just before":                {-10 * time.Second, 2, 0, 10 * time.Second},
		"open":                       {0, 9, time.Hour, maxEdgeDelay},
		"soon too late for a grant":  {59*time.Minute + 40*time.Second, 9, 20 * time.Second, 5 * time.Second},
		"too late for a grant of it": {59*time.Minute + 50*time.Second, 2, 0, 10 * time.Second},
		"closed":                     {time.Hour, 2, 0, maxEdgeDelay},
	} {
		t.Run(name, func(t *testing.T) {
			rules, changesIn := budgetRules(p, opens.Add(tt.at))
			assert.Equal(t, tt.want, rules.Total)
			assert.Equal(t, tt.wantEndsIn, rules.EndsIn)
			assert.Equal(t, tt.wantChangesIn, changesIn)
			assert.Equal(t, 5*time.Minute, rules.Duration, "how long earlier grants may be valid")
		})
	}
	plain, _, _ := policy.ParsePolicy(map[string]string{"fleetConcurrency": "2"})
	rules, changesIn := budgetRules(plain, opens)
	assert.Zero(t, rules.EndsIn)
	assert.Zero(t, changesIn)
}

// By its own clock, any window of a member may be open.
func TestBoundsCountEveryWindow(t *testing.T) {
	bounds, _ := budget.ParseBounds(map[string]string{"concurrency": "2", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 7}, {cron: "0 2 * * *", duration: 1h, concurrency: 0}]`})
	assert.Equal(t, int32(7), bounds.Concurrency)
}
