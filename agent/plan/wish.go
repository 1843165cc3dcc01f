package plan

import (
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// WishOf is what an accepted plan says about the stay of an image. What the plan
// names as wanted or kept it cannot retire.
func WishOf(p *v1alpha1.ClusterPlanSpec, key Key) image.Wish {
	for i := range p.Images {
		if KeyOf(&p.Images[i]) == key {
			return image.Wish{Stays: true}
		}
	}
	for _, kept := range p.Kept {
		if (Key{kept.Namespace, kept.Name}) == key {
			return image.Wish{Stays: true}
		}
	}
	for i := range p.Retired {
		retired := &p.Retired[i]
		if (Key{retired.Namespace, retired.Name}) == key {
			after := max(0, retired.UnreferencedFor.Duration)
			return image.Wish{Retired: &after}
		}
	}
	return image.Wish{}
}
