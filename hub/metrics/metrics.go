// Package metrics holds what the hub counts, by Prometheus' rules for names:
// seconds, bytes, _total. What has a label member grows with the fleet, what has a
// label image or schedule with what people have written; nothing grows with the
// images of the members.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "ot_hub"

// Directions of the relay.
const (
	Down = "down"
	Up   = "up"
)

// Metrics of a hub. Create them with New.
type Metrics struct {
	valid   *prometheus.GaugeVec
	keys    *prometheus.GaugeVec
	copies  *prometheus.CounterVec
	errors  *prometheus.CounterVec
	plans   prometheus.Counter
	status  prometheus.Counter
	cleanup prometheus.Counter
	decided prometheus.Histogram
}

// New registers the metrics. What can be counted by a closed set is there, at 0,
// before it first happens.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		valid: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "policy_valid",
			Help: "1 while the fleet's policy ConfigMap is in force as it is, 0 while an older policy or none is. Only the replica that plans knows, and has it."}, nil),
		keys: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "policy_key_invalid",
			Help: "1 for a key of the fleet's policy ConfigMap that cannot be used; the last valid policy is in force."}, []string{"key"}),
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "relay_copies_total",
			Help: "Objects that were carried: down to members, up to the hub."}, []string{"direction"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "relay_errors_total",
			Help: "Times that carrying failed and is tried again."}, []string{"direction"}),
		plans: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "plans_written_total",
			Help: "ClusterPlans that were made or changed."}),
		status: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "member_status_writes_total",
			Help: "Writes of MemberCluster status."}),
		cleanup: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "members_left_uncleaned_total",
			Help: "Members that left while the plan in them could not be removed."}),
		decided: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "rollout_planning_seconds",
			Help:    "How long it took to decide about one FleetDiskImage in all clusters.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 3, 10)}),
	}
	for _, direction := range []string{Down, Up} {
		m.copies.WithLabelValues(direction)
		m.errors.WithLabelValues(direction)
	}
	r.MustRegister(m.valid, m.keys, m.copies, m.errors, m.plans, m.status, m.cleanup, m.decided)
	return m
}

// Policy tells whether the ConfigMap is in force and which of its keys cannot
// be used.
func (m *Metrics) Policy(valid bool, invalid []string) {
	value := 0.0
	if valid {
		value = 1
	}
	m.valid.WithLabelValues().Set(value)
	m.keys.Reset()
	for _, key := range invalid {
		m.keys.WithLabelValues(key).Set(1)
	}
}

// Carried counts objects that the relay has written.
func (m *Metrics) Carried(direction string, objects int) {
	m.copies.WithLabelValues(direction).Add(float64(objects))
}

// NotCarried counts a failure of the relay.
func (m *Metrics) NotCarried(direction string) { m.errors.WithLabelValues(direction).Inc() }

// Planned counts a plan that was written.
func (m *Metrics) Planned() { m.plans.Inc() }

// StatusWritten counts a write of a MemberCluster's status.
func (m *Metrics) StatusWritten() { m.status.Inc() }

// Decided counts a decision about a FleetDiskImage.
func (m *Metrics) Decided(took time.Duration) { m.decided.Observe(took.Seconds()) }

// LeftUncleaned counts a member that left with the plan still in it.
func (m *Metrics) LeftUncleaned() { m.cleanup.Inc() }
