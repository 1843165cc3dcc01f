// Command ot-agent syncs the disk images of one cluster, a queue of CDI imports
// under the concurrency that the policy ConfigMap allows, and runs the
// VirtualMachines that are cloned from them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // the image has no authorities' certificates
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/policy"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=agent-namespace,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// version is stamped by the linker.
var version = "dev"

type options struct {
	namespace     string
	policy        types.NamespacedName
	metricsAddr   string
	metricsSecure bool
	// metricsCertDir has the certificate to serve them with, where it is not made here.
	metricsCertDir string
	healthAddr     string
	pprofAddr      string
	leaderElect    bool
	leaseDuration  time.Duration
	renewDeadline  time.Duration
	retryPeriod    time.Duration
	qps            float64

	renewAfter time.Duration

	reportInterval  time.Duration
	reportHeartbeat time.Duration
}

// requiredRights are those that it works with.
func (o options) requiredRights() ([]health.Permission, error) {
	return health.ParseRoles(charts.AgentRoles, map[string]string{"agent-namespace": o.namespace, "policy-namespace": o.policy.Namespace})
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Namespace of the agent, its SyncLedger and its Lease. Default: $POD_NAMESPACE.")
	flag.StringVar(&o.policy.Namespace, "policy-namespace", policy.DefaultNamespace, "Namespace of the policy ConfigMap.")
	flag.StringVar(&o.policy.Name, "policy-name", policy.DefaultName, "Name of the policy ConfigMap.")
	flag.StringVar(&o.metricsAddr, "metrics-bind-address", ":8080", "Where metrics are served; 0 for nowhere.")
	flag.BoolVar(&o.metricsSecure, "metrics-secure", true, "Serve them by HTTPS, to whom the API server authorizes for their path. Otherwise in plain text, to everybody.")
	flag.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "Directory with tls.crt and tls.key to serve them with; what is replaced in there is taken up. Default: a certificate that this process makes for itself.")
	flag.StringVar(&o.healthAddr, "health-probe-bind-address", ":8081", "Where /healthz and /readyz are served; 0 for nowhere.")
	flag.StringVar(&o.pprofAddr, "pprof-bind-address", "0", "Where /debug/pprof is served, for whoever looks for what costs time or memory; 0 for nowhere.")
	flag.BoolVar(&o.leaderElect, "leader-elect", true, "Let one agent of several lead.")
	flag.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader that is silent keeps the others waiting.")
	flag.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader that cannot renew its Lease goes on.")
	flag.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How often the Lease is tried.")
	flag.Float64Var(&o.qps, "kube-api-qps", 200, "Requests to the API server per second, at the most, over a while.")
	flag.DurationVar(&o.reportInterval, "report-interval", 200*time.Millisecond, "How long changes are gathered before they are reported to the hub.")
	flag.DurationVar(&o.reportHeartbeat, "report-heartbeat", 20*time.Second, "How often the hub is told that nothing has changed, from 1s.")
	checkURL := flag.String("check-url", "", "Ask for this URL, with the token of the Pod's ServiceAccount, and end: with 0 where it is served. For the chart's test.")
	flag.DurationVar(&o.renewAfter, "hub-renew-after", 0, "Age at which the token that the agent dials in with is renewed; 0 for two thirds of its life.")
	log := zap.Options{}
	log.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&log)))
	work := func() error { return runAgent(o) }
	if *checkURL != "" {
		work = func() error { return health.CheckURL(context.Background(), *checkURL, health.ServiceAccountTokenFile) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "ot-agent:", err)
		os.Exit(1)
	}
}

func runAgent(o options) error {
	if o.namespace == "" {
		return fmt.Errorf("--namespace is not set, nor is $POD_NAMESPACE: say where the SyncLedger is to be")
	}
	if o.reportInterval <= 0 || o.reportHeartbeat < time.Second {
		return fmt.Errorf("--report-interval=%s must be more than 0, and --report-heartbeat=%s at least 1s", o.reportInterval, o.reportHeartbeat)
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	cfg = rest.AddUserAgent(cfg, "ot-agent/"+version)
	cfg.QPS, cfg.Burst = float32(o.qps), int(2*o.qps)

	ctx := ctrl.SetupSignalHandler()
	// Those that it shares with a hub may be of another release than this.
	if err := mailbox.WaitForSchemas(ctx, cfg, &v1alpha1.VMDiskImage{}, &v1alpha1.VirtualMachine{}, &v1alpha1.SyncLedger{}); err != nil {
		return err
	}
	needed, err := o.requiredRights()
	if err != nil {
		return err
	}
	if err := health.WaitForPermissions(ctx, cfg, needed, "ot-agent"); err != nil {
		return err
	}
	mgr, err := newManager(ctx, cfg, o, nil)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
