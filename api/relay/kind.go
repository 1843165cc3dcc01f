package relay

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// kind is what a relay needs to know of a kind.
type kind[T client.Object] struct {
	name, resource string
	empty          func() T
	cluster        func(T) types.UID
	order          func(source, target T) int
	same           func(source, target T) bool
	// fill gives the target the source's content, of which it shares nothing.
	fill func(target, source T)
}

// compare looks at a source and its copy. Two that were seen to be equal, or
// that this process wrote so, count as equal: an API server that knows fewer
// fields stores less than it is given, and would be given it for ever.
func (k kind[T]) compare(source, target T, found bool, seen *Seen) look {
	if !found {
		return look{}
	}
	return look{
		found:   true,
		order:   k.order(source, target),
		same:    seen.has(k.name, source, target) || k.same(source, target),
		foreign: k.cluster(source) != k.cluster(target),
	}
}

var plans = kind[*v1alpha1.ClusterPlan]{
	name:     "ClusterPlan",
	resource: "clusterplans",
	empty:    func() *v1alpha1.ClusterPlan { return &v1alpha1.ClusterPlan{} },
	cluster:  func(p *v1alpha1.ClusterPlan) types.UID { return p.Spec.ClusterUID },
	order: func(source, target *v1alpha1.ClusterPlan) int {
		return source.Spec.Compare(target.Spec.PlanVersion)
	},
	same: func(source, target *v1alpha1.ClusterPlan) bool {
		return equality.Semantic.DeepEqual(source.Spec, target.Spec)
	},
	fill: func(target, source *v1alpha1.ClusterPlan) { source.Spec.DeepCopyInto(&target.Spec) },
}

var grants = kind[*v1alpha1.TransferGrant]{
	name:     "TransferGrant",
	resource: "transfergrants",
	empty:    func() *v1alpha1.TransferGrant { return &v1alpha1.TransferGrant{} },
	cluster:  func(g *v1alpha1.TransferGrant) types.UID { return g.Spec.ClusterUID },
	order: func(source, target *v1alpha1.TransferGrant) int {
		return cmp.Compare(source.Spec.Sequence, target.Spec.Sequence)
	},
	same: func(source, target *v1alpha1.TransferGrant) bool {
		return equality.Semantic.DeepEqual(source.Spec, target.Spec)
	},
	fill: func(target, source *v1alpha1.TransferGrant) { source.Spec.DeepCopyInto(&target.Spec) },
}

// reports are roots and pages alike.
var reports = kind[*v1alpha1.ClusterReport]{
	name:     "ClusterReport",
	resource: "clusterreports",
	empty:    func() *v1alpha1.ClusterReport { return &v1alpha1.ClusterReport{} },
	cluster:  func(r *v1alpha1.ClusterReport) types.UID { return r.ClusterUID },
	order: func(source, target *v1alpha1.ClusterReport) int {
		return cmp.Compare(source.Sequence, target.Sequence)
	},
	same: func(source, target *v1alpha1.ClusterReport) bool {
		return source.ClusterUID == target.ClusterUID && source.Sequence == target.Sequence &&
			equality.Semantic.DeepEqual(source.Root, target.Root) && equality.Semantic.DeepEqual(source.Page, target.Page)
	},
	fill: func(target, source *v1alpha1.ClusterReport) {
		content := source.DeepCopy()
		target.ClusterUID, target.Sequence = content.ClusterUID, content.Sequence
		target.Root, target.Page = content.Root, content.Page
	},
}
