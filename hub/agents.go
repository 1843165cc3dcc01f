package main

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/charts"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	installcontroller "github.com/pelotech/ot-fleet/hub/controllers/install"
	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// agentChart is the folder of the agent's chart in charts.Agent.
const agentChart = "ot-agent"

// setupInstaller adds what installs agents in members, where that is asked for.
func setupInstaller(mgr ctrl.Manager, live client.Reader, o options, installs *installcontroller.Conditions) error {
	if !o.installAgents {
		return nil
	}
	chart, err := helm.LoadChart(charts.Agent, agentChart, version)
	if err != nil {
		return err
	}
	reconciler := &installcontroller.Reconciler{
		Client: mgr.GetClient(), Live: live, Events: mgr.GetEventRecorder("ot-hub"), Metrics: metrics.NewInstalls(ctrlmetrics.Registry),
		Conditions: installs, Chart: chart, Namespace: o.namespace, Process: o.process, UserAgent: "ot-hub/" + version,
		Admins:         &connection.AdminKubeconfigs{Secrets: &connection.SecretReader{Cached: mgr.GetCache(), Live: live, Namespace: o.namespace}, Live: live},
		RequestTimeout: o.memberTimeout, LeaseDuration: 2 * o.leaseDuration, Backoff: o.installBackoff,
	}
	if err := reconciler.Setup(mgr); err != nil {
		return fmt.Errorf("the controller that installs agents: %w", err)
	}
	return nil
}
