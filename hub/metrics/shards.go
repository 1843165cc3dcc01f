package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Shards has the metrics of how members are divided among replicas. Only the elected
// replica has values other than 0.
type Shards struct {
	members      *prometheus.GaugeVec
	replicas     *prometheus.GaugeVec
	moves        prometheus.Counter
	stalledSyncs prometheus.Counter
}

// States of a replica.
const (
	ReplicaAlive   = "alive"
	ReplicaUnknown = "unknown"
	ReplicaDead    = "dead"
)

// NewShards registers the metrics.
func NewShards(r prometheus.Registerer) *Shards {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	m := &Shards{
		members:      set.GaugeVec("replica_members", "Members that are assigned to a replica of the hub; replica agent: members in pull mode. Only the elected replica has it.", "replica"),
		replicas:     set.GaugeVec("replicas", "Replicas of the hub that have a Lease, by state: alive, unknown (not seen to renew it yet), dead. Only the elected replica has it.", "state"),
		moves:        set.Counter("member_moves_total", "Members that were moved to another replica of the hub."),
		stalledSyncs: set.Counter("member_reports_not_carried_total", "Times that a member was up and reported while no replica synced its report."),
	}
	return m
}

// SetAssigned sets the number of members per replica, and of replicas per state.
func (m *Shards) SetAssigned(members, replicas map[string]int) {
	m.members.Reset()
	for replica, n := range members {
		m.members.WithLabelValues(replica).Set(float64(n))
	}
	for _, state := range []string{ReplicaAlive, ReplicaUnknown, ReplicaDead} {
		m.replicas.WithLabelValues(state).Set(float64(replicas[state]))
	}
}

// CountMove counts a member that was assigned to another replica.
func (m *Shards) CountMove() { m.moves.Inc() }

// CountStalledSync counts a finding of the watchdog.
func (m *Shards) CountStalledSync() { m.stalledSyncs.Inc() }
