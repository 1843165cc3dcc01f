package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Approvals shows whether the API server checks who approves. Create it with
// NewApprovals.
type Approvals struct{ guarded *prometheus.GaugeVec }

// NewApprovals registers the metric.
func NewApprovals(r prometheus.Registerer) *Approvals {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	return &Approvals{guarded: set.GaugeVec("approvals_guarded", "1 while the admission policy of approvals or the hub's account is in force, else 0; absent without it. Only the elected replica has it.", "policy")}
}

// SetGuarded records whether an admission policy is in force.
func (a *Approvals) SetGuarded(policy string, guarded bool) {
	a.guarded.WithLabelValues(policy).Set(boolValue(guarded))
}
