package planner

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A hub confirms the prunes of a plan only once it knows which are requested, and what the member says now.
func TestPlanConfirmsOnlyKnownPrunes(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*snapshot)
		want   *string // nil: no plan is written
	}{
		"all is known":                  {func(*snapshot) {}, ptr.To("boot/2")},
		"the requests are not known":    {func(s *snapshot) { s.prunes, s.requestsKnown = nil, false }, nil},
		"the report is not confirmed":   {func(s *snapshot) { s.syncResult.ConfirmedSequence = 0 }, nil},
		"the member is in quarantine":   {func(s *snapshot) { s.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"} }, nil},
		"two agents ask":                {func(s *snapshot) { s.root.TwoAgentsAt = s.Now }, nil},
		"it asks for nothing any more":  {func(s *snapshot) { s.root.Report.PruneNonce = "" }, nil},
		"its agent is of a former kind": {func(s *snapshot) { s.root.Report.PruneNonce, s.plan.Spec.ConfirmedNonce = "", nil }, ptr.To("")},
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			s.prunes = []v1alpha1.PlannedPrune{{Namespace: "images", Name: "debian", ImageUID: "image", UID: "prune"}}
			s.plan = decide(s).plan
			require.Equal(t, ptr.To(""), s.plan.Spec.ConfirmedNonce, "nothing was asked")
			s.root.Report.PruneNonce = "boot/1"
			s.plan = decide(s).plan
			require.Equal(t, ptr.To("boot/1"), s.plan.Spec.ConfirmedNonce)
			s.root.Report.PruneNonce = "boot/2"
			tt.change(&s)
			next := decide(s).plan
			require.Equal(t, tt.want != nil, next != nil)
			if next != nil {
				assert.Equal(t, tt.want, next.Spec.ConfirmedNonce)
			}
		})
	}
}
