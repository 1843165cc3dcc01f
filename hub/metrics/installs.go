package metrics

import "github.com/prometheus/client_golang/prometheus"

// Installs counts attempts to install agents. Create it with NewInstalls.
type Installs struct{ attempts *prometheus.CounterVec }

// NewInstalls registers the metrics.
func NewInstalls(r prometheus.Registerer) *Installs {
	i := &Installs{attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "agent_install_attempts_total",
		Help: "Attempts to install or upgrade the agent in members that opt in."}, []string{"result"})}
	for _, result := range []string{"succeeded", "failed"} {
		i.attempts.WithLabelValues(result)
	}
	r.MustRegister(i.attempts)
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
