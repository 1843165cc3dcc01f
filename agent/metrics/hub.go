package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Directions of carrying.
const (
	DirectionUp   = "up"
	DirectionDown = "down"
)

// PullMode counts what an agent that dials in does. Create it with NewPullMode.
type PullMode struct {
	connected        prometheus.Gauge
	credentialExpiry prometheus.Gauge
	renewals         *prometheus.CounterVec
	storeFailures    prometheus.Counter
	copied           *prometheus.CounterVec
	failures         *prometheus.CounterVec
}

// NewPullMode registers the metrics of dialling in.
func NewPullMode(r prometheus.Registerer) *PullMode {
	const subsystem = "hub"
	m := &PullMode{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "connected",
			Help: "1 where this agent has dialled in and carries; 0 too where a hub carries, or none is."}),
		credentialExpiry: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_expiry_timestamp_seconds",
			Help: "When the agent's credential on the hub expires, by the hub's clock; 0 for none."}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_renewals_total",
			Help: "Renewals of the agent's credential on the hub."}, []string{"result"}),
		storeFailures: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "credential_store_failures_total",
			Help: "Attempts to read or write the Secrets that the agent dials in with that have failed."}),
		copied: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "carried_objects_total",
			Help: "Objects of the mailbox that this agent has carried."}, []string{"direction"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "carrying_failures_total",
			Help: "Attempts to carry that have failed."}, []string{"direction"}),
	}
	for _, result := range []string{"success", "failure"} {
		m.renewals.WithLabelValues(result)
	}
	for _, direction := range []string{DirectionUp, DirectionDown} {
		m.copied.WithLabelValues(direction)
		m.failures.WithLabelValues(direction)
	}
	r.MustRegister(m.connected, m.credentialExpiry, m.renewals, m.storeFailures, m.copied, m.failures)
	return m
}

// SetConnected tells whether the agent carries.
func (m *PullMode) SetConnected(is bool) {
	value := 0.0
	if is {
		value = 1
	}
	m.connected.Set(value)
}

// SetCredentialExpiry tells until when the credential holds.
func (m *PullMode) SetCredentialExpiry(at time.Time) { m.credentialExpiry.Set(float64(at.Unix())) }

// CountRenewal counts a credential that was renewed.
func (m *PullMode) CountRenewal() { m.renewals.WithLabelValues("success").Inc() }

// CountFailedRenewal counts an attempt that has failed.
func (m *PullMode) CountFailedRenewal() { m.renewals.WithLabelValues("failure").Inc() }

// CountStoreFailure counts an attempt to read or write the agent's Secrets that has failed.
func (m *PullMode) CountStoreFailure() { m.storeFailures.Inc() }

// CountCopied counts objects.
func (m *PullMode) CountCopied(direction string, objects int) {
	m.copied.WithLabelValues(direction).Add(float64(objects))
}

// CountCopyFailure counts an attempt that has failed.
func (m *PullMode) CountCopyFailure(direction string) { m.failures.WithLabelValues(direction).Inc() }
