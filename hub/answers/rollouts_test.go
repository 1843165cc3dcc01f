package answers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func newRollouts() []v1alpha1.FleetDiskImage {
	at := metav1.NewTime(apitest.Epoch)
	later := metav1.NewTime(apitest.Epoch.Add(time.Hour))
	of := func(name string, st v1alpha1.FleetDiskImageStatus) v1alpha1.FleetDiskImage {
		st.ObservedGeneration = 2
		return *apitest.FleetDiskImage(name).WithGeneration(2).WithStatus(st).Obj()
	}
	stale := of("stale", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutFailed})
	stale.Generation = 3
	return []v1alpha1.FleetDiskImage{
		of("done", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutSucceeded, Clusters: v1alpha1.ClusterCounts{Total: 9}}),
		of("runs", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, ExpectedAt: &later}),
		of("approve", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval}),
		of("fails", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, ExpectedAt: &at, Clusters: v1alpha1.ClusterCounts{Total: 3, Failed: 1, TimedOut: 1}}),
		stale,
	}
}

func TestListRollouts(t *testing.T) {
	for name, tt := range map[string]struct {
		q     answers.RolloutQuery
		want  []string
		total int
		next  string
	}{
		"by name":           {answers.RolloutQuery{}, []string{"approve", "done", "fails", "runs", "stale"}, 5, ""},
		"a page":            {answers.RolloutQuery{Limit: 2, After: "approve"}, []string{"done", "fails"}, 5, "fails"},
		"an offset":         {answers.RolloutQuery{Limit: 2, Offset: 4}, []string{"stale"}, 5, ""},
		"beyond the end":    {answers.RolloutQuery{Offset: 9}, []string{}, 5, ""},
		"reversed":          {answers.RolloutQuery{Descending: true, Limit: 2}, []string{"stale", "runs"}, 5, ""},
		"search":            {answers.RolloutQuery{Search: "DON"}, []string{"done"}, 1, ""},
		"a version":         {answers.RolloutQuery{Search: "1.0.0", Phase: "Succeeded"}, []string{"done"}, 1, ""},
		"a phase":           {answers.RolloutQuery{Phase: "Failed"}, []string{}, 0, ""},
		"attention":         {answers.RolloutQuery{Phase: readapi.RolloutsInAttention}, []string{"approve", "fails"}, 2, ""},
		"by phase":          {answers.RolloutQuery{Sort: readapi.RolloutsByPhase}, []string{"approve", "fails", "stale", "runs", "done"}, 5, ""},
		"by expected":       {answers.RolloutQuery{Sort: readapi.RolloutsByExpected, Limit: 2}, []string{"fails", "runs"}, 5, ""},
		"by expected, last": {answers.RolloutQuery{Sort: readapi.RolloutsByExpected, Descending: true}, []string{"runs", "fails", "approve", "done", "stale"}, 5, ""},
		"by failed":         {answers.RolloutQuery{Sort: readapi.RolloutsByFailed, Descending: true, Limit: 1}, []string{"fails"}, 5, ""},
		"by clusters":       {answers.RolloutQuery{Sort: readapi.RolloutsByClusters, Descending: true, Limit: 1}, []string{"done"}, 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.q.Limit == 0 {
				tt.q.Limit = 100
			}
			list := answers.ListRollouts(newRollouts(), tt.q)
			names := []string{}
			for _, r := range list.Rollouts {
				names = append(names, r.Name)
			}
			assert.Equal(t, tt.want, names)
			assert.Equal(t, tt.total, list.Total)
			assert.Equal(t, tt.next, list.Next)
			assert.Equal(t, 5, list.All)
			assert.Equal(t, 2, list.Attention)
			assert.Equal(t, map[v1alpha1.RolloutPhase]int{v1alpha1.RolloutSucceeded: 1, v1alpha1.RolloutProgressing: 2, v1alpha1.RolloutWaiting: 1}, list.Phases, "that of stale is unknown")
		})
	}
}

// newApprovalView waits for the approval of production.
func newApprovalView(clusters int) *rollout.View {
	img := apitest.FleetDiskImage("win-11").WithVersion("24.2").WithGeneration(4).WithWave("canary").
		WithWaves(v1alpha1.Wave{Name: "production", RequireApproval: true, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": "production"}}}).Obj()
	former := img.Spec.Template.DeepCopy()
	former.URL = "https://anna:secret@images.example.com/win-11-24.1.qcow2?signature=secret"
	img.Status.Versions = []v1alpha1.VersionStatus{
		{Version: "24.2", Since: metav1.NewTime(apitest.Epoch), Revision: img.Spec.Template.Revision()},
		{Version: "24.1", Template: former, Revision: former.Revision()},
		{Version: "23.9"},
	}
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "anna\x1b[2J"}}
	canary := rollout.Cluster{Name: "canary-0", Labels: map[string]string{"wave": "canary"}, OnlineSince: apitest.Epoch, PlannedRevision: img.Spec.Template.Revision(), PlannedDigest: img.Spec.Template.SourceDigest(), PlannedAt: apitest.Epoch}
	canary.Report = rollout.Report{Exists: true, Revision: canary.PlannedRevision, Phase: v1alpha1.PhaseSucceeded, ItemState: v1alpha1.PlanItemApplied}
	v := &rollout.View{Image: img, Now: apitest.Epoch.Add(time.Hour), Clusters: []rollout.Cluster{canary}}
	for i := range clusters {
		c := rollout.Cluster{Name: fmt.Sprintf("edge-%03d", i), Labels: map[string]string{"wave": "production"}, OnlineSince: apitest.Epoch}
		if i == 0 {
			c.OfflineReason = v1alpha1.ReasonSilent
		}
		v.Clusters = append(v.Clusters, c)
	}
	img.Status = rollout.Decide(*v).Status
	return v
}

func TestDescribeRollout(t *testing.T) {
	v := newApprovalView(3)
	d := answers.DescribeRollout(v)
	require.Len(t, d.Lanes, 2)
	assert.True(t, d.Lanes[1].RequireApproval)
	assert.Nil(t, d.Lanes[1].Approval, "that of the version before does not count")
	require.NotNil(t, d.Lanes[0].StartedAt)
	assert.Equal(t, apitest.Epoch.UTC(), d.Lanes[0].StartedAt.UTC())
	assert.Nil(t, d.Lanes[1].StartedAt)
	require.NotNil(t, d.Changes)
	assert.Equal(t, "24.1", d.Changes.Since)
	require.Len(t, d.Changes.Fields, 1)
	assert.NotContains(t, d.Changes.Fields[0].From, "secret")
	require.Len(t, d.Versions, 3)
	assert.False(t, d.Versions[0].CanGoBack, "it is there")
	assert.True(t, d.Versions[1].CanGoBack)
	assert.Equal(t, "the hub was older then", d.Versions[2].NotRecorded)
	require.Len(t, d.Versions[1].Approvals, 1)
	assert.NotContains(t, d.Versions[1].Approvals[0].By, "\x1b")
	assert.True(t, d.Attention)
	assert.Nil(t, d.Paused)

	v.Image.Spec.Rollout.Paused = true
	v.Image.Annotations = map[string]string{v1alpha1.AnnotationPausedBy: "anna", v1alpha1.AnnotationPausedBecause: "it does not boot\x1b[2J"}
	v.Image.Spec.Retry = &v1alpha1.RetryRequest{Token: "now"}
	d = answers.DescribeRollout(v)
	require.NotNil(t, d.Paused)
	assert.Equal(t, "anna", d.Paused.By)
	assert.NotContains(t, d.Paused.Because, "\x1b")
	assert.True(t, d.RetryRequested)
}

func TestDescribeReach(t *testing.T) {
	reach, found := answers.DescribeReach(newApprovalView(40), "production", 5<<20)
	require.True(t, found)
	assert.Equal(t, int32(40), reach.Clusters)
	assert.Equal(t, int32(1), reach.Offline)
	assert.Len(t, reach.Named, readapi.MaxReachClusters, "however many there are")
	assert.Equal(t, readapi.NamedReach{Cluster: "edge-000", Offline: v1alpha1.ReasonSilent}, reach.Named[0])
	assert.Equal(t, int64(5<<20), reach.EachBytes)
	assert.Nil(t, reach.Seconds)
	assert.NotEmpty(t, reach.UnknownMessage, "no cluster has an activity")
	require.Len(t, reach.Before, 1)
	assert.Equal(t, "canary", reach.Before[0].Name)
	assert.Equal(t, "24.2", reach.Version)
	assert.Equal(t, int64(4), reach.Generation)
	_, found = answers.DescribeReach(newApprovalView(1), "none", 0)
	assert.False(t, found)
}
