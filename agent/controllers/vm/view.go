package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/cachebounds"
	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/secretaccess"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// lateWriteLimit is for how long an API server may carry out what a former leader has sent: it
// gives up a request after 60 s (--request-timeout), and a former leader sends nothing once another
// one is elected (package election).
const lateWriteLimit = time.Minute

// buildView reads the View of a machine, from the cache except for Secrets and networks.
// Those are taken from earlier, the last View of this reconcile, if there is one, and so are
// images that it has read live.
func (r *Reconciler) buildView(ctx context.Context, obj *v1alpha1.VirtualMachine, earlier vm.View) (vm.View, error) {
	r.started.Do(func() { r.startedAt = time.Now() })
	remembered := r.memory.get(client.ObjectKeyFromObject(obj))
	v := vm.View{
		Now: time.Now(), VM: obj, LateWrites: max(0, lateWriteLimit-time.Since(r.startedAt)), AppliedSecret: remembered.secret, MessageStoredAt: remembered.messageStoredAt,
		CDIServed: r.Kinds.IsServed(image.DataVolumeGVK), KubeVirtServed: r.Kinds.IsServed(kubevirt.VirtualMachineGVK),
	}
	var err error
	v.LiveImages = earlier.LiveImages
	if v.DiskView, v.Disks, err = r.readDisks(ctx, obj, func(ctx context.Context, k diskKey) (vm.DiskView, error) {
		return r.readDisk(ctx, k, earlier)
	}); err != nil {
		return v, err
	}
	if v.KubeVirtServed {
		if v.KubeVirtVM, err = getOptional(ctx, r.Owned, client.ObjectKeyFromObject(obj), newKubeVirtVM()); err != nil {
			return v, err
		}
		if cachebounds.IsTrimmed(v.KubeVirtVM) {
			if v.KubeVirtVM, err = getOptional(ctx, r.Live, client.ObjectKeyFromObject(obj), newKubeVirtVM()); err != nil {
				return v, err
			}
		}
	}
	if v.Pods, err = r.listPods(ctx, obj, v.KubeVirtVM); err != nil {
		return v, err
	}
	if v.AddressConflict, err = r.findAddressConflict(ctx, obj); err != nil {
		return v, err
	}
	if earlier.VM != nil {
		v.MissingNetwork, v.NetworkUnknown, v.Inputs = earlier.MissingNetwork, earlier.NetworkUnknown, earlier.Inputs
		v.MissingSecret, v.SecretForbidden = earlier.MissingSecret, earlier.SecretForbidden
		return v, nil
	}
	v.MissingNetwork, v.NetworkUnknown = r.findMissingNetwork(ctx, v.KubeVirtVM)
	if v.Inputs.ClusterUID, err = r.ClusterUID(ctx); err != nil {
		return v, err
	}
	v.Inputs, v.MissingSecret, err = r.readInputs(ctx, obj, v.Inputs)
	var forbidden *secretForbiddenError
	if errors.As(err, &forbidden) {
		v.MissingSecret, v.SecretForbidden, err = forbidden.Error(), true, nil
	}
	return v, err
}

// secretForbiddenError: the agent may not read a Secret that the spec names.
type secretForbiddenError struct{ message string }

func (e *secretForbiddenError) Error() string { return e.message }

// readLive reads from the API server what a decision rests on that cannot be undone: first that
// the machine is unchanged, unless this visit has stored it, then its images. With all, it also
// reads sources and disks, and what may use data disks.
func (r *Reconciler) readLive(ctx context.Context, visited *visit, all bool) error {
	v := visited.view
	if !visited.stored {
		current := &v1alpha1.VirtualMachine{}
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(v.VM), current)
		if apierrors.IsNotFound(err) || (err == nil && current.ResourceVersion != v.VM.ResourceVersion) {
			return errObjectChanged
		}
		if err != nil {
			return fmt.Errorf("reading VirtualMachine %s/%s: %w", v.VM.Namespace, v.VM.Name, err)
		}
		visited.stored = true
	}
	claims := r.readClaims(ctx, v)
	var err error
	cached := v
	v.DiskView, v.Disks, err = r.readDisks(ctx, v.VM, func(ctx context.Context, k diskKey) (vm.DiskView, error) {
		return r.readDiskLive(ctx, k, diskOf(cached, k), all)
	})
	if err != nil {
		return err
	}
	if all && len(v.Disks) > 0 && v.KubeVirtServed {
		if v.KubeVirtVM, err = getOptional(ctx, r.Live, client.ObjectKeyFromObject(v.VM), newKubeVirtVM()); err != nil {
			return err
		}
	}
	v.LiveImages, v.Live = true, all
	visited.view, visited.claims = v, <-claims
	return nil
}

// readClaims reads the claim of a root disk that is about to be created, beside what else is read.
// A failure is left to who needs the claim.
func (r *Reconciler) readClaims(ctx context.Context, v vm.View) <-chan map[types.NamespacedName]*corev1.PersistentVolumeClaim {
	found := make(chan map[types.NamespacedName]*corev1.PersistentVolumeClaim, 1)
	if v.DataVolume != nil || v.Claim != nil || v.VM.Status.Pinned == nil {
		found <- nil
		return found
	}
	go func() {
		key := types.NamespacedName{Namespace: v.VM.Namespace, Name: kubevirt.RootDiskName(v.VM)}
		claim, err := getOptional(ctx, r.Live, key, &corev1.PersistentVolumeClaim{})
		if err != nil {
			found <- nil
			return
		}
		found <- map[types.NamespacedName]*corev1.PersistentVolumeClaim{key: claim}
	}()
	return found
}

// diskOf returns what a View has of a disk.
func diskOf(v vm.View, k diskKey) vm.DiskView {
	if k.disk == "" {
		return v.DiskView
	}
	return v.Disks[k.disk]
}

// diskKey identifies a disk of a machine.
type diskKey struct {
	// disk is the name of a data disk; empty for the root disk.
	disk string
	// object is the name of the DataVolume and its claim.
	object types.NamespacedName
	// image that the spec names; empty for none.
	image types.NamespacedName
	pin   *v1alpha1.PinnedImage
}

// readDisks reads the root disk and those of spec.disks and status.disks.
func (r *Reconciler) readDisks(ctx context.Context, obj *v1alpha1.VirtualMachine, read func(context.Context, diskKey) (vm.DiskView, error)) (root vm.DiskView, disks map[string]vm.DiskView, err error) {
	object := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: obj.Namespace, Name: name}
	}
	readSeen := func(k diskKey) (vm.DiskView, error) {
		view, err := read(ctx, k)
		if dv := view.DataVolume; dv != nil {
			view.SeenFor = r.memory.seeDataVolume(client.ObjectKeyFromObject(obj), dv.Name, dv.UID, time.Now())
		}
		return view, err
	}
	if root, err = readSeen(diskKey{"", object(kubevirt.RootDiskName(obj)), obj.ImageNamespacedName(), obj.Status.Pinned}); err != nil {
		return root, nil, err
	}
	keys := map[string]diskKey{}
	for i := range obj.Status.Disks {
		disk := &obj.Status.Disks[i]
		keys[disk.Name] = diskKey{disk.Name, object(kubevirt.DataDiskName(obj, disk.Name)), types.NamespacedName{}, disk.Pinned}
	}
	for i := range obj.Spec.Disks {
		disk := &obj.Spec.Disks[i]
		k := keys[disk.Name]
		k.disk, k.object = disk.Name, object(kubevirt.DataDiskName(obj, disk.Name))
		k.image, _ = obj.DiskImage(disk)
		keys[disk.Name] = k
	}
	for name, k := range keys {
		view, err := readSeen(k)
		if err != nil {
			return root, nil, err
		}
		if disks == nil {
			disks = map[string]vm.DiskView{}
		}
		disks[name] = view
	}
	return root, disks, nil
}

// readDisk reads what the caches have of a disk. Images that earlier has read live are taken
// from there.
func (r *Reconciler) readDisk(ctx context.Context, k diskKey, earlier vm.View) (v vm.DiskView, err error) {
	if earlier.LiveImages {
		known := diskOf(earlier, k)
		v.Image, v.Pinned, v.SourceExists = known.Image, known.Pinned, known.SourceExists
	} else if v.Image, v.Pinned, err = getImages(k, func(key types.NamespacedName) (*v1alpha1.VMDiskImage, error) {
		return getOptional(ctx, r.Client, key, &v1alpha1.VMDiskImage{})
	}); err != nil {
		return v, err
	}
	if v.Claim, err = getOptional(ctx, r.Owned, k.object, &corev1.PersistentVolumeClaim{}); err != nil {
		return v, err
	}
	if r.Kinds.IsServed(image.DataVolumeGVK) {
		if v.DataVolume, err = getOptional(ctx, r.Owned, k.object, &cdiv1.DataVolume{}); err != nil {
			return v, err
		}
	}
	v.ClaimProblem, err = r.findClaimProblem(ctx, k, v)
	return v, err
}

// readDiskLive reads the images of a disk from the API server and, with all, everything but a claim
// that the cache has as bound. Otherwise a source is read there only where the cache does not have it: one that the
// image still serves is not deleted, and one that a person has deleted fails the clone.
func (r *Reconciler) readDiskLive(ctx context.Context, k diskKey, v vm.DiskView, all bool) (_ vm.DiskView, err error) {
	if v.Image, v.Pinned, err = getImages(k, func(key types.NamespacedName) (*v1alpha1.VMDiskImage, error) {
		return r.imageReads.get(ctx, r.Live, key)
	}); err != nil {
		return v, err
	}
	v.SourceExists, v.LiveClaim = false, nil
	if !all {
		if v.SourceExists, err = r.sourceExists(ctx, r.Client, k.pin); err != nil {
			return v, err
		}
	}
	if !v.SourceExists {
		if v.SourceExists, err = r.sourceExists(ctx, r.Live, k.pin); err != nil {
			return v, err
		}
	}
	if !all {
		return v, nil
	}
	if r.Kinds.IsServed(image.DataVolumeGVK) {
		if v.DataVolume, err = getOptional(ctx, r.Live, k.object, &cdiv1.DataVolume{}); err != nil {
			return v, err
		}
	}
	pending := v.Claim != nil && v.Claim.Status.Phase == corev1.ClaimPending
	if v.DataVolume != nil && (v.Claim == nil || pending) { // the cache has no claims without the label
		if v.LiveClaim, err = getOptional(ctx, r.Live, k.object, &corev1.PersistentVolumeClaim{}); err != nil {
			return v, err
		}
		if pending {
			v.Claim = v.LiveClaim
		}
	}
	return v, nil
}

// getImages returns the image that the spec names and the pinned one; nil if they do not
// exist.
func getImages(k diskKey, get func(types.NamespacedName) (*v1alpha1.VMDiskImage, error)) (named, pinned *v1alpha1.VMDiskImage, err error) {
	if k.image.Name != "" {
		if named, err = get(k.image); err != nil {
			return nil, nil, err
		}
	}
	if k.pin == nil {
		return named, nil, nil
	}
	pinned = named
	if key := (types.NamespacedName{Namespace: k.pin.Namespace, Name: k.pin.Name}); key != k.image {
		if pinned, err = get(key); err != nil {
			return nil, nil, err
		}
	}
	if pinned != nil && pinned.UID != k.pin.UID {
		pinned = nil
	}
	return named, pinned, nil
}

// sourceExists reports whether a reader has the pinned snapshot or claim, and it can be cloned. It
// has to carry the labels of the pinned image: the agent may clone what the authors of machines
// may not.
func (r *Reconciler) sourceExists(ctx context.Context, reader client.Reader, p *v1alpha1.PinnedImage) (bool, error) {
	switch {
	case p == nil:
		return false, nil
	case p.SourceNamespace != "":
		return r.adoptedSourceExists(ctx, reader, p)
	case p.VolumeSnapshot != "":
		snapshot, err := getOptional(ctx, reader, types.NamespacedName{Namespace: p.Namespace, Name: p.VolumeSnapshot}, &snapshotv1.VolumeSnapshot{})
		return snapshot != nil && isMadeFor(snapshot, p) && image.IsSnapshotReady(snapshot), err
	}
	claim, err := getOptional(ctx, reader, types.NamespacedName{Namespace: p.Namespace, Name: p.PersistentVolumeClaim}, &corev1.PersistentVolumeClaim{})
	return claim != nil && isMadeFor(claim, p) && claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound, err
}

// adoptedSourceExists is sourceExists for what a DataSource of others points at, in a namespace
// that the agent may clone from. The cache has only what carries an image's UID.
func (r *Reconciler) adoptedSourceExists(ctx context.Context, reader client.Reader, p *v1alpha1.PinnedImage) (bool, error) {
	if reader != r.Live || !slices.Contains(r.DataSourceNamespaces, p.SourceNamespace) {
		return false, nil
	}
	if p.VolumeSnapshot != "" {
		snapshot, err := getOptional(ctx, reader, types.NamespacedName{Namespace: p.SourceNamespace, Name: p.VolumeSnapshot}, &snapshotv1.VolumeSnapshot{})
		return snapshot != nil && image.IsSnapshotReady(snapshot), err
	}
	claim, err := getOptional(ctx, reader, types.NamespacedName{Namespace: p.SourceNamespace, Name: p.PersistentVolumeClaim}, &corev1.PersistentVolumeClaim{})
	return claim != nil && image.IsClaimReady(claim), err
}

func isMadeFor(o metav1.Object, p *v1alpha1.PinnedImage) bool {
	labels := o.GetLabels()
	return p.UID != "" && labels[v1alpha1.LabelImageUID] == string(p.UID) && labels[v1alpha1.LabelAttempt] == strconv.Itoa(int(p.Attempt))
}

// listPods lists the Pods of a machine that is not ready, or whose disks are not: those of its
// instance, and those that fill its disks. KubeVirt and CDI copy the label to them.
func (r *Reconciler) listPods(ctx context.Context, obj *v1alpha1.VirtualMachine, kubeVirtVM *unstructured.Unstructured) ([]corev1.Pod, error) {
	if kubeVirtVM != nil && (len(obj.Spec.Disks) == 0 || !awaitsDisk(obj)) {
		if ready, _, _ := unstructured.NestedBool(kubeVirtVM.Object, "status", "ready"); ready {
			return nil, nil
		}
	}
	var pods corev1.PodList
	if err := r.Owned.List(ctx, &pods, client.InNamespace(obj.Namespace), client.MatchingLabels{v1alpha1.LabelMachineUID: string(obj.UID)}); err != nil {
		return nil, fmt.Errorf("listing the Pods of VirtualMachine %s/%s: %w", obj.Namespace, obj.Name, err)
	}
	r.PodEvents.AddTo(ctx, pods.Items)
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods.Items, nil
}

// networkAttachmentGVK is Multus' kind of a network.
var networkAttachmentGVK = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// findMissingNetwork returns a network that does not exist, of a machine that should be
// ready and is not: KubeVirt does not report a missing network (1.8). It only explains, so a
// read that fails leaves it unknown: the decision may be the correction of that network.
func (r *Reconciler) findMissingNetwork(ctx context.Context, kubeVirtVM *unstructured.Unstructured) (missing string, unknown bool) {
	if kubeVirtVM == nil {
		return "", false
	}
	if ready, _, _ := unstructured.NestedBool(kubeVirtVM.Object, "status", "ready"); ready || isStopped(kubeVirtVM) {
		return "", false
	}
	list, _, _ := unstructured.NestedSlice(kubeVirtVM.Object, "spec", "template", "spec", "networks")
	for _, item := range list {
		network, _ := item.(map[string]any)
		name, _, _ := unstructured.NestedString(network, "multus", "networkName")
		if name == "" {
			continue
		}
		key := types.NamespacedName{Namespace: kubeVirtVM.GetNamespace(), Name: name}
		if namespace, rest, qualified := strings.Cut(name, "/"); qualified {
			key = types.NamespacedName{Namespace: namespace, Name: rest}
		}
		if r.memory.hasNetwork(key, time.Now()) {
			continue
		}
		definition := &metav1.PartialObjectMetadata{}
		definition.SetGroupVersionKind(networkAttachmentGVK)
		asked := time.Now()
		found, err := getOptional(ctx, r.Live, key, definition)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to read a NetworkAttachmentDefinition; reading it again within a minute", "network", key)
			return "", true
		}
		if found == nil {
			return key.String(), false
		}
		r.memory.addNetwork(key, asked)
	}
	return "", false
}

// isStopped reports whether a machine has no instance and gets none until somebody starts it.
func isStopped(kubeVirtVM *unstructured.Unstructured) bool {
	run, _, _ := unstructured.NestedString(kubeVirtVM.Object, "spec", "runStrategy")
	created, _, _ := unstructured.NestedBool(kubeVirtVM.Object, "status", "created")
	return !created && (run == string(kubevirtv1.RunStrategyHalted) || run == string(kubevirtv1.RunStrategyManual))
}

// readInputs reads the Secrets that the spec refers to. missing is a sentence about the
// first that does not exist.
func (r *Reconciler) readInputs(ctx context.Context, obj *v1alpha1.VirtualMachine, in cloudinit.Inputs) (inputs cloudinit.Inputs, missing string, err error) {
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
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	secret, err := getOptional(ctx, r.Live, key, &corev1.Secret{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, "", &secretForbiddenError{secretaccess.ForbiddenMessage(key, r.Namespace)}
	case err != nil:
		return nil, "", err
	case secret == nil:
		return nil, fmt.Sprintf("Secret %s/%s does not exist: create it, or correct the spec", namespace, ref.Name), nil
	}
	value, ok := secret.Data[ref.Key]
	if !ok {
		return nil, fmt.Sprintf("Secret %s/%s has no key %s: add it, or correct the spec", namespace, ref.Name, ref.Key), nil
	}
	return value, "", nil
}

// getOptional reads an object; nil if it does not exist or its kind is not served.
func getOptional[T client.Object](ctx context.Context, reader client.Reader, key types.NamespacedName, obj T) (T, error) {
	found, err := apidiscovery.GetExisting(ctx, reader, key, obj)
	if meta.IsNoMatchError(err) {
		return found, nil
	}
	return found, err
}

func newKubeVirtVM() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kubevirt.VirtualMachineGVK)
	return u
}
