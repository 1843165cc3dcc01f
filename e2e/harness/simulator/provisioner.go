//go:build linux

package simulator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	storageProvisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	selectedNodeAnnotation       = "volume.kubernetes.io/selected-node"
	provisionedByAnnotation      = "pv.kubernetes.io/provisioned-by"

	// sourceRetryDelay is how long a clone waits for a source that is not ready, like
	// external-provisioner's first backoffs.
	sourceRetryDelay = time.Second
)

// provisioner is external-provisioner for the simulated classes: it serves claims that the volume
// controller has assigned to it.
type provisioner struct {
	client    client.Client
	apiReader client.Reader
}

func (p *provisioner) setupWithManager(mgr ctrl.Manager, snapshots bool) error {
	if err := ctrl.NewControllerManagedBy(mgr).Named("sim-provision").For(&corev1.PersistentVolumeClaim{}).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			return p.provisionVolume(ctx, r, snapshots)
		})); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("sim-reclaim").For(&corev1.PersistentVolume{}).Complete(reconcile.Func(p.deleteReleasedVolume))
}

func (p *provisioner) provisionVolume(ctx context.Context, r reconcile.Request, snapshots bool) (reconcile.Result, error) {
	var claim corev1.PersistentVolumeClaim
	if err := p.client.Get(ctx, r.NamespacedName, &claim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	driver := claim.Annotations[storageProvisionerAnnotation]
	if !isSimulatedProvisioner(driver) || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Spec.StorageClassName == nil {
		return reconcile.Result{}, nil
	}
	var class storagev1.StorageClass
	if err := p.client.Get(ctx, client.ObjectKey{Name: *claim.Spec.StorageClassName}, &class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	waits := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if waits && claim.Annotations[selectedNodeAnnotation] == "" {
		return reconcile.Result{}, nil
	}
	ours, ready, err := p.checkSourceReady(ctx, &claim, snapshots)
	if err != nil || !ours {
		return reconcile.Result{}, err
	}
	if !ready {
		return reconcile.Result{RequeueAfter: sourceRetryDelay}, nil
	}
	volume := newVolumeFor(&claim, &class)
	if err := p.client.Create(ctx, volume); err != nil && !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, fmt.Errorf("provisioning a volume for claim %s: %w", r, err)
	}
	return reconcile.Result{}, nil
}

// checkSourceReady reports whether a provisioner serves the claim at all (a populator serves other
// kinds of sources), and whether its source is ready and fits.
func (p *provisioner) checkSourceReady(ctx context.Context, claim *corev1.PersistentVolumeClaim, snapshots bool) (ours, ready bool, err error) {
	source := claim.Spec.DataSourceRef
	if source == nil {
		return true, true, nil
	}
	group := ""
	if source.APIGroup != nil {
		group = *source.APIGroup
	}
	key := client.ObjectKey{Namespace: claim.Namespace, Name: source.Name}
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case group == "" && source.Kind == "PersistentVolumeClaim":
		var from corev1.PersistentVolumeClaim
		if err := p.apiReader.Get(ctx, key, &from); err != nil {
			return true, false, client.IgnoreNotFound(err)
		}
		size := from.Status.Capacity[corev1.ResourceStorage]
		return true, from.Status.Phase == corev1.ClaimBound && wanted.Cmp(size) >= 0, nil
	case group == snapshotv1.GroupName && source.Kind == "VolumeSnapshot" && snapshots:
		var from snapshotv1.VolumeSnapshot
		if err := p.apiReader.Get(ctx, key, &from); err != nil {
			return true, false, client.IgnoreNotFound(err)
		}
		status := from.Status
		ready := status != nil && status.ReadyToUse != nil && *status.ReadyToUse && status.RestoreSize != nil && wanted.Cmp(*status.RestoreSize) >= 0
		return true, ready, nil
	default:
		return false, false, nil
	}
}

// newVolumeFor names the volume after the claim's UID: provisioning twice creates one volume.
func newVolumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	capacity := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedByAnnotation: class.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: roundUpToMiB(capacity)},
			AccessModes:      claim.Spec.AccessModes,
			VolumeMode:       claim.Spec.VolumeMode,
			StorageClassName: class.Name,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
	if class.ReclaimPolicy != nil {
		volume.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	if slices.ContainsFunc(storageClasses, func(c string) bool { return ProvisionerForClass(c) == class.Provisioner && hasCSIDriver(c) }) {
		volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: name}
	} else {
		volume.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/sim/" + name}
	}
	return volume
}

// roundUpToMiB rounds up to whole MiB, as storage that allocates in extents does.
func roundUpToMiB(size resource.Quantity) resource.Quantity {
	const extent = 1 << 20
	return *resource.NewQuantity((size.Value()+extent-1)/extent*extent, resource.BinarySI)
}

// deleteReleasedVolume deletes a volume whose claim is gone.
func (p *provisioner) deleteReleasedVolume(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var volume corev1.PersistentVolume
	if err := p.client.Get(ctx, r.NamespacedName, &volume); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !isSimulatedProvisioner(volume.Annotations[provisionedByAnnotation]) || volume.Status.Phase != corev1.VolumeReleased ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || volume.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	err := p.client.Delete(ctx, &volume, client.Preconditions{UID: &volume.UID, ResourceVersion: &volume.ResourceVersion})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("deleting released volume %s: %w", volume.Name, err)
	}
	return reconcile.Result{}, nil
}

const (
	cdiComponentLabel    = "cdi.kubevirt.io"
	cloneSourceComponent = "cdi-clone-source"
	cloneTargetLabel     = "cdi.kubevirt.io/uploadTarget"
	cloneIDAnnotation    = "cdi.kubevirt.io/storage.clone.cloneUniqeId"
	clonePodSuffix       = "-source-pod"
)

// cloneReconciler does what storage and CDI's pods do for a clone after provisioning: it grows
// volumes whose claims request more, and ends the receiving pod of a copy with its sending pod.
type cloneReconciler struct {
	client client.Client
}

func (c *cloneReconciler) setupWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(mgr).Named("sim-resize").For(&corev1.PersistentVolumeClaim{}).Complete(reconcile.Func(c.resizeClaim)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("sim-copy").For(&corev1.Pod{}).Complete(reconcile.Func(c.completeClonePods))
}

// resizeClaim needs no pod that mounts the volume: the storage grows file systems by itself.
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

// completePod sets the status that the kubelet gives to a succeeded pod with a termination
// message.
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
