package plan

import (
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Wishes are what an accepted plan says about the stay of images, by their names:
// nothing, the zero Wish, about those that it does not name.
type Wishes map[Key]image.PlannedState

// WishesOf reads a plan. What it names as wanted or kept it cannot retire. What it
// prunes all the same is told, for the agent answers that.
func WishesOf(p *v1alpha1.ClusterPlanSpec) Wishes {
	wishes := make(Wishes, len(p.Images)+len(p.Kept)+len(p.Retired)+len(p.Prunes))
	for i := range p.Retired {
		retired := &p.Retired[i]
		after := max(0, retired.UnreferencedFor.Duration)
		wishes[Key{retired.Namespace, retired.Name}] = image.PlannedState{DeleteAfter: &after}
	}
	for i := range p.Images {
		wishes[KeyForImage(&p.Images[i])] = image.PlannedState{Keep: true}
	}
	for _, kept := range p.Kept {
		wishes[Key{kept.Namespace, kept.Name}] = image.PlannedState{Keep: true}
	}
	for i := range p.Prunes {
		prune := p.Prunes[i]
		wish := wishes[KeyForPrune(&prune)]
		wish.Prune = &prune
		wishes[KeyForPrune(&prune)] = wish
	}
	return wishes
}
