package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

func TestParseGoal(t *testing.T) {
	for text, want := range map[string]rollout.Goal{
		"ready": {Kind: "ready"}, "finished": {Kind: "finished"}, "wave=canary": {Kind: "wave", Target: "canary"}, "in=bergen": {Kind: "in", Target: "bergen"},
	} {
		got, err := rollout.ParseGoal(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{"", "done", "ready=1", "wave", "wave=", "in=", "condition=Ready"} {
		_, err := rollout.ParseGoal(text)
		require.ErrorContains(t, err, "must be ready, finished, wave=NAME or in=CLUSTER")
	}
}

func TestJudgeWait(t *testing.T) {
	const goes = exit.Code(-1)
	hold, unknown := rollout.WaitOptions{UntilHold: true}, rollout.WaitOptions{AllowUnknown: true}
	reported := func(change func(*v1alpha1.ReportedImage)) *rollout.InCluster {
		img := newImage(nil)
		r := &v1alpha1.ReportedImage{UID: "1", Revision: img.Spec.Template.Revision(), ServingRevision: img.Spec.Template.Revision(), Phase: v1alpha1.PhaseSucceeded}
		if change != nil {
			change(r)
		}
		return &rollout.InCluster{Known: true, Placed: true, Image: r}
	}
	failed := func(r *v1alpha1.ReportedImage) {
		r.Phase, r.Reason, r.Message = v1alpha1.PhaseFailed, "NotFound", "404"
	}
	for _, tt := range []struct {
		name    string
		goal    string
		change  func(*v1alpha1.FleetDiskImage)
		in      *rollout.InCluster
		options rollout.WaitOptions
		want    exit.Code
		says    string
	}{
		{"succeeded", "ready", phase(v1alpha1.RolloutSucceeded, v1alpha1.ReasonRolledOut), nil, rollout.WaitOptions{}, exit.Yes, "win-11 24.2 is Succeeded"},
		{"succeeded, offline clusters catch up", "ready", func(i *v1alpha1.FleetDiskImage) {
			phase(v1alpha1.RolloutSucceeded, v1alpha1.ReasonRolledOut)(i)
			i.Status.Clusters.Deferred = 1
		}, nil, rollout.WaitOptions{}, exit.Yes, ""},
		{"failed", "ready", failing, nil, rollout.WaitOptions{}, exit.No, "maxFailures allows 0"},
		{"failed before, of another spec", "ready", func(i *v1alpha1.FleetDiskImage) { failing(i); i.Generation++ }, nil, rollout.WaitOptions{}, goes, "has not processed it yet"},
		{"succeeded before, of another spec", "ready", func(i *v1alpha1.FleetDiskImage) { phase(v1alpha1.RolloutSucceeded, "")(i); i.Generation++ }, nil, rollout.WaitOptions{}, goes, ""},
		{"new", "ready", func(i *v1alpha1.FleetDiskImage) { i.Status = v1alpha1.FleetDiskImageStatus{ObservedGeneration: -1} }, nil, rollout.WaitOptions{}, goes, ""},
		{"awaits approval", "ready", nil, nil, rollout.WaitOptions{}, exit.Held, "needs approval"},
		{"awaits approval, until hold", "ready", nil, nil, hold, exit.Yes, "needs approval"},
		{"awaits approval while clusters move", "ready", phase(v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingApproval), nil, rollout.WaitOptions{}, goes, ""},
		{"paused", "ready", phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused), nil, rollout.WaitOptions{}, exit.Held, ""},
		{"stalled", "ready", stalled(v1alpha1.ReasonClustersBlocked), nil, rollout.WaitOptions{}, exit.No, ""},
		{"stalled, until hold", "ready", stalled(v1alpha1.ReasonNameConflict), nil, hold, exit.No, ""},
		{"stalled, until finished", "finished", stalled(v1alpha1.ReasonClustersBlocked), nil, rollout.WaitOptions{}, goes, ""},
		{"failed, until finished", "finished", failing, nil, rollout.WaitOptions{}, exit.No, ""},
		{"waits for minSuccessTime", "ready", phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonMinSuccessTime), nil, rollout.WaitOptions{}, goes, ""},
		{"waits for a window", "ready", phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutWaitingForWindow), nil, hold, goes, ""},
		{"offline", "ready", phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonOfflineClusters), nil, rollout.WaitOptions{}, exit.Unknown, ""},
		{"offline, allowed", "ready", phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonOfflineClusters), nil, unknown, goes, ""},
		{"being deleted", "ready", func(i *v1alpha1.FleetDiskImage) { i.DeletionTimestamp = ago(time.Second) }, nil, rollout.WaitOptions{}, exit.No, "is being deleted"},
		{"taken back", "ready", func(i *v1alpha1.FleetDiskImage) { phase(v1alpha1.RolloutSucceeded, "")(i); i.Spec.Version = "24.1" }, nil, rollout.WaitOptions{}, exit.No, "is at version 24.1 now, and 24.2 was waited for"},
		{"replaced, and not looked at yet", "ready", func(i *v1alpha1.FleetDiskImage) { i.Spec.Version = "24.3"; i.Generation++ }, nil, hold, exit.No, "is at version 24.3 now"},
		{"another source", "finished", func(i *v1alpha1.FleetDiskImage) { i.Spec.Template.URL += "x" }, nil, rollout.WaitOptions{}, exit.No, "another source"},
		{"another Secret", "ready", func(i *v1alpha1.FleetDiskImage) {
			phase(v1alpha1.RolloutSucceeded, "")(i)
			i.Spec.Template.SecretRef = "rotated"
		}, nil, rollout.WaitOptions{}, exit.Yes, ""},
		{"wave done", "wave=canary", nil, nil, rollout.WaitOptions{}, exit.Yes, "wave canary is done: 3 ready"},
		{"wave held", "wave=production", nil, nil, rollout.WaitOptions{}, exit.Held, ""},
		{"wave moves", "wave=production", phase(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency), nil, rollout.WaitOptions{}, goes, ""},
		{"no such wave", "wave=south", nil, nil, rollout.WaitOptions{}, exit.Unanswered, "has no wave south: it has canary, production, rest"},
		{"in: ready while others wait", "in=bergen", nil, reported(nil), rollout.WaitOptions{}, exit.Yes, "in bergen is ready"},
		{"in: of an older revision", "in=bergen", phase(v1alpha1.RolloutProgressing, ""), reported(func(r *v1alpha1.ReportedImage) { r.Revision = "old" }), rollout.WaitOptions{}, goes, ""},
		{"in: its turn has not come", "in=bergen", nil, &rollout.InCluster{Known: true, Placed: true}, rollout.WaitOptions{}, exit.Held, ""},
		{"in: unknown", "in=bergen", nil, &rollout.InCluster{WhyUnknown: "it is silent", Placed: true}, rollout.WaitOptions{}, exit.Unknown, "it is silent"},
		{"in: unknown, allowed", "in=bergen", phase(v1alpha1.RolloutProgressing, ""), &rollout.InCluster{Placed: true}, unknown, goes, ""},
		{"in: not placed", "in=bergen", nil, &rollout.InCluster{Known: true}, rollout.WaitOptions{}, exit.No, "does not select this cluster"},
		{"in: failed", "in=lab", failing, reported(failed), rollout.WaitOptions{}, exit.No, "in lab is Failed, NotFound: 404"},
		{"in: failed, and about to start over", "in=lab", phase(v1alpha1.RolloutProgressing, ""), reported(failed), rollout.WaitOptions{}, goes, ""},
		{"in: refused", "in=lab", failing, reported(func(r *v1alpha1.ReportedImage) {
			r.Phase, r.Plan = v1alpha1.PhaseQueued, &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemNotOurs, Message: "made by somebody else"}
		}), rollout.WaitOptions{}, exit.No, "NotOurs: made by somebody else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			goal, err := rollout.ParseGoal(tt.goal)
			require.NoError(t, err)
			v := rollout.JudgeWait(newImage(tt.change), rollout.WantOf(newImage(nil)), goal, tt.in, tt.options)
			assert.Equal(t, tt.want != goes, v.End)
			if v.End {
				assert.Equal(t, tt.want, v.Code)
			}
			assert.NotEmpty(t, v.Message)
			assert.Contains(t, v.Message, tt.says)
		})
	}
}
