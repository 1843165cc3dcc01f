package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const cniFile = hostRoot + "/etc/cni/net.d/10-node.conflist"

// podNetwork connects the Pods of this node with those of other nodes.
type podNetwork struct {
	client          kubernetes.Interface
	node, podSubnet string
	writtenSubnet   string
	masqueraded     bool
}

func (n *podNetwork) syncNetwork(ctx context.Context) error {
	nodes, err := n.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	own, routes := planRoutes(nodes.Items, n.node)
	if own == "" {
		return fmt.Errorf("node %s has been given no addresses for its Pods", n.node)
	}
	var failed []error
	for _, route := range routes {
		failed = append(failed, runOnNode(ctx, "ip", "route", "replace", route.subnet, "via", route.via))
	}
	failed = append(failed, n.ensureMasquerade(ctx), n.writeCNIConfig(own))
	return errors.Join(failed...)
}

type route struct{ subnet, via string }

// planRoutes returns the Pod subnet of a node, and the routes to those of the others.
func planRoutes(nodes []corev1.Node, node string) (own string, routes []route) {
	for i := range nodes {
		if nodes[i].Spec.PodCIDR == "" {
			continue
		}
		if nodes[i].Name == node {
			own = nodes[i].Spec.PodCIDR
			continue
		}
		at := slices.IndexFunc(nodes[i].Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
		if at >= 0 {
			routes = append(routes, route{subnet: nodes[i].Spec.PodCIDR, via: nodes[i].Status.Addresses[at].Address})
		}
	}
	return own, routes
}

// ensureMasquerade masquerades traffic of Pods to everything but Pods of this cluster: other clusters
// on the same network have no route back.
func (n *podNetwork) ensureMasquerade(ctx context.Context) error {
	if n.masqueraded {
		return nil
	}
	rule := []string{"POSTROUTING", "-s", n.podSubnet, "!", "-d", n.podSubnet, "-j", "MASQUERADE"}
	if runOnNode(ctx, "iptables", append([]string{"-w", "-t", "nat", "-C"}, rule...)...) != nil {
		if err := runOnNode(ctx, "iptables", append([]string{"-w", "-t", "nat", "-A"}, rule...)...); err != nil {
			return err
		}
	}
	n.masqueraded = true
	return nil
}

// writeCNIConfig makes the node ready: the kubelet starts no Pod before this file exists.
func (n *podNetwork) writeCNIConfig(subnet string) error {
	if n.writtenSubnet == subnet {
		return nil
	}
	text := fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "node",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "ipam": {
      "type": "host-local", "dataDir": "/run/cni-ipam-state",
      "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": %q}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, subnet)
	if err := os.MkdirAll(filepath.Dir(cniFile), 0o755); err != nil {
		return fmt.Errorf("making the directory for the network's configuration: %w", err)
	}
	partial := cniFile + ".partial"
	if err := os.WriteFile(partial, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the network's configuration: %w", err)
	}
	if err := os.Rename(partial, cniFile); err != nil {
		return fmt.Errorf("writing the network's configuration: %w", err)
	}
	log.Printf("Pods of this node get addresses of %s", subnet)
	n.writtenSubnet = subnet
	return nil
}
