//go:build linux

package acquire

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
)

// isIrrelevantStep are the writes that nothing here rests on; e2e/suites/crash kills agents at
// them.
func isIrrelevantStep(s faults.Step) bool {
	return strings.Contains(s.Kind(), "syncledgers") || strings.Contains(s.Kind(), "clusterreports")
}

func stepOf(w faults.Write) faults.Step {
	resource, name, status := w.Target()
	switch {
	case resource == "virtualmachines" && status:
		return vmStatusStep(w.Body)
	case resource == "vmdiskimages" && status:
		return imageStatusStep(w.Body)
	case resource == "vmdiskimages" && w.Method == "PATCH":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return faults.Step("add finalizer: " + name)
		}
		return faults.Step("remove finalizer: " + name)
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		name = created.Metadata.Name
	}
	return faults.Step(strings.ToLower(w.Method) + " " + resource + ": " + faults.ChildRole(name))
}

// vmStatusWrite is the machine that a write stores the status of.
func vmStatusWrite(w faults.Write) *v1alpha1.VirtualMachine {
	resource, _, status := w.Target()
	vm := &v1alpha1.VirtualMachine{}
	if resource != "virtualmachines" || !status || json.Unmarshal(w.Body, vm) != nil {
		return nil
	}
	return vm
}

func imageStatusWrite(w faults.Write) *v1alpha1.VMDiskImage {
	resource, _, status := w.Target()
	img := &v1alpha1.VMDiskImage{}
	if resource != "vmdiskimages" || !status || json.Unmarshal(w.Body, img) != nil {
		return nil
	}
	return img
}

// vmStatusStep tells the state that a status write takes a machine to.
func vmStatusStep(body []byte) faults.Step {
	var vm v1alpha1.VirtualMachine
	_ = json.Unmarshal(body, &vm)
	p := vm.Status.Pinned
	switch {
	case p == nil:
		return faults.Step(fmt.Sprintf("store machine with nothing pinned: %s %s", vm.Name, vm.Status.Reason))
	case p.AcquiredAt == nil:
		return faults.Step(fmt.Sprintf("pin: %s %s#%d", vm.Name, p.Name, p.Attempt))
	case vm.Status.RootDisk == nil:
		return faults.Step(fmt.Sprintf("acquire: %s %s#%d", vm.Name, p.Name, p.Attempt))
	default:
		return faults.Step(fmt.Sprintf("store machine with root disk: %s %s#%d ready %t, %s", vm.Name, p.Name, p.Attempt, vm.Status.RootDisk.Ready, vm.Status.Reason))
	}
}

// imageStatusStep tells the state that a status write takes an image to.
func imageStatusStep(body []byte) faults.Step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	kind := fmt.Sprintf("store %s image", st.Phase)
	if st.TearDown {
		kind = "tear down image"
	}
	text := fmt.Sprintf("%s: %s %s held %d", kind, img.Name, st.Reason, min(st.References.Count, 1))
	return faults.Step(text + faults.DescribeAttempts(&st))
}
