// Command plain is the baseline of the hub: multicluster-runtime with its own provider, builder and
// sharded coordinator, and one controller that watches the VMDiskImages of every member, or their
// ClusterReports. It plans nothing; it only records how long changes take to arrive.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded"
	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded/peers"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/providers/clusters"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// sent begins the status message of a timed change; the time follows, in nanoseconds.
const sent = "sent "

func main() {
	// controller-runtime defines --kubeconfig, which is that of the hub's API server.
	members := flag.String("members-kubeconfig", "", "The API server that all members are namespaces of.")
	names := flag.String("members", "", "The names of the members, with commas between them.")
	name := flag.String("name", "", "The name of this replica.")
	namespace := flag.String("namespace", "plain", "Where the Leases are.")
	address := flag.String("metrics-bind-address", "", "Where metrics are served, and /state.")
	reports := flag.Bool("reports", false, "Watch ClusterReports instead of VMDiskImages.")
	pprof := flag.String("pprof-bind-address", "0", "Where /debug/pprof is served.")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	var watched client.Object = &v1alpha1.VMDiskImage{}
	if *reports {
		watched = &v1alpha1.ClusterReport{}
	}
	if err := run(*members, *names, *name, *namespace, *address, *pprof, watched); err != nil {
		fmt.Fprintln(os.Stderr, "plain:", err)
		os.Exit(1)
	}
}

func run(members, names, name, namespace, address, pprof string, watched client.Object) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 500, 1000 // like the hub
	kube, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	of, err := clientcmd.BuildConfigFromFlags("", members)
	if err != nil {
		return err
	}
	provider := clusters.New()
	mgr, err := mcmanager.New(cfg, provider, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: address}, HealthProbeBindAddress: "0", PprofBindAddress: pprof,
	}, mcmanager.WithCoordinator(sharded.New(kube, logr.Discard(),
		sharded.WithShardLease(namespace, "mcr-shard"),
		sharded.WithPeerRegistry(peers.NewLeaseRegistry(kube, namespace, "mcr-peer", name, 1, logr.Discard())))))
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	for _, member := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
		c, err := connect(of, member, scheme)
		if err != nil {
			return fmt.Errorf("connecting to member %s: %w", member, err)
		}
		if err := provider.Add(ctx, multicluster.ClusterName(member), c); err != nil {
			return err
		}
	}
	s := &state{Owned: map[string]bool{}}
	if err := mgr.AddMetricsServerExtraHandler("/state", s); err != nil {
		return err
	}
	if err := mgr.Add(owned{s}); err != nil {
		return err
	}
	if err := mcbuilder.ControllerManagedBy(mgr).Named("watched").For(watched).Complete(&reconciler{mgr, watched, s}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// connect creates a member's client and cache with their own connections, as for separate clusters.
func connect(of *rest.Config, member string, scheme *runtime.Scheme) (cluster.Cluster, error) {
	cfg := rest.CopyConfig(of)
	cfg.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return cluster.New(cfg, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache.DefaultNamespaces = map[string]cache.Config{member: {}}
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
	})
}

// state is served to the benchmark.
type state struct {
	mu sync.Mutex
	// Owned are the members of this replica.
	Owned map[string]bool
	// Seen counts the reconciled objects, including changes.
	Seen int
	// Took are the times from a change to its reconciliation, in nanoseconds.
	Took []time.Duration
}

// ServeHTTP serves the state as JSON.
func (s *state) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(s) // the client is gone
}

// owned records the members that the coordinator assigns to this replica.
type owned struct{ *state }

// Start implements manager.Runnable.
func (o owned) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Engage implements multicluster.Aware.
func (o owned) Engage(ctx context.Context, name multicluster.ClusterName, _ cluster.Cluster) error {
	o.mu.Lock()
	o.Owned[name.String()] = true
	o.mu.Unlock()
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.Owned, name.String())
	})
	return nil
}

type reconciler struct {
	mgr     mcmanager.Manager
	watched client.Object
	state   *state
}

// Reconcile records an object, and how long a timed change of an image took to arrive.
func (r *reconciler) Reconcile(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
	c, err := r.mgr.GetCluster(ctx, request.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	o := r.watched.DeepCopyObject().(client.Object)
	if err := c.GetClient().Get(ctx, request.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	r.state.Seen++
	img, isImage := o.(*v1alpha1.VMDiskImage)
	if !isImage {
		return ctrl.Result{}, nil
	}
	if text, ok := strings.CutPrefix(img.Status.Message, sent); ok {
		if at, err := strconv.ParseInt(text, 10, 64); err == nil {
			r.state.Took = append(r.state.Took, time.Since(time.Unix(0, at)))
		}
	}
	return ctrl.Result{}, nil
}
