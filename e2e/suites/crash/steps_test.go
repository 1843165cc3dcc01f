//go:build linux

package crash

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
)

// stepNamer names writes. It remembers the slots that are stored, to tell what a
// write of the ledger changes.
type stepNamer struct {
	mu          sync.Mutex
	storedSlots []v1alpha1.Slot
}

// stepsOf names what a write does; a write of the ledger can do several things.
func (n *stepNamer) stepsOf(w faults.Write) []faults.Step {
	resource, name, status := w.Target()
	switch {
	case resource == "syncledgers" && status:
		return n.ledgerSteps(w)
	case resource == "vmdiskimages" && status:
		return []faults.Step{imageStatusStep(w.Body)}
	case resource == "vmdiskimages":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return []faults.Step{faults.Step("add finalizer: " + name)}
		}
		return []faults.Step{faults.Step("remove finalizer: " + name)}
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		return []faults.Step{faults.Step("create " + resource + ": " + faults.ChildRole(created.Metadata.Name))}
	default:
		return []faults.Step{faults.Step(strings.ToLower(w.Method) + " " + resource + ": " + faults.ChildRole(name))}
	}
}

// recordStored remembers what a write has put into the ledger.
func (n *stepNamer) recordStored(w faults.Write) {
	if resource, _, status := w.Target(); resource != "syncledgers" || !status || w.Status != 200 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.storedSlots = decodeSlots(w.Body)
}

func (n *stepNamer) ledgerSteps(w faults.Write) []faults.Step {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, after := n.storedSlots, decodeSlots(w.Body)
	find := func(in []v1alpha1.Slot, s v1alpha1.Slot) *v1alpha1.Slot {
		if i := slices.IndexFunc(in, func(o v1alpha1.Slot) bool { return o.DataVolume == s.DataVolume }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	var steps []faults.Step
	for _, s := range after {
		was := find(before, s)
		switch {
		case was == nil:
			steps = append(steps, faults.Step(fmt.Sprintf("admit: %s#%d", s.Image.Name, s.Attempt)))
		case s.Ended && !was.Ended:
			steps = append(steps, faults.Step(fmt.Sprintf("mark as ended: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	for _, s := range before {
		if find(after, s) == nil {
			steps = append(steps, faults.Step(fmt.Sprintf("free: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	if len(steps) == 0 {
		steps = append(steps, "store policy: ledger")
	}
	return steps
}

func decodeSlots(body []byte) []v1alpha1.Slot {
	var l v1alpha1.SyncLedger
	if json.Unmarshal(body, &l) != nil || l.Status == nil {
		return nil
	}
	return l.Status.Slots
}

// imageStatusStep tells the state that a status write takes an image to.
func imageStatusStep(body []byte) faults.Step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	text := fmt.Sprintf("store %s status: %s %s", st.Phase, img.Name, st.Reason)
	return faults.Step(text + faults.DescribeAttempts(&st))
}
