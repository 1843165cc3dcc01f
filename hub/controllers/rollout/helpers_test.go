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

// testState is one that is filled, with what it has asked for.
type testState struct {
	*FleetState
	t         testing.TB
	enqueued  map[string]int
	replanned map[string]int
}

func newTestState(t testing.TB, members ...string) *testState {
	b := &testState{FleetState: NewFleetState(func() bool { return true }), t: t, enqueued: map[string]int{}, replanned: map[string]int{}}
	b.OnImageChange(func(image string) { b.enqueued[image]++ })
	b.OnDesiredChange(func(member string) { b.replanned[member]++ })
	for _, name := range members {
		b.SetMember(onlineMember(name))
	}
	b.MarkSynced()
	b.awaitPlans(map[string]planVersion{})
	return b
}

// onlineMember is a MemberCluster that is well, labelled with its name.
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

// storedImage gives a FleetDiskImage what the API server gives it.
func storedImage(b *apitest.FleetDiskImageBuilder) *v1alpha1.FleetDiskImage {
	img := b.Obj()
	if img.UID == "" {
		img.UID = types.UID(img.Name)
	}
	return img
}

// decideAll decides about FleetDiskImages, and returns what the last begins with.
func (b *testState) decideAll(images ...string) []string {
	b.t.Helper()
	var d rollout.Decision
	for _, image := range images {
		var found bool
		d, _, found = b.Decide(image, now)
		require.True(b.t, found)
	}
	return d.Start
}

// applyPlans writes the plan of each member as it is wanted, and has it acknowledged.
func (b *testState) applyPlans(members ...string) {
	b.t.Helper()
	for _, name := range members {
		w, known := b.ForMember(name)
		require.True(b.t, known, name)
		b.SetPlan(name, b.buildPlan(name, w))
		b.acknowledgePlan(name)
	}
}

func (b *testState) buildPlan(name string, w rollout.DesiredImages) *v1alpha1.ClusterPlan {
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: types.UID("plan-" + name), Generation: 1}}
	if m := b.members[name]; m != nil && m.plan != nil {
		p.Generation, p.Spec.Sequence = m.plan.Generation+1, m.plan.Spec.Sequence+1
	}
	p.Spec.Images, p.Spec.Kept, p.Spec.Retired = w.Images, w.Kept, w.Retired
	p.Spec.Hash = plan.Hash(&p.Spec)
	return p.DeepCopy()
}

func (b *testState) acknowledgePlan(name string) {
	m := b.members[name]
	root := &v1alpha1.ReportRoot{Plan: &m.plan.Spec.PlanVersion}
	for page, sequence := range m.listedPages {
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
	}
	b.SetRoot(name, root)
}

// reportImages has a member report images on one page.
func (b *testState) reportImages(name string, images ...v1alpha1.ReportedImage) {
	sequence := b.members[name].listedPages["page"] + 1
	b.SetPage(name, "page", sequence, images)
	root := &v1alpha1.ReportRoot{Plan: b.members[name].acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: sequence}}}
	b.SetRoot(name, root)
}

// newReported is a planned image that is in a phase.
func newReported(name string, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{
		Namespace: "images", Name: name, UID: "uid", Origin: v1alpha1.OriginPlan, Phase: phase,
		Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
	}
}

// withRevisionOf returns a report with the revision that a FleetDiskImage asks for.
func withRevisionOf(img v1alpha1.ReportedImage, of *apitest.FleetDiskImageBuilder) v1alpha1.ReportedImage {
	img.Revision = of.Obj().Spec.Template.Revision()
	return img
}

// formatDesired of what is wanted: "+" before those that are to be there, "=" before those
// that are kept, "-" before those that are to go.
func formatDesired(w rollout.DesiredImages) []string {
	all := []string{}
	for _, i := range w.Images {
		all = append(all, "+"+i.Name)
	}
	for _, i := range w.Kept {
		all = append(all, "="+i.Name)
	}
	for _, i := range w.Retired {
		all = append(all, "-"+i.Name)
	}
	return all
}

func (b *testState) desiredNames(member string) []string {
	b.t.Helper()
	w, known := b.ForMember(member)
	require.True(b.t, known, member)
	return formatDesired(w)
}

func (b *testState) resetCalls() {
	clear(b.enqueued)
	clear(b.replanned)
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

func numberedNames(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}
