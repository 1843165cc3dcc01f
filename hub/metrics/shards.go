package metrics

import "github.com/prometheus/client_golang/prometheus"

// Shards are the metrics of how members are divided among the replicas. Only the
// elected replica has values that are not 0.
type Shards struct {
	members      *prometheus.GaugeVec
	replicas     *prometheus.GaugeVec
	moves        prometheus.Counter
	stalledSyncs prometheus.Counter
}

// States of a replica, as they are counted.
const (
	ReplicaAlive   = "alive"
	ReplicaUnknown = "unknown"
	ReplicaDead    = "dead"
)

// NewShards registers the metrics.
func NewShards(r prometheus.Registerer) *Shards {
	m := &Shards{
		members: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "replica_members",
			Help: "Members that are assigned to a replica of the hub; replica agent: whose agents dial in. Only the elected replica has it."}, []string{"replica"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "replicas",
			Help: "Replicas of the hub that have a Lease, by state: alive, unknown (not seen to renew it yet), dead. Only the elected replica has it."}, []string{"state"}),
		moves: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "member_moves_total",
			Help: "Members that were assigned to another replica of the hub than before."}),
		stalledSyncs: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "member_reports_not_carried_total",
			Help: "Times that a member was found to be up and to report while nobody carried its report."}),
	}
	r.MustRegister(m.members, m.replicas, m.moves, m.stalledSyncs)
	return m
}

// SetAssigned tells how many members each replica has, and how many replicas there are
// by state.
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
