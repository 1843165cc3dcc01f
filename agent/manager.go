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
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/pelotech/ot-fleet/agent/cachebounds"
	imagecontroller "github.com/pelotech/ot-fleet/agent/controllers/image"
	"github.com/pelotech/ot-fleet/agent/liveread"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// leaderLeaseName is the name of the leader election Lease.
const leaderLeaseName = "ot-agent"

// newManager creates the manager with all controllers of the agent. listHolders lists what
// holds an image; nil stands for imageHolders.
func newManager(ctx context.Context, cfg *rest.Config, o options, listHolders imagecontroller.HolderFunc) (ctrl.Manager, error) {
	needed, err := o.requiredPermissions()
	if err != nil {
		return nil, err
	}
	if err := o.CheckCertificate(); err != nil {
		return nil, err
	}
	apiServer := startup.NewAPIServer(cfg, needed, "ot-agent")
	managerOptions := o.ManagerOptions(apiServer, newScheme(), cacheOptions(o), leaderLeaseName)
	managerOptions.Client = client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}}
	process, err := startup.NewProcessID()
	if err != nil {
		return nil, err
	}
	election, err := startup.NewElection(apiServer, &managerOptions, "ot-agent", process)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(apiServer.Bounded, managerOptions)
	if err != nil {
		return nil, err
	}
	if err := election.AddTo(mgr); err != nil {
		return nil, err
	}
	caches, err := addSecondaryCaches(apiServer.Config, mgr, o)
	if err != nil {
		return nil, err
	}
	if err := addHealthChecks(mgr, apiServer, caches); err != nil {
		return nil, err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, vm.ImageIndex, func(o client.Object) []string {
		return vm.HeldImages(o.(*v1alpha1.VirtualMachine))
	}); err != nil {
		return nil, fmt.Errorf("indexing VirtualMachines by their images: %w", err)
	}
	live, err := liveread.New(apiServer.Bounded, mgr.GetAPIReader(), mgr.GetRESTMapper(), mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	c := newControllers(mgr, live, apiServer.Permissions, caches, o, listHolders)
	if err := c.addPullMode(apiServer.Config); err != nil {
		return nil, fmt.Errorf("setting up pull mode: %w", err)
	}
	c.connect()
	return mgr, c.addTo(ctx, mgr)
}

func addHealthChecks(mgr ctrl.Manager, apiServer *startup.APIServer, caches secondaryCaches) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return health.AddReadyChecks(mgr, apiServer.Monitor, apiServer.Permissions, map[string]func(context.Context) bool{
		"images and VirtualMachines": mgr.GetCache().WaitForCacheSync,
		"the mailbox":                caches.mailbox.WaitForCacheSync,
		"objects of VirtualMachines": caches.vmObjects.WaitForCacheSync,
		"clones":                     caches.clones.WaitForCacheSync,
	})
}

// secondaryCaches are the caches beside the manager's.
type secondaryCaches struct {
	// mailbox holds the mailbox in the agent's namespace; its kinds may be served later.
	mailbox cache.Cache
	// dataSources holds those of the cluster, whoever made them.
	dataSources cache.Cache
	// vmObjects holds what carries a VirtualMachine's UID in place of an image's.
	vmObjects cache.Cache
	// clones holds all DataVolumes, stripped, and all DataSources.
	clones cache.Cache
}

func addSecondaryCaches(cfg *rest.Config, mgr ctrl.Manager, o options) (caches secondaryCaches, err error) {
	caches.mailbox, err = addCache(cfg, mgr, cache.Options{DefaultNamespaces: map[string]cache.Config{o.Namespace: {}}})
	if err != nil {
		return caches, fmt.Errorf("creating the cache of the mailbox: %w", err)
	}
	caches.dataSources, err = addCache(cfg, mgr, cache.Options{DefaultNamespaces: o.dataSourceNamespaces.cacheConfigs()})
	if err != nil {
		return caches, fmt.Errorf("creating the cache of the DataSources: %w", err)
	}
	caches.vmObjects, err = addCache(cfg, mgr, cache.Options{
		DefaultLabelSelector: labelExists(v1alpha1.LabelMachineUID),
	})
	if err != nil {
		return caches, fmt.Errorf("creating the cache of the objects of VirtualMachines: %w", err)
	}
	caches.clones, err = addCache(cfg, mgr, cache.Options{DefaultTransform: func(obj any) (any, error) {
		stripped, err := imagecontroller.StripClone(obj)
		if err != nil {
			return nil, err
		}
		return cachebounds.Trim(stripped)
	}})
	if err != nil {
		return caches, fmt.Errorf("creating the cache of clones: %w", err)
	}
	return caches, nil
}

// managedCache is a cache that the manager starts before any controller.
type managedCache struct{ cache.Cache }

// GetCache makes it known to the manager as a cache.
func (c managedCache) GetCache() cache.Cache { return c.Cache }

func addCache(cfg *rest.Config, mgr ctrl.Manager, options cache.Options) (cache.Cache, error) {
	options.Scheme, options.Mapper = mgr.GetScheme(), mgr.GetRESTMapper()
	if options.DefaultTransform == nil {
		options.DefaultTransform = cachebounds.Trim
	}
	c, err := cache.New(cfg, options)
	if err != nil {
		return nil, err
	}
	return c, mgr.Add(managedCache{c})
}

func newScheme() *runtime.Scheme {
	return startup.NewScheme(clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme)
}

// cacheOptions limit the manager's cache: of the objects of CDI and Kubernetes it holds only
// those that carry an image's UID. That is the default, because an option per kind is
// refused for a kind that is not served.
func cacheOptions(o options) cache.Options {
	return cache.Options{
		DefaultTransform:     cachebounds.Trim,
		DefaultLabelSelector: labelExists(v1alpha1.LabelImageUID),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.VMDiskImage{}:    {Label: labels.Everything()},
			&v1alpha1.VirtualMachine{}: {Label: labels.Everything()},
			&v1alpha1.SyncLedger{}:     {Label: labels.Everything(), Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&storagev1.StorageClass{}:  {Label: labels.Everything()},
			&corev1.ConfigMap{}: {
				Label:      labels.Everything(),
				Namespaces: map[string]cache.Config{o.Policy.Namespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", o.Policy.Name),
			},
		},
	}
}

func labelExists(label string) labels.Selector {
	r, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*r)
}
