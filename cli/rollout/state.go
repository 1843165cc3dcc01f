package rollout

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// SignOf returns the sign of a rollout, which is the same on every screen.
func SignOf(phase v1alpha1.RolloutPhase, reason string, stalled bool) render.Sign {
	switch {
	case phase == v1alpha1.RolloutFailed, stalled:
		return render.Failed
	case phase == "":
		return render.Waiting
	case v1alpha1.IsHeldReason(reason):
		return render.Attention
	case phase == v1alpha1.RolloutSucceeded:
		return render.Done
	case phase == v1alpha1.RolloutProgressing:
		return render.Running
	default:
		return render.Waiting
	}
}

// AwaitsApproval reports whether what is next is an approval.
func AwaitsApproval(img *v1alpha1.FleetDiskImage) bool {
	st := &img.Status
	return st.Reason == v1alpha1.ReasonAwaitingApproval || st.PendingApproval != nil && !img.Spec.Rollout.Paused
}

// NextCommand returns what somebody types next, which is the same on every screen; empty for nothing.
func NextCommand(img *v1alpha1.FleetDiskImage) string {
	st := &img.Status
	switch {
	case AwaitsApproval(img):
		wave := st.CurrentWave
		if st.PendingApproval != nil { // also while others of the wave start
			wave = st.PendingApproval.Wave
		}
		return shellword.FormatCommand("kubectl ot rollout approve %s --wave %s", img.Name, wave)
	case st.Reason == v1alpha1.ReasonRolloutPaused:
		return shellword.FormatCommand("kubectl ot rollout resume %s", img.Name)
	case st.Clusters.AllFailed() > 0 && (st.Reason == v1alpha1.ReasonMaxFailures || !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled)):
		return shellword.FormatCommand("kubectl ot image retry %s", img.Name)
	default:
		return ""
	}
}
