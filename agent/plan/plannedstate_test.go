package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func retiredImage(name string, after time.Duration) v1alpha1.RetiredImage {
	return v1alpha1.RetiredImage{Namespace: "lab", Name: name, UnreferencedFor: metav1.Duration{Duration: after}}
}

func TestNewPlannedStates(t *testing.T) {
	wanted := v1alpha1.PlannedImage{Namespace: "lab", Name: "ubuntu"}
	kept := v1alpha1.KeptImage{Namespace: "lab", Name: "ubuntu"}
	prune := v1alpha1.PlannedPrune{Namespace: "lab", Name: "ubuntu", ImageUID: "image", UID: "prune"}
	prunes := []v1alpha1.PlannedPrune{{Namespace: "lab", Name: "another", ImageUID: "other", UID: "prune"}, prune}
	for _, tt := range []struct {
		name string
		plan v1alpha1.ClusterPlanSpec
		want image.PlannedState
	}{
		{"prunes", v1alpha1.ClusterPlanSpec{Prunes: prunes}, image.PlannedState{Prune: &prune}},
		{"images and prunes", v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{wanted}, Prunes: prunes}, image.PlannedState{Keep: true, Wanted: true, Prune: &prune}},
		{"kept and prunes", v1alpha1.ClusterPlanSpec{Kept: []v1alpha1.KeptImage{kept}, Prunes: prunes}, image.PlannedState{Keep: true, Prune: &prune}},
		{"retired and prunes", v1alpha1.ClusterPlanSpec{Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", time.Hour)}, Prunes: prunes}, image.PlannedState{DeleteAfter: ptr.To(time.Hour), Prune: &prune}},
		{"prunes, in another namespace", v1alpha1.ClusterPlanSpec{Prunes: []v1alpha1.PlannedPrune{{Namespace: "farm", Name: "ubuntu", ImageUID: "image", UID: "prune"}}}, image.PlannedState{}},
		{"empty plan", v1alpha1.ClusterPlanSpec{}, image.PlannedState{}},
		{"images", v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{wanted}}, image.PlannedState{Keep: true, Wanted: true}},
		{"images to start over", v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{{Namespace: "lab", Name: "ubuntu", Retry: "1"}}, Kept: []v1alpha1.KeptImage{kept}}, image.PlannedState{Keep: true, Wanted: true, Retry: "1"}},
		{"kept", v1alpha1.ClusterPlanSpec{Kept: []v1alpha1.KeptImage{kept}}, image.PlannedState{Keep: true}},
		{"retired", v1alpha1.ClusterPlanSpec{Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", time.Hour)}}, image.PlannedState{DeleteAfter: ptr.To(time.Hour)}},
		{"retired, at once", v1alpha1.ClusterPlanSpec{Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", 0)}}, image.PlannedState{DeleteAfter: ptr.To(time.Duration(0))}},
		{"retired, with a negative duration", v1alpha1.ClusterPlanSpec{Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", -time.Hour)}}, image.PlannedState{DeleteAfter: ptr.To(time.Duration(0))}},
		{"images and retired", v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{wanted}, Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", 0)}}, image.PlannedState{Keep: true, Wanted: true}},
		{"kept and retired", v1alpha1.ClusterPlanSpec{Kept: []v1alpha1.KeptImage{kept}, Retired: []v1alpha1.RetiredImage{retiredImage("ubuntu", 0)}}, image.PlannedState{Keep: true}},
		{"kept and retired, in another namespace", v1alpha1.ClusterPlanSpec{
			Kept:    []v1alpha1.KeptImage{{Namespace: "farm", Name: "ubuntu"}},
			Retired: []v1alpha1.RetiredImage{{Namespace: "farm", Name: "ubuntu"}},
		}, image.PlannedState{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, plan.NewPlannedStates(&tt.plan)[plan.Key{Namespace: "lab", Name: "ubuntu"}])
		})
	}
}

func TestWantedOrKeptImageIsNotRetired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := func(list string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, list)
		}
		var p v1alpha1.ClusterPlanSpec
		keep := map[string]bool{}
		for _, name := range names("images") {
			p.Images = append(p.Images, v1alpha1.PlannedImage{Namespace: "lab", Name: name})
			keep[name] = true
		}
		for _, name := range names("kept") {
			p.Kept = append(p.Kept, v1alpha1.KeptImage{Namespace: "lab", Name: name})
			keep[name] = true
		}
		retired := map[string]bool{}
		for _, name := range names("retired") {
			p.Retired = append(p.Retired, retiredImage(name, 0))
			retired[name] = true
		}
		prunes := map[string]bool{}
		for _, name := range names("prunes") {
			p.Prunes = append(p.Prunes, v1alpha1.PlannedPrune{Namespace: "lab", Name: name, UID: types.UID(name)})
			prunes[name] = true
		}
		states := plan.NewPlannedStates(&p)
		for _, name := range []string{"a", "b", "c"} {
			got := states[plan.Key{Namespace: "lab", Name: name}]
			require.Equal(t, keep[name], got.Keep)
			require.Equal(t, retired[name] && !keep[name], got.DeleteAfter != nil)
			require.Equal(t, prunes[name], got.Prune != nil && got.Prune.UID == types.UID(name))
		}
	})
}
