package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	mailboxcontroller "github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	registrationcontroller "github.com/pelotech/ot-fleet/agent/controllers/registration"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
)

// addPullMode adds the controllers of pull mode to the manager. They do nothing until a
// Secret says how to reach a hub. cfg is without a timeout, for watches.
func (c *controllers) addPullMode(cfg *rest.Config) error {
	mgr, o := c.mgr, c.options
	live, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("creating the client of the mailbox: %w", err)
	}
	var secrets [2]cache.Cache
	for i, name := range []string{registration.JoinSecret, registration.CredentialSecret} {
		if secrets[i], err = addCache(cfg, mgr, registrationcontroller.SecretCacheOptions(o.Namespace, name)); err != nil {
			return fmt.Errorf("creating the cache of Secret %s: %w", name, err)
		}
	}
	leadership := &mailboxcontroller.LeadershipCheck{}
	if o.LeaderElect {
		leadership.Live, leadership.Key = mgr.GetAPIReader(), types.NamespacedName{Namespace: o.Namespace, Name: leaderLeaseName}
	}
	pullMode := metrics.NewPullMode(ctrlmetrics.Registry)
	syncer := &mailboxcontroller.Syncer{
		Member: mailboxcontroller.Member{
			Cached: c.caches.mailbox, Live: live, Namespace: o.Namespace, Watch: mailboxcontroller.WatchMailbox(c.caches.mailbox, c.kinds),
		},
		Leadership: leadership, Metrics: pullMode, BootID: string(uuid.NewUUID()),
		Options: hubclient.Options{UserAgent: "ot-agent/" + version},
	}
	c.registration = &registrationcontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cluster: c.cluster, Metrics: pullMode, Syncer: syncer,
		Namespace: o.Namespace, Version: version, RenewAfter: o.renewAfter,
	}
	if err := syncer.Setup(mgr); err != nil {
		return err
	}
	return c.registration.Setup(mgr, secrets[0], secrets[1])
}
