//go:build linux

package simulator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	cdiComponentLabel    = "cdi.kubevirt.io"
	cloneSourceComponent = "cdi-clone-source"
	cloneTargetLabel     = "cdi.kubevirt.io/uploadTarget"
	cloneIDAnnotation    = "cdi.kubevirt.io/storage.clone.cloneUniqeId"
	clonePodSuffix       = "-source-pod"
)

// cloneReconciler does what storage and CDI's pods do when a volume is cloned, beyond
// provisioning one from a source: it grows volumes whose claims ask for more,
// and ends the receiving pod of a copy with its sending pod.
type cloneReconciler struct {
	client client.Client
}

func (c *cloneReconciler) setupWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(mgr).Named("sim-resize").For(&corev1.PersistentVolumeClaim{}).Complete(reconcile.Func(c.resizeClaim)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("sim-copy").For(&corev1.Pod{}).Complete(reconcile.Func(c.completeClonePods))
}

// resizeClaim does without a pod that mounts the volume: the storage grows file
// systems by itself.
func (c *cloneReconciler) resizeClaim(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var claim corev1.PersistentVolumeClaim
	if err := c.client.Get(ctx, r.NamespacedName, &claim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	requested, actual := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || requested.Cmp(actual) <= 0 {
		return reconcile.Result{}, nil
	}
	var volume corev1.PersistentVolume
	if err := c.client.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &volume); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !isSimulatedProvisioner(volume.Annotations[provisionedByAnnotation]) || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return reconcile.Result{}, nil
	}
	if capacity := volume.Spec.Capacity[corev1.ResourceStorage]; capacity.Cmp(requested) < 0 {
		old := volume.DeepCopy()
		volume.Spec.Capacity[corev1.ResourceStorage] = roundUpToMiB(requested)
		if err := c.client.Patch(ctx, &volume, client.MergeFrom(old)); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("growing volume %s: %w", volume.Name, err)
		}
	}
	old := claim.DeepCopy()
	claim.Status.Capacity[corev1.ResourceStorage] = volume.Spec.Capacity[corev1.ResourceStorage]
	if err := c.client.Status().Patch(ctx, &claim, client.MergeFrom(old)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reporting claim %s as grown: %w", r, err)
	}
	return reconcile.Result{}, nil
}

func (c *cloneReconciler) completeClonePods(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var sender corev1.Pod
	if err := c.client.Get(ctx, r.NamespacedName, &sender); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if sender.Labels[cdiComponentLabel] != cloneSourceComponent || sender.Status.Phase != corev1.PodSucceeded {
		return reconcile.Result{}, nil
	}
	var receivers corev1.PodList
	target := strings.TrimSuffix(sender.Labels[cloneIDAnnotation], clonePodSuffix)
	if err := c.client.List(ctx, &receivers, client.MatchingLabels{cloneTargetLabel: target}); err != nil {
		return reconcile.Result{}, err
	}
	for i := range receivers.Items {
		receiver := &receivers.Items[i]
		if receiver.Status.Phase != corev1.PodRunning {
			continue
		}
		if err := completePod(ctx, c.client, receiver, `{"message":"Clone Complete"}`); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// completePod is what the kubelet says of a pod that has ended well, and has
// left a message.
func completePod(ctx context.Context, c client.Client, pod *corev1.Pod, message string) error {
	old := pod.DeepCopy()
	pod.Status.Phase = corev1.PodSucceeded
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		s.Ready = false
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: message, FinishedAt: metav1.Now()}}
	}
	setPodReady(pod, corev1.ConditionFalse)
	if err := c.Status().Patch(ctx, pod, client.MergeFrom(old)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting pod %s/%s as ended: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func setPodReady(pod *corev1.Pod, status corev1.ConditionStatus) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady || c.Type == corev1.ContainersReady
	})
	pod.Status.Conditions = append(pod.Status.Conditions,
		corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()},
		corev1.PodCondition{Type: corev1.ContainersReady, Status: status, LastTransitionTime: metav1.Now()})
}
