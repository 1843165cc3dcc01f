package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Reports are bounded by their schema already; the status of the hub does not rely on it.
func TestStatusCanBeStoredWhateverMembersReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return apitest.HostileText().Draw(t, what) }
		v := newView(newUbuntu().WithMaxFailures(rapid.SampledFrom([]string{"0", "100%"}).Draw(t, "maxFailures")), "canary=SFTDds. eu=PFP a=S")
		for i := range v.Clusters {
			c := &v.Clusters[i]
			if c.OfflineReason != "" {
				c.OfflineReason = text("offline")
			}
			r := &c.Report
			r.Message, r.ItemMessage, r.Reason = text("message"), text("item"), v1alpha1.Reason(text("reason"))
			if rapid.Bool().Draw(t, "other values") {
				r.Phase, r.ItemState, r.Revision = v1alpha1.Phase(text("phase")), v1alpha1.PlanItemState(text("state")), text("revision")
			}
		}
		v.Conflict = rapid.SampledFrom([]string{"", text("conflict")}).Draw(t, "conflicts")
		v.Image.Spec.Rollout.Waves[0].RequireApproval = rapid.Bool().Draw(t, "requires approval")
		v.ApprovalGuarded = metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyNotInForce, Message: text("guard")}
		d := decideAndCheck(t, v)
		schemacheck.RequireStorable(t, "FleetDiskImage", &d.Status)
		require.NotContains(t, toJSON(t, d.Status.Conditions), apitest.Secret)
		require.NotContains(t, d.Status.Message, apitest.Secret)
		for _, failing := range d.Status.Failing {
			require.NotContains(t, failing.Message, apitest.Secret)
		}
	})
}
