package mailbox

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// kindInfo holds the functions that a relay needs for one kind.
type kindInfo[T client.Object] struct {
	name, resource  string
	newObject       func() T
	clusterOf       func(T) types.UID
	compareVersions func(source, target T) int
	equalContent    func(source, target T) bool
	// copyContent copies the source's content deeply into target.
	copyContent func(target, source T)
}

// compareObjects compares a source with its copy. Objects that this process has found or
// made equal count as equal: an API server with older definitions stores fewer fields
// than it is sent, and would otherwise get the same write forever.
func (k kindInfo[T]) compareObjects(source, target T, exists bool, known *EqualCopies) comparison {
	if !exists {
		return comparison{}
	}
	return comparison{
		exists:       true,
		order:        k.compareVersions(source, target),
		equal:        known.isEqual(k.name, source, target) || k.equalContent(source, target),
		otherCluster: k.clusterOf(source) != k.clusterOf(target),
	}
}

var planKind = kindInfo[*v1alpha1.ClusterPlan]{
	name:      "ClusterPlan",
	resource:  "clusterplans",
	newObject: func() *v1alpha1.ClusterPlan { return &v1alpha1.ClusterPlan{} },
	clusterOf: func(p *v1alpha1.ClusterPlan) types.UID { return p.Spec.ClusterUID },
	compareVersions: func(source, target *v1alpha1.ClusterPlan) int {
		return source.Spec.Compare(target.Spec.PlanVersion)
	},
	equalContent: func(source, target *v1alpha1.ClusterPlan) bool {
		return equality.Semantic.DeepEqual(source.Spec, target.Spec)
	},
	copyContent: func(target, source *v1alpha1.ClusterPlan) { source.Spec.DeepCopyInto(&target.Spec) },
}

var grantKind = kindInfo[*v1alpha1.TransferGrant]{
	name:      "TransferGrant",
	resource:  "transfergrants",
	newObject: func() *v1alpha1.TransferGrant { return &v1alpha1.TransferGrant{} },
	clusterOf: func(g *v1alpha1.TransferGrant) types.UID { return g.Spec.ClusterUID },
	compareVersions: func(source, target *v1alpha1.TransferGrant) int {
		return cmp.Compare(source.Spec.Sequence, target.Spec.Sequence)
	},
	equalContent: func(source, target *v1alpha1.TransferGrant) bool {
		return equality.Semantic.DeepEqual(source.Spec, target.Spec)
	},
	copyContent: func(target, source *v1alpha1.TransferGrant) { source.Spec.DeepCopyInto(&target.Spec) },
}

// reportKind covers roots, pages and activities.
var reportKind = kindInfo[*v1alpha1.ClusterReport]{
	name:      "ClusterReport",
	resource:  "clusterreports",
	newObject: func() *v1alpha1.ClusterReport { return &v1alpha1.ClusterReport{} },
	clusterOf: func(r *v1alpha1.ClusterReport) types.UID { return r.ClusterUID },
	compareVersions: func(source, target *v1alpha1.ClusterReport) int {
		return cmp.Compare(source.Sequence, target.Sequence)
	},
	equalContent: equalReports,
	copyContent: func(target, source *v1alpha1.ClusterReport) {
		content := source.DeepCopy()
		target.ClusterUID, target.Sequence = content.ClusterUID, content.Sequence
		target.Root, target.Page, target.Activity = content.Root, content.Page, content.Activity
	},
}

func equalReports(a, b *v1alpha1.ClusterReport) bool {
	return a.ClusterUID == b.ClusterUID && a.Sequence == b.Sequence && equalContent(a.Root, b.Root) &&
		equalContent(a.Page, b.Page) && equalContent(a.Activity, b.Activity)
}
