package vm

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// buildKubeVirtVM sets desiredVM. Where no pin says what the root disk was cloned from, as after a lost
// status, a KubeVirt VirtualMachine keeps the architecture that it was applied with: without the field
// KubeVirt would put another in its place, and the guest would not start.
func (d *decider) buildKubeVirtVM() {
	machine, live := d.withArchitecture(), d.KubeVirtVM
	d.desiredVM, d.specError = kubevirt.BuildVirtualMachine(machine, d.guestConfig)
	if d.specError != nil || live == nil || !d.ownsObject(live) || d.VM.Status.Pinned != nil || kubevirt.RequestedArchitecture(machine) != "" {
		return
	}
	architecture, _, _ := unstructured.NestedString(live.Object, "spec", "template", "spec", "architecture")
	if architecture == "" || !d.annotationDiffers(d.desiredVM, v1alpha1.AnnotationAppliedSpec) {
		return // it was applied without one
	}
	// It may be one that was removed from the spec since: nothing tells.
	d.architectureNote = fmt.Sprintf("the machine keeps architecture %s, since nothing says what its root disk was cloned from: set spec.architecture to change it", v1alpha1.SanitizeText(architecture, maxStateBytes))
	machine = machine.DeepCopy()
	machine.Spec.Architecture = v1alpha1.Architecture(architecture)
	d.desiredVM, d.specError = kubevirt.BuildVirtualMachine(machine, d.guestConfig)
}

// withArchitecture returns the machine with the architecture that it is started with: its own,
// or that of what its root disk was cloned from. An image that says one later, or that is gone,
// changes nothing of a machine that exists.
func (d *decider) withArchitecture() *v1alpha1.VirtualMachine {
	p := d.VM.Status.Pinned
	if p == nil || p.Architecture == "" || d.VM.Spec.Architecture != "" {
		return d.VM
	}
	machine := d.VM.DeepCopy()
	machine.Spec.Architecture = p.Architecture
	return machine
}

// cloneMismatch says why the root disk is not cloned from what an image serves; empty for
// nothing. Other disks are not booted from.
func (d *diskDecider) cloneMismatch(img *v1alpha1.VMDiskImage) string {
	if !d.isRoot() || img == nil || img.Status.Serving == nil {
		return ""
	}
	return d.describeMismatch(img.Status.Serving.Architecture, fmt.Sprintf("VMDiskImage %s/%s", img.Namespace, img.Name))
}

// startMismatch says why the machine must not be started from its root disk; empty for nothing.
// A disk that was cloned before its image said an architecture has the one that it says now.
func (d *diskDecider) startMismatch() string {
	p := d.pinned
	if p == nil {
		return ""
	}
	of := p.Architecture
	if d.Pinned != nil {
		of = cmp.Or(of, d.Pinned.Spec.Architecture)
	}
	return d.describeMismatch(of, fmt.Sprintf("VMDiskImage %s/%s, which the root disk is of,", p.Namespace, p.Name))
}

func (d *decider) describeMismatch(of v1alpha1.Architecture, image string) string {
	own := kubevirt.RequestedArchitecture(d.VM)
	if own == "" || of == "" || own == of {
		return ""
	}
	field := "spec.architecture"
	if own != d.VM.Spec.Architecture {
		field = "template.spec.architecture of spec.overlay"
	}
	named := v1alpha1.SanitizeText(string(own), maxStateBytes)
	return fmt.Sprintf("%s is %s, and %s is for %s: correct %s, or name an image for %s", field, named, image, of, field, named)
}

// holdForArchitecture reports whether the KubeVirt VirtualMachine stays as it is, if it exists,
// since the root disk is for another architecture. What runs is not touched.
func (d *decider) holdForArchitecture() bool {
	mismatch := d.root().startMismatch()
	if mismatch == "" {
		return false
	}
	if d.KubeVirtVM != nil && d.instanceIsRunning() {
		d.architectureNote = mismatch + "; the machine runs on as it was started"
		return false // planKubeVirtVM changes nothing of a running instance
	}
	d.setBlocker(failedState(v1alpha1.ReasonArchitectureMismatch, mismatch))
	d.stopWhileWaiting()
	return true
}
