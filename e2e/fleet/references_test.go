//go:build linux

package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
	hubfleet "github.com/pelotech/ot-fleet/hub/fleet"
)

// The same image is in two members, and machines of one of them need it.
func TestReferencesOfMachinesShowOnTheHub(t *testing.T) {
	shared.eventually(t, "frankfurt", "ready", hasBudget(5))
	shared.eventually(t, "edge", "ready", hasBudget(1))
	frankfurt, edge := shared.sites["frankfurt"], shared.sites["edge"]
	img := frankfurt.image(t, "referenced", "referenced.qcow2")
	edge.image(t, "referenced", "referenced.qcow2")
	first, second := frankfurt.machine(t, "first", img), frankfurt.machine(t, "second", img)
	const source = "http http://images.example.com/referenced.qcow2"

	detail := shared.references(t, source, 2)
	assert.Nil(t, detail.UnreferencedSince)
	assert.Equal(t, 1, detail.Unreferenced, "the image of edge")
	require.Len(t, detail.In, 2)
	assert.Equal(t, "edge", detail.In[0].Member)
	assert.Zero(t, detail.In[0].References)
	assert.NotNil(t, detail.In[0].UnreferencedSince)
	assert.Equal(t, int64(2), detail.In[1].References)
	assert.Nil(t, detail.In[1].UnreferencedSince)
	require.Len(t, detail.In[1].Entries, 1)
	assert.Equal(t, int32(2), detail.In[1].Entries[0].References)
	reported := frankfurt.reported(t, "referenced")
	assert.Equal(t, int32(2), reported.References)
	assert.Nil(t, reported.UnreferencedSince)
	shared.eventually(t, "frankfurt", "two references", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.References != nil && *m.Status.References == 2
	})
	shared.awaitMetric(t, `ot_hub_member_references{member="frankfurt"}`, 2)

	require.NoError(t, frankfurt.Client().Delete(t.Context(), first))
	shared.references(t, source, 1)
	before := time.Now().Truncate(time.Second)
	require.NoError(t, frankfurt.Client().Delete(t.Context(), second))
	detail = shared.references(t, source, 0)
	require.Len(t, detail.In, 2)
	since := detail.In[1].UnreferencedSince
	require.NotNil(t, since, "%+v", detail.In[1])
	assert.False(t, since.Time.Before(before), "unreferenced since %s, the last machine was deleted after %s", since, before)
	reported = frankfurt.reported(t, "referenced")
	require.NotNil(t, reported.UnreferencedSince)
	assert.True(t, since.Equal(reported.UnreferencedSince), "%s and %s", since, reported.UnreferencedSince)
	shared.awaitMetric(t, `ot_hub_member_references{member="frankfurt"}`, 0)

	images, err := shared.hub.Images(t.Context())
	require.NoError(t, err)
	for i := range images {
		if images[i].Source == source {
			assert.Equal(t, since, images[i].UnreferencedSince, "in the whole fleet, it is the youngest of the members' times")
			assert.Equal(t, 2, images[i].Unreferenced)
		}
	}
}

// machine creates one that needs an image. It makes nothing, as the members here
// have no KubeVirt: what names an image counts.
func (s *site) machine(t *testing.T, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := scene.Machine("default", name, img)
	vm.Spec.IgnoreOnDeploy = true
	require.NoError(t, s.Client().Create(t.Context(), vm))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.Client().Delete(context.Background(), vm))) })
	return vm
}

// references waits until the read API tells of as many references of an image,
// and of no member that is unknown.
func (f *fleet) references(t *testing.T, source string, want int64) (detail hubfleet.ImageDetail) {
	t.Helper()
	require.True(t, scene.Await(t, func() bool {
		var err error
		detail, err = f.hub.Image(t.Context(), source)
		return err == nil && len(detail.In) == 2 && detail.References == want && detail.Unknown == 0 && detail.Phases[v1alpha1.PhaseSucceeded] == 2
	}), "want %d references: %+v", want, &detail)
	return detail
}

// reported is what a member's ClusterReports say of an image.
func (s *site) reported(t *testing.T, name string) v1alpha1.ReportedImage {
	t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(agent.Namespace)))
	for i := range list.Items {
		if list.Items[i].Page == nil {
			continue
		}
		for _, img := range list.Items[i].Page.Images {
			if img.Name == name {
				return img
			}
		}
	}
	require.Fail(t, "no page has the image", name)
	return v1alpha1.ReportedImage{}
}
