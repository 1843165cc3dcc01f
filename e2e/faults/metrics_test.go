//go:build linux

package faults

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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func metrics(t *testing.T) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	text, err := place.Agent.Metrics(t.Context())
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return families, text
}

// metric reads a counter, a gauge or how often a histogram was observed; -1 for
// none with these labels.
func metric(t *testing.T, name string, labelsAndValues ...string) float64 {
	t.Helper()
	families, _ := metrics(t)
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
	place.SetPolicy(t, policy("concurrency", "1", "retryLimit", "0"))
	read := func() map[string]float64 {
		return map[string]float64{
			"succeeded": metric(t, "ot_agent_attempts_total", "result", "Succeeded"),
			"notfound":  metric(t, "ot_agent_attempts_total", "result", "Failed", "reason", "NotFound"),
			"failed":    metric(t, "ot_agent_attempts_total", "result", "Failed", "reason", "ImportFailed"),
			"bytes":     metric(t, "ot_agent_transferred_bytes_total"),
			"synced":    metric(t, "ot_agent_sync_duration_seconds"),
			"waited":    metric(t, "ot_agent_queue_duration_seconds"),
		}
	}
	before := read()
	for what, value := range before {
		assert.GreaterOrEqual(t, value, 0.0, "%s is told before it first happens", what)
	}

	ns := home(t)
	hangs := place.Image(ns, "hangs", "/hang/a")
	waits := place.Image(ns, "waits", "/ok/200ms/a")
	fails := place.Image(ns, "fails", "/crashloop/100ms/a")
	gone := place.Image(ns, "gone", "/gone/a")
	place.Create(t, hangs)
	importing(t, hangs)
	place.Create(t, waits, fails, gone)
	failed(t, gone, v1alpha1.ReasonNotFound)
	wantMetric(t, 1, "ot_agent_slots")
	wantMetric(t, 1, "ot_agent_slots_budget")
	wantMetric(t, 2, "ot_agent_queue_images", "standing", "ready")
	require.Positive(t, metric(t, "ot_agent_queue_oldest_age_seconds"))

	require.NoError(t, place.Client().Delete(t.Context(), hangs))
	succeeded(t, waits)
	failed(t, fails, v1alpha1.ReasonImportFailed)
	wantMetric(t, 0, "ot_agent_slots")
	wantMetric(t, 0, "ot_agent_queue_images", "standing", "ready")
	wantMetric(t, 0, "ot_agent_queue_oldest_age_seconds")
	after := read()
	assert.Equal(t, map[string]float64{
		"succeeded": before["succeeded"] + 1,
		"notfound":  before["notfound"] + 1,
		"failed":    before["failed"] + 1,
		"bytes":     before["bytes"] + float64(waits.Spec.DiskSize.Value()),
		"synced":    before["synced"] + 1,
		"waited":    before["waited"] + 3,
	}, after)

	_, text := metrics(t)
	problems, err := promlint.New(strings.NewReader(ours(text))).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// ours leaves out what libraries export under names of their own.
func ours(text string) string {
	var kept []string
	for _, line := range strings.SplitAfter(text, "\n") {
		if strings.Contains(line, "ot_agent_") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func wantMetric(t *testing.T, want float64, name string, labelsAndValues ...string) {
	t.Helper()
	var got float64
	require.True(t, scene.Await(t, func() bool { got = metric(t, name, labelsAndValues...); return got == want }), "%s %v is %v, want %v", name, labelsAndValues, got, want)
}
