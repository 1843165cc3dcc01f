//go:build linux

package crash

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/proxy"
)

// step is what a write does, in words: "admit heals#1". Its number among the
// writes changes from run to run, since the agent works on several images at a
// time; what there is to be done does not.
type step string

// kind is the step without its image.
func (s step) kind() string {
	verb, _, _ := strings.Cut(string(s), ": ")
	return verb
}

// namer names writes. It remembers the slots that are stored, to tell what a
// write of the ledger changes.
type namer struct {
	mu    sync.Mutex
	slots []v1alpha1.Slot
}

// of names what a write does; a write of the ledger can do several things.
func (n *namer) of(w proxy.Write) []step {
	resource, name, status := parse(w.Path)
	switch {
	case resource == "syncledgers" && status:
		return n.ledger(w)
	case resource == "vmdiskimages" && status:
		return []step{imageStep(w.Body)}
	case resource == "vmdiskimages":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return []step{step("add finalizer: " + name)}
		}
		return []step{step("remove finalizer: " + name)}
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		return []step{step("create " + resource + ": " + role(created.Metadata.Name))}
	default:
		return []step{step(strings.ToLower(w.Method) + " " + resource + ": " + role(name))}
	}
}

// stored remembers what a write has put into the ledger.
func (n *namer) stored(w proxy.Write) {
	if resource, _, status := parse(w.Path); resource != "syncledgers" || !status || w.Status != 200 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slots = slotsOf(w.Body)
}

func (n *namer) ledger(w proxy.Write) []step {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, after := n.slots, slotsOf(w.Body)
	find := func(in []v1alpha1.Slot, s v1alpha1.Slot) *v1alpha1.Slot {
		if i := slices.IndexFunc(in, func(o v1alpha1.Slot) bool { return o.DataVolume == s.DataVolume }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	var steps []step
	for _, s := range after {
		was := find(before, s)
		switch {
		case was == nil:
			steps = append(steps, step(fmt.Sprintf("admit: %s#%d", s.Image.Name, s.Attempt)))
		case s.Ended && !was.Ended:
			steps = append(steps, step(fmt.Sprintf("mark as ended: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	for _, s := range before {
		if find(after, s) == nil {
			steps = append(steps, step(fmt.Sprintf("free: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	if len(steps) == 0 {
		steps = append(steps, "store policy: ledger")
	}
	return steps
}

func slotsOf(body []byte) []v1alpha1.Slot {
	var l v1alpha1.SyncLedger
	if json.Unmarshal(body, &l) != nil || l.Status == nil {
		return nil
	}
	return l.Status.Slots
}

// imageStep tells the state that a status write takes an image to.
func imageStep(body []byte) step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	text := fmt.Sprintf("store %s status: %s %s", st.Phase, img.Name, st.Reason)
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
