package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Directions of carrying.
const (
	Up   = "up"
	Down = "down"
)

// Hub counts what an agent that dials in does. Create it with NewHub.
type Hub struct {
	connected prometheus.Gauge
	expires   prometheus.Gauge
	renewals  *prometheus.CounterVec
	unstored  prometheus.Counter
	carried   *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

// NewHub registers the metrics of dialling in.
func NewHub(r prometheus.Registerer) *Hub {
	const subsystem = "hub"
	m := &Hub{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "connected",
			Help: "1 where this agent has dialled in and carries; 0 too where a hub carries, or none is."}),
		expires: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_expiry_timestamp_seconds",
			Help: "When the agent's credential on the hub expires, by the hub's clock; 0 for none."}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_renewals_total",
			Help: "Renewals of the agent's credential on the hub."}, []string{"result"}),
		unstored: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_store_failures_total",
			Help: "Attempts to read or write the Secrets that the agent dials in with that have failed."}),
		carried: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "carried_objects_total",
			Help: "Objects of the mailbox that this agent has carried."}, []string{"direction"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "carrying_failures_total",
			Help: "Attempts to carry that have failed."}, []string{"direction"}),
	}
	for _, result := range []string{"success", "failure"} {
		m.renewals.WithLabelValues(result)
	}
	for _, direction := range []string{Up, Down} {
		m.carried.WithLabelValues(direction)
		m.failures.WithLabelValues(direction)
	}
	r.MustRegister(m.connected, m.expires, m.renewals, m.unstored, m.carried, m.failures)
	return m
}

// Connected tells whether the agent carries.
func (m *Hub) Connected(is bool) {
	value := 0.0
	if is {
		value = 1
	}
	m.connected.Set(value)
}

// Expires tells until when the credential holds.
func (m *Hub) Expires(at time.Time) { m.expires.Set(float64(at.Unix())) }

// Renewed counts a credential that was renewed.
func (m *Hub) Renewed() { m.renewals.WithLabelValues("success").Inc() }

// NotRenewed counts an attempt that has failed.
func (m *Hub) NotRenewed() { m.renewals.WithLabelValues("failure").Inc() }

// NotStored counts an attempt to read or write the agent's Secrets that has failed.
func (m *Hub) NotStored() { m.unstored.Inc() }

// Carried counts objects.
func (m *Hub) Carried(direction string, objects int) {
	m.carried.WithLabelValues(direction).Add(float64(objects))
}

// NotCarried counts an attempt that has failed.
func (m *Hub) NotCarried(direction string) { m.failures.WithLabelValues(direction).Inc() }
