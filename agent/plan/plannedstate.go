package plan

import (
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PlannedStates are what an accepted plan says about keeping images. An image that the plan
// does not name has the zero PlannedState.
type PlannedStates map[Key]image.PlannedState

// NewPlannedStates reads a plan. An image that it lists under images or kept is not retired
// by it. A prune is included whatever else the plan says: the agent has to answer it.
func NewPlannedStates(p *v1alpha1.ClusterPlanSpec) PlannedStates {
	states := make(PlannedStates, len(p.Images)+len(p.Kept)+len(p.Retired)+len(p.Prunes))
	for i := range p.Retired {
		retired := &p.Retired[i]
		deleteAfter := max(0, retired.UnreferencedFor.Duration)
		states[Key{retired.Namespace, retired.Name}] = image.PlannedState{DeleteAfter: &deleteAfter}
	}
	for i := range p.Images {
		states[KeyForImage(&p.Images[i])] = image.PlannedState{Keep: true, Wanted: true, Retry: p.Images[i].Retry}
	}
	for _, kept := range p.Kept {
		key := Key{kept.Namespace, kept.Name}
		states[key] = image.PlannedState{Keep: true, Wanted: states[key].Wanted, Retry: states[key].Retry}
	}
	for i := range p.Prunes {
		prune := p.Prunes[i]
		state := states[KeyForPrune(&prune)]
		state.Prune = &prune
		states[KeyForPrune(&prune)] = state
	}
	return states
}
