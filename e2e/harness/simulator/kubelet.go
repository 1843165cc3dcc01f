//go:build linux

package simulator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// NodeName is the only node of a member.
const NodeName = "sim-node"

// Kubelet is KWOK as the kubelet of that node.
type Kubelet struct {
	process *process.Process
	podIP   string
}

// StartKubelet creates the node and starts KWOK for it.
func StartKubelet(ctx context.Context, c client.Client, o Options) (*Kubelet, error) {
	paths, err := binaries.Ensure(ctx, binaries.KWOK)
	if err != nil {
		return nil, err
	}
	podIP := fmt.Sprintf("127.%d.%d.1", 64+rand.IntN(128), rand.IntN(256))
	text, err := renderStages(podIP)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(o.Dir, "kwok-stages.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("writing the stages of the simulated kubelet: %w", err)
	}
	if err := createNode(ctx, c); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Options{
		Path:    paths[binaries.KWOK],
		LogFile: filepath.Join(o.LogDir, o.Name+"-kwok.log"),
		HeapMiB: 64,
		Args: []string{
			"--kubeconfig=" + o.Kubeconfig,
			"--config=" + file,
			"--manage-all-nodes=true",
			"--node-ip=127.0.0.1",
			"--cidr=" + podIP + "/24",
			"--enable-crds=",
		},
	})
	if err != nil {
		return nil, err
	}
	return &Kubelet{process: p, podIP: podIP}, nil
}

// createNode creates a node that is ready and not tainted, with the status that KWOK would set:
// the scheduler can use it at once.
func createNode(ctx context.Context, c client.Client) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   NodeName,
		Labels: map[string]string{corev1.LabelHostname: NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
	}}
	if err := c.Create(ctx, node); err != nil {
		return fmt.Errorf("creating node %s: %w", NodeName, err)
	}
	untainted := node.DeepCopy()
	untainted.Spec.Taints = nil
	if err := c.Patch(ctx, untainted, client.MergeFrom(node)); err != nil {
		return fmt.Errorf("removing the taints of node %s: %w", NodeName, err)
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1k"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("10k"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	untainted.Status.Capacity, untainted.Status.Allocatable = capacity, capacity
	untainted.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
	}}
	untainted.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: NodeName}}
	if err := c.Status().Update(ctx, untainted); err != nil {
		return fmt.Errorf("making node %s ready: %w", NodeName, err)
	}
	return nil
}

// Stop ends KWOK; pods stay as they are.
func (k *Kubelet) Stop() error { return k.process.Stop(stopTimeout) }
