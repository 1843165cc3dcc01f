package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/clock"
	imagecontroller "github.com/pelotech/ot-fleet/agent/controllers/image"
	ledgercontroller "github.com/pelotech/ot-fleet/agent/controllers/ledger"
	plancontroller "github.com/pelotech/ot-fleet/agent/controllers/plan"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	registrationcontroller "github.com/pelotech/ot-fleet/agent/controllers/registration"
	reportcontroller "github.com/pelotech/ot-fleet/agent/controllers/report"
	vmcontroller "github.com/pelotech/ot-fleet/agent/controllers/vm"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/agent/podevents"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/startup"
)

// controllers are the agent's controllers, and what several of them share. The flow is
// plan → images → ledger → report; in pull mode, registration and mailbox connect it to the
// hub.
type controllers struct {
	options     options
	mgr         ctrl.Manager
	caches      secondaryCaches
	kinds       *apidiscovery.KindTracker
	cluster     *apidiscovery.ClusterIdentity
	planResults *plan.Results
	permissions *health.PermissionWatch

	plans        *plancontroller.Reconciler
	images       *imagecontroller.Reconciler
	ledger       *ledgercontroller.Reconciler
	reports      *reportcontroller.Reconciler
	vms          *vmcontroller.Reconciler
	registration *registrationcontroller.Reconciler
}

func newControllers(mgr ctrl.Manager, live client.Reader, permissions *health.PermissionWatch, caches secondaryCaches, o options, listHolders imagecontroller.HolderFunc) *controllers {
	c := &controllers{
		options: o, mgr: mgr, caches: caches, permissions: permissions, planResults: &plan.Results{},
		kinds: apidiscovery.NewKindTracker(mgr.GetRESTMapper()), cluster: apidiscovery.NewClusterIdentity(mgr.GetAPIReader()),
	}
	storage, podEvents := capacity.NewReader(mgr.GetAPIReader()), podevents.NewReader(mgr.GetAPIReader())
	cached, events := apidiscovery.WithStrictCreates(mgr.GetClient()), startup.NewEventRecorder(mgr, "ot-agent")
	elapsed := clock.New().Elapsed
	bootID := string(uuid.NewUUID())
	ages, grants, nonces := clock.NewAgeTracker(elapsed), grant.NewRequestTracker(bootID), plan.NewPruneNonces(bootID)
	queue, policyInForce := ledger.NewQueue(), &policycontroller.InForce{}
	if listHolders == nil {
		listHolders = imageHolders{cached: cached, live: live, disks: caches.vmObjects, isServed: c.kinds.IsServed}.list
	}
	imageMetrics := metrics.New(ctrlmetrics.Registry, queue)

	c.plans = &plancontroller.Reconciler{
		Client: cached, Live: live, Mailbox: caches.mailbox, Kinds: c.kinds, Cluster: c.cluster, Policy: policyInForce, Results: c.planResults, Namespace: o.Namespace,
		Nonces: nonces, Elapsed: elapsed,
	}
	c.images = &imagecontroller.Reconciler{
		Client: cached, Live: live, Events: events, Queue: queue, Kinds: c.kinds, Metrics: imageMetrics,
		Preflight: preflight.New(preflight.NewClusterReader(live), policyInForce.PreflightAllow), Capacity: storage, PodEvents: podEvents, ListHolders: listHolders, Ages: ages, Clones: caches.clones,
		Policy: policyInForce.Current, PolicyKnown: policyInForce.Known, Opening: policyInForce.Opening, Namespace: o.Namespace,
		DataSources: imagecontroller.DataSources{Namespaces: o.dataSourceNamespaces, Cache: caches.dataSources},
	}
	c.ledger = &ledgercontroller.Reconciler{
		Client: cached, Live: live, Events: events, Queue: queue, Kinds: c.kinds, Metrics: imageMetrics,
		Mailbox: caches.mailbox, Cluster: c.cluster, Grants: grants, Now: time.Now, Elapsed: elapsed, Ages: ages, Namespace: o.Namespace,
		PolicyInForce: policyInForce, Policy: &policycontroller.Reader{
			Cached: cached, Mailbox: caches.mailbox, Live: live, Events: events,
			Cluster: c.cluster, InForce: policyInForce, Namespace: o.Namespace, ConfigMapKey: o.Policy, Now: time.Now,
		},
	}
	c.reports = &reportcontroller.Reconciler{
		Client: cached, Live: live, Mailbox: caches.mailbox, Kinds: c.kinds, Metrics: metrics.NewReport(ctrlmetrics.Registry),
		ClusterUID: c.cluster.UID, Queue: queue, Policy: policyInForce.Current, Grants: grants, Elapsed: elapsed,
		PlanResults: byImageName(c.planResults, c.planResults.Items), PrunedImages: byImageName(c.planResults, c.planResults.Prunes),
		PruneNonce: func() string { return nonces.NonceForReport(elapsed()) },
		Namespace:  o.Namespace, Version: version, Interval: o.reportInterval, Heartbeat: o.reportHeartbeat,
	}
	c.vms = &vmcontroller.Reconciler{
		Client: cached, Live: live, Owned: caches.vmObjects, Events: events, Kinds: c.kinds,
		Metrics: metrics.NewMachines(ctrlmetrics.Registry), ClusterUID: c.cluster.UID, Capacity: storage, PodEvents: podEvents, Namespace: o.Namespace,
		DataSourceNamespaces: o.dataSourceNamespaces,
	}
	return c
}

// connect connects the controllers with each other: what requeues what, and who asks whom.
func (c *controllers) connect() {
	c.plans.EnqueueImages = c.images.Enqueue
	c.plans.EnqueueReport = c.reports.Enqueue
	c.planResults.OnChange(c.reports.Enqueue)

	c.images.EnqueueLedger = c.ledger.Enqueue
	c.images.PlannedState = c.plans.PlannedState
	c.images.AskPrunesConfirmed = c.plans.AskPrunesConfirmed
	c.images.CreationProblem = c.ledger.CreationProblem

	c.ledger.EnqueueImages = c.images.Enqueue
	c.ledger.EnqueueUnready = c.images.EnqueueUnready
	c.ledger.EnqueueReport = c.reports.Enqueue
	c.ledger.EnqueuePlan = c.plans.Enqueue
	c.ledger.LacksCapacity = c.images.LacksCapacity

	c.registration.OnConditionChange = c.ledger.Enqueue
	c.ledger.HubCondition = c.registration.Condition
	c.permissions.OnChange = c.ledger.Enqueue
	c.ledger.MissingRights = c.permissions.MissingMessage
}

// addTo adds all controllers, and what runs beside them, to the manager.
func (c *controllers) addTo(ctx context.Context, mgr ctrl.Manager) error {
	imageFields, err := apidiscovery.NewImageFields(mgr.GetConfig(), c.reports.Enqueue)
	if err != nil {
		return err
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	c.kinds.Recheck(discoveryClient, c.requeueForKinds)
	imageFields.Refresh(ctx) // before the first report: the hub takes an agent that reports none for an older one
	c.reports.ImageFields, c.reports.PlanFields, c.plans.PlanFields = imageFields.Current, imageFields.Plan, imageFields.Plan
	budgetGuard := admissionpolicy.NewBudgetGuardPoller(mgr.GetClient(), c.options.Namespace, c.ledger.Enqueue)
	c.ledger.ImportGuardCondition = budgetGuard.Condition
	accountGuard := admissionpolicy.NewAccountGuardPoller(mgr.GetClient(), c.ledger.Enqueue)
	c.ledger.AccountGuardCondition = accountGuard.Condition
	oneDownload := admissionpolicy.NewOneDownloadPoller(mgr.GetAPIReader(), mgr.GetClient(), c.ledger.Enqueue)
	c.ledger.OneDownloadCondition = oneDownload.Condition

	if err := c.ledger.Setup(mgr); err != nil {
		return fmt.Errorf("setting up the ledger's controller: %w", err)
	}
	if err := c.images.Setup(ctx, mgr, c.caches.vmObjects, c.caches.clones); err != nil {
		return fmt.Errorf("setting up the images' controller: %w", err)
	}
	if err := c.plans.Setup(mgr); err != nil {
		return fmt.Errorf("setting up the plan's controller: %w", err)
	}
	if err := c.reports.Setup(mgr); err != nil {
		return fmt.Errorf("setting up the report's controller: %w", err)
	}
	if err := c.vms.Setup(ctx, mgr, c.caches.vmObjects); err != nil {
		return fmt.Errorf("setting up the VirtualMachines' controller: %w", err)
	}
	for _, runnable := range []manager.Runnable{c.permissions, budgetGuard, accountGuard, oneDownload, imageFields, c.kinds} {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	return nil
}

// requeueForKinds requeues what a kind decides about that was removed or is back: no event of an object
// says so.
func (c *controllers) requeueForKinds(ctx context.Context) {
	c.ledger.Enqueue()
	c.images.EnqueueAll(ctx)
	if err := c.vms.EnqueueAll(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list VirtualMachines; those that wait for a kind notice it at their next event")
	}
}

// byImageName returns a function that returns results by the names of the images; nil until
// the plan has been read.
func byImageName[T any](results *plan.Results, get func() map[plan.Key]T) func() map[types.NamespacedName]T {
	return func() map[types.NamespacedName]T {
		if !results.Known() {
			return nil
		}
		byName := map[types.NamespacedName]T{}
		for key, result := range get() {
			byName[types.NamespacedName{Namespace: key.Namespace, Name: key.Name}] = result
		}
		return byName
	}
}
