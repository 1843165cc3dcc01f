package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/dashboard"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/versions"
	"github.com/pelotech/ot-fleet/ui"
)

func (e *environment) newDashboardCommand() *cobra.Command {
	port, noOpen, policy := 0, false, apipolicy.DefaultNamespace+"/"+apipolicy.DefaultName
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "The fleet in a browser: what needs a person, why, and what a change would reach",
		Long: `dashboard serves the fleet's dashboard on 127.0.0.1 until ctrl-C, and opens it in a browser. It
reads and writes as you, by your kubeconfig; the hub needs no ui.enabled. The address that it
prints signs in one browser, once: Enter prints another one.`,
		Example: "  kubectl ot dashboard --no-open --port 8080",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&port, "port", 0, "port to listen on. Default: any that is free")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "print the address only")
	cmd.Flags().StringVar(&policy, "policy", policy, "NAMESPACE/NAME of the policy's ConfigMap on the hub")
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		if port < 0 || port > 65535 {
			return fmt.Errorf("--port %d: must be from 0 to 65535", port)
		}
		hub, err := e.newPolicyReader(policy)
		if err != nil {
			return err
		}
		return e.serveDashboard(ctx, hub.Cluster, hub.key, port, noOpen)
	})
	return cmd
}

// serveDashboard checks that the hub answers the caller, and serves until ctrl-C.
func (e *environment) serveDashboard(ctx context.Context, hub *connect.Cluster, policy types.NamespacedName, port int, noOpen bool) error {
	who, err := hub.CallerName(ctx)
	if err != nil {
		return err
	}
	reads := dashboard.NewReadAPI(func(ctx context.Context) (*connect.ReadAPI, error) { return e.OpenReadAPI(ctx, hub) })
	defer reads.Close()
	if err := reads.Check(ctx); err != nil {
		return fmt.Errorf("the dashboard needs the hub's read API: %w", err)
	}
	caller, err := ui.NewCaller(hub.Config, who)
	if err != nil {
		return fmt.Errorf("context %s: %w", hub.Context, err)
	}
	kubeconfig := ""
	if e.KubeConfig != nil && *e.KubeConfig != "" {
		if kubeconfig, err = filepath.Abs(*e.KubeConfig); err != nil {
			return fmt.Errorf("--kubeconfig %s: %w", *e.KubeConfig, err)
		}
	}
	sameUser := dashboard.FindSameUser()
	d, err := dashboard.Listen(dashboard.Options{
		Port: port, Caller: caller, Reads: reads, SameUser: sameUser, Policy: policy,
		Version: e.version, HubVersion: e.findHubVersion(ctx, hub), HubNamespace: e.HubNamespace, Context: hub.Context, Kubeconfig: kubeconfig,
	})
	if err != nil {
		return err
	}
	e.printNote("The dashboard of context %s, as %s, until ctrl-C:", hub.Context, who)
	browser := &dashboard.Browser{HideKey: sameUser == nil}
	defer browser.Close()
	offer := func() {
		address := d.NewURL()
		fmt.Fprintln(e.Out, address)
		if noOpen {
			return
		}
		if err := browser.OpenURL(address); err != nil {
			e.printNote("Open it yourself: %v", err)
		}
	}
	offer()
	if file, ok := e.In.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		go func() {
			for lines := bufio.NewScanner(file); lines.Scan() && ctx.Err() == nil; {
				offer()
			}
		}()
	}
	return d.ServeUntil(ctx)
}

// findHubVersion returns the version that the hub's Leases say; empty where they do not.
func (e *environment) findHubVersion(ctx context.Context, hub *connect.Cluster) string {
	var leases coordinationv1.LeaseList
	if err := hub.List(ctx, &leases, client.InNamespace(e.HubNamespace)); err != nil {
		return ""
	}
	return strings.TrimSpace(render.Printable(versions.New(versions.Snapshot{Client: e.version, Hub: hub.Context, Leases: leases.Items}).Hub.Version))
}
