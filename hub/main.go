// Command ot-hub sees the clusters of a fleet: it plans each one's budget by one
// policy, carries the plans to them and their reports back, and tells what image
// is where.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // schedules name time zones, and the image has none

	_ "golang.org/x/crypto/x509roots/fallback" // the image has no authorities' certificates
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/registration"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
	"github.com/pelotech/ot-fleet/hub/web"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// version is stamped by the linker.
var version = "dev"

type options struct {
	// process is the identity of this one, new for each.
	process       string
	namespace     string
	policy        types.NamespacedName
	metricsAddr   string
	metricsSecure bool
	// metricsCertDir has the certificate to serve them with, where it is not made here.
	metricsCertDir string
	// advertise is where other replicas reach metricsAddr.
	advertise string
	// served says where the read API of this process is, for its Lease.
	served     web.ReplicaAddress
	healthAddr string
	pprofAddr  string
	// replica is the name of this one among them.
	replica       string
	leaderElect   bool
	leaseDuration time.Duration
	renewDeadline time.Duration
	retryPeriod   time.Duration
	qps           float64
	memberTimeout time.Duration
	probeInterval time.Duration
	// apiURL and apiCAFile are how agents that dial in reach the hub's API server.
	apiURL, apiCAFile string
	joinTokenLife     time.Duration
	agentTokenLife    time.Duration
	// approvals are left to the API server to check, by the chart's policies.
	approvals bool
	// setupInstaller in members that opt in; installBackoff is the wait after the first
	// attempt that fails.
	installAgents  bool
	installBackoff time.Duration
	// clusters of Cluster API that are members; nil: that is not looked at.
	clusters labels.Selector
}

// rights are those that it works with. Those to Clusters, and to Secrets of all
// namespaces, are not among them: a hub that cannot look for Clusters logs so, and
// serves the members that it knows. Nor is that to look for values of the agent's chart
// in one that installs none.
func (o options) rights() ([]health.Permission, error) {
	all, err := health.ParseRoles(charts.HubRoles, map[string]string{"hub-namespace": o.namespace, "policy-namespace": o.policy.Namespace})
	return slices.DeleteFunc(all, func(r health.Permission) bool {
		if !o.installAgents && r.Namespace == o.namespace && r.Resource == "configmaps" && r.Namespace != o.policy.Namespace && (r.Verb == "list" || r.Verb == "watch") {
			return true
		}
		return r.Namespace == "" && (r.Group == clusterv1.GroupVersion.Group || r.Group == "" && r.Resource == "secrets")
	}), err
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Namespace of the hub, its Lease and the Secrets of its members. Default: $POD_NAMESPACE.")
	flag.StringVar(&o.policy.Namespace, "policy-namespace", policy.DefaultNamespace, "Namespace of the fleet's policy ConfigMap.")
	flag.StringVar(&o.policy.Name, "policy-name", policy.DefaultName, "Name of the fleet's policy ConfigMap.")
	flag.StringVar(&o.metricsAddr, "metrics-bind-address", ":8080", "Where metrics and the read API are served; 0 for nowhere.")
	flag.BoolVar(&o.metricsSecure, "metrics-secure", true, "Serve them by HTTPS, to whom the API server authorizes for their paths. Otherwise in plain text, to everybody.")
	flag.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "Directory with tls.crt and tls.key to serve them with; what is replaced in there is taken up. Default: a certificate that this process makes for itself.")
	flag.StringVar(&o.advertise, "advertise-address", os.Getenv("POD_IP"), "Address at which other replicas reach the read API of this one, when it is elected and they are asked; empty for not at all. Default: $POD_IP.")
	flag.StringVar(&o.healthAddr, "health-probe-bind-address", ":8081", "Where /healthz and /readyz are served; 0 for nowhere.")
	flag.StringVar(&o.pprofAddr, "pprof-bind-address", "0", "Where /debug/pprof is served, for whoever looks for what costs time or memory; 0 for nowhere.")
	flag.BoolVar(&o.leaderElect, "leader-elect", true, "Let one hub of several plan.")
	flag.StringVar(&o.replica, "replica-name", defaultReplicaName(), "Name of this replica, under which members are assigned to it. Default: $POD_NAME, or else the name of the host.")
	flag.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader, or any other replica, that is silent keeps the others waiting.")
	flag.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader that cannot renew its Lease goes on, and any replica carries for its members that cannot renew its own.")
	flag.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How often a Lease is tried.")
	flag.Float64Var(&o.qps, "kube-api-qps", 500, "Requests to the hub's API server per second, at the most, over a while.")
	flag.DurationVar(&o.memberTimeout, "member-timeout", 10*time.Second, "How long a request to a member may take.")
	flag.DurationVar(&o.probeInterval, "probe-interval", 10*time.Second, "How often a member is asked whether it still answers.")
	flag.StringVar(&o.apiURL, "hub-api-url", "", "URL of the hub's API server for agents that dial in. Default: the one that the hub uses itself, which is of no use outside of its cluster where it runs as a Pod.")
	flag.StringVar(&o.apiCAFile, "hub-api-ca-file", "", "File with the certificates by which agents that dial in check the API server's. Default: with --hub-api-url, those that their system trusts; without, the hub's own.")
	checkURL := flag.String("check-url", "", "Ask for this URL, with the token of the Pod's ServiceAccount, and end: with 0 where it is served. For the chart's test.")
	flag.DurationVar(&o.joinTokenLife, "join-token-life", registration.DefaultJoinTokenLife, "How long a join token can be presented.")
	flag.DurationVar(&o.agentTokenLife, "agent-token-life", registration.DefaultAgentTokenLife, "How long the credential of an agent that dials in lives unless it is renewed. The chart caps what an agent can ask for: see its value pull.agentTokenLife.")
	flag.BoolVar(&o.approvals, "approvals-enforced", true, "The API server is to check who approves of waves and of ImagePrunes, by the chart's admission policies: tell where it does not.")
	flag.BoolVar(&o.installAgents, "install-agents", false, "Install and upgrade the agent, of the hub's own version, in members that have label "+v1alpha1.LabelInstallAgent+": \"true\".")
	flag.DurationVar(&o.installBackoff, "install-backoff", 30*time.Second, "How long an install of the agent that failed waits before it is tried again; doubled each time.")
	flag.Func("cluster-api-selector", "Which Clusters of Cluster API are members, by their labels. Default: none, Cluster API is not looked at.", func(text string) (err error) {
		if text == "" {
			o.clusters = nil
			return nil
		}
		o.clusters, err = labels.Parse(text)
		return err
	})
	log := zap.Options{}
	log.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&log)))
	work := func() error { return run(o) }
	if *checkURL != "" {
		work = func() error { return health.CheckURL(context.Background(), *checkURL, health.ServiceAccountTokenFile) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "ot-hub:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.namespace == "" {
		return fmt.Errorf("--namespace is not set, nor is $POD_NAMESPACE: say where the hub's Lease and the Secrets of its members are")
	}
	if bad := validation.IsDNS1123Subdomain(o.replica); len(bad) > 0 {
		return fmt.Errorf("--replica-name %q, by default $POD_NAME or the name of the host, cannot be the name of a Lease: %s", o.replica, strings.Join(bad, ", "))
	}
	process, err := newProcessID()
	if err != nil {
		return err
	}
	o.process = process
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	cfg = rest.AddUserAgent(cfg, "ot-hub/"+version)
	cfg.QPS, cfg.Burst = float32(o.qps), int(2*o.qps)

	ctx := ctrl.SetupSignalHandler()
	// Those that it shares with an agent may be of another release than this.
	if err := mailbox.WaitForSchemas(ctx, cfg, &v1alpha1.MemberCluster{}, &v1alpha1.MemberLink{}, &v1alpha1.ClusterJoin{},
		&v1alpha1.FleetDiskImage{}, &v1alpha1.PruneReport{}, &v1alpha1.PruneReportPage{}, &v1alpha1.ImagePrune{}); err != nil {
		return err
	}
	needed, err := o.rights()
	if err != nil {
		return err
	}
	if err := health.WaitForPermissions(ctx, cfg, needed, "ot-hub"); err != nil {
		return err
	}
	mgr, err := setup(cfg, o, needed)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
