package prune

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// holder is which prune of which object has the name of an image in a plan.
type holder struct{ prune, image types.UID }

// reallotPrunes works out anew what is asked of the members that some runs are about.
// Callers hold r.mu.
func (r *Tracker) reallotPrunes(changed ...*activePrune) {
	concerned := map[string]bool{}
	for _, x := range changed {
		if x == nil {
			continue
		}
		for name := range x.planned {
			concerned[name] = true
		}
	}
	r.reallotMembers(concerned, changed...)
}

// reallotMembers works out anew what is asked of some members, and has those planned anew
// for which that changes. Some runs are fresh from a look, or gone; the others that
// it changes for are looked at again. Callers hold r.mu.
func (r *Tracker) reallotMembers(concerned map[string]bool, looked ...*activePrune) {
	fresh := map[types.UID]bool{}
	for _, x := range looked {
		if x != nil {
			fresh[x.uid] = true
		}
	}
	look := map[string]bool{}
	for name := range concerned {
		m := r.ensureMember(name)
		allotted, holders := m.allotted, m.holders
		r.allotPlan(m, fresh)
		if !slices.Equal(allotted, m.allotted) {
			r.notifyRequestsChanged(name)
		} else if maps.Equal(holders, m.holders) {
			continue
		}
		for _, x := range r.prunes {
			look[x.name] = look[x.name] || len(x.planned[name]) > 0
		}
	}
	for _, x := range looked {
		if x != nil {
			delete(look, x.name)
		}
	}
	for name, is := range look {
		if is {
			r.notifyReportedChanged(name)
		}
	}
}

// allotPlan fills the plan of a member: in order of age, each image once, as long as
// there is room. A run whose turn comes, and that is not fresh from a look at what is
// stored, has its place kept and is asked for when it was looked at: it may have been
// deleted or undone before the one whose place it takes.
func (r *Tracker) allotPlan(m *member, fresh map[types.UID]bool) {
	asked := make(map[imageKey]holder, len(m.allotted))
	for i := range m.allotted {
		asked[imageKeyOf(&m.allotted[i])] = holderOf(&m.allotted[i])
	}
	m.allotted, m.holders = nil, map[imageKey]holder{}
	for _, x := range r.prunes {
		planned := x.planned[m.name]
		for i := range planned {
			k, by := imageKeyOf(&planned[i]), holderOf(&planned[i])
			if _, taken := m.holders[k]; taken || len(m.holders) == v1alpha1.MaxPlannedPrunes {
				continue
			}
			m.holders[k] = by
			if fresh[x.uid] || asked[k] == by {
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

// HeldReason tells why an image that a running ImagePrune asks for is not in the plan of
// its cluster; empty: it is, or that is not known.
func (r *Tracker) HeldReason(prune types.UID, cluster string, k imageKey, image types.UID) (reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[cluster]
	if m == nil || !slices.ContainsFunc(r.prunes, func(x *activePrune) bool { return x.uid == prune }) {
		return ""
	}
	switch by, taken := m.holders[k]; {
	case taken && by != holder{prune, image}:
		return v1alpha1.PruneAnotherPrune
	case taken || len(m.holders) < v1alpha1.MaxPlannedPrunes:
		return ""
	default:
		return v1alpha1.ReasonPlanFull
	}
}
