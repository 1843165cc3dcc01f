package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	dialcontroller "github.com/pelotech/ot-fleet/agent/controllers/dial"

	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
)

// setupPullMode makes what dials in to a hub, where a Secret says how.
func setupPullMode(cfg *rest.Config, mgr ctrl.Manager, mailbox cache.Cache, cluster *apidiscovery.ClusterIdentity, served *apidiscovery.KindTracker, o options) (*dialcontroller.Reconciler, error) {
	live, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("the client of the mailbox: %w", err)
	}
	var secrets [2]cache.Cache
	for i, name := range []string{registration.JoinSecret, registration.CredentialSecret} {
		if secrets[i], err = addCache(cfg, mgr, dialcontroller.SecretCacheOptions(o.namespace, name)); err != nil {
			return nil, fmt.Errorf("the cache of Secret %s: %w", name, err)
		}
	}
	leader := &dialcontroller.LeadershipCheck{}
	if o.leaderElect {
		leader.Live, leader.Key = mgr.GetAPIReader(), types.NamespacedName{Namespace: o.namespace, Name: leaderLeaseName}
	}
	counted := metrics.NewPullMode(ctrlmetrics.Registry)
	r := &dialcontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cluster: cluster, Metrics: counted,
		Namespace: o.namespace, Version: version, RenewAfter: o.renewAfter,
		Syncer: &dialcontroller.Syncer{
			Member: dialcontroller.Member{
				Cached: mailbox, Live: live, Namespace: o.namespace, Watch: dialcontroller.WatchMailbox(mailbox, served),
			},
			Leader: leader, Metrics: counted, BootID: string(uuid.NewUUID()),
			Options: hubclient.Options{UserAgent: "ot-agent/" + version},
		},
	}
	return r, r.Setup(mgr, secrets[0], secrets[1])
}
