package main

import (
	"os"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// shardComponents are what divides the members among the replicas.
type shardComponents struct {
	replica  *shard.Replica
	peers    *shard.Peers
	links    *shard.Links
	assigner *shard.Assigner
	watchdog *shard.Watchdog
}

func newShardComponents(mgr ctrl.Manager, live client.Client, reports *report.Store, o options) *shardComponents {
	options := shard.Options{
		Name: o.replica, Namespace: o.namespace,
		LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
	}
	replica := shard.NewReplica(live, options)
	s := &shardComponents{
		replica: replica, peers: shard.NewPeers(live, replica, mgr.Elected()),
		links: &shard.Links{Cached: mgr.GetCache()},
	}
	for key, value := range o.served.Annotations() {
		s.replica.Annotate(key, value)
	}
	counted := metrics.NewShards(ctrlmetrics.Registry)
	s.assigner = &shard.Assigner{Client: mgr.GetClient(), Replica: s.replica, Peers: s.peers, Metrics: counted}
	s.watchdog = &shard.Watchdog{
		Cached: mgr.GetCache(), Reports: reports, Links: s.links, Assigner: s.assigner, Events: mgr.GetEventRecorder("ot-hub"), Metrics: counted,
		Probe: &connection.ReportProbe{
			Secrets: &connection.SecretReader{Cached: mgr.GetCache(), Live: live, Namespace: o.namespace}, Timeout: o.memberTimeout,
		},
	}
	return s
}

// setup has them run. What is done when this replica begins to carry, or stops, has to
// be known before.
func (s *shardComponents) setup(mgr ctrl.Manager) error {
	if err := s.assigner.Setup(mgr); err != nil {
		return err
	}
	for _, r := range []manager.Runnable{s.peers, s.watchdog, s.replica} {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// defaultReplicaName is what a replica is called that is not told.
func defaultReplicaName() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "" // which run refuses
	}
	return strings.ToLower(name)
}
