package mailbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestDroppedFields(t *testing.T) {
	planned := &metav1.Time{Time: time.Unix(1, 0)}
	for name, test := range map[string]struct {
		stored func(*v1alpha1.ClusterPlan)
		want   []string
	}{
		"nothing": {func(*v1alpha1.ClusterPlan) {}, nil},
		"a field of a list's items": {func(p *v1alpha1.ClusterPlan) {
			p.Spec.Images[0].PlannedAt, p.Spec.Images[1].PlannedAt = nil, nil
		}, []string{"ClusterPlan.spec.images.plannedAt"}},
		"of one item":                {func(p *v1alpha1.ClusterPlan) { p.Spec.Images[1].PlannedAt = nil }, []string{"ClusterPlan.spec.images.plannedAt"}},
		"a list, and a field inline": {func(p *v1alpha1.ClusterPlan) { p.Spec.Images, p.Spec.Hash = nil, "" }, []string{"ClusterPlan.spec.hash", "ClusterPlan.spec.images"}},
		"a key of a map":             {func(p *v1alpha1.ClusterPlan) { p.Spec.Policy = map[string]string{"a": "1"} }, []string{"ClusterPlan.spec.policy.b"}},
		"another value":              {func(p *v1alpha1.ClusterPlan) { p.Spec.Hash = "edited" }, nil},
		"an item":                    {func(p *v1alpha1.ClusterPlan) { p.Spec.Images = p.Spec.Images[:1] }, nil},
		"more":                       {func(p *v1alpha1.ClusterPlan) { p.Spec.HeldPolicy = "more" }, nil},
		"metadata":                   {func(p *v1alpha1.ClusterPlan) { p.ObjectMeta = metav1.ObjectMeta{} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			sent := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1"}, Spec: v1alpha1.ClusterPlanSpec{
				PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Hash: "a"}, Policy: map[string]string{"a": "1", "b": "2"},
				Images: []v1alpha1.PlannedImage{{Namespace: "images", Name: "a", PlannedAt: planned}, {Namespace: "images", Name: "b", PlannedAt: planned}},
			}}
			stored := sent.DeepCopy()
			test.stored(stored)
			got, err := mailbox.DroppedFields("ClusterPlan", sent, stored)
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}
