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
	mailboxcontroller "github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	registrationcontroller "github.com/pelotech/ot-fleet/agent/controllers/registration"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
)

// setupPullMode adds the controllers of pull mode. They do nothing unless a Secret says
// how to reach a hub.
func setupPullMode(cfg *rest.Config, mgr ctrl.Manager, mailbox cache.Cache, cluster *apidiscovery.ClusterIdentity, kinds *apidiscovery.KindTracker, o options) (*registrationcontroller.Reconciler, error) {
	live, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("creating the client of the mailbox: %w", err)
	}
	var secrets [2]cache.Cache
	for i, name := range []string{registration.JoinSecret, registration.CredentialSecret} {
		if secrets[i], err = addCache(cfg, mgr, registrationcontroller.SecretCacheOptions(o.Namespace, name)); err != nil {
			return nil, fmt.Errorf("creating the cache of Secret %s: %w", name, err)
		}
	}
	leadership := &mailboxcontroller.LeadershipCheck{}
	if o.LeaderElect {
		leadership.Live, leadership.Key = mgr.GetAPIReader(), types.NamespacedName{Namespace: o.Namespace, Name: leaderLeaseName}
	}
	pullMode := metrics.NewPullMode(ctrlmetrics.Registry)
	syncer := &mailboxcontroller.Syncer{
		Member: mailboxcontroller.Member{
			Cached: mailbox, Live: live, Namespace: o.Namespace, Watch: mailboxcontroller.WatchMailbox(mailbox, kinds),
		},
		Leadership: leadership, Metrics: pullMode, BootID: string(uuid.NewUUID()),
		Options: hubclient.Options{UserAgent: "ot-agent/" + version},
	}
	if err := syncer.Setup(mgr); err != nil {
		return nil, err
	}
	r := &registrationcontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cluster: cluster, Metrics: pullMode, Syncer: syncer,
		Namespace: o.Namespace, Version: version, RenewAfter: o.renewAfter,
	}
	return r, r.Setup(mgr, secrets[0], secrets[1])
}
