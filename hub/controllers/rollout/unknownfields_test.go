package rollout

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// makeRecent has agents that report no fields not know some of them, until the test ends.
func makeRecent(t *testing.T, fields ...string) {
	t.Helper()
	before := fieldsBefore
	t.Cleanup(func() { fieldsBefore = before })
	fieldsBefore = slices.DeleteFunc(slices.Clone(before), func(field string) bool { return slices.Contains(fields, field) })
}

// reportAgent reports an agent that knows all fields except some.
func (f *testState) reportAgent(name, version string, except ...string) {
	root := &v1alpha1.ReportRoot{AgentVersion: version}
	if m := f.members[name]; m != nil {
		root.Plan = m.acknowledged
		for page, sequence := range m.listedPages {
			root.Pages = append(root.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
		}
	}
	root.ImageFields = slices.DeleteFunc(v1alpha1.ImageFields(), func(field string) bool { return slices.Contains(except, field) })
	f.SetRoot(name, root)
}

func TestPlanWaitsForAgentThatKnowsItsFields(t *testing.T) {
	makeRecent(t, "snapshotClass", "sourceType=registry")
	f := newTestState(t, "new", "old", "silent")
	f.reportAgent("new", "v0.3.0")
	f.reportAgent("old", "v0.2.9", "snapshotClass")
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.UID, img.Generation = "ubuntu", 1
	img.Spec.Template.SnapshotClass = "fast"
	f.SetImage(img)
	assert.Equal(t, []string{"new"}, f.decideAll("ubuntu"))
	assert.NotContains(t, f.desiredNames("old"), "+ubuntu-1.0.0")
	placed, _ := f.listPlaced("ubuntu")
	for _, p := range placed {
		if p.Cluster == "old" {
			assert.Equal(t, v1alpha1.ReasonFieldsUnknown, p.Reason)
			assert.Contains(t, p.Message, "its agent v0.2.9")
			assert.Contains(t, p.Message, "snapshotClass")
		}
	}

	f.resetCalls()
	f.reportAgent("old", "v0.2.9", "snapshotClass")
	assert.Empty(t, f.enqueued, "a heartbeat changes nothing")
	f.reportAgent("old", "v0.3.0")
	assert.Equal(t, []string{"ubuntu"}, sortedKeys(f.enqueued), "the agent was upgraded")
	assert.Equal(t, []string{"old"}, f.decideAll("ubuntu"))
	assert.Contains(t, f.desiredNames("old"), "+ubuntu-1.0.0")
	f.applyPlans("new", "old")
	f.reportAgent("new", "v0.3.0")

	// A plan keeps what it has where the agent is replaced by an older one.
	f.reportAgent("old", "v0.2.9", "snapshotClass")
	assert.Empty(t, f.decideAll("ubuntu"))
	placed, _ = f.listPlaced("ubuntu")
	for _, p := range placed {
		assert.Equal(t, p.Cluster != "silent", p.Started, "%s has begun", p.Cluster)
	}
	desired, _ := f.ForMember("old")
	require.Len(t, desired.Images, 1)
	assert.Equal(t, "fast", desired.Images[0].Spec.SnapshotClass)

	// A template gets another source with a field that the agent does not know: it does not
	// begin, and its item stays.
	changed := img.DeepCopy()
	changed.Generation, changed.Spec.Template.SnapshotClass = 2, "faster"
	f.SetImage(changed)
	assert.Equal(t, []string{"new"}, f.decideAll("ubuntu"))
	placed, _ = f.listPlaced("ubuntu")
	for _, p := range placed {
		assert.Equal(t, p.Cluster == "new", p.Started, p.Cluster)
		assert.False(t, p.KeepsItem, p.Cluster)
	}
	f.requireSnapshotClasses(map[string]string{"new": "faster", "old": "fast"})
	f.applyPlans("new", "old")
	f.reportAgent("new", "v0.3.0")
	f.reportAgent("old", "v0.3.0")
	assert.Equal(t, []string{"old"}, f.decideAll("ubuntu"))
	f.requireSnapshotClasses(map[string]string{"new": "faster", "old": "faster"})
}

func (f *testState) requireSnapshotClasses(want map[string]string) {
	f.t.Helper()
	for name, class := range want {
		desired, known := f.ForMember(name)
		require.True(f.t, known)
		require.Equal(f.t, class, desired.Images[0].Spec.SnapshotClass, name)
	}
}

// A template gets a field that is no source, as publish: nothing starts again, and the plans of
// clusters that do not know it stay.
func TestPlanKeepsItemWhereOtherFieldsAreUnknown(t *testing.T) {
	f := newTestState(t, "new", "old")
	f.reportAgent("new", "v0.3.0")
	f.reportAgent("old", "v0.2.9", "publish", "publish.dataSource", "publish.name")
	img := storedImage(apitest.FleetDiskImage("ubuntu").WithGeneration(1))
	f.SetImage(img)
	require.Equal(t, []string{"new", "old"}, f.decideAll("ubuntu"))
	f.applyPlans("new", "old")
	f.reportAgent("new", "v0.3.0")
	f.reportAgent("old", "v0.2.9", "publish", "publish.dataSource", "publish.name")

	changed := img.DeepCopy()
	changed.Generation, changed.Spec.Template.Publish = 2, &v1alpha1.Publish{DataSource: true}
	f.SetImage(changed)
	assert.Empty(t, f.decideAll("ubuntu"))
	placed, _ := f.listPlaced("ubuntu")
	for _, p := range placed {
		assert.True(t, p.Started, p.Cluster)
		assert.Equal(t, p.Cluster == "old", p.KeepsItem, p.Cluster)
	}
	desired, _ := f.ForMember("old")
	assert.Nil(t, desired.Images[0].Spec.Publish)
	desired, _ = f.ForMember("new")
	assert.Equal(t, &v1alpha1.Publish{DataSource: true, Name: "ubuntu"}, desired.Images[0].Spec.Publish)
	f.reportAgent("old", "v0.3.0")
	assert.Empty(t, f.decideAll("ubuntu"))
	desired, _ = f.ForMember("old")
	assert.NotNil(t, desired.Images[0].Spec.Publish)
}

// A value that an agent does not know would be refused by its API server.
func TestPlanWaitsForAgentThatKnowsItsValues(t *testing.T) {
	makeRecent(t, "sourceType=registry")
	f := newTestState(t, "new", "old")
	f.reportAgent("new", "v0.3.0")
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.UID, img.Spec.Template.SourceType, img.Spec.Template.URL = "ubuntu", v1alpha1.SourceRegistry, "docker://registry/ubuntu"
	f.SetImage(img)
	assert.Equal(t, []string{"new"}, f.decideAll("ubuntu"))
	f.reportAgent("old", "v0.3.0", "sourceType=registry")
	assert.Empty(t, f.decideAll("ubuntu"))
	f.reportAgent("old", "v0.3.0")
	assert.Equal(t, []string{"old"}, f.decideAll("ubuntu"))
}

// Specs of version 0.2 start in every cluster.
func TestFieldsOfOlderAgents(t *testing.T) {
	spec := v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceS3, SnapshotClass: "fast", Checksum: "md5:0"}
	assert.Empty(t, recentFields(&spec))
	assert.Empty(t, (&member{}).unknownFields(spec.UsedFields()))
	spec.SourceType, spec.ExtraHeaders = v1alpha1.SourceGCS, []string{"X-Tenant: blue"}
	assert.Equal(t, []string{"extraHeaders", "sourceType=gcs"}, recentFields(&spec))
	assert.Equal(t, []string{"extraHeaders", "sourceType=gcs"}, (&member{}).unknownFields(recentFields(&spec)))
	assert.Empty(t, (&member{imageFields: v1alpha1.ImageFields()}).unknownFields(recentFields(&spec)))
}
