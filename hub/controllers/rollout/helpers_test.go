package rollout

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

var now = apitest.Epoch.Add(24 * time.Hour)

// testState is a ready FleetState that counts its notifications.
type testState struct {
	*FleetState
	t         testing.TB
	enqueued  map[string]int
	replanned map[string]int
}

func newTestState(t testing.TB, members ...string) *testState {
	f := &testState{FleetState: NewFleetState(func() bool { return true }), t: t, enqueued: map[string]int{}, replanned: map[string]int{}}
	f.OnImageChange(func(image string) { f.enqueued[image]++ })
	f.OnDesiredChange(func(member string) { f.replanned[member]++ })
	for _, name := range members {
		f.SetMember(onlineMember(name))
	}
	f.MarkSynced()
	f.awaitPlans(map[string]planVersion{})
	return f
}

// onlineMember returns an online MemberCluster, labelled with its name.
func onlineMember(name string) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"name": name}}}
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: t, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(apitest.Epoch),
		})
	}
	return m
}

func offlineMember(name string) *v1alpha1.MemberCluster {
	m := onlineMember(name)
	m.Status.Conditions[1].Status, m.Status.Conditions[1].Reason = metav1.ConditionFalse, v1alpha1.ReasonSilent
	return m
}

// storedImage sets what the API server sets.
func storedImage(b *apitest.FleetDiskImageBuilder) *v1alpha1.FleetDiskImage {
	img := b.Obj()
	if img.UID == "" {
		img.UID = types.UID(img.Name)
	}
	return img
}

// decideAll decides about FleetDiskImages, and returns the starts of the last.
func (f *testState) decideAll(images ...string) []string {
	f.t.Helper()
	var d rollout.Decision
	for _, image := range images {
		var found bool
		d, _, found = f.Decide(image, now)
		require.True(f.t, found)
	}
	return d.Start
}

// applyPlans writes and acknowledges the desired plan of each member.
func (f *testState) applyPlans(members ...string) {
	f.t.Helper()
	for _, name := range members {
		desired, known := f.ForMember(name)
		require.True(f.t, known, name)
		f.SetPlan(name, f.buildPlan(name, desired))
		f.acknowledgePlan(name)
	}
}

func (f *testState) buildPlan(name string, desired rollout.DesiredImages) *v1alpha1.ClusterPlan {
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: types.UID("plan-" + name), Generation: 1}}
	if m := f.members[name]; m != nil && m.plan != nil {
		p.Generation, p.Spec.Sequence = m.plan.Generation+1, m.plan.Spec.Sequence+1
	}
	p.Spec.Images, p.Spec.Kept, p.Spec.Retired = desired.Images, desired.Kept, desired.Retired
	p.Spec.Hash = plan.Hash(&p.Spec)
	return p.DeepCopy()
}

func (f *testState) acknowledgePlan(name string) {
	m := f.members[name]
	root := &v1alpha1.ReportRoot{Plan: &m.plan.Spec.PlanVersion}
	for page, sequence := range m.listedPages {
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
	}
	f.SetRoot(name, root)
}

// reportImages reports images of a member on one page.
func (f *testState) reportImages(name string, images ...v1alpha1.ReportedImage) {
	sequence := f.members[name].listedPages["page"] + 1
	f.SetPage(name, "page", sequence, images)
	root := &v1alpha1.ReportRoot{Plan: f.members[name].acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: sequence}}}
	f.SetRoot(name, root)
}

// newReported returns a planned image in a phase.
func newReported(name string, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{
		Namespace: "images", Name: name, UID: "uid", Origin: v1alpha1.OriginPlan, Phase: phase,
		Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
	}
}

// withRevisionOf sets the current revision of a FleetDiskImage.
func withRevisionOf(img v1alpha1.ReportedImage, fleetImage *apitest.FleetDiskImageBuilder) v1alpha1.ReportedImage {
	img.Revision = fleetImage.Obj().Spec.Template.Revision()
	return img
}

// formatDesired prefixes images with "+", kept ones with "=", retired ones with "-".
func formatDesired(desired rollout.DesiredImages) []string {
	all := []string{}
	for _, i := range desired.Images {
		all = append(all, "+"+i.Name)
	}
	for _, i := range desired.Kept {
		all = append(all, "="+i.Name)
	}
	for _, i := range desired.Retired {
		all = append(all, "-"+i.Name)
	}
	return all
}

func (f *testState) desiredNames(member string) []string {
	f.t.Helper()
	desired, known := f.ForMember(member)
	require.True(f.t, known, member)
	return formatDesired(desired)
}

func (f *testState) resetCalls() {
	clear(f.enqueued)
	clear(f.replanned)
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

func numberedNames(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}

// listPlaced returns the placed clusters of a FleetDiskImage.
func (f *testState) listPlaced(image string) ([]rollout.PlacedCluster, bool) {
	v, found := f.View(image, now)
	if !found {
		return nil, false
	}
	return rollout.Decide(v).Placed, true
}
