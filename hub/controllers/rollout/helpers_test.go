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
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

var now = apitest.Epoch.Add(24 * time.Hour)

// board is one that is filled, with what it has asked for.
type board struct {
	*Board
	t       testing.TB
	looked  map[string]int
	planned map[string]int
}

func newBoard(t testing.TB, members ...string) *board {
	b := &board{Board: NewBoard(func() bool { return true }), t: t, looked: map[string]int{}, planned: map[string]int{}}
	b.OnImage(func(image string) { b.looked[image]++ })
	b.OnWants(func(member string) { b.planned[member]++ })
	for _, name := range members {
		b.SetMember(online(name))
	}
	b.Synced()
	b.await(map[string]planState{})
	return b
}

// online is a MemberCluster that is well, labelled with its name.
func online(name string) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"name": name}}}
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: t, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(apitest.Epoch),
		})
	}
	return m
}

func offline(name string) *v1alpha1.MemberCluster {
	m := online(name)
	m.Status.Conditions[1].Status, m.Status.Conditions[1].Reason = metav1.ConditionFalse, v1alpha1.ReasonSilent
	return m
}

// stored gives a FleetDiskImage what the API server gives it.
func stored(b *apitest.FleetDiskImageBuilder) *v1alpha1.FleetDiskImage {
	img := b.Obj()
	if img.UID == "" {
		img.UID = types.UID(img.Name)
	}
	return img
}

// decided decides about FleetDiskImages, and returns what the last begins with.
func (b *board) decided(images ...string) []string {
	b.t.Helper()
	var d rollout.Decision
	for _, image := range images {
		var found bool
		d, _, found = b.Decide(image, now)
		require.True(b.t, found)
	}
	return d.Start
}

// follow writes the plan of each member as it is wanted, and has it acknowledged.
func (b *board) follow(members ...string) {
	b.t.Helper()
	for _, name := range members {
		w, known := b.Of(name)
		require.True(b.t, known, name)
		b.SetPlan(name, b.planOf(name, w))
		b.acknowledge(name)
	}
}

func (b *board) planOf(name string, w rollout.Wants) *v1alpha1.ClusterPlan {
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: types.UID("plan-" + name), Generation: 1}}
	if m := b.members[name]; m != nil && m.plan != nil {
		p.Generation, p.Spec.Sequence = m.plan.Generation+1, m.plan.Spec.Sequence+1
	}
	p.Spec.Images, p.Spec.Kept, p.Spec.Retired = w.Images, w.Kept, w.Retired
	p.Spec.Hash = fleet.PlanHash(&p.Spec)
	return p.DeepCopy()
}

func (b *board) acknowledge(name string) {
	m := b.members[name]
	root := &v1alpha1.ReportRoot{Plan: &m.plan.Spec.PlanVersion}
	for page, sequence := range m.listed {
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
	}
	b.SetRoot(name, root)
}

// report has a member report images on one page.
func (b *board) report(name string, images ...v1alpha1.ReportedImage) {
	sequence := b.members[name].listed["page"] + 1
	b.SetPage(name, "page", sequence, images)
	root := &v1alpha1.ReportRoot{Plan: b.members[name].acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: sequence}}}
	b.SetRoot(name, root)
}

// there is a planned image that is in a phase.
func there(name string, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{
		Namespace: "images", Name: name, UID: "uid", Origin: v1alpha1.OriginPlan, Phase: phase,
		Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
	}
}

// revisionOf returns a report with the revision that a FleetDiskImage asks for.
func revisionOf(img v1alpha1.ReportedImage, of *apitest.FleetDiskImageBuilder) v1alpha1.ReportedImage {
	img.Revision = of.Obj().Spec.Template.Revision()
	return img
}

// names of what is wanted: "+" before those that are to be there, "=" before those
// that are kept, "-" before those that are to go.
func names(w rollout.Wants) []string {
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

func (b *board) wanted(member string) []string {
	b.t.Helper()
	w, known := b.Of(member)
	require.True(b.t, known, member)
	return names(w)
}

func (b *board) forgetCalls() {
	clear(b.looked)
	clear(b.planned)
}

func keysOf(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

func numbered(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}
