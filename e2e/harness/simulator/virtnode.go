//go:build linux

package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeVirtDevices are what virt-launcher pods ask of their node.
var kubeVirtDevices = []corev1.ResourceName{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"}

// nodePodIP is that of every virt-launcher pod where the virt-handler plays the
// node; nothing listens there.
const nodePodIP = "127.64.0.1"

// patchOperation is one of a JSON patch.
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// SetVMIPhase takes a machine to a phase, with an error of IsInvalid where somebody
// has written it since: what is known of it would be out of date. What it does not change has to stay as
// virt-controller has written it, to the letter, for that one's patches begin
// with a comparison: so this is no merge of Go types.
func SetVMIPhase(ctx context.Context, c client.Client, vmi *kubevirtv1.VirtualMachineInstance, phase kubevirtv1.VirtualMachineInstancePhase) error {
	now := metav1.Now()
	patch := []patchOperation{
		{"test", "/metadata/resourceVersion", vmi.ResourceVersion},
		{"replace", "/status/phase", phase},
		appendOperation("/status/phaseTransitionTimestamps", len(vmi.Status.PhaseTransitionTimestamps), map[string]any{"phase": phase, "phaseTransitionTimestamp": now}),
	}
	if phase == kubevirtv1.Running {
		patch = append(patch, appendOperation("/status/conditions", len(vmi.Status.Conditions), map[string]any{
			"type": kubevirtv1.VirtualMachineInstanceIsMigratable, "status": corev1.ConditionFalse, "lastProbeTime": nil, "lastTransitionTime": now,
			"reason": kubevirtv1.VirtualMachineInstanceReasonDisksNotMigratable, "message": "the one node of a simulated cluster has no other",
		}))
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("reporting machine %s/%s as %s: %w", vmi.Namespace, vmi.Name, phase, err)
	}
	if err := c.Patch(ctx, vmi, client.RawPatch(types.JSONPatchType, text)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting machine %s/%s as %s: %w", vmi.Namespace, vmi.Name, phase, err)
	}
	return nil
}

func appendOperation(path string, length int, value any) patchOperation {
	if length == 0 {
		return patchOperation{"add", path, []any{value}}
	}
	return patchOperation{"add", path + "/-", value}
}

// runPod is what the kubelet says of a pod that runs.
func (h *VirtHandler) runPod(ctx context.Context, pod *corev1.Pod) error {
	old, now := pod.DeepCopy(), metav1.Now()
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.HostIP, pod.Status.PodIP, pod.Status.PodIPs = "127.0.0.1", nodePodIP, []corev1.PodIP{{IP: nodePodIP}}
	pod.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	setPodReady(pod, corev1.ConditionTrue)
	if err := h.client.Status().Patch(ctx, pod, client.MergeFrom(old)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting pod %s/%s as running: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// AddKubeVirtDevices gives a node the devices that virt-handler's device plugins report.
func AddKubeVirtDevices(ctx context.Context, c client.Client, name string) error {
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return fmt.Errorf("equipping node %s for virtual machines: %w", name, err)
	}
	old := node.DeepCopy()
	for _, device := range kubeVirtDevices {
		node.Status.Capacity[device] = resource.MustParse("1k")
		node.Status.Allocatable[device] = resource.MustParse("1k")
	}
	if err := c.Status().Patch(ctx, &node, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("equipping node %s for virtual machines: %w", name, err)
	}
	return nil
}

// UpdateHeartbeat says that virt-handler is well on a node.
func UpdateHeartbeat(ctx context.Context, c client.Client, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	old := node.DeepCopy()
	node.Labels = map[string]string{
		kubevirtv1.NodeSchedulable: "true", kubevirtv1.CPUManager: "false",
		"machine-type.node.kubevirt.io/q35": "true",
	}
	node.Annotations = map[string]string{kubevirtv1.VirtHandlerHeartbeat: time.Now().UTC().Format(time.RFC3339)}
	if err := c.Patch(ctx, node, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("marking node %s as fit for virtual machines: %w", name, err)
	}
	return nil
}
