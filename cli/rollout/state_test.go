package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// TestNextCommandAndSign: all screens show these.
func TestNextCommandAndSign(t *testing.T) {
	for name, test := range map[string]struct {
		status   v1alpha1.FleetDiskImageStatus
		stalled  bool
		wantSign render.Sign
		want     string
	}{
		"new":         {wantSign: render.Waiting},
		"done":        {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutSucceeded}, wantSign: render.Done},
		"in progress": {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing}, wantSign: render.Running},
		"a tolerated failure": {
			status:   v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, Clusters: v1alpha1.ClusterCounts{TimedOut: 1}},
			wantSign: render.Running, want: "kubectl ot image retry ubuntu",
		},
		"stalled": {
			status:  v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonMaxFailures, Clusters: v1alpha1.ClusterCounts{Failed: 1}},
			stalled: true, wantSign: render.Failed, want: "kubectl ot image retry ubuntu",
		},
		"stalled by what no retry solves, beside a tolerated failure": {
			status: v1alpha1.FleetDiskImageStatus{
				Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonSelectorInvalid, Clusters: v1alpha1.ClusterCounts{Failed: 1},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSelectorInvalid}},
			},
			stalled: true, wantSign: render.Failed,
		},
		"an approval": {
			status:   v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, CurrentWave: "canary", Clusters: v1alpha1.ClusterCounts{Failed: 1}},
			wantSign: render.Attention, want: "kubectl ot rollout approve ubuntu --wave canary",
		},
		"an approval of other sources": {
			status:   v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, CurrentWave: "canary", PendingApproval: &v1alpha1.PendingApproval{Wave: "more"}},
			wantSign: render.Running, want: "kubectl ot rollout approve ubuntu --wave more",
		},
		"paused, with clusters in progress": {
			status:   v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonRolloutPaused},
			wantSign: render.Attention, want: "kubectl ot rollout resume ubuntu",
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").WithStatus(test.status).Obj()
			img.Spec.Rollout.Paused = false
			assert.Equal(t, test.wantSign, rollout.SignOf(test.status.Phase, test.status.Reason, test.stalled))
			assert.Equal(t, test.want, rollout.NextCommand(img))
		})
	}
}

// TestApprovalThatNothingNeeds names no wave that would be refused.
func TestApprovalThatNothingNeeds(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithWave("canary").WithStatus(v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing}).Obj()
	img.Status.ObservedGeneration = img.Generation
	_, err := rollout.NewApproval(img, nil, nil, false, "", "anna", time.Now())
	require.EqualError(t, err, "no wave of FleetDiskImage ubuntu needs approval")
	img.Spec.Rollout.Waves[0].RequireApproval = true
	_, err = rollout.NewApproval(img, nil, nil, false, "", "anna", time.Now())
	require.EqualError(t, err, "FleetDiskImage ubuntu waits for no approval now: name the wave with --wave, of canary")
}
