//go:build linux

package program

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const capiModule = "sigs.k8s.io/cluster-api"

// InstallClusterCRD installs Cluster API's CRD Cluster; its controllers do not run.
func InstallClusterCRD(ctx context.Context, cfg *rest.Config) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", capiModule).Output()
	if err != nil {
		return fmt.Errorf("finding module %s: %w", capiModule, err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", "bases", "cluster.x-k8s.io_clusters.yaml")
	if err := controlplane.InstallCRDFiles(ctx, cfg, file); err != nil {
		return fmt.Errorf("installing Cluster API's CRD Cluster: %w", err)
	}
	return nil
}

// CreateCluster creates a Cluster and the Secret with its admin kubeconfig, as Cluster API's
// controllers leave them.
func CreateCluster(ctx context.Context, c client.Client, cluster *clusterv1.Cluster, kubeconfig []byte) error {
	if err := c.Create(ctx, cluster); err != nil {
		return fmt.Errorf("creating Cluster %s: %w", cluster.Name, err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{"value": kubeconfig},
	}
	if err := c.Create(ctx, secret); err != nil {
		return fmt.Errorf("creating the kubeconfig of Cluster %s: %w", cluster.Name, err)
	}
	return nil
}
