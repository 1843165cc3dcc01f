// Command node replaces kindnet and local-path-provisioner of the published node image, which no
// Go module proxy serves: it gives Pods a network with routes to the other nodes, and volumes in
// directories of the node. It runs as a DaemonSet of the offline node image.
//
// NetworkPolicies are not enforced.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// hostRoot is the mount of the node's file system.
	hostRoot = "/host"
	// syncInterval is the interval between full syncs: a node's addresses change with a
	// restart, and a sync costs three lists.
	syncInterval = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("NODE_NAME"), os.Getenv("POD_SUBNET")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node, podSubnet string) error {
	if node == "" || podSubnet == "" {
		return errors.New("NODE_NAME and POD_SUBNET have to be set")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the client of the API server: %w", err)
	}
	n := podNetwork{client: client, node: node, podSubnet: podSubnet}
	s := localStorage{client: client, node: node}
	for {
		for _, step := range []func(context.Context) error{n.syncNetwork, s.provisionVolumes, s.deleteReleasedVolumes} {
			if err := step(ctx); err != nil && ctx.Err() == nil {
				log.Print(err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(syncInterval):
		}
	}
}

// runOnNode runs a program of the node. The node's env looks it up: otherwise the lookup would be in
// this container.
func runOnNode(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: hostRoot}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
