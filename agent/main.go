// Command ot-agent syncs the disk images of one cluster: it queues CDI imports under the
// concurrency of the policy, and runs the VirtualMachines that are cloned from the images.
package main

import (
	"errors"
	"flag"
	"fmt"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // the container image has no CA certificates
	ctrl "sigs.k8s.io/controller-runtime"

	reportcontroller "github.com/pelotech/ot-fleet/agent/controllers/report"
	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=agent-namespace,resources=leases,verbs=get;create;update;watch
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// version is stamped by the linker.
var version = "dev"

type options struct {
	startup.Options

	renewAfter           time.Duration
	dataSourceNamespaces namespaceList

	reportInterval  time.Duration
	reportHeartbeat time.Duration
}

func (o *options) bindFlags(flags *flag.FlagSet) {
	o.BindFlags(flags, 200)
	flags.DurationVar(&o.reportInterval, "report-interval", reportcontroller.MinInterval, "How long changes are collected before they are reported to the hub; from 200ms to --report-heartbeat.")
	flags.DurationVar(&o.reportHeartbeat, "report-heartbeat", 20*time.Second, "How often the report is written while nothing changes, from 1s to 5m.")
	flags.Var(&o.dataSourceNamespaces, "data-source-namespaces", "Namespaces, separated by commas, whose DataSources images may use. Machines are cloned from what those point at.")
	flags.DurationVar(&o.renewAfter, "hub-renew-after", 0, "Age at which the agent renews its token on the hub (pull mode), if that is before two thirds of its lifetime; 0 for then.")
}

// maxHeartbeat is half the silence after which the hub counts any agent as gone.
const maxHeartbeat = 5 * time.Minute

func (o *options) validate() error {
	return errors.Join(o.Validate(), startup.CheckDurations(
		startup.DurationFlag{Name: "report-heartbeat", Value: o.reportHeartbeat, Min: time.Second, Max: maxHeartbeat, Otherwise: "the API server is flooded, or the hub takes a quiet agent for one that is gone"},
		startup.DurationFlag{Name: "report-interval", Value: o.reportInterval, Min: reportcontroller.MinInterval, Max: o.reportHeartbeat, Otherwise: "the hub cuts the member off for too many events, or hears of it too late"},
		startup.DurationFlag{Name: "hub-renew-after", Value: o.renewAfter, Min: 0, Max: 365 * 24 * time.Hour, Otherwise: "no token lives that long"},
	))
}

// requiredPermissions are those of the chart's roles.
func (o options) requiredPermissions() ([]health.Permission, error) {
	return health.ParseRoles(charts.AgentRoles, map[string]string{"agent-namespace": o.Namespace, "policy-namespace": o.Policy.Namespace})
}

func main() {
	var o options
	o.bindFlags(flag.CommandLine)
	startup.RunProgram("ot-agent", func() error { return runAgent(o) })
}

func runAgent(o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	cfg, err := o.LoadConfig("ot-agent/" + version)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	// A hub in this cluster may have installed the shared CRDs of another release.
	if err := mailbox.WaitForSchemas(ctx, cfg, &v1alpha1.VMDiskImage{}, &v1alpha1.VirtualMachine{}, &v1alpha1.SyncLedger{}); err != nil {
		return err
	}
	needed, err := o.requiredPermissions()
	if err != nil {
		return err
	}
	if err := health.WaitForPermissions(ctx, cfg, needed, "ot-agent"); err != nil {
		return err
	}
	mgr, err := newManager(ctx, cfg, o, nil)
	if err != nil {
		return fmt.Errorf("setting up the manager: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the manager: %w", err)
	}
	return nil
}
