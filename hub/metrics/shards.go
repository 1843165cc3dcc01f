package metrics

import "github.com/prometheus/client_golang/prometheus"

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
	m := &Shards{
		members: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "replica_members",
			Help: "Members that are assigned to a replica of the hub; replica agent: members in pull mode. Only the elected replica has it."}, []string{"replica"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "replicas",
			Help: "Replicas of the hub that have a Lease, by state: alive, unknown (not seen to renew it yet), dead. Only the elected replica has it."}, []string{"state"}),
		moves: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "member_moves_total",
			Help: "Members that were moved to another replica of the hub."}),
		stalledSyncs: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "member_reports_not_carried_total",
			Help: "Times that a member was up and reported while no replica synced its report."}),
	}
	r.MustRegister(m.members, m.replicas, m.moves, m.stalledSyncs)
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
