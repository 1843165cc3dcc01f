package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/health"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/discovery"
	grantcontroller "github.com/pelotech/ot-fleet/hub/controllers/grant"
	"github.com/pelotech/ot-fleet/hub/controllers/imageprune"
	installcontroller "github.com/pelotech/ot-fleet/hub/controllers/install"
	membercontroller "github.com/pelotech/ot-fleet/hub/controllers/planner"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunereport"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	joincontroller "github.com/pelotech/ot-fleet/hub/controllers/registration"
	relaycontroller "github.com/pelotech/ot-fleet/hub/controllers/relay"
	reportcontroller "github.com/pelotech/ot-fleet/hub/controllers/report"
	rolloutcontroller "github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/rollout"
	"github.com/pelotech/ot-fleet/hub/web"
)

// requestTimeout ends a request to the hub's own API server that is never
// answered.
const requestTimeout = 30 * time.Second

// setup makes the manager with everything the hub consists of.
func setup(cfg *rest.Config, o options, needed []health.Permission) (mcmanager.Manager, error) {
	cfg = rest.CopyConfig(cfg)
	contact, lacks := health.NewAPIServerMonitor(), health.NewPermissionWatch(rest.CopyConfig(cfg), needed, "ot-hub")
	cfg.Wrap(contact.WrapTransport)
	cfg.Wrap(lacks.WrapTransport)
	provider := memberclient.New(memberclient.Options{
		RequestTimeout: o.memberTimeout, ProbeInterval: o.probeInterval, UserAgent: "ot-hub/" + version,
	})
	bounded := rest.CopyConfig(cfg)
	bounded.Timeout = requestTimeout
	managed := managerOptions(cfg, o)
	electing := newElectionWatch()
	var err error
	if managed.LeaderElectionResourceLockInterface, err = newElectionLock(cfg, o, electing); err != nil {
		return nil, err
	}
	given, err := loadCertificate(o)
	if err != nil {
		return nil, err
	}
	o.served, err = configureServing(o, given, &managed)
	if err != nil {
		return nil, err
	}
	mgr, err := mcmanager.New(bounded, provider, managed)
	if err != nil {
		return nil, err
	}
	local := mgr.GetLocalManager()
	electing.mgr = local
	// Where a read decides what is written, it must not come from a cache.
	live, err := client.New(bounded, client.Options{Scheme: local.GetScheme(), Mapper: local.GetRESTMapper(), HTTPClient: local.GetHTTPClient()})
	if err != nil {
		return nil, err
	}
	store := reportcontroller.NewStore()
	divided := newShardComponents(local, live, store, o)
	faults := &connection.CredentialProblems{}
	if err := connection.Setup(local, connection.Options{
		Namespace: o.namespace, Members: provider, Replica: divided.replica, Links: divided.links, Problems: faults, RequestTimeout: o.memberTimeout,
	}); err != nil {
		return nil, fmt.Errorf("the connections' controller: %w", err)
	}
	if err := discovery.Setup(local, discovery.Options{Namespace: o.namespace, Clusters: o.clusters}); err != nil {
		return nil, fmt.Errorf("the controller that finds members: %w", err)
	}

	if err := claim.AddIndex(context.Background(), local.GetFieldIndexer()); err != nil {
		return nil, fmt.Errorf("indexing MemberClusters: %w", err)
	}
	index := inventory.NewIndex()
	counted := metrics.New(ctrlmetrics.Registry)
	inForce := &policycontroller.ActivePolicy{}
	events := local.GetEventRecorder("ot-hub")
	board := rolloutcontroller.NewFleetState(store.HasSynced)
	store.OnSynced(board.EnqueueIfReady)
	tracker := prunetracker.New()
	reports, err := reportcontroller.New(local.GetCache(), live, index, store, board, tracker)
	if err != nil {
		return nil, err
	}
	policies := &policycontroller.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Metrics: counted,
		Active: inForce, Namespace: o.namespace, PolicyKey: o.policy,
	}
	joins := &joincontroller.Conditions{}
	installs := &installcontroller.Conditions{}
	shares := &grantcontroller.Shares{}
	grants := &grantcontroller.Reconciler{
		Client: local.GetClient(), Live: live, Metrics: metrics.NewGrants(ctrlmetrics.Registry),
		Reports: store, Policy: inForce, Namespace: o.namespace, Challenge: divided.replica.Challenge(), Shares: shares,
	}
	planner := &membercontroller.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Metrics: counted, Version: version,
		Reports: store, Links: divided.links, Replica: divided.replica, Watchdog: divided.watchdog, Faults: faults, Joins: joins, Installs: installs, Policy: inForce, Index: index, Images: board, Requests: tracker, Shares: shares,
	}
	door, err := joincontroller.NewIssuer(cfg, o.apiURL, o.apiCAFile, o.joinTokenLife, o.agentTokenLife)
	if err != nil {
		return nil, err
	}
	admission := &joincontroller.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Metrics: metrics.NewRegistrations(ctrlmetrics.Registry),
		Conditions: joins, Namespace: o.namespace, Issuer: door,
	}
	rollouts := &rolloutcontroller.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Metrics: counted, State: board,
	}
	pruneReports := &prunereport.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Tracker: tracker, Roots: store, Pages: reports, Index: index, Rollouts: board,
	}
	approvals, approvalMetrics := &admissionpolicy.ApprovalCheck{Live: live, Enforced: o.approvals}, metrics.NewApprovals(ctrlmetrics.Registry)
	prunes := &imageprune.Reconciler{
		Client: local.GetClient(), Live: live, Events: events, Tracker: tracker, Roots: store, Approvals: approvals,
	}
	relays := &relaycontroller.Reconciler{
		Cached: local.GetCache(), Live: live, Members: provider, Replica: divided.replica, Links: divided.links, Metrics: counted,
	}
	for _, add := range []func() error{
		func() error { return reports.Setup(local) },
		func() error { return policies.Setup(local) },
		func() error { return planner.Setup(local) },
		func() error { return grants.Setup(local) },
		func() error { return admission.Setup(local) },
		func() error { return setupInstaller(local, live, o, installs) },
		func() error { return rollouts.Setup(local) },
		func() error { return pruneReports.Setup(local) },
		func() error { return prunes.Setup(local) },
		func() error { return local.Add(&prunetracker.Loader{Live: live, Tracker: tracker}) },
		func() error {
			return local.Add(approvals.NewPoller(admissionpolicy.WavesPolicy, approvalMetrics, board.SetApprovalGuarded))
		},
		func() error {
			return local.Add(approvals.NewPoller(admissionpolicy.PrunesPolicy, approvalMetrics, func(metav1.Condition) {}))
		},
		func() error { return relays.Setup(mgr) },
		func() error { return local.Add(provider.Runnable(mgr)) },
		func() error { return divided.setup(local) },
		func() error { return local.Add(electing) },
		func() error { return setupReadAPI(mgr, o, live, index, store, reports, board, prunes) },
		func() error {
			return ctrlmetrics.Registry.Register(&metrics.FleetCollector{Elected: mgr.Elected(), Reader: local.GetCache(), Reports: store, Index: index})
		},
		func() error { return mgr.AddHealthzCheck("ping", healthz.Ping) },
		func() error { return mgr.AddReadyzCheck("reports", checkReportsRead(mgr.Elected(), store)) },
		func() error {
			return health.AddReadyChecks(local, contact, lacks, map[string]func(context.Context) bool{"the hub's own cluster": local.GetCache().WaitForCacheSync})
		},
		func() error { return local.Add(lacks) },
		func() error {
			if given == nil {
				return nil
			}
			return local.Add(given)
		},
	} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}

// checkReportsRead where the read API has something to tell: a replica that is not elected
// has the elected one answer.
func checkReportsRead(elected <-chan struct{}, store *reportcontroller.Store) healthz.Checker {
	return func(*http.Request) error {
		select {
		case <-elected:
			if !store.HasSynced() {
				return errors.New("the stored reports have not all been read")
			}
		default:
		}
		return nil
	}
}

func setupReadAPI(mgr mcmanager.Manager, o options, live client.Reader, index *inventory.Index, store *reportcontroller.Store, reports *reportcontroller.Reconciler, board *rolloutcontroller.FleetState, prunes *imageprune.Reconciler) error {
	api := &web.API{
		Members: mgr.GetLocalManager().GetCache(), Live: live, Index: index, Pages: reports,
		ReportsLoaded:  func() bool { return store.HasSynced() && board.IsSynced() },
		PlacedClusters: func(image string) ([]rollout.PlacedCluster, bool) { return board.PlacedClusters(image, time.Now()) },
		PageNames: func(member string) []string {
			root := store.Root(member)
			return root.PageNames()
		},
		PruneTargets: func(ctx context.Context, prune string) ([]web.PruneTarget, bool, error) {
			states, found, err := prunes.TargetStates(ctx, prune)
			targets := make([]web.PruneTarget, len(states))
			for i := range states {
				targets[i] = newPruneTarget(&states[i])
			}
			return targets, found, err
		},
	}
	forwarder := &web.Forwarder{
		Elected: mgr.Elected(), AllowPlainText: !o.metricsSecure,
		Leader: &web.LeaderLocator{Live: live, Namespace: o.namespace, Lease: leaseName, Prefix: shard.LeasePrefix},
	}
	for path, handler := range api.Handlers() {
		if err := mgr.AddMetricsServerExtraHandler(path, forwarder.Wrap(handler)); err != nil {
			return err
		}
	}
	return nil
}

func newPruneTarget(s *imageprune.TargetState) web.PruneTarget {
	return web.PruneTarget{
		Cluster: s.Cluster, Namespace: s.Namespace, Name: s.Name, UID: s.Target.UID, Revision: s.Revision, Bytes: s.Bytes,
		State: s.State, Reason: s.Reason, Message: s.Message, Until: s.Until,
	}
}

func managerOptions(cfg *rest.Config, o options) ctrl.Options {
	return ctrl.Options{
		Scheme: newScheme(),
		Cache:  cacheOptions(o),
		// The timeout of a client ends its watches too. Those end by themselves: a
		// connection that is dead does not answer HTTP/2's pings.
		NewCache: func(_ *rest.Config, options cache.Options) (cache.Cache, error) {
			options.HTTPClient = nil
			return cache.New(cfg, options)
		},
		HealthProbeBindAddress:        o.healthAddr,
		PprofBindAddress:              o.pprofAddr,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.namespace,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		LeaderElectionReleaseOnCancel: true,
	}
}

// loadCertificate is the one to serve with, and follows its files; nil where none is given.
func loadCertificate(o options) (*certwatcher.CertWatcher, error) {
	if o.metricsCertDir == "" || !o.metricsSecure {
		return nil, nil
	}
	given, err := certwatcher.New(filepath.Join(o.metricsCertDir, corev1.TLSCertKey), filepath.Join(o.metricsCertDir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("reading the certificate in --metrics-cert-dir: %w", err)
	}
	return given, nil
}

// configureServing sets how metrics and the read API are served, and tells where they
// are: by HTTPS with a certificate of this process, or with one that is given.
func configureServing(o options, given *certwatcher.CertWatcher, managed *ctrl.Options) (web.ReplicaAddress, error) {
	managed.Metrics = server.Options{BindAddress: o.metricsAddr, SecureServing: o.metricsSecure}
	key := ""
	if o.metricsSecure {
		certificate, err := web.NewCertificate(o.advertise)
		if err != nil {
			return web.ReplicaAddress{}, err
		}
		key = web.Fingerprint(certificate.Leaf)
		managed.Metrics.FilterProvider = web.KeepCredential(filters.WithAuthenticationAndAuthorization)
		managed.Metrics.TLSOpts = []func(*tls.Config){func(c *tls.Config) {
			c.GetCertificate = web.SelectCertificate(certificate, given)
		}}
	}
	return web.NewReplicaAddress(o.process, o.advertise, o.metricsAddr, key), nil
}

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, clusterv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two packages register one kind: a fault of the build
		}
	}
	return s
}

// cacheOptions keep in memory what the hub needs and no more: of namespaces the
// members', of ConfigMaps those beside the fleet's policy, and in the hub's namespace
// where values for agents may be, of Secrets those in the hub's namespace.
func cacheOptions(o options) cache.Options {
	ofMembers := labels.NewSelector()
	if has, err := labels.NewRequirement(v1alpha1.LabelMember, selection.Exists, nil); err == nil {
		ofMembers = ofMembers.Add(*has)
	}
	configMaps := map[string]cache.Config{o.policy.Namespace: {}}
	if o.installAgents {
		configMaps[o.namespace] = cache.Config{}
	}
	kinds := map[client.Object]cache.ByObject{
		&corev1.Namespace{}: {Label: ofMembers},
		&corev1.ConfigMap{}: {Namespaces: configMaps},
	}
	maps.Copy(kinds, connection.SecretCacheOptions(o.namespace))
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: kinds}
}
