package rollout

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const nameURL = "https://${labels.name}.example.com/disk.qcow2"

// newOverridden has a url by label name, which onlineMember sets, and one at a time.
func newOverridden() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").WithGeneration(1).WithOverride(v1alpha1.ImageOverride{ClusterSelector: &metav1.LabelSelector{}, URL: ptr.To(nameURL)})
}

func relabelled(name, value string) *v1alpha1.MemberCluster {
	m := onlineMember(name)
	m.Labels["name"] = value
	return m
}

func (f *testState) plannedURL(member string) string {
	f.t.Helper()
	desired, known := f.ForMember(member)
	require.True(f.t, known)
	if len(desired.Images) == 0 {
		return ""
	}
	return desired.Images[0].Spec.URL
}

// A label that changes gives the member another source: what it has stays until its turn.
func TestLabelChangesTheSource(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(newOverridden()))
	require.Equal(t, []string{"bergen", "oslo"}, f.decideAll("ubuntu"))
	f.applyPlans("bergen", "oslo")
	planned, _ := f.ForMember("bergen")
	assert.Equal(t, "https://bergen.example.com/disk.qcow2", f.plannedURL("bergen"))
	assert.Equal(t, "https://oslo.example.com/disk.qcow2", f.plannedURL("oslo"))

	f.SetImage(storedImage(newOverridden().WithGeneration(2).Paused()))
	f.resetCalls()
	f.SetMember(relabelled("bergen", "kiel"))
	assert.Equal(t, []string{"ubuntu"}, sortedKeys(f.enqueued))
	assert.Empty(t, f.decideAll("ubuntu"))
	still, _ := f.ForMember("bergen")
	assert.Equal(t, planned.Images, still.Images, "paused, it keeps its item")
	assert.Equal(t, int32(1), f.images["ubuntu"].status.Clusters.ToApply)

	f.SetImage(storedImage(newOverridden().WithGeneration(3)))
	assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"), "oslo has what it is to have")
	assert.Equal(t, "https://kiel.example.com/disk.qcow2", f.plannedURL("bergen"))

	// A hub that knows only the plans and reports desires the same.
	f.applyPlans("bergen", "oslo")
	again := newTestState(t, "oslo")
	again.SetMember(relabelled("bergen", "kiel"))
	again.SetImage(storedImage(newOverridden().WithStatus(*f.images["ubuntu"].status)))
	for _, name := range []string{"bergen", "oslo"} {
		again.SetPlan(name, f.members[name].plan)
	}
	d, _, _ := again.Decide("ubuntu", now.Add(time.Hour))
	assert.Empty(t, d.Start)
	for _, name := range []string{"bergen", "oslo"} {
		desired, _ := f.ForMember(name)
		restarted, _ := again.ForMember(name)
		assert.Equal(t, desired, restarted)
	}
}

// A start that no plan shows yet is void once the member is to have another source.
func TestPendingStartOfAnotherSourceIsForgotten(t *testing.T) {
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(newOverridden()))
	require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	f.SetImage(storedImage(newOverridden().WithGeneration(2).Paused()))
	f.SetMember(relabelled("bergen", "kiel"))
	assert.Empty(t, f.decideAll("ubuntu"))
	assert.Equal(t, []string{"=ubuntu-1.0.0"}, f.desiredNames("bergen"), "the first source was never planned")
	assert.Zero(t, f.members["bergen"].pendingStarts)
	f.SetImage(storedImage(newOverridden().WithGeneration(3)))
	assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	assert.Equal(t, "https://kiel.example.com/disk.qcow2", f.plannedURL("bergen"))
}

func TestMissingLabelKeepsThePlan(t *testing.T) {
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(newOverridden()))
	require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	f.applyPlans("bergen")
	f.SetMember(relabelled("bergen", ""))
	assert.Empty(t, f.decideAll("ubuntu"))
	assert.Equal(t, v1alpha1.ReasonLabelMissing, f.images["ubuntu"].status.Reason)
	assert.Equal(t, "https://bergen.example.com/disk.qcow2", f.plannedURL("bergen"))
	f.SetMember(onlineMember("bergen"))
	assert.Empty(t, f.decideAll("ubuntu"), "it has that already")
	assert.Equal(t, int32(1), f.images["ubuntu"].status.Clusters.Progressing)
}

// Overrides that cannot be read change no plan.
func TestInvalidOverridesFreezePlans(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(newOverridden()))
	f.decideAll("ubuntu")
	f.applyPlans("bergen")
	before, _ := f.ForMember("bergen")
	broken := newOverridden().WithGeneration(2).WithOverride(v1alpha1.ImageOverride{ClusterSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}},
	}})
	f.SetImage(storedImage(broken))
	assert.Empty(t, f.decideAll("ubuntu"))
	assert.Equal(t, v1alpha1.ReasonSelectorInvalid, f.images["ubuntu"].status.Reason)
	after, _ := f.ForMember("bergen")
	assert.Equal(t, before, after)
}

// What an agent does not know of its own spec holds back its cluster alone.
func TestUnknownFieldsAreThoseOfTheEffectiveSpec(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithOverride(v1alpha1.ImageOverride{
		ClusterNames: []string{"oslo"}, ExtraHeaders: &[]string{"X-Tenant: blue"},
	})))
	assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	assert.Equal(t, v1alpha1.ReasonFieldsUnknown, f.images["ubuntu"].status.Reason)
	f.resetCalls()
	f.reportAgent("oslo", "v0.9.0")
	assert.Equal(t, []string{"ubuntu"}, sortedKeys(f.enqueued))
	assert.Equal(t, []string{"oslo"}, f.decideAll("ubuntu"))
}

// Members that get the same spec share it, also while they wait with a former one.
func TestMembersShareSpecs(t *testing.T) {
	members := numberedNames("member", 20)
	f := newTestState(t, members...)
	for i, name := range members {
		f.SetMember(relabelled(name, fmt.Sprint("site", i%2)))
	}
	f.SetImage(storedImage(newOverridden()))
	f.decideAll("ubuntu")
	specs := func() map[*v1alpha1.VMDiskImageSpec]int {
		counts := map[*v1alpha1.VMDiskImageSpec]int{}
		for i := range f.images["ubuntu"].desired {
			counts[f.images["ubuntu"].desired[i].image.spec]++
		}
		return counts
	}
	require.Len(t, specs(), 2)
	f.applyPlans(members...)
	f.SetImage(storedImage(newOverridden().WithGeneration(2).WithOverride(v1alpha1.ImageOverride{ClusterSelector: &metav1.LabelSelector{}, StorageClass: ptr.To("lvm")}).Paused()))
	f.decideAll("ubuntu")
	assert.Len(t, specs(), 2, "they wait with what they have")
}

// Retention counts versions, not revisions: whatever source a member gets of the current one,
// older images stay until it has that.
func TestRetentionFollowsTheOwnSource(t *testing.T) {
	img := func() *apitest.FleetDiskImageBuilder {
		return newOverridden().WithFormer("1.0.0", "0.9.0").WithRetention(1, time.Hour)
	}
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(img()))
	f.decideAll("ubuntu")
	f.applyPlans("bergen", "oslo")
	for _, name := range []string{"bergen", "oslo"} {
		desired, _ := f.ForMember(name)
		reported := newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded)
		reported.Revision = desired.Images[0].Spec.Revision()
		f.reportImages(name, reported)
	}
	require.NotEqual(t, f.members["bergen"].plannedImages[f.images["ubuntu"].current].revision, f.members["oslo"].plannedImages[f.images["ubuntu"].current].revision)
	f.decideAll("ubuntu")
	for _, name := range []string{"bergen", "oslo"} {
		assert.Equal(t, []string{"+ubuntu-1.0.0", "-ubuntu-0.9.0"}, f.desiredNames(name), "each has its own revision")
	}
	f.SetImage(storedImage(img().WithGeneration(2).Paused()))
	f.SetMember(relabelled("bergen", "kiel"))
	f.decideAll("ubuntu")
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, f.desiredNames("bergen"), "it lacks its new source")
	assert.Equal(t, []string{"+ubuntu-1.0.0", "-ubuntu-0.9.0"}, f.desiredNames("oslo"))
	assert.Equal(t, "ubuntu", f.DeclaredBy("images", "ubuntu-1.0.0"), "every revision of a version is wanted by its name")
}

// A conflict is one of names: the younger yields with whatever source its members have.
func TestConflictKeepsTheOwnSource(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	younger := newOverridden().WithImageName("shared").WithFormer("1.0.0", "0.9.0").Created(apitest.Epoch.Add(time.Hour))
	f.SetImage(storedImage(younger))
	f.decideAll("ubuntu")
	f.applyPlans("bergen", "oslo")
	before := map[string]string{"bergen": f.plannedURL("bergen"), "oslo": f.plannedURL("oslo")}
	require.NotEqual(t, before["bergen"], before["oslo"])
	older := apitest.FleetDiskImage("debian").WithImageName("shared").WithVersion("2.0.0").WithFormer("2.0.0", "0.9.0").Created(apitest.Epoch).
		WithPlacement(v1alpha1.Placement{ClusterNames: []string{"elsewhere"}})
	f.SetImage(storedImage(older))
	f.SetMember(relabelled("bergen", "kiel"))
	f.decideAll("ubuntu", "debian")
	assert.Equal(t, v1alpha1.ReasonNameConflict, f.images["ubuntu"].status.Reason)
	for name, url := range before {
		desired, known := f.ForMember(name)
		require.True(t, known)
		require.Len(t, desired.Images, 1, name)
		assert.Equal(t, url, desired.Images[0].Spec.URL, name)
		assert.Empty(t, desired.Retired, name)
	}
}

// A label that changes often leaves nothing behind.
func TestFormerLabelsTakeNoMemory(t *testing.T) {
	f := newTestState(t, "bergen")
	for i := range int64(50) {
		f.SetMember(relabelled("bergen", fmt.Sprintf("a%d", i)))
		f.SetImage(storedImage(newOverridden()))
		f.decideAll("ubuntu")
		f.applyPlans("bergen")
	}
	f.SetImage(storedImage(newOverridden().WithGeneration(2).Paused()))
	for i := range 50 {
		f.SetMember(relabelled("bergen", fmt.Sprintf("b%d", i)))
		f.decideAll("ubuntu")
	}
	assert.LessOrEqual(t, len(f.images["ubuntu"].recentFields), 3)
	assert.LessOrEqual(t, len(f.images["ubuntu"].sharedLists.specs), 3)
}
