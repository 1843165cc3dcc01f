package plan

import (
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Wishes are what an accepted plan says about the stay of images, by their names:
// nothing, the zero Wish, about those that it does not name.
type Wishes map[Key]image.Wish

// WishesOf reads a plan. What it names as wanted or kept it cannot retire. What it
// prunes all the same is told, for the agent answers that.
func WishesOf(p *v1alpha1.ClusterPlanSpec) Wishes {
	wishes := make(Wishes, len(p.Images)+len(p.Kept)+len(p.Retired)+len(p.Prunes))
	for i := range p.Retired {
		retired := &p.Retired[i]
		after := max(0, retired.UnreferencedFor.Duration)
		wishes[Key{retired.Namespace, retired.Name}] = image.Wish{Retired: &after}
	}
	for i := range p.Images {
		wishes[KeyOf(&p.Images[i])] = image.Wish{Stays: true}
	}
	for _, kept := range p.Kept {
		wishes[Key{kept.Namespace, kept.Name}] = image.Wish{Stays: true}
	}
	for i := range p.Prunes {
		prune := p.Prunes[i]
		wish := wishes[KeyOfPrune(&prune)]
		wish.Prune = &prune
		wishes[KeyOfPrune(&prune)] = wish
	}
	return wishes
}
