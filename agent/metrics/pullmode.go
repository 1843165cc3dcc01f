package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/metricset"
)

// PullMode has the metrics of an agent in pull mode. NewPullMode creates it.
type PullMode struct {
	connected        prometheus.Gauge
	credentialExpiry prometheus.Gauge
	renewals         *prometheus.CounterVec
	storeFailures    prometheus.Counter
	copied           *prometheus.CounterVec
	failures         *prometheus.CounterVec
}

// NewPullMode registers the metrics of pull mode.
func NewPullMode(r prometheus.Registerer) *PullMode {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	m := &PullMode{
		connected:        set.Gauge("hub_connected", "1 while this agent is connected to the hub in pull mode and syncs the mailbox, else 0."),
		credentialExpiry: set.Gauge("hub_credential_expiry_timestamp_seconds", "Expiry of the agent's credential for the hub, by the hub's clock; 0 for none."),
		renewals:         set.CounterVec("hub_credential_renewals_total", "Renewals of the agent's credential for the hub, by result.", "result"),
		storeFailures:    set.Counter("hub_credential_store_failures_total", "Failed reads and writes of the Secrets with the agent's registration and credential."),
		copied:           set.CounterVec("hub_carried_objects_total", "Objects of the mailbox that this agent has copied, by direction.", "direction"),
		failures:         set.CounterVec("hub_carrying_failures_total", "Failed attempts to copy objects of the mailbox, by direction.", "direction"),
	}
	for _, result := range []string{"success", "failure"} {
		m.renewals.WithLabelValues(result)
	}
	for _, direction := range []string{mailbox.DirectionUp, mailbox.DirectionDown} {
		m.copied.WithLabelValues(direction)
		m.failures.WithLabelValues(direction)
	}
	return m
}

// SetConnected sets whether the agent is connected and syncs.
func (m *PullMode) SetConnected(connected bool) { setBool(m.connected, connected) }

// SetCredentialExpiry sets when the credential expires.
func (m *PullMode) SetCredentialExpiry(at time.Time) { m.credentialExpiry.Set(float64(at.Unix())) }

// CountRenewal counts a renewed credential.
func (m *PullMode) CountRenewal() { m.renewals.WithLabelValues("success").Inc() }

// CountFailedRenewal counts a failed renewal.
func (m *PullMode) CountFailedRenewal() { m.renewals.WithLabelValues("failure").Inc() }

// CountStoreFailure counts a failed read or write of the agent's Secrets.
func (m *PullMode) CountStoreFailure() { m.storeFailures.Inc() }

// CountCopied counts copied objects.
func (m *PullMode) CountCopied(direction string, objects int) {
	m.copied.WithLabelValues(direction).Add(float64(objects))
}

// CountCopyFailure counts a failed attempt to copy objects.
func (m *PullMode) CountCopyFailure(direction string) { m.failures.WithLabelValues(direction).Inc() }
