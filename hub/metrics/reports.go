package metrics

import "github.com/prometheus/client_golang/prometheus"

// Reports counts what the hub deletes in the members' namespaces. Create it with NewReports.
type Reports struct {
	deleted *prometheus.CounterVec
}

// NewReports registers the metrics.
func NewReports(r prometheus.Registerer) *Reports {
	m := &Reports{deleted: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "unlisted_reports_deleted_total",
		Help: "ClusterReports in the member's namespace that its report did not list, and that were deleted. Only the elected replica has it."}, []string{"member"})}
	r.MustRegister(m.deleted)
	return m
}

// CountDeleted counts deleted ClusterReports.
func (m *Reports) CountDeleted(member string, objects int) {
	m.deleted.WithLabelValues(member).Add(float64(objects))
}

// Forget removes the series of a member that was deleted.
func (m *Reports) Forget(member string) { m.deleted.DeleteLabelValues(member) }
