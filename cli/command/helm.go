package command

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pelotech/ot-fleet/charts"
)

// agentChart is the folder of the agent's chart in charts.Agent, and the name of its release.
const agentChart = "ot-agent"

// installChart returns how chart ot-agent is installed by the helm on PATH.
func (e *environment) installChart(memberContext string, arguments []string) func(context.Context, string, []string) error {
	return func(ctx context.Context, namespace string, values []string) error {
		folder, err := os.MkdirTemp("", "kubectl-ot-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		chart, err := fs.Sub(charts.Agent, agentChart)
		if err != nil {
			return err
		}
		path := filepath.Join(folder, agentChart)
		if err := os.CopyFS(path, chart); err != nil {
			return fmt.Errorf("writing chart %s to %s: %w", agentChart, folder, err)
		}
		cmd := exec.CommandContext(ctx, "helm", e.helmArguments(memberContext, namespace, path, values, arguments)...)
		cmd.Stdout, cmd.Stderr = io.Discard, e.ErrOut
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = helmGrace
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("helm has not installed chart %s in the cluster: %w", agentChart, err)
		}
		return nil
	}
}

// helmArguments returns the command line of helm. What the user gives comes last and counts.
func (e *environment) helmArguments(memberContext, namespace, chart string, values, arguments []string) []string {
	all := []string{"--kube-context", memberContext}
	if e.KubeConfig != nil && *e.KubeConfig != "" {
		all = append(all, "--kubeconfig", *e.KubeConfig)
	}
	if e.Impersonate != nil && *e.Impersonate != "" {
		all = append(all, "--kube-as-user", *e.Impersonate)
		for _, group := range *e.ImpersonateGroup {
			all = append(all, "--kube-as-group", group)
		}
	}
	all = append(all, "upgrade", "--install", agentChart, chart)
	all = append(all, values...)
	all = append(all, "--namespace", namespace, "--create-namespace", "--reset-then-reuse-values")
	return append(all, arguments...)
}
