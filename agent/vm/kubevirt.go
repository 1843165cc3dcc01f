package vm

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// defaultRunStrategy is what a machine is created with that names no kubeVirtRunStrategy.
const defaultRunStrategy = v1alpha1.RunStrategy("Always")

const rerunOnFailure = v1alpha1.RunStrategy("RerunOnFailure")

// reconcileCloudInitSecret stores what the guest is told where KubeVirtServed reads it.
func (s *decider) reconcileCloudInitSecret() {
	if s.deployIgnored() || s.MissingSecret != "" || s.specError != nil || !s.rootDiskRequested {
		return
	}
	want := kubevirt.BuildCloudInitSecret(s.VM, s.guestConfig)
	switch {
	case s.CloudInitSecret == nil || s.ownsObject(s.CloudInitSecret):
	case s.CloudInitSecret.Labels[v1alpha1.LabelMachineUID] == "":
		s.setBlocker(nameTakenState("Secret", want.Name))
		s.requeueWithin(missingRecheckInterval)
		return
	default:
		s.waitForLeftover("Secret", s.CloudInitSecret)
		return
	}
	if s.CloudInitSecret == nil || !reflect.DeepEqual(s.CloudInitSecret.Data, want.Data) {
		s.decision.ApplySecret = want
	}
	s.guestConfigStored = true
}

// reconcileKubeVirtVM has KubeVirtServed run what the spec says, and says how far that is.
func (s *decider) reconcileKubeVirtVM() {
	switch {
	case s.deployIgnored():
		w := s.imageState
		if w.phase == v1alpha1.MachineReady {
			w = machineState{v1alpha1.MachineReady, v1alpha1.ReasonIgnoredOnDeploy, fmt.Sprintf("VMDiskImage %s is ready; no KubeVirt VirtualMachine is created while spec.ignoreOnDeploy is true", s.VM.ImageNamespacedName())}
		}
		s.setBlocker(w)
		return
	case !s.KubeVirtServed:
		s.setBlocker(failedState(v1alpha1.ReasonKubeVirtMissing, "the cluster does not serve KubeVirt's VirtualMachine: install KubeVirt; the agent takes it up by itself"))
		return
	case s.KubeVirtVM != nil && !s.ownsObject(s.KubeVirtVM):
		s.waitForLeftover("KubeVirt VirtualMachine", s.KubeVirtVM)
		return
	case s.KubeVirtVM != nil && s.KubeVirtVM.GetDeletionTimestamp() != nil:
		s.setBlocker(provisioningState(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being deleted; it is made again then"))
		return
	}
	// A machine that is there has been told: a Secret that is gone meanwhile holds
	// up none of what rests on no Secret.
	if (s.guestConfigStored || (s.KubeVirtVM != nil && s.MissingSecret != "" && s.specError == nil && s.rootDiskRequested)) && !s.VM.Spec.IgnoreOnDeploy {
		s.planKubeVirtVM()
	}
	if s.MissingNetwork != "" && s.decision.ApplyKubeVirtVM == nil {
		s.requeueWithin(missingRecheckInterval)
		s.setBlocker(s.missingDependency(v1alpha1.ReasonNetworkMissing, fmt.Sprintf("NetworkAttachmentDefinition %s does not exist, and KubeVirt starts no machine without it: create it, or correct spec.interfaces", s.MissingNetwork)))
	}
	if s.endingRunStrategy != "" {
		s.setBlocker(provisioningState(v1alpha1.ReasonStarting, fmt.Sprintf("the former instance is still going: runStrategy %s takes the place of %s when it is gone, and the machine is started then", rerunOnFailure, s.endingRunStrategy)))
	}
	s.setBlocker(s.runState())
}

func (s *decider) planKubeVirtVM() {
	want := s.desiredVM.DeepCopy()
	live := s.KubeVirtVM
	if live == nil {
		if s.VM.Spec.RunStrategy == "" {
			setRunStrategy(want, string(cmp.Or(s.status.RunStrategy, defaultRunStrategy)))
		}
		s.decision.ApplyKubeVirtVM = want
		return
	}
	s.comparedWithSpec = true
	s.keepFirstBootDigest(want)
	now, _, _ := unstructured.NestedString(live.Object, "spec", "runStrategy")
	if s.VM.Spec.RunStrategy == rerunOnFailure && s.instanceIsEnding(now) {
		s.endingRunStrategy = now
		setRunStrategy(want, now) // the digest of what is applied leaves it out
	}
	changed := s.annotationDiffers(want, v1alpha1.AnnotationAppliedDigest)
	if changed && s.instanceIsRunning() {
		s.changeNeedsRestart = s.annotationDiffers(want, v1alpha1.AnnotationAppliedSpec)
		s.renderingChanged = !s.changeNeedsRestart
		if run := s.VM.Spec.RunStrategy; run != "" && now != string(run) && s.endingRunStrategy == "" {
			s.decision.RunStrategy = run
		}
		return
	}
	kubevirt.PreserveForeignItems(want, live)
	if !changed && containsAll(live.Object, want.Object) {
		return
	}
	if s.VM.Spec.RunStrategy == "" && now != "" {
		// Somebody else's: left out, it would be removed. The resourceVersion sees to
		// it that no newer one is put back.
		setRunStrategy(want, now)
	}
	want.SetResourceVersion(live.GetResourceVersion())
	s.decision.ApplyKubeVirtVM = want
}

// annotationDiffers tells whether an annotation of KubeVirtServed's machine is not as wanted.
func (s *decider) annotationDiffers(want *unstructured.Unstructured, annotation string) bool {
	return s.KubeVirtVM.GetAnnotations()[annotation] != want.GetAnnotations()[annotation]
}

// keepFirstBootDigest leaves the digest of what a guest was told at its first boot, once
// there has been one: cloud-init takes nothing of it up later.
func (s *decider) keepFirstBootDigest(want *unstructured.Unstructured) {
	was := s.KubeVirtVM.GetAnnotations()[v1alpha1.AnnotationAppliedGuest]
	started, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "status", "runStrategy")
	created, _, _ := unstructured.NestedBool(s.KubeVirtVM.Object, "status", "created")
	if was == "" || (started == "" && !created) || !s.annotationDiffers(want, v1alpha1.AnnotationAppliedGuest) {
		return
	}
	s.guestConfigOutdated = true
	annotations := want.GetAnnotations()
	annotations[v1alpha1.AnnotationAppliedGuest] = was
	want.SetAnnotations(annotations)
}

func setRunStrategy(machine *unstructured.Unstructured, run string) {
	spec, _ := machine.Object["spec"].(map[string]any)
	spec["runStrategy"] = run
}

// instanceIsRunning tells whether a change of the template would meet an instance.
// One that is told to end takes nothing up any more, and the next is made of the
// template as it is then.
func (s *decider) instanceIsRunning() bool {
	created, _, _ := unstructured.NestedBool(s.KubeVirtVM.Object, "status", "created")
	status := s.printableStatus()
	return created && status != "Stopping" && status != "Terminating" && status != "Stopped"
}

// instanceIsEnding tells that KubeVirtServed ends the instance that there is, under the run
// strategy that its machine has. RerunOnFailure set before it is gone would be
// recorded as one that has had its instance, and no other would ever be started
// (KubeVirtServed 1.8.0, pkg/virt-controller/watch/vm/vm.go:1041, 1069 and 2477). What
// is true here comes to an end without the agent, and the status that says so is
// the event that wakes it. An instance that has ended by itself under Once or
// Manual is not waited for: KubeVirtServed keeps it.
func (s *decider) instanceIsEnding(run string) bool {
	created, _, _ := unstructured.NestedBool(s.KubeVirtVM.Object, "status", "created")
	status := s.printableStatus()
	switch run {
	case "", string(rerunOnFailure):
		return false
	case "Halted":
		// A status that is of the run strategy before knows of no instance yet that has
		// been ended meanwhile. One that was never started has none.
		seen, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "status", "runStrategy")
		return created || (seen != "" && seen != run)
	case "Always": // whatever has ended makes room for the next
		return created && (status == "Stopping" || status == "Stopped" || status == "CrashLoopBackOff")
	case "Manual":
		return created && (status == "Stopping" || s.stopRequested())
	default:
		return created && status == "Stopping"
	}
}

// stopRequested tells that KubeVirtServed has been asked to stop the instance, as
// virtctl does under Manual. The request stands until the instance is gone.
func (s *decider) stopRequested() bool {
	requests, _, _ := unstructured.NestedSlice(s.KubeVirtVM.Object, "status", "stateChangeRequests")
	if len(requests) == 0 {
		return false
	}
	first, _ := requests[0].(map[string]any)
	return first["action"] == "Stop"
}

func (s *decider) printableStatus() string {
	if s.KubeVirtVM == nil {
		return ""
	}
	status, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "status", "printableStatus")
	return status
}

// runState says what KubeVirtServed makes of its machine. Everything it reports as a
// fault can pass (KubeVirtServed 1.8).
func (s *decider) runState() machineState {
	if s.KubeVirtVM == nil {
		return provisioningState(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being created")
	}
	run, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "spec", "runStrategy")
	ready, _, _ := unstructured.NestedBool(s.KubeVirtVM.Object, "status", "ready")
	switch status := s.printableStatus(); status {
	case "Running", "Migrating", "Paused":
		if ready || status == "Paused" {
			return machineState{v1alpha1.MachineReady, v1alpha1.ReasonRunning, "the machine is " + strings.ToLower(status)}
		}
		return provisioningState(v1alpha1.ReasonStarting, "the machine runs and is not ready yet")
	case "Stopped":
		if run == "Always" || (!s.hasRunUnder(run) && (run == "Once" || run == string(rerunOnFailure))) {
			return provisioningState(v1alpha1.ReasonStarting, "the machine is about to be started")
		}
		return machineState{v1alpha1.MachineReady, v1alpha1.ReasonStopped, fmt.Sprintf("the machine is stopped (runStrategy %s)", run)}
	case "ErrorUnschedulable":
		if s.awaitsRescheduling() {
			return provisioningState(v1alpha1.ReasonStarting, "the root disk has just become ready; KubeVirt still reports "+status+s.kubeVirtProblem())
		}
		fallthrough
	case "CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ErrorPvcNotFound", "DataVolumeError", "Unknown":
		return failedState(v1alpha1.ReasonMachineError, fmt.Sprintf("KubeVirt reports %s%s", status, s.kubeVirtProblem()))
	case "":
		return provisioningState(v1alpha1.ReasonStarting, "KubeVirt has not looked at its VirtualMachine yet")
	default:
		return provisioningState(v1alpha1.ReasonStarting, fmt.Sprintf("KubeVirt reports %s%s", status, s.kubeVirtProblem()))
	}
}

// reschedulingGracePeriod is how long a Pod may stay unschedulable for a volume that was not
// there when the scheduler looked.
const reschedulingGracePeriod = 30 * time.Second

// awaitsRescheduling tells that the root disk became ready so lately that KubeVirtServed's Pod,
// which waits for it, need not have been placed again yet.
func (s *decider) awaitsRescheduling() bool {
	left := reschedulingGracePeriod
	disk := meta.FindStatusCondition(s.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady)
	if disk != nil && disk.Status == metav1.ConditionTrue { // else this visit says so first
		left -= s.Now.Sub(disk.LastTransitionTime.Time)
	}
	if left <= 0 {
		return false
	}
	s.requeueWithin(left)
	return true
}

// hasRunUnder tells whether there has been an instance under a run strategy: KubeVirtServed
// copies it to its status when it makes the first (1.8).
func (s *decider) hasRunUnder(run string) bool {
	was, _, _ := unstructured.NestedString(s.KubeVirtVM.Object, "status", "runStrategy")
	return was == run
}

// kubeVirtProblem is the message of the first condition of KubeVirtServed's that is not as
// it should be.
func (s *decider) kubeVirtProblem() string {
	if holds, message := s.kubeVirtCondition(kubevirtv1.VirtualMachineFailure); holds && message != "" {
		return ": " + Truncate(message, maxQuotedBytes)
	}
	if holds, message := s.kubeVirtCondition(kubevirtv1.VirtualMachineReady); !holds && message != "" {
		return ": " + Truncate(message, maxQuotedBytes)
	}
	return ""
}

// kubeVirtCondition is what a condition of KubeVirtServed's machine says; false and nothing
// where there is none.
func (s *decider) kubeVirtCondition(t kubevirtv1.VirtualMachineConditionType) (holds bool, message string) {
	list, _, _ := unstructured.NestedSlice(s.KubeVirtVM.Object, "status", "conditions")
	for _, item := range list {
		if c, _ := item.(map[string]any); c["type"] == string(t) {
			message, _ = c["message"].(string)
			return c["status"] == "True", message
		}
	}
	return false, ""
}

// containsAll tells whether an object holds everything that is wanted of it: maps may
// hold more, lists may not.
func containsAll(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		l, is := live.(map[string]any)
		if !is {
			return len(want) == 0 && live == nil
		}
		for key, value := range want {
			if !containsAll(l[key], value) {
				return false
			}
		}
		return true
	case []any:
		l, is := live.([]any)
		if !is || len(l) != len(want) {
			return len(want) == 0 && live == nil
		}
		for i := range want {
			if !containsAll(l[i], want[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(live, want)
	}
}
