package observer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pelotech/ot-fleet/api/policy"
)

// History is the ordered sequence of events in a cluster.
type History struct {
	events           []event
	acknowledgements []uint64
	deletedByHand    map[types.UID]bool
}

// Creation is the creation of one DataVolume.
type Creation struct {
	Image      types.UID
	Name       string // of the image
	Attempt    int
	DataVolume string
	// Running is the number of attempts that could download afterwards, this one included.
	Running int
	// Allowed is the policy's concurrency then; -1 for none.
	Allowed int
	// CreatedAt is the creation time of the DataVolume.
	CreatedAt string
}

// runningImports are the attempts that can download: those with a DataVolume that has not
// succeeded or an importer Pod that has not ended.
type runningImports struct {
	dataVolumes, pods map[string]string // object UID to attempt
}

func (r runningImports) attempts() map[string]bool {
	attempts := map[string]bool{}
	for _, a := range r.dataVolumes {
		attempts[a] = true
	}
	for _, a := range r.pods {
		attempts[a] = true
	}
	return attempts
}

func (r runningImports) count() int { return len(r.attempts()) }

func attemptKey(o *unstructured.Unstructured) string {
	return o.GetLabels()["pelotech.ot/image-uid"] + "/" + o.GetLabels()["pelotech.ot/attempt"]
}

// replay calls each after every event, with the attempts that can download and the number that
// the policy allows then.
func (h History) replay(each func(e event, created bool, r runningImports, allowed int)) {
	r := runningImports{map[string]string{}, map[string]string{}}
	limit := slotLimit{}
	binding := slices.Clone(h.acknowledgements)
	known := map[string]bool{}
	for _, e := range h.events {
		for len(binding) > 0 && binding[0] < e.version {
			limit.applyStored()
			binding = binding[1:]
		}
		uid, phase := string(e.object.GetUID()), phaseOf(e.object)
		created := false
		switch e.resource {
		case dataVolumes:
			created = !known[uid] && !e.preexisting
			known[uid] = true
			if e.kind == watch.Deleted || phase == "Succeeded" {
				delete(r.dataVolumes, uid)
			} else {
				r.dataVolumes[uid] = attemptKey(e.object)
			}
		case importers:
			if e.kind == watch.Deleted || phase == "Succeeded" || phase == "Failed" {
				delete(r.pods, uid)
			} else {
				r.pods[uid] = attemptKey(e.object)
			}
		case policies:
			limit.readSide(e, &limit.stored.local, "data")
		case plans:
			limit.readSide(e, &limit.stored.planned, "spec", "policy")
		}
		at := e.seen
		if created {
			at = e.object.GetCreationTimestamp().Time // not after the agent's decision by more than the request took
		}
		each(e, created, r, limit.at(at))
	}
}

func phaseOf(o *unstructured.Unstructured) string {
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	return phase
}

// slotLimit is the number of imports that the policy allows: the smaller of the cluster's own and
// the plan's, by the windows of each. A raised limit applies when it is stored or its window
// opens. A lowered one applies when it is acknowledged, or its window closes.
type slotLimit struct {
	stored policySides
	// allowed are those of which the largest limit applies.
	allowed []policySides
}

// policySides are the last good policy of the cluster and that of the plan; nil for none.
type policySides struct{ local, planned *sideLimit }

type sideLimit struct {
	concurrency int32
	windows     policy.Windows
}

func (l *slotLimit) readSide(e event, into **sideLimit, path ...string) {
	data, _, _ := unstructured.NestedStringMap(e.object.Object, path...)
	n, err := strconv.ParseInt(strings.TrimSpace(data["concurrency"]), 10, 32)
	if e.kind == watch.Deleted || err != nil || n < 0 || n > 256 {
		return // the last good one stays
	}
	next := &sideLimit{concurrency: int32(n)}
	if text := data["windows"]; text != "" {
		if next.windows, err = policy.ParseWindows(text); err != nil {
			return
		}
	}
	*into = next
	l.allowed = append(l.allowed, l.stored)
}

func (l *slotLimit) applyStored() { l.allowed = []policySides{l.stored} }

// at returns the limit at a time; -1 for none.
func (l *slotLimit) at(t time.Time) int {
	most := -1
	for _, sides := range l.allowed {
		most = max(most, sides.at(t))
	}
	return most
}

func (s policySides) at(t time.Time) int {
	least := -1
	for _, side := range []*sideLimit{s.local, s.planned} {
		if side == nil {
			continue
		}
		inForce, _ := side.windows.At(t, policy.Numbers{Concurrency: side.concurrency})
		if n := int(inForce.Concurrency); least < 0 || n < least {
			least = n
		}
	}
	return least
}

// Creations lists the DataVolumes that were created during the observation, in order.
func (h History) Creations() []Creation {
	var starts []Creation
	h.replay(func(e event, created bool, r runningImports, allowed int) {
		if !created {
			return
		}
		attempt, _ := strconv.Atoi(e.object.GetLabels()["pelotech.ot/attempt"])
		starts = append(starts, Creation{
			Image:      types.UID(e.object.GetLabels()["pelotech.ot/image-uid"]),
			Name:       e.object.GetAnnotations()["pelotech.ot/image-name"],
			Attempt:    attempt,
			DataVolume: e.object.GetNamespace() + "/" + e.object.GetName(),
			Running:    r.count(), Allowed: allowed,
			CreatedAt: e.object.GetCreationTimestamp().UTC().Format("15:04:05"),
		})
	})
	return starts
}

// BudgetViolations lists the violations of promise S1 of docs/architecture.md: DataVolumes that
// were created beyond the limit.
func (h History) BudgetViolations() []string {
	var violations []string
	for _, s := range h.Creations() {
		if s.Running > s.Allowed {
			violations = append(violations, fmt.Sprintf("%s created as number %d, %d allowed", s.DataVolume, s.Running, s.Allowed))
		}
	}
	return violations
}

// MaxRunning returns the highest number of attempts that could download at a time.
func (h History) MaxRunning() int {
	most := 0
	h.replay(func(_ event, _ bool, r runningImports, _ int) { most = max(most, r.count()) })
	return most
}

// EventsExceeding lists the events that raised the number of attempts above n: created or
// restarted DataVolumes, and Pods.
func (h History) EventsExceeding(n int) []string {
	var events []string
	before := 0
	h.replay(func(e event, created bool, r runningImports, _ int) {
		if now := r.count(); now > n && now > before {
			events = append(events, fmt.Sprintf("%s %s %s/%s (created anew: %t), phase %q, at %s: %d", e.kind, e.resource.Resource,
				e.object.GetNamespace(), e.object.GetName(), created, phaseOf(e.object), e.seen.Format("15:04:05.000"), now))
		}
		before = r.count()
	})
	return events
}

// ReusedNames lists the names under which more than one DataVolume was created: a violation of
// promise S4.
func (h History) ReusedNames() []string {
	times := map[string]int{}
	var reused []string
	for _, s := range h.Creations() {
		times[s.DataVolume]++
		if times[s.DataVolume] == 2 {
			reused = append(reused, s.DataVolume)
		}
	}
	return reused
}

// Attempts counts the DataVolumes that were created for an image.
func (h History) Attempts(image types.UID) int {
	n := 0
	for _, s := range h.Creations() {
		if s.Image == image {
			n++
		}
	}
	return n
}

// Restarts counts the observed container restarts of an image's importer Pods.
func (h History) Restarts(image types.UID) (n int32) {
	most := map[types.UID]int64{}
	for _, e := range h.events {
		if e.resource != importers || e.object.GetLabels()["pelotech.ot/image-uid"] != string(image) {
			continue
		}
		statuses, _, _ := unstructured.NestedSlice(e.object.Object, "status", "containerStatuses")
		for _, s := range statuses {
			if s, ok := s.(map[string]any); ok {
				restarts, _, _ := unstructured.NestedInt64(s, "restartCount")
				most[e.object.GetUID()] = max(most[e.object.GetUID()], restarts)
			}
		}
	}
	for _, restarts := range most {
		n += int32(restarts)
	}
	return n
}
