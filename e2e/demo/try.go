//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// printHowToTry prints the address of the dashboard, and commands that show something of the
// fleet as it is now.
func (b backgroundFleet) printHowToTry(ctx context.Context, state *fleetState, image string) {
	fmt.Printf(`It runs until make down, at the longest until %s.
  kubeconfig  %s (contexts hub, bergen, edge, lab)
  logs        %s, %s

Try, in this directory:

  export KUBECONFIG=%s
  bin/kubectl-ot status
  bin/kubectl-ot why image %s -n %s --cluster %s
  bin/kubectl-ot tree rollout %s
  bin/kubectl-ot image where %s
  bin/kubectl-ot policy show --cluster %s
`, state.Until.Local().Format(time.DateTime), b.kubeconfig(), b.logFile(), b.logs(), b.kubeconfig(), image, namespace, bergen, golden, golden, lab)
	if _, err := exec.LookPath("kubectl"); err == nil {
		fmt.Print("\nWith export PATH=\"$PWD/bin:$PATH\" it is a plugin: kubectl ot status\n")
	}
	switch address, err := b.startDashboard(ctx); {
	case err != nil:
		fmt.Printf("\nThe dashboard did not start: %v\nTo open it: bin/kubectl-ot dashboard\n", err)
	default:
		fmt.Printf("\nThe dashboard, for one browser; make up prints another address, and bin/kubectl-ot dashboard opens one:\n\n  %s\n", address)
	}
}

// findWaitingImage returns the image of bergen that was created last of those that wait, or any.
func (b backgroundFleet) findWaitingImage(ctx context.Context) (string, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: b.kubeconfig()}, &clientcmd.ConfigOverrides{CurrentContext: bergen}).ClientConfig()
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", b.kubeconfig(), err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return "", err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return "", err
	}
	var images v1alpha1.VMDiskImageList
	if err := c.List(ctx, &images, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("listing the images of %s (is the fleet still running? its log is %s): %w", bergen, b.logFile(), err)
	}
	found := &v1alpha1.VMDiskImage{}
	found.Name = desktop
	for i := range images.Items {
		img := &images.Items[i]
		if img.Status.Phase == v1alpha1.PhaseQueued && !img.CreationTimestamp.Before(&found.CreationTimestamp) {
			found = img
		}
	}
	return found.Name, nil
}
