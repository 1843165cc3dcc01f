// Command ot-hub manages the disk images of a fleet of clusters: it plans for each
// member by one policy, syncs plans and reports with the members, and serves what is
// known of the fleet's images.
package main

import (
	"flag"
	"fmt"
	_ "time/tzdata" // schedules name time zones, and the image has none

	_ "golang.org/x/crypto/x509roots/fallback" // the image has no certificate authorities
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=get;create;update;watch
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// programName is the hub in messages and events.
const programName = "ot-hub"

// version is stamped by the linker.
var version = "dev"

func userAgent() string { return programName + "/" + version }

func main() {
	var o options
	o.bindFlags(flag.CommandLine)
	startup.RunProgram(programName, func() error { return runHub(o) })
}

func runHub(o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	cfg, err := o.LoadConfig(userAgent())
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	// Kinds that the hub shares with an agent may be of another release.
	if err := mailbox.WaitForSchemas(ctx, cfg, &v1alpha1.MemberCluster{}, &v1alpha1.MemberLink{}, &v1alpha1.ClusterJoin{},
		&v1alpha1.FleetDiskImage{}, &v1alpha1.PruneReport{}, &v1alpha1.PruneReportPage{}, &v1alpha1.ImagePrune{}); err != nil {
		return err
	}
	needed, err := o.requiredPermissions()
	if err != nil {
		return err
	}
	if err := health.WaitForPermissions(ctx, cfg, needed, programName); err != nil {
		return err
	}
	mgr, err := newManager(cfg, o, needed)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
