package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Installs counts attempts to install agents. Create it with NewInstalls.
type Installs struct{ attempts *prometheus.CounterVec }

// NewInstalls registers the metrics.
func NewInstalls(r prometheus.Registerer) *Installs {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	i := &Installs{attempts: set.CounterVec("agent_install_attempts_total", "Attempts to install or upgrade the agent in members that opt in.", "result")}
	for _, result := range []string{"succeeded", "failed"} {
		i.attempts.WithLabelValues(result)
	}
	return i
}

// CountAttempt counts an attempt.
func (i *Installs) CountAttempt(succeeded bool) {
	result := "failed"
	if succeeded {
		result = "succeeded"
	}
	i.attempts.WithLabelValues(result).Inc()
}
