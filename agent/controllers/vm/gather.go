package vm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// buildView collects what a decision rests on, from the cache but for Secrets
// and networks. Those are read once in a visit: nothing is made of them before its
// last step.
func (r *Reconciler) buildView(ctx context.Context, obj *v1alpha1.VirtualMachine, earlier vm.View) (vm.View, error) {
	v := vm.View{
		Now: time.Now(), VM: obj,
		CDIServed: r.Kinds.IsServed(image.DataVolumeGVK), KubeVirtServed: r.Kinds.IsServed(kubevirt.VirtualMachineKind),
	}
	var err error
	if v.Image, v.Pinned, err = r.getImages(ctx, r.Client, obj); err != nil {
		return v, err
	}
	disk := types.NamespacedName{Namespace: obj.Namespace, Name: kubevirt.RootDiskName(obj)}
	if v.RootClaim, err = getOptional(ctx, r.Owned, disk, &corev1.PersistentVolumeClaim{}); err != nil {
		return v, err
	}
	if v.CDIServed {
		if v.RootDisk, err = getOptional(ctx, r.Owned, disk, &cdiv1.DataVolume{}); err != nil {
			return v, err
		}
	}
	if v.KubeVirtServed {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(kubevirt.VirtualMachineKind)
		if v.KubeVirtVM, err = getOptional(ctx, r.Owned, client.ObjectKeyFromObject(obj), there); err != nil {
			return v, err
		}
	}
	if earlier.VM != nil {
		v.MissingNetwork, v.CloudInitSecret, v.Inputs, v.MissingSecret = earlier.MissingNetwork, earlier.CloudInitSecret, earlier.Inputs, earlier.MissingSecret
		return v, nil
	}
	if v.MissingNetwork, err = r.findMissingNetwork(ctx, v.KubeVirtVM); err != nil {
		return v, err
	}
	if v.CloudInitSecret, err = getOptional(ctx, r.Live, types.NamespacedName{Namespace: obj.Namespace, Name: cloudinit.SecretName(obj)}, &corev1.Secret{}); err != nil {
		return v, err
	}
	if v.Inputs.ClusterUID, err = r.ClusterUID(ctx); err != nil {
		return v, err
	}
	v.Inputs, v.MissingSecret, err = r.readInputs(ctx, obj, v.Inputs)
	return v, err
}

// buildLiveView reads again, past the cache, what cannot be taken back rests on:
// that the machine still is as decided on, then its images.
func (r *Reconciler) buildLiveView(ctx context.Context, v vm.View) (vm.View, error) {
	now := &v1alpha1.VirtualMachine{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(v.VM), now)
	if apierrors.IsNotFound(err) || (err == nil && now.ResourceVersion != v.VM.ResourceVersion) {
		return v, errObjectChanged
	}
	if err != nil {
		return v, fmt.Errorf("reading VirtualMachine %s/%s: %w", v.VM.Namespace, v.VM.Name, err)
	}
	if v.Image, v.Pinned, err = r.getImages(ctx, r.Live, v.VM); err != nil {
		return v, err
	}
	if v.SourceExists, err = r.sourceExists(ctx, v.VM.Status.Pinned); err != nil {
		return v, err
	}
	if v.CDIServed {
		disk := types.NamespacedName{Namespace: v.VM.Namespace, Name: kubevirt.RootDiskName(v.VM)}
		if v.RootDisk, err = getOptional(ctx, r.Live, disk, &cdiv1.DataVolume{}); err != nil {
			return v, err
		}
	}
	v.Live = true
	return v, nil
}

// getImages returns the image that a machine names and the one that it has pinned;
// nil for what is not there.
func (r *Reconciler) getImages(ctx context.Context, from client.Reader, obj *v1alpha1.VirtualMachine) (named, pinned *v1alpha1.VMDiskImage, err error) {
	if named, err = getOptional(ctx, from, obj.ImageNamespacedName(), &v1alpha1.VMDiskImage{}); err != nil {
		return nil, nil, err
	}
	p := obj.Status.Pinned
	if p == nil {
		return named, nil, nil
	}
	pinned = named
	if key := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); key != obj.ImageNamespacedName() {
		if pinned, err = getOptional(ctx, from, key, &v1alpha1.VMDiskImage{}); err != nil {
			return nil, nil, err
		}
	}
	if pinned != nil && pinned.UID != p.UID {
		pinned = nil
	}
	return named, pinned, nil
}

// sourceExists tells whether what is pinned can be cloned. It must have been made
// for the image that is pinned: the agent may clone what those who write to a
// machine's namespace may not.
func (r *Reconciler) sourceExists(ctx context.Context, p *v1alpha1.PinnedImage) (bool, error) {
	if p == nil {
		return false, nil
	}
	if p.VolumeSnapshot != "" {
		snap, err := getOptional(ctx, r.Live, types.NamespacedName{Namespace: p.Namespace, Name: p.VolumeSnapshot}, &snapshotv1.VolumeSnapshot{})
		return snap != nil && isMadeFor(snap, p) && image.IsSnapshotReady(snap), err
	}
	claim, err := getOptional(ctx, r.Live, types.NamespacedName{Namespace: p.Namespace, Name: p.PersistentVolumeClaim}, &corev1.PersistentVolumeClaim{})
	return claim != nil && isMadeFor(claim, p) && claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound, err
}

func isMadeFor(o metav1.Object, p *v1alpha1.PinnedImage) bool {
	of := o.GetLabels()
	return p.UID != "" && of[v1alpha1.LabelImageUID] == string(p.UID) && of[v1alpha1.LabelAttempt] == strconv.Itoa(int(p.Attempt))
}

// networkAttachmentKind is Multus' kind of a network.
var networkAttachmentKind = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// findMissingNetwork looks for the networks of a machine that is to be ready and is
// not: KubeVirt says nowhere on it that one is missing (1.8).
func (r *Reconciler) findMissingNetwork(ctx context.Context, theirs *unstructured.Unstructured) (string, error) {
	if theirs == nil {
		return "", nil
	}
	if ready, _, _ := unstructured.NestedBool(theirs.Object, "status", "ready"); ready || isStopped(theirs) {
		return "", nil
	}
	list, _, _ := unstructured.NestedSlice(theirs.Object, "spec", "template", "spec", "networks")
	for _, item := range list {
		network, _ := item.(map[string]any)
		name, _, _ := unstructured.NestedString(network, "multus", "networkName")
		if name == "" {
			continue
		}
		key := types.NamespacedName{Namespace: theirs.GetNamespace(), Name: name}
		if ns, rest, qualified := strings.Cut(name, "/"); qualified {
			key = types.NamespacedName{Namespace: ns, Name: rest}
		}
		there := &metav1.PartialObjectMetadata{}
		there.SetGroupVersionKind(networkAttachmentKind)
		if there, err := getOptional(ctx, r.Live, key, there); there == nil || err != nil {
			return key.String(), err
		}
	}
	return "", nil
}

// isStopped tells that a machine is stopped until somebody starts it.
func isStopped(theirs *unstructured.Unstructured) bool {
	run, _, _ := unstructured.NestedString(theirs.Object, "spec", "runStrategy")
	created, _, _ := unstructured.NestedBool(theirs.Object, "status", "created")
	return !created && (run == string(kubevirtv1.RunStrategyHalted) || run == string(kubevirtv1.RunStrategyManual))
}

// readInputs reads what the guest is told from Secrets.
func (r *Reconciler) readInputs(ctx context.Context, obj *v1alpha1.VirtualMachine, in cloudinit.Inputs) (cloudinit.Inputs, string, error) {
	in.Passwords = map[string]string{}
	for i := range obj.Spec.Users {
		u := &obj.Spec.Users[i]
		if u.PasswordSecretRef == nil {
			continue
		}
		value, missing, err := r.readSecretKey(ctx, obj.Namespace, *u.PasswordSecretRef)
		if missing != "" || err != nil {
			return in, missing, err
		}
		in.Passwords[u.Name] = string(value)
	}
	if c := obj.Spec.CloudInit; c != nil && c.UserDataSecretRef != nil {
		value, missing, err := r.readSecretKey(ctx, obj.Namespace, *c.UserDataSecretRef)
		if missing != "" || err != nil {
			return in, missing, err
		}
		in.UserData = value
	}
	return in, "", nil
}

func (r *Reconciler) readSecretKey(ctx context.Context, namespace string, ref v1alpha1.SecretKey) (value []byte, missing string, err error) {
	secret, err := getOptional(ctx, r.Live, types.NamespacedName{Namespace: namespace, Name: ref.Name}, &corev1.Secret{})
	switch {
	case err != nil:
		return nil, "", err
	case secret == nil:
		return nil, fmt.Sprintf("Secret %s/%s does not exist: create it, or correct the spec", namespace, ref.Name), nil
	}
	value, there := secret.Data[ref.Key]
	if !there {
		return nil, fmt.Sprintf("Secret %s/%s has no key %s: add it, or correct the spec", namespace, ref.Name, ref.Key), nil
	}
	return value, "", nil
}

// getOptional reads one object; nil where it does not exist or its kind is not served.
func getOptional[T interface {
	comparable
	client.Object
}](ctx context.Context, from client.Reader, key types.NamespacedName, obj T) (T, error) {
	var none T
	err := from.Get(ctx, key, obj)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading %T %s: %w", obj, key, err)
	}
	return obj, nil
}
