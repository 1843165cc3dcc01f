package prune

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// holder is which prune of which object has the name of an image in a plan.
type holder struct{ prune, image types.UID }

// allotAgain works out anew what is asked of the members that some runs are about,
// and has those planned anew for which that changes. The other runs that it changes
// for are looked at again. Callers hold r.mu.
func (r *Register) allotAgain(changed ...*run) {
	concerned := map[string]bool{}
	for _, x := range changed {
		if x == nil {
			continue
		}
		for name := range x.planned {
			concerned[name] = true
		}
	}
	look := map[string]bool{}
	for name := range concerned {
		m := r.member(name)
		former := m.allotted
		r.allot(m)
		if slices.Equal(former, m.allotted) {
			continue
		}
		r.replan(name)
		for _, x := range r.runs {
			look[x.name] = look[x.name] || len(x.planned[name]) > 0
		}
	}
	for _, x := range changed {
		if x != nil {
			delete(look, x.name) // whoever changes it is looking at it
		}
	}
	for name, is := range look {
		if is {
			r.told(name)
		}
	}
}

// allot fills the plan of a member: in order of age, each image once, as long as
// there is room.
func (r *Register) allot(m *member) {
	m.allotted, m.holders = nil, nil
	for _, x := range r.runs {
		for _, p := range x.planned[m.name] {
			k := key{Namespace: p.Namespace, Name: p.Name}
			if _, taken := m.holders[k]; taken || len(m.allotted) == v1alpha1.MaxPlannedPrunes {
				continue
			}
			if m.holders == nil {
				m.holders = map[key]holder{}
			}
			m.holders[k] = holder{x.uid, p.ImageUID}
			m.allotted = append(m.allotted, p)
		}
	}
	slices.SortFunc(m.allotted, func(a, b v1alpha1.PlannedPrune) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// held tells why an image that a running ImagePrune asks for is not in the plan of
// its cluster; empty: it is, or that is not known.
func (r *Register) held(prune types.UID, cluster string, k key, image types.UID) (reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[cluster]
	if m == nil || !slices.ContainsFunc(r.runs, func(x *run) bool { return x.uid == prune }) {
		return ""
	}
	switch by, taken := m.holders[k]; {
	case taken && by != holder{prune, image}:
		return v1alpha1.PruneAnother
	case taken || len(m.allotted) < v1alpha1.MaxPlannedPrunes:
		return ""
	default:
		return v1alpha1.ReasonPlanFull
	}
}
