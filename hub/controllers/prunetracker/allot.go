package prunetracker

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// holder is the ImagePrune and the image UID that hold an image name in a plan.
type holder struct{ prune, image types.UID }

// reallotPrunes reallots the plans of all members that some ImagePrunes request from;
// nil ones are skipped. It requires t.mu.
func (t *Tracker) reallotPrunes(changed ...*activePrune) {
	changed = slices.DeleteFunc(changed, func(p *activePrune) bool { return p == nil })
	members := map[string]bool{}
	for _, p := range changed {
		for name := range p.planned {
			members[name] = true
		}
	}
	t.reallotMembers(members, changed...)
}

// reallotMembers allots the plans of some members again and notifies where one
// changes. current are the ImagePrunes that were read just now, or are gone; the other
// ImagePrunes whose requests change are enqueued. It requires t.mu.
func (t *Tracker) reallotMembers(members map[string]bool, current ...*activePrune) {
	isCurrent := map[types.UID]bool{}
	for _, p := range current {
		isCurrent[p.uid] = true
	}
	affected := map[string]bool{}
	for name := range members {
		m := t.ensureMember(name)
		allotted, holders := m.allotted, m.holders
		t.allotPlan(m, isCurrent)
		t.dropIfUnused(m)
		if !slices.Equal(allotted, m.allotted) {
			t.notifyRequestsChanged(name)
		} else if maps.Equal(holders, m.holders) {
			continue
		}
		for _, p := range t.prunes {
			if len(p.planned[name]) > 0 {
				affected[p.name] = true
			}
		}
	}
	for _, p := range current {
		delete(affected, p.name)
	}
	for name := range affected {
		t.notifyReportedChanged(name)
	}
}

// allotPlan divides the room of a member's plan: in order of start, each image name
// once. An ImagePrune that gets a place and is not current only reserves it, until
// ConfirmUnchanged: it may have been deleted or undone before the place came free.
func (t *Tracker) allotPlan(m *member, isCurrent map[types.UID]bool) {
	requested := make(map[imageKey]holder, len(m.allotted))
	for i := range m.allotted {
		requested[imageKeyOf(&m.allotted[i])] = holderOf(&m.allotted[i])
	}
	m.allotted, m.holders = nil, map[imageKey]holder{}
	for _, p := range t.prunes {
		planned := p.planned[m.name]
		for i := range planned {
			key, by := imageKeyOf(&planned[i]), holderOf(&planned[i])
			if _, taken := m.holders[key]; taken || len(m.holders) == v1alpha1.MaxPlannedPrunes {
				continue
			}
			m.holders[key] = by
			if isCurrent[p.uid] || requested[key] == by {
				m.allotted = append(m.allotted, planned[i])
			}
		}
	}
	slices.SortFunc(m.allotted, func(a, b v1alpha1.PlannedPrune) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

func imageKeyOf(p *v1alpha1.PlannedPrune) imageKey {
	return imageKey{Namespace: p.Namespace, Name: p.Name}
}

func holderOf(p *v1alpha1.PlannedPrune) holder { return holder{p.UID, p.ImageUID} }

// HeldReason returns why the plan of a cluster lacks an image that a running
// ImagePrune requests: AnotherPrune or PlanFull. It is empty where the plan has it, or
// that is not known.
func (t *Tracker) HeldReason(prune types.UID, cluster string, image types.NamespacedName, imageUID types.UID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[cluster]
	if m == nil || !slices.ContainsFunc(t.prunes, func(p *activePrune) bool { return p.uid == prune }) {
		return ""
	}
	switch by, taken := m.holders[image]; {
	case taken && by != holder{prune, imageUID}:
		return v1alpha1.PruneAnotherPrune
	case taken || len(m.holders) < v1alpha1.MaxPlannedPrunes:
		return ""
	default:
		return v1alpha1.ReasonPlanFull
	}
}
