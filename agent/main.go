// Command ot-agent syncs the disk images of one cluster, a queue of CDI imports
// under the concurrency that the policy ConfigMap allows, and runs the
// VirtualMachines that are cloned from them.
package main

import (
	"flag"
	"fmt"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // the image has no authorities' certificates
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/health"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/startup"
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
	startup.Options

	renewAfter      time.Duration
	reportInterval  time.Duration
	reportHeartbeat time.Duration
}

// requiredRights are those that it works with.
func (o options) requiredRights() ([]health.Permission, error) {
	return health.ParseRoles(charts.AgentRoles, map[string]string{"agent-namespace": o.Namespace, "policy-namespace": o.Policy.Namespace})
}

func main() {
	var o options
	o.BindFlags(flag.CommandLine, 200)
	flag.DurationVar(&o.reportInterval, "report-interval", 200*time.Millisecond, "How long changes are gathered before they are reported to the hub.")
	flag.DurationVar(&o.reportHeartbeat, "report-heartbeat", 20*time.Second, "How often the hub is told that nothing has changed, from 1s.")
	flag.DurationVar(&o.renewAfter, "hub-renew-after", 0, "Age at which the token that the agent dials in with is renewed; 0 for two thirds of its life.")
	startup.RunProgram("ot-agent", func() error { return runAgent(o) })
}

func runAgent(o options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.reportInterval <= 0 || o.reportHeartbeat < time.Second {
		return fmt.Errorf("--report-interval=%s must be more than 0, and --report-heartbeat=%s at least 1s", o.reportInterval, o.reportHeartbeat)
	}
	cfg, err := o.LoadConfig("ot-agent/" + version)
	if err != nil {
		return err
	}
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
