//go:build linux

package simulator

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// heartbeatInterval is well below the five minutes after which virt-controller takes a
// node for lost and its machines for failed.
const heartbeatInterval = time.Minute

// conflictRetryDelay is how long a machine that was written meanwhile is left alone; the
// event of that write comes before, as a rule.
const conflictRetryDelay = 100 * time.Millisecond

// endGuestTimeout is how long a cache may take to show that a guest runs, which is to end.
const endGuestTimeout = time.Minute

// VirtHandler plays KubeVirt's virt-handler, its virt-launchers and the guests
// of the member's node. Nothing is emulated: a guest is up as soon as its pod
// runs, and off as soon as it is asked to be. As the real ones it leaves pod,
// volumes and finalizers to virt-controller, and keeps a pod that ends until
// its guest is off.
type VirtHandler struct {
	client     client.Client
	playsNode  bool
	guestsHeld atomic.Bool
	resync     chan event.GenericEvent
	cancel     context.CancelFunc
	done       chan struct{}
	err        error
}

// KubeVirtIdentity is a part of KubeVirt to the API server: its name, and groups
// that give it all rights.
func KubeVirtIdentity(name string) (user string, groups []string) {
	return "system:serviceaccount:kubevirt:" + name, []string{"system:masters", "system:authenticated"}
}

// StartVirtHandler serves the VirtualMachineInstances of the member's node. With
// node it plays scheduler and kubelet as well, for virt-launcher pods only: for
// members that have neither.
func StartVirtHandler(ctx context.Context, c client.Client, o Options, node bool) (*VirtHandler, error) {
	if node {
		if err := createNode(ctx, c); client.IgnoreAlreadyExists(err) != nil {
			return nil, err
		}
	}
	own := rest.CopyConfig(o.Config)
	own.Impersonate.UserName, own.Impersonate.Groups = KubeVirtIdentity("kubevirt-handler")
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme:                 o.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), MaxConcurrentReconciles: 4},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the simulated virt-handler of %s: %w", o.Name, err)
	}
	h := &VirtHandler{client: mgr.GetClient(), playsNode: node, resync: make(chan event.GenericEvent), done: make(chan struct{})}
	err = ctrl.NewControllerManagedBy(mgr).Named("sim-virt-handler").For(&kubevirtv1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(mapPodToVMI)).
		WatchesRawSource(source.Channel(h.resync, &handler.EnqueueRequestForObject{})).
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
					_ = UpdateHeartbeat(ctx, c, NodeName) // one that is lost, with its API server, is made good by the next
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

// Stop ends it; machines stay as they are.
func (h *VirtHandler) Stop() error {
	h.cancel()
	<-h.done
	return h.err
}

// HoldGuests keeps guests from starting, as a node does that is slow or broken, until
// it is called with false.
func (h *VirtHandler) HoldGuests(ctx context.Context, hold bool) error {
	h.guestsHeld.Store(hold)
	if hold {
		return nil
	}
	var list kubevirtv1.VirtualMachineInstanceList
	if err := h.client.List(ctx, &list); err != nil {
		return fmt.Errorf("letting the guests start: %w", err)
	}
	for i := range list.Items {
		select {
		case h.resync <- event.GenericEvent{Object: &list.Items[i]}:
		case <-h.done:
			return fmt.Errorf("letting the guests start: the simulated virt-handler has ended (%w)", h.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// PowerOffGuest ends a running guest from within, Crash has it break.
func (h *VirtHandler) PowerOffGuest(ctx context.Context, key client.ObjectKey) error {
	return h.endGuest(ctx, key, kubevirtv1.Succeeded)
}

// CrashGuest is described at PowerOffGuest.
func (h *VirtHandler) CrashGuest(ctx context.Context, key client.ObjectKey) error {
	return h.endGuest(ctx, key, kubevirtv1.Failed)
}

func (h *VirtHandler) endGuest(ctx context.Context, key client.ObjectKey, phase kubevirtv1.VirtualMachineInstancePhase) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, conflictRetryDelay, endGuestTimeout, true, func(ctx context.Context) (bool, error) {
		var vmi kubevirtv1.VirtualMachineInstance
		if last = h.client.Get(ctx, key, &vmi); last != nil {
			return false, client.IgnoreNotFound(last)
		}
		if vmi.Status.Phase != kubevirtv1.Running {
			last = fmt.Errorf("it does not run, it is %s", vmi.Status.Phase)
			return false, nil
		}
		last = SetVMIPhase(ctx, h.client, &vmi, phase)
		if apierrors.IsInvalid(last) {
			return false, nil
		}
		return true, last
	})
	if wait.Interrupted(err) {
		err = last
	}
	if err != nil {
		return fmt.Errorf("ending the guest of machine %s: %w", key, err)
	}
	return nil
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

// reconcileLauncher brings one virt-launcher pod and its machine, nil for one that is gone,
// a step further.
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
	case next == kubevirtv1.Running && !h.guestsHeld.Load():
		return SetVMIPhase(ctx, h.client, vmi, next)
	}
	return nil
}

// IsLauncherPod tells the Pod that a machine runs in from one that is merely the
// first consumer of its claims.
func IsLauncherPod(pod *corev1.Pod) bool {
	return pod.Annotations[kubevirtv1.EphemeralProvisioningObject] == ""
}

// NextVMIPhase is the phase that virt-handler takes a machine to on a node, whose
// guest is up as soon as its launcher runs and off as soon as it is asked to be;
// empty where there is nothing to say. launcher is the Pod that it runs in, nil
// where that is gone, and the guest with it.
func NextVMIPhase(vmi *kubevirtv1.VirtualMachineInstance, launcher *corev1.Pod, node string) kubevirtv1.VirtualMachineInstancePhase {
	scheduled, running := vmi.Status.Phase == kubevirtv1.Scheduled, vmi.Status.Phase == kubevirtv1.Running
	switch {
	case vmi.Status.NodeName != node || !scheduled && !running:
		return ""
	case launcher == nil:
		return kubevirtv1.Failed
	case vmi.DeletionTimestamp != nil || launcher.DeletionTimestamp != nil:
		if scheduled {
			return kubevirtv1.Failed // it has not come to run: as virt-handler has it
		}
		return kubevirtv1.Succeeded
	case scheduled && launcher.Status.Phase == corev1.PodRunning:
		return kubevirtv1.Running
	}
	return ""
}
