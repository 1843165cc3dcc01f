package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func TestClusterStates(t *testing.T) {
	type cl = rollout.Cluster
	for name, tt := range map[string]struct {
		letter      rune
		change      func(c *cl)
		wantState   v1alpha1.ClusterState
		wantReason  string
		wantMessage string
	}{
		"not started": {'.', nil, v1alpha1.ClusterToApply, "", ""},
		"has the former revision under that name": {'S', func(c *cl) { c.PlannedDigest = "former" }, v1alpha1.ClusterToApply, "", ""},
		"has it without a plan":                   {'S', func(c *cl) { c.PlannedDigest, c.Report.ItemState = "", "" }, v1alpha1.ClusterToApply, "", ""},
		"its plan is full":                        {'f', nil, v1alpha1.ClusterToApply, v1alpha1.ReasonPlanFull, ""},
		"in a full plan":                          {'P', func(c *cl) { c.PlanFull = true }, v1alpha1.ClusterProgressing, "Importing", "as a says"},
		"started, not reported":                   {'P', func(c *cl) { c.Report = rollout.Report{} }, v1alpha1.ClusterProgressing, "", "planned; the member has not reported the image yet"},
		"is importing":                            {'P', nil, v1alpha1.ClusterProgressing, "Importing", "as a says"},
		"waits for its namespace": {'P', func(c *cl) {
			c.Report = rollout.Report{ItemState: v1alpha1.PlanItemWaiting, ItemReason: v1alpha1.ReasonNamespaceMissing, ItemMessage: "namespace images does not exist: create it"}
		}, v1alpha1.ClusterProgressing, "NamespaceMissing", "namespace images does not exist: create it"},
		"an older agent waits for its namespace": {'P', func(c *cl) {
			c.Report = rollout.Report{ItemState: v1alpha1.PlanItemWaiting, ItemMessage: "namespace images does not exist: create it"}
		}, v1alpha1.ClusterProgressing, "Waiting", "namespace images does not exist: create it"},
		"has succeeded":                             {'S', nil, v1alpha1.ClusterSucceeded, "", ""},
		"has succeeded with the former revision":    {'S', func(c *cl) { c.Report.Revision = "former" }, v1alpha1.ClusterProgressing, "Ready", "as a says"},
		"the phase is of the serving revision":      {'S', func(c *cl) { c.Report.ServingRevision = "former" }, v1alpha1.ClusterProgressing, "Ready", "as a says"},
		"has it, the agent has no result yet":       {'S', func(c *cl) { c.Report.ItemState = "" }, v1alpha1.ClusterProgressing, "Ready", "as a says"},
		"it is being deleted there":                 {'S', func(c *cl) { c.Report.Phase = v1alpha1.PhaseTerminating }, v1alpha1.ClusterProgressing, "Ready", "as a says"},
		"has failed":                                {'F', nil, v1alpha1.ClusterFailed, "NotFound", "as a says"},
		"has failed with the former revision":       {'F', func(c *cl) { c.Report.Revision = "former" }, v1alpha1.ClusterProgressing, "NotFound", "as a says"},
		"foreign image":                             {'S', func(c *cl) { c.Report.ItemState, c.Report.ItemMessage = v1alpha1.PlanItemNotOurs, "label it" }, v1alpha1.ClusterFailed, "NotOurs", "label it"},
		"rejected by the API server":                {'P', func(c *cl) { c.Report = rollout.Report{ItemState: v1alpha1.PlanItemRejected, ItemMessage: "too large"} }, v1alpha1.ClusterFailed, "Rejected", "too large"},
		"has timed out":                             {'T', nil, v1alpha1.ClusterTimedOut, "Importing", "as a says"},
		"at its deadline":                           {'P', func(c *cl) { c.PlannedAt = now.Add(-deadline) }, v1alpha1.ClusterProgressing, "Importing", "as a says"},
		"past its deadline":                         {'P', func(c *cl) { c.PlannedAt = now.Add(-deadline - time.Millisecond) }, v1alpha1.ClusterTimedOut, "Importing", "as a says"},
		"was offline since it was planned":          {'T', func(c *cl) { c.OnlineSince = now.Add(-deadline / 2) }, v1alpha1.ClusterProgressing, "Importing", "as a says"},
		"online again for longer than the deadline": {'T', func(c *cl) { c.OnlineSince = now.Add(-deadline - time.Second) }, v1alpha1.ClusterTimedOut, "Importing", "as a says"},
		"unknown start":                             {'T', func(c *cl) { c.PlannedAt, c.OnlineSince = time.Time{}, time.Time{} }, v1alpha1.ClusterProgressing, "Importing", "as a says"},
		"has succeeded after its deadline":          {'S', func(c *cl) { c.PlannedAt = now.Add(-2 * deadline) }, v1alpha1.ClusterSucceeded, "", ""},
		"has failed after its deadline":             {'F', func(c *cl) { c.PlannedAt = now.Add(-2 * deadline) }, v1alpha1.ClusterFailed, "NotFound", "as a says"},
		"offline, not started":                      {'D', nil, v1alpha1.ClusterDeferred, "Silent", ""},
		"offline, progressing":                      {'d', nil, v1alpha1.ClusterDeferred, "Silent", ""},
		"offline, past its deadline":                {'d', func(c *cl) { c.PlannedAt = now.Add(-2 * deadline) }, v1alpha1.ClusterDeferred, "Silent", ""},
		"offline after success":                     {'s', nil, v1alpha1.ClusterSucceeded, "", ""},
		"offline after failure":                     {'F', func(c *cl) { c.OfflineReason = "Silent" }, v1alpha1.ClusterFailed, "NotFound", "as a says"},
		"the former template was rejected": {'P', func(c *cl) {
			c.Report = rollout.Report{ItemState: v1alpha1.PlanItemRejected, ItemMessage: "too large", ItemRevision: "former"}
		}, v1alpha1.ClusterProgressing, "", "planned; the member has not reported the image yet"},
		"offline, with a former revision": {'s', func(c *cl) { c.PlannedDigest, c.Report.Revision = "former", "former" }, v1alpha1.ClusterDeferred, "Silent", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster("a", tt.letter)
			if tt.change != nil {
				tt.change(&c)
			}
			d := decideAndCheck(t, rollout.View{Image: newUbuntu().Paused().Obj(), Clusters: []cl{c}, Now: now})
			require.Len(t, d.Placed, 1)
			assert.Equal(t, digest, d.Placed[0].Effective.Digest)
			d.Placed[0].Effective = nil
			assert.Equal(t, rollout.PlacedCluster{
				Cluster: "a", Wave: "rest", State: tt.wantState, Started: c.PlannedDigest == digest, Reason: tt.wantReason, Message: tt.wantMessage,
			}, d.Placed[0])
		})
	}
}

func TestProgressDeadlineIsRequeued(t *testing.T) {
	v := newView(newUbuntu(), "rest=PPS")
	v.Clusters[1].PlannedAt = now.Add(-deadline + time.Minute)
	d := decideAndCheck(t, v)
	assert.Equal(t, time.Minute+time.Millisecond, d.RequeueAfter, "the earliest deadline")
	v = advanceView(v, d, d.RequeueAfter)
	d = decideAndCheck(t, v)
	assert.Equal(t, "rest=PTS", formatStates(d))
	assert.Equal(t, deadline/2-time.Minute, d.RequeueAfter)
	v = advanceView(v, d, d.RequeueAfter)
	assert.Equal(t, "rest=TTS", formatStates(decideAndCheck(t, v)))

	assert.Zero(t, decideAndCheck(t, newView(newUbuntu(), "rest=TFS")).RequeueAfter)
	v = newView(newUbuntu(), "rest=P")
	v.Image.Spec.Rollout.ProgressDeadline = nil
	v.Clusters[0].PlannedAt = now.Add(-1000 * time.Hour)
	d = decideAndCheck(t, v)
	assert.Equal(t, "rest=P", formatStates(d))
	assert.Zero(t, d.RequeueAfter)
}

func TestNewReport(t *testing.T) {
	assert.Zero(t, rollout.NewReport(nil))
	assert.Equal(t, rollout.Report{
		Exists: true, Revision: "a", ServingRevision: "b", Phase: v1alpha1.PhaseFailed, Reason: v1alpha1.ReasonNotFound, Message: "404", Stalled: true,
		ItemState: v1alpha1.PlanItemNotOurs, ItemReason: "r", ItemMessage: "another's", ItemRevision: "c",
	}, rollout.NewReport(&v1alpha1.ReportedImage{
		Namespace: "images", Name: "ubuntu-1.0.0", UID: "uid", Revision: "a", ServingRevision: "b",
		Phase: v1alpha1.PhaseFailed, Reason: v1alpha1.ReasonNotFound, Message: "404", Stalled: true,
		Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemNotOurs, Reason: "r", Message: "another's", Revision: "c"},
	}))
	assert.Equal(t, rollout.Report{ItemState: v1alpha1.PlanItemWaiting}, rollout.NewReport(&v1alpha1.ReportedImage{
		Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting},
	}), "planned, does not exist")
}
