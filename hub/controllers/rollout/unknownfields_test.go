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

	// A template gets a field that is no part of the revision: the others stay as planned.
	changed := img.DeepCopy()
	changed.Generation, changed.Spec.Template.SnapshotClass = 2, "faster"
	f.SetImage(changed)
	assert.NotContains(t, f.decideAll("ubuntu"), "old", "it does not start again")
	placed, _ = f.listPlaced("ubuntu")
	for _, p := range placed {
		assert.Equal(t, p.Cluster != "silent", p.Started, "%s has begun", p.Cluster)
		assert.Equal(t, p.Cluster == "old", p.KeepsItem, p.Cluster)
	}
	for name, want := range map[string]string{"new": "faster", "old": "fast"} {
		desired, known := f.ForMember(name)
		require.True(t, known)
		assert.Equal(t, want, desired.Images[0].Spec.SnapshotClass, name)
	}
	f.reportAgent("old", "v0.3.0")
	f.decideAll("ubuntu")
	desired, _ = f.ForMember("old")
	assert.Equal(t, "faster", desired.Images[0].Spec.SnapshotClass)
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
