package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// childObject is an object that is created for a machine, as messages name it, with the reason
// of a machine for which the API server refuses it.
type childObject struct {
	title  string
	reason v1alpha1.Reason
	// retried is what a message says beside a refusal where a request for it failed otherwise: it is retried
	// with backoff, whatever was refused. Empty: it is retried with what was refused.
	retried string
}

var (
	childImage  = childObject{title: "the VMDiskImage", reason: v1alpha1.ReasonImageRefused}
	childSecret = childObject{title: "the cloud-init Secret", reason: v1alpha1.ReasonMachineRefused}
	// A request for it that is made beside others records migrations.
	childKubeVirtVM = childObject{"the KubeVirt VirtualMachine", v1alpha1.ReasonMachineRefused, "the migration of a volume is not recorded, which is retried"}
)

// childOwner is the owner of a child.
func childOwner(kind, name string) childObject {
	title := "the owner of " + kind + " " + name
	return childObject{title, v1alpha1.ReasonMachineRefused, title + " is not set, which is retried"}
}

// childDisk is the root disk if name is empty.
func childDisk(name string) childObject {
	if name == "" {
		return childObject{title: "the root disk", reason: v1alpha1.ReasonRootDiskRefused}
	}
	return childObject{title: "disk " + name, reason: v1alpha1.ReasonDataDiskRefused}
}

// nameTakenError: an object with a required name belongs to others.
type nameTakenError struct{ kind, name string }

func (e *nameTakenError) Error() string { return vm.NameTakenMessage(e.kind, e.name) }

// applyChildren creates, applies and deletes what a decision says. With an error it returns
// the child that the error is about. A refused adoption keeps nothing else from being done: it
// recurs where the agent may not change owners. Nor does a migration that is not recorded, but for
// the KubeVirt VirtualMachine, which a decision that records one does not apply.
//
// Invariant: nothing but a conflict keeps a migration from being recorded, and a failure of that which may
// pass by itself ends the visit with an error, whatever else is refused: the record is all that shows the
// migration once a person removes the strategy.
func (r *Reconciler) applyChildren(ctx context.Context, v *visit, d *vm.Decision) (childObject, error) {
	obj := v.obj
	// What fails keeps no machine from being stopped; a start waits.
	failed := func(child childObject, err error) (childObject, error) {
		if d.RunStrategy == v1alpha1.RunStrategy(kubevirtv1.RunStrategyHalted) {
			err = errors.Join(err, r.setRunStrategy(ctx, obj, d.RunStrategy))
		}
		return child, err
	}
	child, err := r.adoptAll(ctx, v, d)
	if r.isPassingConflict(obj, err) {
		return failed(child, err)
	}
	failures := appendFailure(nil, child, err)
	if target := d.RecordMigrations; target != nil {
		recording := r.recordMigrations(ctx, obj, target)
		if r.isPassingConflict(obj, recording) {
			return failed(childKubeVirtVM, recording)
		}
		failures = appendFailure(failures, childKubeVirtVM, recording)
	}
	if err != nil {
		return failed(r.selectFailure(v, failures))
	}
	if d.CreateImage != nil {
		if err := r.Create(ctx, d.CreateImage, fieldOwner); err != nil && !apierrors.IsAlreadyExists(err) {
			return failed(r.selectFailure(v, appendFailure(failures, childImage, err)))
		}
	}
	if child, err := r.applyDisksAndSecret(ctx, v, d, failures); err != nil && child != childSecret {
		return failed(child, err)
	} else if err != nil {
		return child, err
	}
	if d.ApplyKubeVirtVM != nil {
		if err := r.applyKubeVirtVM(ctx, d.ApplyKubeVirtVM); err != nil {
			return childKubeVirtVM, err
		}
	}
	if d.RunStrategy != "" {
		return childKubeVirtVM, r.setRunStrategy(ctx, obj, d.RunStrategy)
	}
	return childObject{}, nil
}

// adoptAll sets the owners that objects lack, of each kind up to the first failure that is no refusal: a webhook
// may fail, or answer late, for one kind alone. It returns the first of these.
func (r *Reconciler) adoptAll(ctx context.Context, v *visit, d *vm.Decision) (childObject, error) {
	var first childFailure
	failed := map[schema.GroupVersionKind]bool{}
	for _, target := range d.Adopt {
		if failed[target.Kind] {
			continue
		}
		child := childOwner(target.Kind.Kind, target.Name)
		version, err := r.adopt(ctx, v.obj, target)
		switch {
		case r.isPassingConflict(v.obj, err):
			return child, err
		case vm.IsRefused(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			v.refusal = err
			d.SetAdoptionRefused(v.obj.Generation, time.Now(), target, err)
		case err != nil:
			failed[target.Kind] = true
			if first.err == nil {
				first = childFailure{child, err}
			}
		case d.RecordMigrations != nil && d.RecordMigrations.UID == target.UID:
			d.RecordMigrations.ResourceVersion = version // only the owners differ from what was decided on
		}
	}
	return first.child, first.err
}

// applyDisksAndSecret applies both at once. A failure of one keeps nothing of the other from being
// done or recorded; that of the disks, or one before, is returned first.
func (r *Reconciler) applyDisksAndSecret(ctx context.Context, v *visit, d *vm.Decision, failures []childFailure) (childObject, error) {
	secret := make(chan error, 1)
	go func() { secret <- r.applySecretOf(ctx, v.obj, d) }()
	child, err := r.applyDisks(ctx, v, d, failures)
	if secretErr := <-secret; err == nil && secretErr != nil {
		return childSecret, secretErr
	}
	return child, err
}

func (r *Reconciler) applySecretOf(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision) error {
	if d.ApplySecret == nil {
		return nil
	}
	name, digest := client.ObjectKeyFromObject(obj), vm.DigestSecret(d.ApplySecret)
	r.memory.setSecret(name, vm.AppliedSecret{}) // it is not known what a request does that fails
	isNew := d.ApplyKubeVirtVM != nil && d.ApplyKubeVirtVM.GetResourceVersion() == ""
	if err := r.applySecret(ctx, d.ApplySecret, isNew); err != nil {
		return err
	}
	r.memory.setSecret(name, vm.AppliedSecret{Digest: digest, At: time.Now()})
	return nil
}

// applyDisks deletes and creates DataVolumes, all at once: one that is refused, or answered late, holds
// up no other. It takes those that were created out of d, which has the state of a failure set for the
// rest only. It returns one of their failures and of those before.
func (r *Reconciler) applyDisks(ctx context.Context, v *visit, d *vm.Decision, failures []childFailure) (childObject, error) {
	deletions := doAtOnce(d.DeleteDisks, func(t vm.DeleteTarget) error {
		dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: v.obj.Namespace, Name: t.Name}}
		return client.IgnoreNotFound(r.Delete(ctx, dv, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion}))
	})
	creations := doAtOnce(d.CreateDisks, func(disk vm.CreateDisk) error { return r.createDisk(ctx, v, disk.DataVolume) })

	for i, err := range deletions {
		failures = appendFailure(failures, childDisk(d.DeleteDisks[i].Disk), err)
	}
	var missing []vm.CreateDisk
	for i, err := range creations {
		failures = appendFailure(failures, childDisk(d.CreateDisks[i].Disk), err)
		if err != nil {
			missing = append(missing, d.CreateDisks[i])
		}
	}
	d.CreateDisks = missing
	if len(failures) == 0 {
		return childObject{}, nil
	}
	return r.selectFailure(v, failures)
}

// doAtOnce returns what do returns for each item, in their order.
func doAtOnce[T any](items []T, do func(T) error) []error {
	errs := make([]error, len(items))
	var wg sync.WaitGroup
	for i := range items {
		wg.Go(func() { errs[i] = do(items[i]) })
	}
	wg.Wait()
	return errs
}

// adopt sets the owners of an object, and nothing else: a policy refuses the rest. It returns the
// object's new resourceVersion.
func (r *Reconciler) adopt(ctx context.Context, obj *v1alpha1.VirtualMachine, target vm.AdoptTarget) (resourceVersion string, err error) {
	return r.patchMetadata(ctx, target.Kind, obj.Namespace, target.Name, map[string]any{"uid": target.UID, "resourceVersion": target.ResourceVersion, "ownerReferences": target.Owners})
}

// recordMigrations sets the annotation, and nothing else: what else an apply would change may have to wait.
func (r *Reconciler) recordMigrations(ctx context.Context, obj *v1alpha1.VirtualMachine, target *vm.MigrationTarget) error {
	_, err := r.patchMetadata(ctx, kubevirt.VirtualMachineGVK, obj.Namespace, obj.Name, map[string]any{
		"uid": target.UID, "resourceVersion": target.ResourceVersion, "annotations": map[string]string{v1alpha1.AnnotationMigratedVolumes: target.Volumes},
	})
	return err
}

func (r *Reconciler) patchMetadata(ctx context.Context, kind schema.GroupVersionKind, namespace, name string, metadata map[string]any) (resourceVersion string, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return "", err
	}
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.SetGroupVersionKind(kind)
	err = r.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), fieldOwner)
	if apierrors.IsNotFound(err) {
		return "", errObjectChanged
	}
	return o.ResourceVersion, err
}

// createDisk creates a DataVolume. One that exists and is not in the cache is either new
// or belongs to others.
func (r *Reconciler) createDisk(ctx context.Context, v *visit, dv *cdiv1.DataVolume) error {
	// With a claim of the same name CDI would leave the DataVolume pending.
	claim, known := v.claims[client.ObjectKeyFromObject(dv)]
	if !known {
		var err error
		if claim, err = getOptional(ctx, r.Live, client.ObjectKeyFromObject(dv), &corev1.PersistentVolumeClaim{}); err != nil {
			return err
		}
	}
	switch {
	case claim == nil:
	case claim.Labels[v1alpha1.LabelMachineUID] == "":
		existing, err := getOptional(ctx, r.Live, client.ObjectKeyFromObject(dv), &cdiv1.DataVolume{})
		if err != nil {
			return err
		}
		if existing != nil && existing.Labels[v1alpha1.LabelMachineUID] == "" {
			return &nameTakenError{"DataVolume", dv.Name} // which owns the claim
		}
		return &nameTakenError{"PersistentVolumeClaim", dv.Name}
	default:
		return errObjectChanged // the cache is stale
	}
	err := r.Create(ctx, dv, fieldOwner)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing := &cdiv1.DataVolume{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(dv), existing); err != nil {
		if apierrors.IsNotFound(err) {
			return errObjectChanged
		}
		return err
	}
	if existing.Labels[v1alpha1.LabelMachineUID] == "" {
		return &nameTakenError{"DataVolume", dv.Name}
	}
	if existing.Labels[v1alpha1.LabelMachineUID] != string(v.obj.UID) || existing.Annotations[v1alpha1.AnnotationClonedFrom] != dv.Annotations[v1alpha1.AnnotationClonedFrom] {
		return errObjectChanged
	}
	return nil
}

// neverStored is a resourceVersion that no KubeVirt VirtualMachine has: etcd counts from 1, which is
// the revision of an empty store.
const neverStored = "1"

// applyKubeVirtVM applies the KubeVirt VirtualMachine. Apply would take over an existing one of
// others, so a new one is applied with a resourceVersion: the API server ignores it where it
// creates the object, and reports a conflict with one that exists. A plain create would give the
// fields to another manager than later applies, which could then remove none of them.
func (r *Reconciler) applyKubeVirtVM(ctx context.Context, desired *unstructured.Unstructured) error {
	apply := func(o *unstructured.Unstructured) error {
		return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), fieldOwner, client.ForceOwnership)
	}
	if desired.GetResourceVersion() != "" {
		return apply(desired)
	}
	created := desired.DeepCopy()
	created.SetResourceVersion(neverStored)
	err := apply(created)
	if !apierrors.IsConflict(err) {
		return err
	}
	existing := newKubeVirtVM()
	switch getErr := r.Live.Get(ctx, client.ObjectKeyFromObject(desired), existing); {
	case apierrors.IsNotFound(getErr): // deleted since, or a conflict of another kind, as over a quota
		return apply(desired)
	case getErr != nil:
		return getErr
	case existing.GetLabels()[v1alpha1.LabelMachineUID] == "":
		return &nameTakenError{"KubeVirt VirtualMachine", desired.GetName()}
	default:
		return errObjectChanged // the cache is stale, or it is of a former machine
	}
}

// ownPolicy is how the API server names, in its refusals, the policy that keeps the agent
// from Secrets of others.
const ownPolicy = "ValidatingAdmissionPolicy 'ot-agent-own'"

// applySecret replaces the whole Secret, or creates it. The agent may neither read nor patch
// Secrets: the answer to a patch can quote a Secret of others before an admission policy
// sees the request. An identical replacement changes nothing. The update comes first unless the
// Secret is new: a create counts against quotas even where the Secret exists, so a refused one is
// tried as an update, too.
func (r *Reconciler) applySecret(ctx context.Context, secret *corev1.Secret, isNew bool) error {
	var refusal error
	if isNew {
		switch err := r.Create(ctx, secret.DeepCopy(), fieldOwner); {
		case apierrors.IsForbidden(err):
			refusal = err
		case !apierrors.IsAlreadyExists(err):
			return err
		}
	}
	err := r.Update(ctx, secret.DeepCopy(), fieldOwner)
	if hasInvalidField(err, "immutable") {
		// Somebody made it immutable: that is no error while the content is as desired.
		immutable := secret.DeepCopy()
		immutable.Immutable = ptr.To(true)
		err = r.Update(ctx, immutable, fieldOwner)
	}
	switch {
	case apierrors.IsNotFound(err) && refusal != nil:
		return refusal
	case apierrors.IsNotFound(err):
		if err = r.Create(ctx, secret.DeepCopy(), fieldOwner); apierrors.IsAlreadyExists(err) {
			return errObjectChanged
		}
		return err
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), ownPolicy), hasInvalidField(err, "type"): // the agent's are all Opaque
		return &nameTakenError{"Secret", secret.Name}
	default:
		return err
	}
}

// hasInvalidField reports whether the API server refused a request for the value of a field.
func hasInvalidField(err error, field string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == field })
}

// setRunStrategy starts or stops a machine whose template has to stay.
func (r *Reconciler) setRunStrategy(ctx context.Context, obj *v1alpha1.VirtualMachine, run v1alpha1.RunStrategy) error {
	kubeVirtVM := newKubeVirtVM()
	kubeVirtVM.SetNamespace(obj.Namespace)
	kubeVirtVM.SetName(obj.Name)
	patch := fmt.Sprintf(`{"spec":{"runStrategy":%q}}`, run)
	return r.Patch(ctx, kubeVirtVM, client.RawPatch("application/merge-patch+json", []byte(patch)), fieldOwner)
}
