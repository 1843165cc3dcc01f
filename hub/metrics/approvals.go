package metrics

import "github.com/prometheus/client_golang/prometheus"

// Approvals tells whether the API server checks who approves. Create it with
// NewApprovals.
type Approvals struct{ guarded *prometheus.GaugeVec }

// NewApprovals registers the metric.
func NewApprovals(r prometheus.Registerer) *Approvals {
	a := &Approvals{guarded: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "approvals_guarded",
		Help: "1 while the admission policy by which the API server checks who approves is in force, 0 while it is not; none where the chart is told to do without. Only the replica that plans knows."}, []string{"policy"})}
	r.MustRegister(a.guarded)
	return a
}

// SetGuarded tells whether a policy is in force.
func (a *Approvals) SetGuarded(policy string, is bool) {
	value := 0.0
	if is {
		value = 1
	}
	a.guarded.WithLabelValues(policy).Set(value)
}
