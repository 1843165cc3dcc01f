//go:build linux

package testenv

import (
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// ReadMetrics returns what the agent answers at /metrics, parsed and as text.
func (s *Env) ReadMetrics(t *testing.T) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	text, err := s.Agent.ReadMetrics(t.Context())
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return families, text
}

// MetricValue returns the value of a counter or gauge, or the count of a histogram; -1 where
// no series has the labels.
func (s *Env) MetricValue(t *testing.T, name string, labelsAndValues ...string) float64 {
	t.Helper()
	families, _ := s.ReadMetrics(t)
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

// AwaitMetric waits until MetricValue is as wanted.
func (s *Env) AwaitMetric(t *testing.T, want float64, name string, labelsAndValues ...string) {
	t.Helper()
	var got float64
	require.True(t, AwaitCondition(t, func() bool { got = s.MetricValue(t, name, labelsAndValues...); return got == want }), "%s %v is %v, want %v", name, labelsAndValues, got, want)
}
