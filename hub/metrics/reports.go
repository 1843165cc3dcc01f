package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Reports counts what the hub deletes in the members' namespaces. Create it with NewReports.
type Reports struct {
	deleted *prometheus.CounterVec
}

// NewReports registers the metrics.
func NewReports(r prometheus.Registerer) *Reports {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	return &Reports{deleted: set.CounterVec("unlisted_reports_deleted_total", "ClusterReports in the member's namespace that its report did not list, and that were deleted. Only the elected replica has it.", "member")}
}

// CountDeleted counts deleted ClusterReports.
func (m *Reports) CountDeleted(member string, objects int) {
	m.deleted.WithLabelValues(member).Add(float64(objects))
}

// Forget removes the series of a member that was deleted.
func (m *Reports) Forget(member string) { m.deleted.DeleteLabelValues(member) }
