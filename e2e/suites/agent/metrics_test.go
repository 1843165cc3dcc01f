//go:build linux

package agent

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func readMetrics(t *testing.T) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	text, err := env.Agent.ReadMetrics(t.Context())
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return families, text
}

// metricValue returns the value of a counter or gauge, or the count of a histogram; -1 where
// no series has the labels.
func metricValue(t *testing.T, name string, labelsAndValues ...string) float64 {
	t.Helper()
	families, _ := readMetrics(t)
	for _, m := range families[name].GetMetric() {
		has := map[string]string{}
		for _, l := range m.GetLabel() {
			has[l.GetName()] = l.GetValue()
		}
		matches := true
		for i := 0; i < len(labelsAndValues); i += 2 {
			matches = matches && has[labelsAndValues[i]] == labelsAndValues[i+1]
		}
		switch {
		case !matches:
		case m.Counter != nil:
			return m.GetCounter().GetValue()
		case m.Histogram != nil:
			return float64(m.GetHistogram().GetSampleCount())
		default:
			return m.GetGauge().GetValue()
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	env.SetPolicy(t, newPolicy("concurrency", "1", "retryLimit", "0"))
	read := func() map[string]float64 {
		return map[string]float64{
			"succeeded": metricValue(t, "ot_agent_attempts_total", "result", "Succeeded"),
			"notfound":  metricValue(t, "ot_agent_attempts_total", "result", "Failed", "reason", "NotFound"),
			"failed":    metricValue(t, "ot_agent_attempts_total", "result", "Failed", "reason", "ImportFailed"),
			"bytes":     metricValue(t, "ot_agent_transferred_bytes_total"),
			"synced":    metricValue(t, "ot_agent_sync_duration_seconds"),
			"waited":    metricValue(t, "ot_agent_queue_duration_seconds"),
		}
	}
	before := read()
	for what, value := range before {
		assert.GreaterOrEqual(t, value, 0.0, "%s is exposed before it first happens", what)
	}

	ns := createHomeNamespace(t)
	hangs := env.NewImage(ns, "hangs", "/hang/a")
	waits := env.NewImage(ns, "waits", "/ok/200ms/a")
	fails := env.NewImage(ns, "fails", "/crashloop/100ms/a")
	gone := env.NewImage(ns, "gone", "/gone/a")
	env.Create(t, hangs)
	awaitImporting(t, hangs)
	env.Create(t, waits, fails, gone)
	awaitFailed(t, gone, v1alpha1.ReasonNotFound)
	awaitMetric(t, 1, "ot_agent_slots")
	awaitMetric(t, 1, "ot_agent_slots_budget")
	awaitMetric(t, 2, "ot_agent_queue_images", "standing", "ready")
	require.Positive(t, metricValue(t, "ot_agent_queue_oldest_age_seconds"))

	require.NoError(t, env.Client().Delete(t.Context(), hangs))
	awaitSucceeded(t, waits)
	awaitFailed(t, fails, v1alpha1.ReasonImportFailed)
	awaitMetric(t, 0, "ot_agent_slots")
	awaitMetric(t, 0, "ot_agent_queue_images", "standing", "ready")
	awaitMetric(t, 0, "ot_agent_queue_oldest_age_seconds")
	after := read()
	assert.Equal(t, map[string]float64{
		"succeeded": before["succeeded"] + 1,
		"notfound":  before["notfound"] + 1,
		"failed":    before["failed"] + 1,
		"bytes":     before["bytes"] + float64(waits.Spec.DiskSize.Value()),
		"synced":    before["synced"] + 1,
		"waited":    before["waited"] + 3,
	}, after)

	_, text := readMetrics(t)
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

func awaitMetric(t *testing.T, want float64, name string, labelsAndValues ...string) {
	t.Helper()
	var got float64
	require.True(t, testenv.AwaitCondition(t, func() bool { got = metricValue(t, name, labelsAndValues...); return got == want }), "%s %v is %v, want %v", name, labelsAndValues, got, want)
}
