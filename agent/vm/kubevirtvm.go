package vm

import (
	"cmp"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// defaultRunStrategy is set on creation where the spec names none.
	defaultRunStrategy = v1alpha1.RunStrategy("Always")

	halted         = v1alpha1.RunStrategy("Halted")
	rerunOnFailure = v1alpha1.RunStrategy("RerunOnFailure")
)

// reconcileKubeVirtVM applies the KubeVirt VirtualMachine and reports its state.
func (d *decider) reconcileKubeVirtVM() {
	switch {
	case d.deployIgnored():
		state := d.imagesState()
		if state.phase == v1alpha1.MachineReady {
			state = machineState{v1alpha1.MachineReady, v1alpha1.ReasonIgnoredOnDeploy, fmt.Sprintf("VMDiskImage %s is ready; no KubeVirt VirtualMachine is created while spec.ignoreOnDeploy is true", d.VM.ImageNamespacedName())}
		}
		d.setBlocker(state)
		return
	case !d.KubeVirtServed:
		d.setBlocker(failedState(v1alpha1.ReasonKubeVirtMissing, "the cluster does not serve KubeVirt's VirtualMachine: install KubeVirt; the agent detects it"))
		return
	case d.KubeVirtVM != nil && !d.ownsObject(d.KubeVirtVM):
		d.waitForLeftover("KubeVirt VirtualMachine", d.KubeVirtVM, nil)
		return
	case d.KubeVirtVM != nil && d.KubeVirtVM.GetDeletionTimestamp() != nil:
		d.setBlocker(provisioningState(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being deleted; then it is created again"))
		return
	}
	// A Secret that was deleted after the KubeVirt VirtualMachine was created blocks only
	// changes of the cloud-init data.
	guestConfigApplied := d.KubeVirtVM != nil && d.MissingSecret != "" && d.specError == nil && d.allDisksRequested()
	if (d.guestConfigStored || guestConfigApplied) && !d.VM.Spec.IgnoreOnDeploy {
		if !d.holdForArchitecture() {
			d.planKubeVirtVM()
		}
	} else {
		d.stopWhileWaiting()
	}
	if d.NetworkUnknown {
		d.requeueWithin(missingRecheckInterval)
	}
	if d.MissingNetwork != "" && d.decision.ApplyKubeVirtVM == nil {
		d.requeueWithin(missingRecheckInterval)
		d.setBlocker(d.missingDependency(v1alpha1.ReasonNetworkMissing, fmt.Sprintf("NetworkAttachmentDefinition %s does not exist, and KubeVirt starts no machine without it: create it, or correct spec.interfaces", d.MissingNetwork)))
	}
	if d.endingRunStrategy != "" {
		d.setBlocker(provisioningState(v1alpha1.ReasonStarting, fmt.Sprintf("the former instance is still ending: once it is gone, runStrategy %s replaces %s and the machine starts", rerunOnFailure, d.endingRunStrategy)))
	}
	d.setBlocker(d.runState())
}

// imagesState returns the state of the first image that is not ready, or that of the root
// disk's.
func (d *decider) imagesState() machineState {
	for _, disk := range d.wantedDisks() {
		if disk.imageState.phase != v1alpha1.MachineReady {
			return disk.imageState
		}
	}
	return d.root().imageState
}

// stopWhileWaiting stops a machine while a disk is waited for, as one that was added to its spec or
// whose DataVolume was deleted, or while the spec or the image's architecture is wrong. A start
// waits.
func (d *decider) stopWhileWaiting() {
	if d.VM.Spec.RunStrategy != halted || d.VM.Spec.IgnoreOnDeploy || d.KubeVirtVM == nil {
		return
	}
	if liveRunStrategy(d.KubeVirtVM) != string(halted) {
		d.decision.RunStrategy = halted
	}
}

// planKubeVirtVM decides what to apply of the desired KubeVirt VirtualMachine. A change that
// a running instance would not take up is held back until the instance ends.
func (d *decider) planKubeVirtVM() {
	desired := d.desiredVM.DeepCopy()
	live := d.KubeVirtVM
	if live == nil {
		if d.VM.Spec.RunStrategy == "" {
			setRunStrategy(desired, string(cmp.Or(d.status.RunStrategy, defaultRunStrategy)))
		}
		d.decision.ApplyKubeVirtVM = desired
		return
	}
	d.comparedWithSpec = true
	d.keepFirstBootDigest(desired)
	current := liveRunStrategy(live)
	if d.VM.Spec.RunStrategy == rerunOnFailure && d.instanceIsEnding(current) {
		d.endingRunStrategy = current
		setRunStrategy(desired, current) // the digest of what is applied does not cover it
	}
	changed := d.annotationDiffers(desired, v1alpha1.AnnotationAppliedDigest)
	if changed && d.instanceIsRunning() {
		d.changeNeedsRestart = d.annotationDiffers(desired, v1alpha1.AnnotationAppliedSpec)
		d.renderingChanged = !d.changeNeedsRestart
		if run := d.VM.Spec.RunStrategy; run != "" && current != string(run) && d.endingRunStrategy == "" {
			d.decision.RunStrategy = run
		}
		return
	}
	kubevirt.PreserveForeignItems(desired, live, d.VM)
	kubevirt.PreserveOwners(desired, live, d.VM)
	kubevirt.PreservePodNetworkMAC(desired, live, d.VM, d.guestConfig)
	kubevirt.DropExpandedMatchers(desired, live)
	if !changed && containsAll(live.Object, desired.Object) {
		return
	}
	if d.VM.Spec.RunStrategy == "" && current != "" {
		// Others own it; leaving it out would remove it. The resourceVersion keeps this
		// from overwriting a newer one.
		setRunStrategy(desired, current)
	}
	desired.SetResourceVersion(live.GetResourceVersion())
	d.decision.ApplyKubeVirtVM = desired
}

// recordMigrations has migrations recorded alone: to apply the machine may be held back, refused or not
// possible until after spec.updateVolumesStrategy, which shows them, is gone. The event of the record
// triggers the next decision.
func (d *decider) recordMigrations() {
	live := d.KubeVirtVM
	if live == nil || !d.ownsObject(live) || live.GetDeletionTimestamp() != nil {
		return
	}
	if record := kubevirt.UnrecordedMigrations(live, d.VM); record != "" {
		d.decision.RecordMigrations = &MigrationTarget{live.GetUID(), live.GetResourceVersion(), record}
		d.decision.ApplyKubeVirtVM = nil
	}
}

// annotationDiffers compares an annotation of the live KubeVirt VirtualMachine.
func (d *decider) annotationDiffers(desired *unstructured.Unstructured, annotation string) bool {
	return d.KubeVirtVM.GetAnnotations()[annotation] != desired.GetAnnotations()[annotation]
}

// keepFirstBootDigest keeps the digest of the cloud-init data that the guest booted with
// first: cloud-init applies no later change of it.
func (d *decider) keepFirstBootDigest(desired *unstructured.Unstructured) {
	digest := d.KubeVirtVM.GetAnnotations()[v1alpha1.AnnotationAppliedGuest]
	if digest == "" || !hasStarted(d.KubeVirtVM) || !d.annotationDiffers(desired, v1alpha1.AnnotationAppliedGuest) {
		return
	}
	d.guestConfigOutdated = true
	annotations := desired.GetAnnotations()
	annotations[v1alpha1.AnnotationAppliedGuest] = digest
	desired.SetAnnotations(annotations)
}

// hasStarted reports whether a KubeVirt VirtualMachine has had an instance: KubeVirt records
// status.runStrategy at the first (1.8).
func hasStarted(kubeVirtVM *unstructured.Unstructured) bool {
	return recordedRunStrategy(kubeVirtVM) != "" || isInstanceCreated(kubeVirtVM)
}

func setRunStrategy(vm *unstructured.Unstructured, run string) {
	spec, _ := vm.Object["spec"].(map[string]any)
	spec["runStrategy"] = run
}

// containsAll reports whether live has every field of desired. Maps of live may have more
// keys; lists may not have more items.
func containsAll(live, desired any) bool {
	switch desired := desired.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(desired) == 0 && live == nil
		}
		for key, value := range desired {
			if !containsAll(l[key], value) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(desired) {
			return len(desired) == 0 && live == nil
		}
		for i := range desired {
			if !containsAll(l[i], desired[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(live, desired)
	}
}
