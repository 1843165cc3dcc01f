// Command ot-agent syncs the disk images of one cluster: a queue of CDI imports
// under the concurrency that the policy ConfigMap allows.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	imagecontroller "github.com/pelotech/ot-fleet/agent/controllers/image"
	ledgercontroller "github.com/pelotech/ot-fleet/agent/controllers/ledger"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=agent-namespace,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=events,verbs=create;patch

// version is stamped by the linker.
var version = "dev"

type options struct {
	namespace     string
	policy        types.NamespacedName
	metricsAddr   string
	healthAddr    string
	pprofAddr     string
	leaderElect   bool
	leaseDuration time.Duration
	renewDeadline time.Duration
	retryPeriod   time.Duration
	qps           float64
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Namespace of the agent, its SyncLedger and its Lease. Default: $POD_NAMESPACE.")
	flag.StringVar(&o.policy.Namespace, "policy-namespace", policy.DefaultNamespace, "Namespace of the policy ConfigMap.")
	flag.StringVar(&o.policy.Name, "policy-name", policy.DefaultName, "Name of the policy ConfigMap.")
	flag.StringVar(&o.metricsAddr, "metrics-bind-address", ":8080", "Where metrics are served; 0 for nowhere.")
	flag.StringVar(&o.healthAddr, "health-probe-bind-address", ":8081", "Where /healthz and /readyz are served; 0 for nowhere.")
	flag.StringVar(&o.pprofAddr, "pprof-bind-address", "0", "Where /debug/pprof is served, for whoever looks for what costs time or memory; 0 for nowhere.")
	flag.BoolVar(&o.leaderElect, "leader-elect", true, "Let one agent of several lead.")
	flag.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader that is silent keeps the others waiting.")
	flag.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader that cannot renew its Lease goes on.")
	flag.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How often the Lease is tried.")
	flag.Float64Var(&o.qps, "kube-api-qps", 200, "Requests to the API server per second, at the most, over a while.")
	log := zap.Options{}
	log.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&log)))
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "ot-agent:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.namespace == "" {
		return fmt.Errorf("--namespace is not set, nor is $POD_NAMESPACE: say where the SyncLedger is to be")
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	cfg = rest.AddUserAgent(cfg, "ot-agent/"+version)
	cfg.QPS, cfg.Burst = float32(o.qps), int(2*o.qps)
	// One request that is never answered must not stop the agent for good.
	cfg.Timeout = 30 * time.Second

	ctx := ctrl.SetupSignalHandler()
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        newScheme(),
		Cache:                         cacheOptions(o),
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Metrics:                       server.Options{BindAddress: o.metricsAddr},
		HealthProbeBindAddress:        o.healthAddr,
		PprofBindAddress:              o.pprofAddr,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "ot-agent",
		LeaderElectionNamespace:       o.namespace,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}

	index := queue.NewIndex()
	counted := metrics.New(ctrlmetrics.Registry, index)
	served := kinds.New(mgr.GetRESTMapper())
	inForce := &ledgercontroller.Policy{}
	images := &imagecontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("ot-agent"),
		Index: index, Kinds: served, Metrics: counted, Preflight: preflight.New(),
		Policy: inForce.Current, Namespace: o.namespace,
	}
	ledger := &ledgercontroller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("ot-agent"),
		Index: index, Kinds: served, Metrics: counted, Policy: inForce,
		RefreshQueued: images.RefreshQueued, Namespace: o.namespace, PolicyKey: o.policy,
	}
	images.PokeLedger = ledger.Poke
	if err := ledger.Setup(mgr); err != nil {
		return fmt.Errorf("setting up the ledger's controller: %w", err)
	}
	if err := images.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("setting up the images' controller: %w", err)
	}
	if err := mgr.Add(served); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two packages register one kind: a fault of the build
		}
	}
	return s
}

// cacheOptions keep in memory what the agent needs and no more: of what CDI and
// Kubernetes make, only what carries an image's UID. That is the default, not an
// option of each kind: an option is refused for a kind that is not served.
func cacheOptions(o options) cache.Options {
	ours := labels.NewSelector()
	if has, err := labels.NewRequirement(v1alpha1.LabelImageUID, selection.Exists, nil); err == nil {
		ours = ours.Add(*has)
	}
	return cache.Options{
		DefaultTransform:     cache.TransformStripManagedFields(),
		DefaultLabelSelector: ours,
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.VMDiskImage{}:   {Label: labels.Everything()},
			&v1alpha1.SyncLedger{}:    {Label: labels.Everything(), Namespaces: map[string]cache.Config{o.namespace: {}}},
			&storagev1.StorageClass{}: {Label: labels.Everything()},
			&corev1.Pod{}:             {Transform: dropPodSpec},
			&corev1.ConfigMap{}: {
				Label:      labels.Everything(),
				Namespaces: map[string]cache.Config{o.policy.Namespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", o.policy.Name),
			},
		},
	}
}

func dropPodSpec(obj any) (any, error) {
	if pod, is := obj.(*corev1.Pod); is {
		pod.ManagedFields = nil
		pod.Spec = corev1.PodSpec{}
	}
	return obj, nil
}
