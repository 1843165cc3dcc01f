//go:build linux

// Command demo runs a small fleet and tells a story with it, or leaves it running in the background
// (up, down): a hub and three member clusters, each a real Kubernetes
// control plane with the real CDI controller, hub and agents as their charts install them, and
// KubeVirt's virt-controller in one of them. Nodes, storage, guests and the bytes of the images
// are simulated.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	verb, dir := parseArguments(os.Args[1:])
	run := map[string]func(context.Context) error{
		"":        runDemo,
		"up":      backgroundFleet(dir).up,
		"down":    backgroundFleet(dir).down,
		serveVerb: backgroundFleet(dir).runFleet,
	}[verb]
	if err := run(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "\ndemo: interrupted; everything it started is stopped")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// parseArguments returns the verb, empty for the demo, and the directory of the fleet in the
// background.
func parseArguments(args []string) (verb, dir string) {
	switch {
	case len(args) == 0:
		return "", ""
	case len(args) == 2 && (args[0] == "up" || args[0] == "down" || args[0] == serveVerb) && filepath.IsAbs(args[1]):
		return args[0], filepath.Clean(args[1])
	}
	fmt.Fprintln(os.Stderr, "demo: usage: demo [up DIRECTORY | down DIRECTORY], where DIRECTORY is an absolute path and of this program alone")
	os.Exit(2)
	return "", ""
}

const intro = `OT Fleet: a hub and three clusters, twenty disk images, three virtual machines. kubectl ot
shows them.

  real        per cluster: etcd, kube-apiserver, controller-manager, scheduler, CDI's
              controller, and ot-agent; in bergen also KubeVirt's virt-controller and
              webhooks; ot-hub on a control plane of its own; hub and agents with the
              permissions of their charts
  simulated   nodes and importer Pods (KWOK), the storage driver, the bytes; KubeVirt's
              virt-handler and the guests

Members   bergen in pull mode; edge by a kubeconfig; lab by its Cluster API object
Budgets   2 downloads at a time, 1 in edge, 3 in lab and 4 in its window, from 22 to 6 o'clock in
          Oslo; an observer in each cluster checks them

1. Outage     edge is cut off, the policy is raised meanwhile, and edge comes back. Then the
              elected replica of the hub is killed.
2. Rollout    a version goes to lab first, into a storage class of its own, then to one cluster
              at a time; edge catches up, from the mirror of its site.
3. Workspace  three VirtualMachines wait for their images, and run. An image that is deleted
              under them stays until the last of them is gone.
4. Prune      a report of what nobody needs; one image is pruned, taken back, and pruned.
`

const outro = `
Shown: budgets of three clusters from one policy, through an outage; a download that broke
off and one that cannot succeed; VirtualMachines that wait for their images; a deleted image
that stays while a VirtualMachine holds it; a rollout in two waves past an offline cluster, to
clusters that differ; a prune report with reasons, a prune that was undone and one that was
not; the loss of a hub replica. Everything is stopped, and only the programs that were built are left.

Try it:    make up                the same fleet, left running
Read on:   README.md              install, and where to go next
           docs/                  concepts, images, machines, policy, rollouts and prunes
           docs/architecture.md   how it works, and why
The same as tests:
           go test ./e2e/suites/fleet ./e2e/suites/rollout ./e2e/suites/prune ./e2e/suites/agent ./e2e/suites/plan ./e2e/suites/workspaces
`

func runDemo(ctx context.Context) (err error) {
	fmt.Print(intro + "\n")
	f := &demoFleet{}
	defer func() {
		if err = errors.Join(err, f.stopAll()); err == nil {
			fmt.Print(outro)
		}
	}()
	if err := f.start(ctx, f.startSteps()); err != nil {
		return err
	}
	s := newDemoStory(f)
	defer s.close()
	if err := s.run(ctx); err != nil {
		return err
	}
	return s.summarize(ctx)
}
