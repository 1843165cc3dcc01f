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

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// runByDefault is what a machine is created with that names no runStrategy.
const runByDefault = v1alpha1.RunStrategy("Always")

const rerunOnFailure = v1alpha1.RunStrategy("RerunOnFailure")

// keepSecret stores what the guest is told where KubeVirt reads it.
func (s *step) keepSecret() {
	if s.ignored() || s.Missing != "" || s.invalid != nil || !s.diskMade {
		return
	}
	want := machine.CloudInitSecret(s.VM, s.guest)
	switch {
	case s.Secret == nil || s.mine(s.Secret):
	case s.Secret.Labels[v1alpha1.LabelMachineUID] == "":
		s.blocked(taken("Secret", want.Name))
		s.within(missingInterval)
		return
	default:
		s.leftOver("Secret", s.Secret)
		return
	}
	if s.Secret == nil || !reflect.DeepEqual(s.Secret.Data, want.Data) {
		s.d.ApplySecret = want
	}
	s.told = true
}

// keepMachine has KubeVirt run what the spec says, and says how far that is.
func (s *step) keepMachine() {
	switch {
	case s.ignored():
		w := s.image
		if w.phase == v1alpha1.MachineReady {
			w = wait{v1alpha1.MachineReady, v1alpha1.ReasonIgnoredOnDeploy, fmt.Sprintf("VMDiskImage %s is ready; no KubeVirt VirtualMachine is created while spec.ignoreOnDeploy is true", s.VM.ImageName())}
		}
		s.blocked(w)
		return
	case !s.KubeVirt:
		s.blocked(failed(v1alpha1.ReasonKubeVirtMissing, "the cluster does not serve KubeVirt's VirtualMachine: install KubeVirt; the agent takes it up by itself"))
		return
	case s.Machine != nil && !s.mine(s.Machine):
		s.leftOver("KubeVirt VirtualMachine", s.Machine)
		return
	case s.Machine != nil && s.Machine.GetDeletionTimestamp() != nil:
		s.blocked(provisioning(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being deleted; it is made again then"))
		return
	}
	// A machine that is there has been told: a Secret that is gone meanwhile holds
	// up none of what rests on no Secret.
	if (s.told || (s.Machine != nil && s.Missing != "" && s.invalid == nil && s.diskMade)) && !s.VM.Spec.IgnoreOnDeploy {
		s.applyMachine()
	}
	if s.NetworkMissing != "" && s.d.ApplyMachine == nil {
		s.within(missingInterval)
		s.blocked(s.lacking(v1alpha1.ReasonNetworkMissing, fmt.Sprintf("NetworkAttachmentDefinition %s does not exist, and KubeVirt starts no machine without it: create it, or correct spec.interfaces", s.NetworkMissing)))
	}
	if s.ending != "" {
		s.blocked(provisioning(v1alpha1.ReasonStarting, fmt.Sprintf("the former instance is still going: runStrategy %s takes the place of %s when it is gone, and the machine is started then", rerunOnFailure, s.ending)))
	}
	s.blocked(s.running())
}

func (s *step) applyMachine() {
	want := s.wanted.DeepCopy()
	live := s.Machine
	if live == nil {
		if s.VM.Spec.RunStrategy == "" {
			setRunStrategy(want, string(cmp.Or(s.st.RunStrategy, runByDefault)))
		}
		s.d.ApplyMachine = want
		return
	}
	s.compared = true
	s.keepTold(want)
	now, _, _ := unstructured.NestedString(live.Object, "spec", "runStrategy")
	if s.VM.Spec.RunStrategy == rerunOnFailure && s.instanceEnds(now) {
		s.ending = now
		setRunStrategy(want, now) // the digest of what is applied leaves it out
	}
	changed := s.differs(want, v1alpha1.AnnotationApplied)
	if changed && s.instanceRuns() {
		s.heldBack = s.differs(want, v1alpha1.AnnotationSpec)
		s.reworded = !s.heldBack
		if run := s.VM.Spec.RunStrategy; run != "" && now != string(run) && s.ending == "" {
			s.d.RunStrategy = run
		}
		return
	}
	machine.KeepOthers(want, live)
	if !changed && covers(live.Object, want.Object) {
		return
	}
	if s.VM.Spec.RunStrategy == "" && now != "" {
		// Somebody else's: left out, it would be removed. The resourceVersion sees to
		// it that no newer one is put back.
		setRunStrategy(want, now)
	}
	want.SetResourceVersion(live.GetResourceVersion())
	s.d.ApplyMachine = want
}

// differs tells whether an annotation of KubeVirt's machine is not as wanted.
func (s *step) differs(want *unstructured.Unstructured, annotation string) bool {
	return s.Machine.GetAnnotations()[annotation] != want.GetAnnotations()[annotation]
}

// keepTold leaves the digest of what a guest was told at its first boot, once
// there has been one: cloud-init takes nothing of it up later.
func (s *step) keepTold(want *unstructured.Unstructured) {
	was := s.Machine.GetAnnotations()[v1alpha1.AnnotationGuest]
	started, _, _ := unstructured.NestedString(s.Machine.Object, "status", "runStrategy")
	created, _, _ := unstructured.NestedBool(s.Machine.Object, "status", "created")
	if was == "" || (started == "" && !created) || !s.differs(want, v1alpha1.AnnotationGuest) {
		return
	}
	s.untold = true
	annotations := want.GetAnnotations()
	annotations[v1alpha1.AnnotationGuest] = was
	want.SetAnnotations(annotations)
}

func setRunStrategy(machine *unstructured.Unstructured, run string) {
	spec, _ := machine.Object["spec"].(map[string]any)
	spec["runStrategy"] = run
}

// instanceRuns tells whether a change of the template would meet an instance.
// One that is told to end takes nothing up any more, and the next is made of the
// template as it is then.
func (s *step) instanceRuns() bool {
	created, _, _ := unstructured.NestedBool(s.Machine.Object, "status", "created")
	status := s.printable()
	return created && status != "Stopping" && status != "Terminating" && status != "Stopped"
}

// instanceEnds tells that KubeVirt ends the instance that there is, under the run
// strategy that its machine has. RerunOnFailure set before it is gone would be
// recorded as one that has had its instance, and no other would ever be started
// (KubeVirt 1.8.0, pkg/virt-controller/watch/vm/vm.go:1041, 1069 and 2477). What
// is true here comes to an end without the agent, and the status that says so is
// the event that wakes it. An instance that has ended by itself under Once or
// Manual is not waited for: KubeVirt keeps it.
func (s *step) instanceEnds(run string) bool {
	created, _, _ := unstructured.NestedBool(s.Machine.Object, "status", "created")
	status := s.printable()
	switch run {
	case "", string(rerunOnFailure):
		return false
	case "Halted":
		// A status that is of the run strategy before knows of no instance yet that has
		// been ended meanwhile. One that was never started has none.
		seen, _, _ := unstructured.NestedString(s.Machine.Object, "status", "runStrategy")
		return created || (seen != "" && seen != run)
	case "Always": // whatever has ended makes room for the next
		return created && (status == "Stopping" || status == "Stopped" || status == "CrashLoopBackOff")
	case "Manual":
		return created && (status == "Stopping" || s.stopRequested())
	default:
		return created && status == "Stopping"
	}
}

// stopRequested tells that KubeVirt has been asked to stop the instance, as
// virtctl does under Manual. The request stands until the instance is gone.
func (s *step) stopRequested() bool {
	requests, _, _ := unstructured.NestedSlice(s.Machine.Object, "status", "stateChangeRequests")
	if len(requests) == 0 {
		return false
	}
	first, _ := requests[0].(map[string]any)
	return first["action"] == "Stop"
}

func (s *step) printable() string {
	if s.Machine == nil {
		return ""
	}
	status, _, _ := unstructured.NestedString(s.Machine.Object, "status", "printableStatus")
	return status
}

// running says what KubeVirt makes of its machine. Everything it reports as a
// fault can pass (KubeVirt 1.8).
func (s *step) running() wait {
	if s.Machine == nil {
		return provisioning(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being created")
	}
	run, _, _ := unstructured.NestedString(s.Machine.Object, "spec", "runStrategy")
	ready, _, _ := unstructured.NestedBool(s.Machine.Object, "status", "ready")
	switch status := s.printable(); status {
	case "Running", "Migrating", "Paused":
		if ready || status == "Paused" {
			return wait{v1alpha1.MachineReady, v1alpha1.ReasonRunning, "the machine is " + strings.ToLower(status)}
		}
		return provisioning(v1alpha1.ReasonStarting, "the machine runs and is not ready yet")
	case "Stopped":
		if run == "Always" || (!s.hasRun(run) && (run == "Once" || run == string(rerunOnFailure))) {
			return provisioning(v1alpha1.ReasonStarting, "the machine is about to be started")
		}
		return wait{v1alpha1.MachineReady, v1alpha1.ReasonStopped, fmt.Sprintf("the machine is stopped (runStrategy %s)", run)}
	case "ErrorUnschedulable":
		if s.placing() {
			return provisioning(v1alpha1.ReasonStarting, "the root disk has just become ready; KubeVirt still reports "+status+s.complaint())
		}
		fallthrough
	case "CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ErrorPvcNotFound", "DataVolumeError", "Unknown":
		return failed(v1alpha1.ReasonMachineError, fmt.Sprintf("KubeVirt reports %s%s", status, s.complaint()))
	case "":
		return provisioning(v1alpha1.ReasonStarting, "KubeVirt has not looked at its VirtualMachine yet")
	default:
		return provisioning(v1alpha1.ReasonStarting, fmt.Sprintf("KubeVirt reports %s%s", status, s.complaint()))
	}
}

// placingTime is how long a Pod may stay unschedulable for a volume that was not
// there when the scheduler looked.
const placingTime = 30 * time.Second

// placing tells that the root disk became ready so lately that KubeVirt's Pod,
// which waits for it, need not have been placed again yet.
func (s *step) placing() bool {
	left := placingTime
	disk := meta.FindStatusCondition(s.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady)
	if disk != nil && disk.Status == metav1.ConditionTrue { // else this visit says so first
		left -= s.Now.Sub(disk.LastTransitionTime.Time)
	}
	if left <= 0 {
		return false
	}
	s.within(left)
	return true
}

// hasRun tells whether there has been an instance under a run strategy: KubeVirt
// copies it to its status when it makes the first (1.8).
func (s *step) hasRun(run string) bool {
	was, _, _ := unstructured.NestedString(s.Machine.Object, "status", "runStrategy")
	return was == run
}

// complaint is the message of the first condition of KubeVirt's that is not as
// it should be.
func (s *step) complaint() string {
	if holds, message := s.theirCondition(kubevirtv1.VirtualMachineFailure); holds && message != "" {
		return ": " + Cut(message, mostTold)
	}
	if holds, message := s.theirCondition(kubevirtv1.VirtualMachineReady); !holds && message != "" {
		return ": " + Cut(message, mostTold)
	}
	return ""
}

// theirCondition is what a condition of KubeVirt's machine says; false and nothing
// where there is none.
func (s *step) theirCondition(t kubevirtv1.VirtualMachineConditionType) (holds bool, message string) {
	list, _, _ := unstructured.NestedSlice(s.Machine.Object, "status", "conditions")
	for _, item := range list {
		if c, _ := item.(map[string]any); c["type"] == string(t) {
			message, _ = c["message"].(string)
			return c["status"] == "True", message
		}
	}
	return false, ""
}

// covers tells whether an object holds everything that is wanted of it: maps may
// hold more, lists may not.
func covers(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		l, is := live.(map[string]any)
		if !is {
			return len(want) == 0 && live == nil
		}
		for key, value := range want {
			if !covers(l[key], value) {
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
			if !covers(l[i], want[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(live, want)
	}
}
