//go:build linux

// Command demo shows a small fleet at work: a hub and three member clusters, each
// a real Kubernetes control plane with the real CDI controller, hub and agents as
// their charts install them, and in one of them KubeVirt's virt-controller. Nodes,
// storage, guests and the bytes of the images are simulated.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	if err := runDemo(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "\ndemo: interrupted; everything it started is stopped")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

const intro = `OT Fleet: a hub and three clusters, twenty disk images, three virtual machines

  real        per cluster: etcd, kube-apiserver, controller-manager, scheduler, CDI's
              controller, and ot-agent; in bergen KubeVirt's virt-controller and
              webhooks as well; ot-hub on a control plane of its own; hub and agents
              with the rights of their charts
  simulated   the nodes and their importer Pods (KWOK), the storage driver, the bytes;
              KubeVirt's virt-handler and the guests

The agent in bergen dials in: it was given a join token, and has a credential of its own by
now. The hub reaches edge by a kubeconfig that was applied, and lab by its Cluster API object,
where it makes itself an account with next to no rights. Its policy ConfigMap allows 2 downloads at a time, 1 where edge=true, and
3 in lab. Midway edge is cut off from the hub, the policy is raised meanwhile, and edge
comes back. The hub runs as two replicas, which share the members out; the elected one is
killed when edge is back, and the other takes over what it carried. An observer in each
cluster checks that every budget holds.

When the hub has given edge up, a FleetDiskImage is applied: version 2.1.0 of an image for
all clusters, lab first, then the rest, one at a time. Edge is passed over, and catches up.

In bergen a workspace of three VirtualMachines is applied too, before their two images
are there. The images queue behind the others; the machines wait, say for what, and run.
Then the deletion of the image that two of them are built from is asked for. It waits
for both.

While one of them still runs, a PruneReport asks all clusters which images nobody needs,
and why each of the others is kept. What a FleetDiskImage that was given up has left in
lab is pruned, undone within its undo window, and pruned for good.
`

const outro = `
Shown: budgets of three clusters from one policy, through an outage; a download that broke
off and one that cannot be; machines that wait for their images; an image that outlives
the request to delete it for as long as a machine needs it; a version that goes out in two
waves past a cluster that is offline; what can go and what cannot, with reasons, a prune that
was undone, and one that went through; a replica of the hub that nobody missed. Everything is
stopped now, and nothing is left on this machine but the programs that were built.

Read on:   README.md              the kinds, how to use them, limits
           agent/README.md        every reason to wait or fail, and what to do
           hub/README.md          how clusters join, the policy, rollouts, prunes, the read API
The same, kept as tests:
           go test ./e2e/suites/fleet ./e2e/suites/rollout ./e2e/suites/prune ./e2e/suites/journeys ./e2e/suites/workspaces ./e2e/suites/faults
`

func runDemo(ctx context.Context) (err error) {
	fmt.Print(intro + "\n")
	f := &demoFleet{}
	defer func() {
		if err = errors.Join(err, f.stopAll()); err == nil {
			fmt.Print(outro)
		}
	}()
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"control planes", f.startClusters},
		{"charts ot-agent", f.installAgents},
		{"observers", f.startObservers},
		{"agents", f.startAgents},
		{"hub", f.startHub},
		{"KubeVirt", f.awaitKubeVirt},
	} {
		start := time.Now()
		fmt.Printf("  starting %-16s", step.what)
		if err := step.do(ctx); err != nil {
			fmt.Println()
			return fmt.Errorf("starting the %s: %w", step.what, err)
		}
		fmt.Printf("%5.1f s\n", time.Since(start).Seconds())
	}
	fmt.Println()
	s := newDemoStory(f)
	defer s.close()
	if err := s.run(ctx); err != nil {
		return err
	}
	return s.summarize(ctx)
}
