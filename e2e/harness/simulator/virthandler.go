//go:build linux

package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// heartbeatInterval is well below the five minutes after which virt-controller considers a node
// lost and its VMIs failed.
const heartbeatInterval = time.Minute

// conflictRetryDelay is the requeue delay after a write conflict. The event of the other write
// usually comes first.
const conflictRetryDelay = 100 * time.Millisecond

// VirtHandler simulates KubeVirt's virt-handler, virt-launchers and guests on the member's node. A
// guest is up as soon as its pod runs, and off as soon as it is asked to stop. Like the real
// one it leaves pods, volumes and finalizers to virt-controller, and keeps an ending pod until
// its guest is off.
type VirtHandler struct {
	client    client.Client
	playsNode bool
	cancel    context.CancelFunc
	done      chan struct{}
	err       error
}

// nodeNameExtra has the node of a Pod whose ServiceAccount makes a request. From 1.9 on, KubeVirt
// refuses a virt-handler's writes to the VMIs of other nodes.
const nodeNameExtra = "authentication.kubernetes.io/node-name"

// KubeVirtIdentity returns the user name of a KubeVirt component, and groups with all rights.
func KubeVirtIdentity(name string) (user string, groups []string) {
	return "system:serviceaccount:kubevirt:" + name, []string{"system:masters", "system:authenticated"}
}

// StartVirtHandler serves the VirtualMachineInstances of the member's node. With node it is also
// scheduler and kubelet of virt-launcher pods, for members that have neither.
func StartVirtHandler(ctx context.Context, c client.Client, o Options, node bool) (*VirtHandler, error) {
	if node {
		if err := createNode(ctx, c); client.IgnoreAlreadyExists(err) != nil {
			return nil, err
		}
	}
	own := rest.CopyConfig(o.Config)
	own.Impersonate.UserName, own.Impersonate.Groups = KubeVirtIdentity("kubevirt-handler")
	own.Impersonate.Extra = map[string][]string{nodeNameExtra: {NodeName}}
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme:                 o.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), MaxConcurrentReconciles: 4},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the simulated virt-handler of %s: %w", o.Name, err)
	}
	h := &VirtHandler{client: mgr.GetClient(), playsNode: node, done: make(chan struct{})}
	err = ctrl.NewControllerManagedBy(mgr).Named("sim-virt-handler").For(&kubevirtv1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(mapPodToVMI)).
		Complete(reconcile.Func(h.reconcile))
	if err == nil {
		err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			ticker := time.NewTicker(heartbeatInterval)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-ticker.C:
					_ = UpdateHeartbeat(ctx, c, NodeName) // the next heartbeat makes up for a failed one
				}
			}
		}))
	}
	if err != nil {
		return nil, fmt.Errorf("setting up the simulated virt-handler of %s: %w", o.Name, err)
	}
	if err := AddKubeVirtDevices(ctx, c, NodeName); err != nil {
		return nil, err
	}
	if err := UpdateHeartbeat(ctx, c, NodeName); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.cancel = cancel
	go func() {
		defer close(h.done)
		h.err = mgr.Start(running)
	}()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		cancel()
		<-h.done
		return nil, fmt.Errorf("starting the simulated virt-handler of %s: its caches did not fill (%v)", o.Name, h.err)
	}
	return h, nil
}

// Stop ends the handler; VMIs stay as they are.
func (h *VirtHandler) Stop() error {
	h.cancel()
	<-h.done
	return h.err
}

func mapPodToVMI(_ context.Context, pod client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != kubevirtv1.VirtualMachineInstanceGroupVersionKind.Kind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: pod.GetNamespace(), Name: owner.Name}}}
}

func (h *VirtHandler) reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var vmi *kubevirtv1.VirtualMachineInstance
	found := &kubevirtv1.VirtualMachineInstance{}
	if err := h.client.Get(ctx, r.NamespacedName, found); err == nil {
		vmi = found
	} else if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	var pods corev1.PodList
	if err := h.client.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels{kubevirtv1.AppLabel: "virt-launcher"}); err != nil {
		return reconcile.Result{}, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.Name != r.Name {
			continue
		}
		var guest *kubevirtv1.VirtualMachineInstance
		if vmi != nil && owner.UID == vmi.UID {
			guest = vmi
		}
		if err := h.reconcileLauncher(ctx, guest, pod); apierrors.IsInvalid(err) {
			return reconcile.Result{RequeueAfter: conflictRetryDelay}, nil
		} else if err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// reconcileLauncher advances a virt-launcher pod and its VMI, which is nil where it is gone.
func (h *VirtHandler) reconcileLauncher(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) error {
	var next kubevirtv1.VirtualMachineInstancePhase
	if vmi != nil && IsLauncherPod(pod) {
		next = NextVMIPhase(vmi, pod, NodeName)
	}
	switch {
	case next == kubevirtv1.Failed || next == kubevirtv1.Succeeded:
		return SetVMIPhase(ctx, h.client, vmi, next)
	case pod.DeletionTimestamp != nil:
		if err := h.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing pod %s/%s, whose guest is off: %w", pod.Namespace, pod.Name, err)
		}
		return nil
	case vmi != nil && IsLauncherPod(pod) && vmi.IsFinal() && pod.Status.Phase == corev1.PodRunning:
		return completePod(ctx, h.client, pod, "")
	case h.playsNode && pod.Spec.NodeName == "":
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: NodeName}}
		if err := h.client.SubResource("binding").Create(ctx, pod, binding); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("placing pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		return nil
	case h.playsNode && pod.Status.Phase == corev1.PodPending:
		return h.runPod(ctx, pod)
	case next == kubevirtv1.Running:
		return SetVMIPhase(ctx, h.client, vmi, next)
	}
	return nil
}

// IsLauncherPod reports whether a VMI runs in a Pod, which otherwise is only the first consumer of
// its claims.
func IsLauncherPod(pod *corev1.Pod) bool {
	return pod.Annotations[kubevirtv1.EphemeralProvisioningObject] == ""
}

// NextVMIPhase returns the phase that virt-handler sets next for a VMI on a node; empty for none. A
// guest is up as soon as its launcher runs, off as soon as it is asked to stop, and gone with
// its launcher, which is nil then.
func NextVMIPhase(vmi *kubevirtv1.VirtualMachineInstance, launcher *corev1.Pod, node string) kubevirtv1.VirtualMachineInstancePhase {
	scheduled, running := vmi.Status.Phase == kubevirtv1.Scheduled, vmi.Status.Phase == kubevirtv1.Running
	switch {
	case vmi.Status.NodeName != node || !scheduled && !running:
		return ""
	case launcher == nil:
		return kubevirtv1.Failed
	case vmi.DeletionTimestamp != nil || launcher.DeletionTimestamp != nil:
		if scheduled {
			return kubevirtv1.Failed // it never ran: so does virt-handler
		}
		return kubevirtv1.Succeeded
	case scheduled && launcher.Status.Phase == corev1.PodRunning:
		return kubevirtv1.Running
	}
	return ""
}

// kubeVirtDevices are the resources that virt-launcher pods request.
var kubeVirtDevices = []corev1.ResourceName{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"}

// nodePodIP is the address of virt-launcher pods where the virt-handler is the node; nothing
// listens there.
const nodePodIP = "127.64.0.1"

// patchOperation is an operation of a JSON patch.
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// SetVMIPhase sets the phase of a VMI. The error is IsInvalid where the VMI was written since it was
// read. It is a JSON patch, not an update of the Go type: all other fields must stay exactly
// as virt-controller has written them, because its patches begin with a comparison.
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

// runPod sets the status that the kubelet gives to a running pod.
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

// AddKubeVirtDevices adds the devices to a node that virt-handler's device plugins report.
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

// UpdateHeartbeat renews virt-handler's heartbeat on a node.
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
