package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/discovery"
	grantcontroller "github.com/pelotech/ot-fleet/hub/controllers/grant"
	"github.com/pelotech/ot-fleet/hub/controllers/imageprune"
	installcontroller "github.com/pelotech/ot-fleet/hub/controllers/install"
	"github.com/pelotech/ot-fleet/hub/controllers/planner"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunereport"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	registrationcontroller "github.com/pelotech/ot-fleet/hub/controllers/registration"
	relaycontroller "github.com/pelotech/ot-fleet/hub/controllers/relay"
	reportcontroller "github.com/pelotech/ot-fleet/hub/controllers/report"
	rolloutcontroller "github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// hub is everything that the hub's controllers share.
type hub struct {
	options
	// process identifies this process; every start has a new one.
	process string

	apiServer *startup.APIServer
	manager   mcmanager.Manager
	// local is the manager of the hub's own cluster.
	local ctrl.Manager
	// live reads from the API server, for decisions that a cache may be too old for.
	live    client.WithWatch
	events  events.EventRecorder
	metrics *metrics.Metrics
	// members connects to the members that this replica owns.
	members *memberclient.Provider

	// What is known of the fleet, each part written by one controller.
	policy      *policycontroller.InForce
	store       *reportcontroller.Store
	reports     *reportcontroller.Reconciler
	index       *inventory.Index
	rollouts    *rolloutcontroller.FleetState
	requests    *prunetracker.Tracker
	prunes      *imageprune.Reconciler
	shares      *grantcontroller.Shares
	raises      *plan.Raises
	transfers   metrics.TransfersFunc
	credentials *connection.CredentialProblems
	rotations   *connection.Rotations
	joined      *registrationcontroller.Conditions
	installed   *installcontroller.Conditions

	// How members are divided among the replicas.
	replica  *shard.Replica
	peers    *shard.Peers
	links    *shard.Links
	assigner *shard.Assigner
	watchdog *shard.Watchdog
}

// newManager returns the manager with all of the hub's controllers.
func newManager(cfg *rest.Config, o options, needed []health.Permission) (mcmanager.Manager, error) {
	process, err := startup.NewProcessID()
	if err != nil {
		return nil, err
	}
	h := &hub{options: o, process: process, apiServer: startup.NewAPIServer(cfg, needed, programName)}
	served, err := h.createManager()
	if err != nil {
		return nil, err
	}
	h.createState()
	h.createShards(served)
	for _, setup := range []func() error{
		h.setupMembers,
		h.setupPlanning,
		h.setupRegistration,
		h.setupInstaller,
		h.setupRollouts,
		h.setupPrunes,
		h.setupSync,
		h.setupShards,
		h.setupReadAPI,
		h.setupHealth,
	} {
		if err := setup(); err != nil {
			return nil, err
		}
	}
	return h.manager, nil
}

// createManager returns the address at which other replicas reach this one.
func (h *hub) createManager() (served readapi.ReplicaAddress, err error) {
	h.members = memberclient.New(memberclient.Options{
		RequestTimeout: h.memberTimeout, ProbeInterval: h.probeInterval, UserAgent: userAgent(),
	})
	h.apiServer.Bounded.Wrap(relaycontroller.MeasureUploads)
	managerOptions := h.ManagerOptions(h.apiServer, newScheme(), cacheOptions(h.options), readapi.ElectionLease)
	election, err := startup.NewElection(h.apiServer, &managerOptions, programName, h.process)
	if err != nil {
		return served, err
	}
	certificate, err := watchCertificate(h.options)
	if err != nil {
		return served, err
	}
	if served, err = configureServing(h.options, h.process, certificate, &managerOptions); err != nil {
		return served, err
	}
	if h.manager, err = mcmanager.New(h.apiServer.Bounded, h.members, managerOptions); err != nil {
		return served, err
	}
	h.local = h.manager.GetLocalManager()
	if err := election.AddTo(h.local); err != nil {
		return served, err
	}
	runnables := []manager.Runnable{h.members.Runnable(h.manager)}
	if certificate != nil {
		runnables = append(runnables, certificate)
	}
	if err := h.addRunnables(runnables...); err != nil {
		return served, err
	}
	h.live, err = client.NewWithWatch(h.apiServer.Bounded, client.Options{Scheme: h.local.GetScheme(), Mapper: h.local.GetRESTMapper(), HTTPClient: h.local.GetHTTPClient()})
	return served, err
}

func (h *hub) addRunnables(runnables ...manager.Runnable) error {
	for _, r := range runnables {
		if err := h.local.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// createState creates what one controller writes and others read.
func (h *hub) createState() {
	h.events, h.metrics = startup.NewEventRecorder(h.local, programName), metrics.New(ctrlmetrics.Registry)
	h.policy = &policycontroller.InForce{}
	h.store, h.index = reportcontroller.NewStore(), inventory.NewIndex()
	h.rollouts, h.requests = rolloutcontroller.NewFleetState(h.store.HasSynced), prunetracker.New()
	h.rollouts.Activity = func(member string) *v1alpha1.ReportedActivity {
		if activity := h.index.Activity(member); activity.Unknown == "" {
			return activity.Reported
		}
		return nil
	}
	h.rollouts.Budget = h.budget
	h.store.OnSynced(h.rollouts.EnqueueIfReady)
	h.shares, h.raises = &grantcontroller.Shares{}, &plan.Raises{}
	h.credentials, h.rotations = &connection.CredentialProblems{}, &connection.Rotations{}
	h.joined, h.installed = &registrationcontroller.Conditions{}, &installcontroller.Conditions{}
	h.reports = reportcontroller.New(h.local.GetCache(), h.live, h.events, metrics.NewReports(ctrlmetrics.Registry), h.index, h.store, h.rollouts, h.requests)
}

// grantsReadTimeout bounds the wait for a cache that has not synced.
const grantsReadTimeout = time.Second

// fleetBudget returns the fleet-wide budget in force now; nil for none.
func (h *hub) fleetBudget() *policy.Budget {
	if p := h.policy.Current().Policy; p != nil {
		return p.Budget(time.Now())
	}
	return nil
}

// budget returns the fleet-wide budget, nil for none, and how many imports from each group of
// sources the members' grants allow.
func (h *hub) budget() (b *policy.Budget, sourceLimits map[string]map[string]int32) {
	if b = h.fleetBudget(); b == nil || len(b.Sources) == 0 {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), grantsReadTimeout)
	defer cancel()
	var grants v1alpha1.TransferGrantList
	if err := h.local.GetCache().List(ctx, &grants, client.UnsafeDisableDeepCopy); err != nil {
		return b, nil // an estimate without it is too early; the next is a minute away
	}
	sourceLimits = make(map[string]map[string]int32, len(grants.Items))
	for i := range grants.Items {
		if member, ok := reportcontroller.MemberForNamespace(grants.Items[i].Namespace); ok && grants.Items[i].Name == v1alpha1.MailboxName {
			sourceLimits[member] = b.SourceLimits(&grants.Items[i])
		}
	}
	return b, sourceLimits
}

// createShards creates what divides the members among the replicas.
func (h *hub) createShards(served readapi.ReplicaAddress) {
	h.replica = shard.NewReplica(h.live, shard.Options{
		Name: h.options.replica, Namespace: h.Namespace,
		LeaseDuration: h.LeaseDuration, RenewDeadline: h.RenewDeadline, RetryPeriod: h.RetryPeriod,
	})
	served.Version = version
	for key, value := range served.Annotations() {
		h.replica.Annotate(key, value)
	}
	h.peers = shard.NewPeers(h.live, h.replica, h.reports.Heartbeats, h.local.Elected())
	h.links = &shard.Links{Cached: h.local.GetCache()}
	shardMetrics := metrics.NewShards(ctrlmetrics.Registry)
	h.assigner = &shard.Assigner{Client: h.local.GetClient(), Replica: h.replica, Peers: h.peers, Reports: h.store, Metrics: shardMetrics}
	h.watchdog = &shard.Watchdog{
		Cached: h.local.GetCache(), Reports: h.store, Links: h.links, Assigner: h.assigner, Events: h.events, Metrics: shardMetrics,
		Probe: &connection.ReportProbe{Secrets: h.secrets(), Timeout: h.memberTimeout},
	}
}

func (h *hub) secrets() *connection.SecretReader {
	return &connection.SecretReader{Cached: h.local.GetCache(), Live: h.live, Namespace: h.Namespace}
}

// setupMembers finds members, connects to them, and resolves which member a cluster
// belongs to.
func (h *hub) setupMembers() error {
	if err := connection.Setup(h.local, connection.Options{
		Namespace: h.Namespace, Members: h.members, Replica: h.replica, Links: h.links, Reports: h.store, Problems: h.credentials, Rotations: h.rotations, RequestTimeout: h.memberTimeout,
	}); err != nil {
		return fmt.Errorf("setting up the connection controller: %w", err)
	}
	if err := discovery.Setup(h.local, discovery.Options{Namespace: h.Namespace, Clusters: h.clusters, Rules: h.clusterRules}); err != nil {
		return fmt.Errorf("setting up the discovery controller: %w", err)
	}
	if err := claim.AddIndex(context.Background(), h.local.GetFieldIndexer()); err != nil {
		return fmt.Errorf("indexing MemberClusters: %w", err)
	}
	return nil
}

// setupPlanning: reports and policy in, ClusterPlans and TransferGrants out.
func (h *hub) setupPlanning() error {
	if err := h.reports.Setup(h.local); err != nil {
		return err
	}
	policies := &policycontroller.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Metrics: h.metrics,
		InForce: h.policy, Namespace: h.Namespace, PolicyKey: h.Policy,
	}
	if err := policies.Setup(h.local); err != nil {
		return err
	}
	plans := &planner.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Metrics: h.metrics, Namespace: h.Namespace, Version: version,
		Reports: h.store, Links: h.links, Replica: h.replica, Watchdog: h.watchdog, CredentialProblems: h.credentials, Rotations: h.rotations, Registrations: h.joined, Installs: h.installed,
		Policy: h.policy, Index: h.index, Images: h.rollouts, Requests: h.requests, Shares: h.shares, Raises: h.raises,
	}
	if err := plans.Setup(h.local); err != nil {
		return err
	}
	grants := &grantcontroller.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Metrics: metrics.NewGrants(ctrlmetrics.Registry),
		Reports: h.store, Policy: h.policy, Namespace: h.Namespace, Challenge: h.replica.Challenge(), Shares: h.shares, Raises: h.raises,
	}
	return grants.Setup(h.local)
}

// setupRegistration issues and revokes the credentials of agents in pull mode.
func (h *hub) setupRegistration() error {
	issuer, err := registrationcontroller.NewIssuer(h.apiServer.Config, h.apiURL, h.apiCAFile, h.joinTokenLife, h.agentTokenLife)
	if err != nil {
		return err
	}
	registrations := &registrationcontroller.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Metrics: metrics.NewRegistrations(ctrlmetrics.Registry),
		Conditions: h.joined, Namespace: h.Namespace, Issuer: issuer, Quota: h.memberQuota,
	}
	return registrations.Setup(h.local)
}

// agentChart is the folder of the agent's chart in charts.Agent.
const agentChart = "ot-agent"

// setupInstaller installs agents in members that opt in.
func (h *hub) setupInstaller() error {
	if !h.installAgents {
		return nil
	}
	chart, err := helm.LoadChart(charts.Agent, agentChart, version)
	if err != nil {
		return err
	}
	installs := &installcontroller.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Metrics: metrics.NewInstalls(ctrlmetrics.Registry),
		Conditions: h.installed, Chart: chart, Namespace: h.Namespace, Process: h.process, UserAgent: userAgent(),
		Admins:         &connection.AdminKubeconfigs{Secrets: h.secrets(), Live: h.live},
		RequestTimeout: h.memberTimeout, LeaseDuration: 2 * h.LeaseDuration, Backoff: h.installBackoff,
	}
	if err := installs.Setup(h.local); err != nil {
		return fmt.Errorf("setting up the install controller: %w", err)
	}
	return nil
}

// setupRollouts decides which member gets which version of a FleetDiskImage.
func (h *hub) setupRollouts() error {
	rollouts := &rolloutcontroller.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Metrics: h.metrics, State: h.rollouts,
	}
	return rollouts.Setup(h.local)
}

// setupPrunes answers PruneReports and carries ImagePrunes out. Both approvals, of waves
// and of prunes, are guarded by admission policies that are polled.
func (h *hub) setupPrunes() error {
	approvals, approvalMetrics := &admissionpolicy.ApprovalCheck{Live: h.live, Enforced: h.approvals}, metrics.NewApprovals(ctrlmetrics.Registry)
	pruneReports := &prunereport.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Tracker: h.requests, Roots: h.store, Pages: h.reports, Index: h.index, Rollouts: h.rollouts,
	}
	account := &admissionpolicy.ApprovalCheck{Live: h.live, Enforced: true}
	h.prunes = &imageprune.Reconciler{
		Client: h.local.GetClient(), Live: h.live, Events: h.events, Tracker: h.requests, Roots: h.store, Approvals: approvals,
	}
	if err := pruneReports.Setup(h.local); err != nil {
		return err
	}
	if err := h.prunes.Setup(h.local); err != nil {
		return err
	}
	return h.addRunnables(
		&prunetracker.Loader{Live: h.live, Tracker: h.requests},
		approvals.NewPoller(admissionpolicy.WavesPolicy, approvalMetrics, h.rollouts.SetApprovalGuarded),
		approvals.NewPoller(admissionpolicy.PrunesPolicy, approvalMetrics, func(metav1.Condition) {}),
		account.NewPoller(admissionpolicy.AccountPolicy, approvalMetrics, func(metav1.Condition) {}),
	)
}

// setupSync relays plans, grants and reports for the members that this replica owns.
func (h *hub) setupSync() error {
	relays := &relaycontroller.Reconciler{
		Cached: h.local.GetCache(), Live: h.reports.RememberWrites(h.live), Members: h.members, Replica: h.replica, Links: h.links, Metrics: h.metrics, Heartbeats: h.reports.Heartbeats,
	}
	return relays.Setup(h.manager)
}

// setupShards runs last of the controllers: all others have registered for OnLeaseChange
// by then.
func (h *hub) setupShards() error {
	if err := h.assigner.Setup(h.local); err != nil {
		return err
	}
	return h.addRunnables(h.peers, h.watchdog, h.replica)
}
