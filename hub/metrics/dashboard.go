package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Dashboard counts sign-ins. Create it with NewDashboard.
type Dashboard struct{ signIns *prometheus.CounterVec }

// NewDashboard registers the metric.
func NewDashboard(r prometheus.Registerer) *Dashboard {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	return &Dashboard{signIns: set.CounterVec("dashboard_sign_ins_total", "Sign-ins to the dashboard by a pasted token, by result: accepted, refused, forbidden (the user may not read), limited (too many had failed) or failed.", "result")}
}

// CountSignIn counts a sign-in by its result.
func (d *Dashboard) CountSignIn(result string) { d.signIns.WithLabelValues(result).Inc() }
