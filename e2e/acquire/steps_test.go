//go:build linux

package acquire

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/proxy"
)

// step is what a write does, in words: "create root disk: early". Its number
// among the writes changes from run to run, what there is to be done does not.
type step string

// kind is the step without its object.
func (s step) kind() string {
	verb, _, _ := strings.Cut(string(s), ": ")
	return verb
}

// others are the writes that nothing here rests on; e2e/crash kills agents at
// them.
func (s step) others() bool {
	return strings.Contains(s.kind(), "syncledgers") || strings.Contains(s.kind(), "clusterreports")
}

func stepOf(w proxy.Write) step {
	resource, name, status := parse(w.Path)
	switch {
	case resource == "virtualmachines" && status:
		return machineStep(w.Body)
	case resource == "vmdiskimages" && status:
		return imageStep(w.Body)
	case resource == "vmdiskimages" && w.Method == "PATCH":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return step("add finalizer: " + name)
		}
		return step("remove finalizer: " + name)
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		name = created.Metadata.Name
	}
	return step(strings.ToLower(w.Method) + " " + resource + ": " + role(name))
}

// machineOf is the machine that a write stores the status of.
func machineOf(w proxy.Write) *v1alpha1.VirtualMachine {
	resource, _, status := parse(w.Path)
	vm := &v1alpha1.VirtualMachine{}
	if resource != "virtualmachines" || !status || json.Unmarshal(w.Body, vm) != nil {
		return nil
	}
	return vm
}

func imageOf(w proxy.Write) *v1alpha1.VMDiskImage {
	resource, _, status := parse(w.Path)
	img := &v1alpha1.VMDiskImage{}
	if resource != "vmdiskimages" || !status || json.Unmarshal(w.Body, img) != nil {
		return nil
	}
	return img
}

// machineStep tells the state that a status write takes a machine to.
func machineStep(body []byte) step {
	var vm v1alpha1.VirtualMachine
	_ = json.Unmarshal(body, &vm)
	p := vm.Status.Pinned
	switch {
	case p == nil:
		return step(fmt.Sprintf("store machine with nothing pinned: %s %s", vm.Name, vm.Status.Reason))
	case p.AcquiredAt == nil:
		return step(fmt.Sprintf("pin: %s %s#%d", vm.Name, p.Name, p.Attempt))
	case vm.Status.RootDisk == nil:
		return step(fmt.Sprintf("acquire: %s %s#%d", vm.Name, p.Name, p.Attempt))
	default:
		return step(fmt.Sprintf("store machine with root disk: %s %s#%d ready %t, %s", vm.Name, p.Name, p.Attempt, vm.Status.RootDisk.Ready, vm.Status.Reason))
	}
}

// imageStep tells the state that a status write takes an image to.
func imageStep(body []byte) step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	kind := fmt.Sprintf("store %s image", st.Phase)
	if st.TearDown {
		kind = "tear down image"
	}
	text := fmt.Sprintf("%s: %s %s held %d", kind, img.Name, st.Reason, min(st.References.Count, 1))
	for i := range st.Revisions {
		e := &st.Revisions[i]
		text += fmt.Sprintf(" %d/%d%s", e.Attempt, e.AttemptEnded, e.Outcome)
	}
	if st.Serving != nil {
		text += fmt.Sprintf(" serving %d", st.Serving.Attempt)
	}
	return step(text)
}

// parse takes a request's path apart.
func parse(p string) (resource, name string, status bool) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	if i := slices.Index(parts, "namespaces"); i >= 0 && len(parts) > i+2 {
		parts = parts[i+2:]
	} else {
		return path.Base(p), "", false
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	return parts[0], name, len(parts) > 2 && parts[2] == "status"
}

var childName = regexp.MustCompile(`^(.*)-[0-9a-z]+-(\d+)(-[0-9a-z]+)?$`)

// role makes of a child's name its image's and the attempt: those do not change
// from run to run.
func role(name string) string {
	if m := childName.FindStringSubmatch(name); m != nil {
		return m[1] + "#" + m[2]
	}
	return name
}
