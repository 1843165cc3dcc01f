package memberstatus

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// maxNoteBytes bounds a note, so that the notes before it stay in the condition.
const maxNoteBytes = 400

// policyNotes returns what keeps a member from the policy that people wrote last, although
// it runs its newest plan: suffixes of a message, empty for nothing.
func (s *statusBuilder) policyNotes() string {
	var notes []string
	if planned, own := s.plannedConcurrency(), s.status.OwnConcurrency; own != nil && int64(*own) < planned {
		notes = append(notes, fmt.Sprintf("concurrency %d, held to %d by the member's own ConfigMap: remove key concurrency there to follow the hub", planned, *own))
	}
	if s.Report != nil {
		// Without a plan it is another condition that is not True.
		if c := meta.FindStatusCondition(s.Report.Conditions, v1alpha1.ConditionPolicyAccepted); c != nil && c.Status != "True" {
			notes = append(notes, "in the member, "+v1alpha1.SanitizeText(c.Message, maxNoteBytes))
		}
	}
	if s.PolicyRefused != "" {
		notes = append(notes, "on the hub, "+v1alpha1.SanitizeText(s.PolicyRefused, maxNoteBytes))
	}
	if len(notes) == 0 {
		return ""
	}
	return "; " + strings.Join(notes, "; ")
}

func (s *statusBuilder) plannedConcurrency() int64 {
	if s.Plan == nil {
		return 0
	}
	return policy.ConcurrencyAt(s.Plan.Policy, s.Now)
}

// ownConcurrency returns the limit of a member's own ConfigMap. Agents of older versions do
// not report it; where they run less than their plan allows, the ConfigMap is why.
func ownConcurrency(r *v1alpha1.ReportRoot, now time.Time) *int32 {
	if own := r.OwnConcurrency; own != nil {
		limit := *own
		return &limit
	}
	effective, _, errs := apipolicy.Parse(r.Policy)
	if r.OwnConcurrencyUnset || len(r.Policy) == 0 || len(errs) > 0 || int64(effective.Concurrency) >= policy.ConcurrencyAt(r.PlanPolicy, now) {
		return nil
	}
	return &effective.Concurrency
}
