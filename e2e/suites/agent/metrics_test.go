//go:build linux

package agent

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestMetrics(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1", "retryLimit", "0"))
	read := func() map[string]float64 {
		return map[string]float64{
			"succeeded": env.MetricValue(t, "ot_agent_attempts_total", "result", "Succeeded"),
			"notfound":  env.MetricValue(t, "ot_agent_attempts_total", "result", "Failed", "reason", "NotFound"),
			"failed":    env.MetricValue(t, "ot_agent_attempts_total", "result", "Failed", "reason", "ImportFailed"),
			"bytes":     env.MetricValue(t, "ot_agent_transferred_bytes_total"),
			"synced":    env.MetricValue(t, "ot_agent_sync_duration_seconds"),
			"waited":    env.MetricValue(t, "ot_agent_queue_duration_seconds"),
		}
	}
	before := read()
	for what, value := range before {
		assert.GreaterOrEqual(t, value, 0.0, "%s is exposed before it first happens", what)
	}

	ns := env.CreateHomeNamespace(t)
	hangs := env.NewImage(ns, "hangs", "/hang/a")
	waits := env.NewImage(ns, "waits", "/ok/200ms/a")
	fails := env.NewImage(ns, "fails", "/crashloop/100ms/a")
	gone := env.NewImage(ns, "gone", "/gone/a")
	env.Create(t, hangs)
	env.AwaitImporting(t, hangs)
	env.Create(t, waits, fails, gone)
	env.AwaitFailed(t, gone, v1alpha1.ReasonNotFound)
	env.AwaitMetric(t, 1, "ot_agent_slots")
	env.AwaitMetric(t, 1, "ot_agent_slots_budget")
	env.AwaitMetric(t, 2, "ot_agent_queue_images", "standing", "ready")
	require.Positive(t, env.MetricValue(t, "ot_agent_queue_oldest_age_seconds"))

	require.NoError(t, env.Client().Delete(t.Context(), hangs))
	env.AwaitSucceeded(t, waits)
	env.AwaitFailed(t, fails, v1alpha1.ReasonImportFailed)
	env.AwaitMetric(t, 0, "ot_agent_slots")
	env.AwaitMetric(t, 0, "ot_agent_queue_images", "standing", "ready")
	env.AwaitMetric(t, 0, "ot_agent_queue_oldest_age_seconds")
	after := read()
	assert.Equal(t, map[string]float64{
		"succeeded": before["succeeded"] + 1,
		"notfound":  before["notfound"] + 1,
		"failed":    before["failed"] + 1,
		"bytes":     before["bytes"] + float64(waits.Spec.DiskSize.Value()),
		"synced":    before["synced"] + 1,
		"waited":    before["waited"] + 3,
	}, after)

	_, text := env.ReadMetrics(t)
	problems, err := promlint.New(strings.NewReader(ownMetrics(text))).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// ownMetrics keeps the lines of the agent's own metrics.
func ownMetrics(text string) string {
	var kept []string
	for _, line := range strings.SplitAfter(text, "\n") {
		if strings.Contains(line, "ot_agent_") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
