// Package metrics has the hub's metrics. The number of series with label member grows
// with the fleet, with label image or schedule with what people create; none grows with
// the images of members.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/metricset"
)

const namespace = "ot_hub"

// Metrics of a hub. Create them with New.
type Metrics struct {
	policyValid      *prometheus.GaugeVec
	policyKeyInvalid *prometheus.GaugeVec
	relayCopies      *prometheus.CounterVec
	relayErrors      *prometheus.CounterVec
	plansWritten     prometheus.Counter
	statusWrites     prometheus.Counter
	membersUncleaned prometheus.Counter
	rolloutPlanning  prometheus.Histogram
}

// New registers the metrics. Counters with a closed set of labels exist from the start,
// at 0.
func New(r prometheus.Registerer) *Metrics {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	m := &Metrics{
		policyValid:      set.GaugeVec("policy_valid", "1 while the fleet's policy ConfigMap is in force, 0 while an older policy or none is. Only the elected replica has it."),
		policyKeyInvalid: set.GaugeVec("policy_key_invalid", "1 for a key of the fleet's policy ConfigMap that is invalid; the last valid policy stays in force.", "key"),
		relayCopies:      set.CounterVec("relay_copies_total", "Objects that the relay copied: down to members, up to the hub.", "direction"),
		relayErrors:      set.CounterVec("relay_errors_total", "Failed syncs, which are retried.", "direction"),
		plansWritten:     set.Counter("plans_written_total", "ClusterPlans created or updated."),
		statusWrites:     set.Counter("member_status_writes_total", "Writes of MemberCluster status."),
		membersUncleaned: set.Counter("members_left_uncleaned_total", "Members that were removed while the plan in them could not be deleted."),
		rolloutPlanning:  set.Histogram("rollout_planning_seconds", "Duration of a decision about one FleetDiskImage in all clusters.", prometheus.ExponentialBuckets(0.00005, 3, 10)),
	}
	for _, direction := range []string{mailbox.DirectionUp, mailbox.DirectionDown} {
		m.relayCopies.WithLabelValues(direction)
		m.relayErrors.WithLabelValues(direction)
	}
	return m
}

func boolValue(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// SetPolicyValid shows whether the policy ConfigMap is active and which of its keys are
// invalid.
func (m *Metrics) SetPolicyValid(valid bool, invalid []string) {
	m.policyValid.WithLabelValues().Set(boolValue(valid))
	m.policyKeyInvalid.Reset()
	for _, key := range invalid {
		m.policyKeyInvalid.WithLabelValues(key).Set(1)
	}
}

// CountSynced counts objects that the relay wrote.
func (m *Metrics) CountSynced(direction string, objects int) {
	m.relayCopies.WithLabelValues(direction).Add(float64(objects))
}

// CountSyncError counts a failed sync.
func (m *Metrics) CountSyncError(direction string) { m.relayErrors.WithLabelValues(direction).Inc() }

// CountPlanWrite counts a written ClusterPlan.
func (m *Metrics) CountPlanWrite() { m.plansWritten.Inc() }

// CountStatusWrite counts a write of a MemberCluster's status.
func (m *Metrics) CountStatusWrite() { m.statusWrites.Inc() }

// ObservePlanning records the duration of a decision about a FleetDiskImage.
func (m *Metrics) ObservePlanning(took time.Duration) { m.rolloutPlanning.Observe(took.Seconds()) }

// CountUncleaned counts a member that was removed with a plan left in it.
func (m *Metrics) CountUncleaned() { m.membersUncleaned.Inc() }
