package answers_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// newUnlikeView has a mirror in edge-001, nothing for edge-002, and another Secret in edge-003,
// whose plan has the revision already.
func newUnlikeView(t *testing.T) (v *rollout.View, digests map[string]string) {
	t.Helper()
	v = newApprovalView(5)
	img := v.Image
	img.Spec.Template.SourceType, img.Spec.Template.URL = v1alpha1.SourceHTTP, "https://images.example.com/win"
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterNames: []string{"edge-001"}, URL: ptr.To("https://mirror.example.com/win?token=hunter2")},
		{ClusterNames: []string{"edge-002"}, URL: ptr.To("https://${labels.site}.example.com/win")},
		{ClusterNames: []string{"edge-003"}, SecretRef: ptr.To("farm"), ExtraHeaders: &[]string{"X-Key: hunter2"}},
	}
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	digests = map[string]string{}
	for i := range v.Clusters {
		c := &v.Clusters[i]
		digests[c.Name] = overrides.For(c.Name, c.Labels).Digest
	}
	for i := range v.Clusters {
		if c := &v.Clusters[i]; c.Name == "edge-003" {
			c.PlannedRevision = img.Spec.Template.Revision()
		}
	}
	img.Status.PendingApproval = nil
	return v, digests
}

func describeReach(t *testing.T, v *rollout.View) readapi.RolloutReach {
	t.Helper()
	starting := rollout.Reach{}
	for _, name := range []string{"edge-000", "edge-001", "edge-002", "edge-003", "edge-004"} {
		starting.Starting = append(starting.Starting, rollout.PlacedCluster{Cluster: name, Wave: "production", State: v1alpha1.ClusterToApply})
	}
	r := readapi.RolloutReach{Name: v.Image.Name, Wave: "production", EachBytes: 1 << 20}
	answers.AddSources(&r, v, &starting)
	return r
}

func TestReachOfUnlikeClusters(t *testing.T) {
	v, digests := newUnlikeView(t)
	r := describeReach(t, v)
	assert.Equal(t, []readapi.ReachDownload{{Host: "images.example.com", Clusters: 2, Bytes: 2 << 20}, {Host: "mirror.example.com", Clusters: 1, Bytes: v.Image.Spec.Template.DiskSize.Value(), AtMost: true}},
		[]readapi.ReachDownload{r.Downloads[1], r.Downloads[0]})
	assert.EqualValues(t, 1, r.Unchanged, "another Secret downloads nothing")
	assert.EqualValues(t, 1, r.Waiting, "edge-002 lacks a label")
	assert.True(t, r.AtMostBytes)
	assert.ElementsMatch(t, []string{digests["edge-000"], digests["edge-001"], digests["edge-003"]}, r.ApproveSources)
	require.Len(t, r.Sources, 3)
	for _, source := range r.Sources {
		if source.Digest == digests["edge-001"] {
			assert.Equal(t, readapi.ReachSource{Digest: source.Digest, Source: "http https://mirror.example.com/win?…", From: []string{"overrides[0]"}, Clusters: 1}, readapi.ReachSource{
				Digest: source.Digest, Source: source.Source[:len("http https://mirror.example.com/win?…")], From: source.From, Clusters: source.Clusters,
			})
		}
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "hunter2")

	v.Image.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "anna"}}
	r = describeReach(t, v)
	assert.Nil(t, r.Approval, "it covers the template alone")
	assert.Equal(t, "anna", r.Extends.By)
	assert.Len(t, r.Sources, 2)
	assert.Len(t, r.ApproveSources, 3, "with what anna has approved of")

	v.Image.Spec.Approvals[0].Sources = r.ApproveSources
	r = describeReach(t, v)
	assert.Equal(t, "anna", r.Approval.By)
	assert.Nil(t, r.Extends)
	assert.Empty(t, r.Sources)

	v.Image.Spec.Overrides, v.Image.Spec.Approvals = nil, nil
	r = describeReach(t, v)
	assert.Empty(t, r.ApproveSources, "the template alone needs no name")
	assert.EqualValues(t, 4<<20, r.Bytes)
}

// An answer is bounded, however many mirrors there are.
func TestReachIsBounded(t *testing.T) {
	v := newApprovalView(300)
	v.Image.Spec.Template.SourceType = v1alpha1.SourceHTTP
	v.Image.Spec.Overrides = []v1alpha1.ImageOverride{{ClusterSelector: &metav1.LabelSelector{}, URL: ptr.To("https://${cluster.name}.example.com/win")}}
	starting := rollout.Reach{}
	for i := range 300 {
		starting.Starting = append(starting.Starting, rollout.PlacedCluster{Cluster: fmt.Sprintf("edge-%03d", i), Wave: "production"})
	}
	v.Image.Status.PendingApproval = nil
	r := readapi.RolloutReach{Wave: "production", EachBytes: 1, AtMost: true}
	answers.AddSources(&r, v, &starting)
	assert.Len(t, r.ApproveSources, 256)
	assert.Len(t, r.Sources, readapi.MaxReachSources)
	assert.Len(t, r.Downloads, readapi.MaxReachHosts)
	assert.Equal(t, 300*v.Image.Spec.Template.DiskSize.Value(), r.Bytes)
}
