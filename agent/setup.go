package main

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/clock"
	imagecontroller "github.com/pelotech/ot-fleet/agent/controllers/image"
	ledgercontroller "github.com/pelotech/ot-fleet/agent/controllers/ledger"
	plancontroller "github.com/pelotech/ot-fleet/agent/controllers/plan"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	reportcontroller "github.com/pelotech/ot-fleet/agent/controllers/report"
	vmcontroller "github.com/pelotech/ot-fleet/agent/controllers/vm"
	"github.com/pelotech/ot-fleet/agent/grant"

	"github.com/pelotech/ot-fleet/agent/metrics"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/health"

	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// leaderLeaseName of the Lease that one agent of several leads by.
const leaderLeaseName = "ot-agent"

// newManager makes the manager with everything the agent consists of. holders tells
// who needs an image; nil stands for the VirtualMachines.
func newManager(ctx context.Context, cfg *rest.Config, o options, holders imagecontroller.HolderFunc) (ctrl.Manager, error) {
	needed, err := o.requiredRights()
	if err != nil {
		return nil, err
	}
	if err := o.CheckCertificate(); err != nil {
		return nil, err
	}
	apiServer := startup.NewAPIServer(cfg, needed, "ot-agent")
	cfg = apiServer.Config
	managerOptions := o.ManagerOptions(apiServer, newScheme(), cacheOptions(o), leaderLeaseName)
	managerOptions.Client = client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}}
	mgr, err := ctrl.NewManager(apiServer.Bounded, managerOptions)
	if err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	mailbox, err := addCache(cfg, mgr, cache.Options{DefaultNamespaces: map[string]cache.Config{o.Namespace: {}}})
	if err != nil {
		return nil, fmt.Errorf("the cache of the mailbox: %w", err)
	}
	made, err := addCache(cfg, mgr, cache.Options{DefaultLabelSelector: labelExists(v1alpha1.LabelMachineUID)})
	if err != nil {
		return nil, fmt.Errorf("the cache of what is made for machines: %w", err)
	}
	if err := health.AddReadyChecks(mgr, apiServer.Monitor, apiServer.Permissions, map[string]func(context.Context) bool{
		"images and machines": mgr.GetCache().WaitForCacheSync, "the mailbox": mailbox.WaitForCacheSync, "what is made for machines": made.WaitForCacheSync,
	}); err != nil {
		return nil, err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, vm.ImageIndex, func(o client.Object) []string {
		return vm.HeldImages(o.(*v1alpha1.VirtualMachine))
	}); err != nil {
		return nil, fmt.Errorf("indexing machines by their images: %w", err)
	}
	if holders == nil {
		holders = vmHolders{cached: mgr.GetClient(), live: mgr.GetAPIReader()}.listHolders
	}
	cluster := apidiscovery.NewClusterIdentity(mgr.GetAPIReader())
	results := &plan.Results{}
	elapsed, grants := clock.New().Elapsed, grant.NewRequestTracker(string(uuid.NewUUID()))
	ages := clock.NewAgeTracker(elapsed)

	index := ledger.NewQueue()
	counted := metrics.New(ctrlmetrics.Registry, index)
	served := apidiscovery.NewKindTracker(mgr.GetRESTMapper())
	inForce := &policycontroller.InForce{}
	images := &imagecontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("ot-agent"),
		Queue: index, Kinds: served, Metrics: counted, Preflight: preflight.New(), Capacity: capacity.NewReader(mgr.GetAPIReader()),
		Policy: inForce.Current, PolicyKnown: inForce.Known, ListHolders: holders, Ages: ages, Namespace: o.Namespace,
	}
	ledger := &ledgercontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("ot-agent"),
		Queue: index, Kinds: served, Metrics: counted, PolicyInForce: inForce,
		Policy: &policycontroller.Reader{
			Cached: mgr.GetClient(), Mailbox: mailbox, Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("ot-agent"),
			Cluster: cluster, InForce: inForce, Namespace: o.Namespace, ConfigMapKey: o.Policy,
		},
		EnqueueUnready: images.EnqueueUnready, Namespace: o.Namespace,
		Mailbox: mailbox, Cluster: cluster, Grants: grants, Elapsed: elapsed, Ages: ages, EnqueueImages: images.Enqueue,
	}
	registration, err := setupPullMode(cfg, mgr, mailbox, cluster, served, o)
	if err != nil {
		return nil, fmt.Errorf("setting up pull mode: %w", err)
	}
	registration.OnConditionChange = ledger.Enqueue
	ledger.HubCondition = registration.Condition
	ledger.MissingRights, apiServer.Permissions.OnChange = apiServer.Permissions.MissingMessage, ledger.Enqueue
	budgetGuard := admissionpolicy.NewBudgetGuardPoller(mgr.GetClient(), o.Namespace, ledger.Enqueue)
	ledger.ImportGuardCondition = budgetGuard.Condition
	oneDownload := admissionpolicy.NewOneDownloadPoller(mgr.GetAPIReader(), mgr.GetClient(), ledger.Enqueue)
	ledger.OneDownloadCondition = oneDownload.Condition
	images.EnqueueLedger = ledger.Enqueue
	ledger.LacksCapacity = images.LacksCapacity
	if err := ledger.Setup(mgr); err != nil {
		return nil, fmt.Errorf("the ledger's controller: %w", err)
	}
	if err := images.Setup(ctx, mgr); err != nil {
		return nil, fmt.Errorf("the images' controller: %w", err)
	}
	plans := &plancontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Mailbox: mailbox,
		Kinds: served, Cluster: cluster, Results: results, EnqueueImages: images.Enqueue, Namespace: o.Namespace,
	}
	if err := plans.Setup(mgr); err != nil {
		return nil, fmt.Errorf("the plan's controller: %w", err)
	}
	images.PlannedState = plans.PlannedState
	reports := &reportcontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Mailbox: mailbox, Kinds: served,
		Metrics: metrics.NewReport(ctrlmetrics.Registry), ClusterUID: cluster.UID,
		PlanResults: planItemReports(results), PrunedImages: prunedImages(results), Grants: grants, Elapsed: elapsed,
		Namespace: o.Namespace, Version: version, Interval: o.reportInterval, Heartbeat: o.reportHeartbeat,
	}
	if err := reports.Setup(mgr); err != nil {
		return nil, fmt.Errorf("the report's controller: %w", err)
	}
	results.OnChange(reports.Enqueue)
	ledger.EnqueueReport = reports.Enqueue
	vms := &vmcontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Owned: made, Events: mgr.GetEventRecorder("ot-agent"),
		Kinds: served, Metrics: metrics.NewMachines(ctrlmetrics.Registry), ClusterUID: cluster.UID,
	}
	if err := vms.Setup(ctx, mgr, made); err != nil {
		return nil, fmt.Errorf("the machines' controller: %w", err)
	}
	if err := mgr.Add(apiServer.Permissions); err != nil {
		return nil, err
	}
	if err := mgr.Add(budgetGuard); err != nil {
		return nil, err
	}
	if err := mgr.Add(oneDownload); err != nil {
		return nil, err
	}
	return mgr, mgr.Add(served)
}

// planItemReports returns the plan's results by the names of the images; nil until the
// plan has been looked at.
func planItemReports(results *plan.Results) func() map[types.NamespacedName]v1alpha1.PlanItemReport {
	return func() map[types.NamespacedName]v1alpha1.PlanItemReport {
		if !results.Known() {
			return nil
		}
		items := map[types.NamespacedName]v1alpha1.PlanItemReport{}
		for key, item := range results.Items() {
			items[types.NamespacedName{Namespace: key.Namespace, Name: key.Name}] = item
		}
		return items
	}
}

// prunedImages returns the plan's prunes whose image is gone by the names of the images; nil
// until the plan has been looked at.
func prunedImages(results *plan.Results) func() map[types.NamespacedName]v1alpha1.ReportedPrune {
	return func() map[types.NamespacedName]v1alpha1.ReportedPrune {
		if !results.Known() {
			return nil
		}
		prunes := map[types.NamespacedName]v1alpha1.ReportedPrune{}
		for key, prune := range results.Prunes() {
			prunes[types.NamespacedName{Namespace: key.Namespace, Name: key.Name}] = prune
		}
		return prunes
	}
}

// secondaryCache is a cache beside the manager's own: one of the mailbox, whose kinds
// may come to be served later and may be read in the agent's namespace only, and
// one of what carries a machine's UID in place of an image's.
type secondaryCache struct{ cache.Cache }

// GetCache has the manager start it before any controller.
func (c secondaryCache) GetCache() cache.Cache { return c.Cache }

func addCache(cfg *rest.Config, mgr ctrl.Manager, options cache.Options) (cache.Cache, error) {
	options.Scheme, options.Mapper = mgr.GetScheme(), mgr.GetRESTMapper()
	options.DefaultTransform = cache.TransformStripManagedFields()
	c, err := cache.New(cfg, options)
	if err != nil {
		return nil, err
	}
	return c, mgr.Add(secondaryCache{c})
}

func newScheme() *runtime.Scheme {
	return startup.NewScheme(clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme)
}

// cacheOptions keep in memory what the agent needs and no more: of what CDI and
// Kubernetes make, only what carries an image's UID. That is the default, not an
// option of each kind: an option is refused for a kind that is not served.
func cacheOptions(o options) cache.Options {
	return cache.Options{
		DefaultTransform:     cache.TransformStripManagedFields(),
		DefaultLabelSelector: labelExists(v1alpha1.LabelImageUID),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.VMDiskImage{}:    {Label: labels.Everything()},
			&v1alpha1.VirtualMachine{}: {Label: labels.Everything()},
			&v1alpha1.SyncLedger{}:     {Label: labels.Everything(), Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&storagev1.StorageClass{}:  {Label: labels.Everything()},
			&corev1.Pod{}:              {Transform: stripPodSpec},
			&corev1.ConfigMap{}: {
				Label:      labels.Everything(),
				Namespaces: map[string]cache.Config{o.Policy.Namespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", o.Policy.Name),
			},
		},
	}
}

// labelExists selects what carries a label.
func labelExists(label string) labels.Selector {
	r, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err) // a label of ours that is none
	}
	return labels.NewSelector().Add(*r)
}

// stripPodSpec leaves of a Pod's spec whether it starts over.
func stripPodSpec(obj any) (any, error) {
	if pod, is := obj.(*corev1.Pod); is {
		pod.ManagedFields = nil
		pod.Spec = corev1.PodSpec{RestartPolicy: pod.Spec.RestartPolicy}
	}
	return obj, nil
}
