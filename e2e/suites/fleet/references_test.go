//go:build linux

package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestMachineReferencesAreReportedToHub puts the same image into two members; machines of
// one of them need it.
func TestMachineReferencesAreReportedToHub(t *testing.T) {
	shared.AwaitMember(t, frankfurt, "ready", hasBudget(5))
	shared.AwaitMember(t, edge, "ready", hasBudget(1))
	inFrankfurt, inEdge := shared.Members[frankfurt], shared.Members[edge]
	img := inFrankfurt.CreateImageForTest(t, "referenced")
	inEdge.CreateImageForTest(t, "referenced")
	first, second := inFrankfurt.CreateMachine(t, "first", img.Name), inFrankfurt.CreateMachine(t, "second", img.Name)
	const source = "http http://images.example.com/referenced.qcow2"

	detail := shared.awaitReferences(t, source, 2)
	assert.Nil(t, detail.UnreferencedSince)
	assert.Equal(t, 1, detail.Unreferenced, "the image of edge")
	require.Len(t, detail.PerMember, 2)
	assert.Equal(t, edge, detail.PerMember[0].Member)
	assert.Zero(t, detail.PerMember[0].References)
	assert.NotNil(t, detail.PerMember[0].UnreferencedSince)
	assert.Equal(t, int64(2), detail.PerMember[1].References)
	assert.Nil(t, detail.PerMember[1].UnreferencedSince)
	require.Len(t, detail.PerMember[1].Entries, 1)
	assert.Equal(t, int32(2), detail.PerMember[1].Entries[0].References)
	reported := testenv.FindReportedImage(t, inFrankfurt, program.AgentNamespace, client.ObjectKey{Namespace: fleet.Namespace, Name: "referenced"})
	assert.Equal(t, int32(2), reported.References)
	assert.Nil(t, reported.UnreferencedSince)
	shared.AwaitMember(t, frankfurt, "two references", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.References != nil && *m.Status.References == 2
	})
	shared.awaitMetric(t, `ot_hub_member_references{member="frankfurt"}`, 2)

	require.NoError(t, inFrankfurt.Delete(t.Context(), first))
	shared.awaitReferences(t, source, 1)
	before := time.Now().Truncate(time.Second)
	require.NoError(t, inFrankfurt.Delete(t.Context(), second))
	detail = shared.awaitReferences(t, source, 0)
	require.Len(t, detail.PerMember, 2)
	since := detail.PerMember[1].UnreferencedSince
	require.NotNil(t, since, "%+v", detail.PerMember[1])
	assert.False(t, since.Time.Before(before), "unreferenced since %s, the last machine was deleted after %s", since, before)
	reported = testenv.FindReportedImage(t, inFrankfurt, program.AgentNamespace, client.ObjectKey{Namespace: fleet.Namespace, Name: "referenced"})
	require.NotNil(t, reported.UnreferencedSince)
	assert.True(t, since.Equal(reported.UnreferencedSince), "%s and %s", since, reported.UnreferencedSince)
	shared.awaitMetric(t, `ot_hub_member_references{member="frankfurt"}`, 0)

	images, err := shared.Hub.ListImages(t.Context())
	require.NoError(t, err)
	for i := range images {
		if images[i].Source == source {
			assert.Equal(t, since, images[i].UnreferencedSince, "in the whole fleet, it is the youngest of the members' times")
			assert.Equal(t, 2, images[i].Unreferenced)
		}
	}
}

// awaitReferences waits until the read API counts this many references of an image and knows
// the image in all members.
func (f *testFleet) awaitReferences(t *testing.T, source string, want int64) (detail readapi.ImageDetail) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var err error
		detail, err = f.Hub.GetImage(t.Context(), source)
		return err == nil && len(detail.PerMember) == 2 && detail.References == want && detail.Unknown == 0 && detail.Phases[v1alpha1.PhaseSucceeded] == 2
	}), "want %d references: %+v", want, &detail)
	return detail
}
