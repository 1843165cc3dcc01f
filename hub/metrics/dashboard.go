package metrics

import "github.com/prometheus/client_golang/prometheus"

// Dashboard counts sign-ins. Create it with NewDashboard.
type Dashboard struct{ signIns *prometheus.CounterVec }

// NewDashboard registers the metric.
func NewDashboard(r prometheus.Registerer) *Dashboard {
	d := &Dashboard{signIns: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "dashboard_sign_ins_total",
		Help: "Sign-ins to the dashboard by a pasted token, by result: accepted, refused, forbidden (the user may not read), limited (too many had failed) or failed."}, []string{"result"})}
	r.MustRegister(d.signIns)
	return d
}

// CountSignIn counts a sign-in by its result.
func (d *Dashboard) CountSignIn(result string) { d.signIns.WithLabelValues(result).Inc() }
