package prune_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// Plan 7 of epoch 1 is stored, and 5 was the first with the inquiry.
func newAnswerView(change ...func(*prune.AnswerView)) prune.AnswerView {
	a := prune.AnswerView{
		ReportUID: "report-uid", Root: newRoot(), RootClusterUID: "uid",
		Plan: &v1alpha1.ClusterPlanSpec{
			PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 7, Hash: "abc"}, ClusterUID: "uid",
			Inquiries: []v1alpha1.PlanInquiry{{UID: "other", Epoch: 1, Sequence: 1}, {UID: "report-uid", Epoch: 1, Sequence: 5}},
		},
	}
	a.Root.Plan = a.Root.AnsweredPlan.DeepCopy()
	for _, do := range change {
		do(&a)
	}
	return a
}

func withAnsweredPlan(epoch, sequence int64, hash string) func(*prune.AnswerView) {
	return func(a *prune.AnswerView) {
		a.Root.AnsweredPlan = &v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence, Hash: hash}
	}
}

func TestUnansweredReason(t *testing.T) {
	tests := map[string]struct {
		change      func(*prune.AnswerView)
		want        string
		wantMessage string
	}{
		"the stored plan":                    {change: withAnsweredPlan(1, 7, "abc")},
		"the first plan with the inquiry":    {change: withAnsweredPlan(1, 5, "five")},
		"an earlier plan":                    {withAnsweredPlan(1, 4, "four"), v1alpha1.ReasonNotAnswered, "does not answer the inquiry yet"},
		"a plan of an earlier epoch":         {withAnsweredPlan(0, 9, "nine"), v1alpha1.ReasonNotAnswered, "does not answer the inquiry yet"},
		"another plan of the same version":   {withAnsweredPlan(1, 7, "other"), v1alpha1.ReasonNotAnswered, "this hub does not know"},
		"a version without a hash":           {withAnsweredPlan(1, 7, ""), v1alpha1.ReasonNotAnswered, "this hub does not know"},
		"a plan above the stored one":        {withAnsweredPlan(1, 8, "eight"), v1alpha1.ReasonNotAnswered, "this hub does not know"},
		"a plan of a later epoch":            {withAnsweredPlan(2, 1, "two"), v1alpha1.ReasonNotAnswered, "this hub does not know"},
		"an old agent":                       {func(a *prune.AnswerView) { a.Root.AnsweredPlan = nil }, v1alpha1.ReasonAgentTooOld, "upgrade the agent"},
		"an old agent, not acknowledged yet": {func(a *prune.AnswerView) { a.Root.AnsweredPlan, a.Root.Plan.Sequence = nil, 4 }, v1alpha1.ReasonNotAnswered, "yet"},
		"an old agent, nothing acknowledged": {func(a *prune.AnswerView) { a.Root.AnsweredPlan, a.Root.Plan = nil, nil }, v1alpha1.ReasonNotAnswered, "yet"},
		"acknowledged, but not answered yet": {withAnsweredPlan(1, 3, "three"), v1alpha1.ReasonNotAnswered, "yet"},
		"no inquiry in the plan yet":         {func(a *prune.AnswerView) { a.Plan.Inquiries = a.Plan.Inquiries[:1] }, v1alpha1.ReasonNotAnswered, "does not contain the inquiry yet"},
		"no plan":                            {func(a *prune.AnswerView) { a.Plan = nil }, v1alpha1.ReasonNotAnswered, "no plan"},
		"no report":                          {func(a *prune.AnswerView) { a.Root = nil }, v1alpha1.ReasonNeverReported, "has not reported"},
		"the report of another cluster":      {func(a *prune.AnswerView) { a.RootClusterUID = "rebuilt" }, v1alpha1.ReasonAnotherCluster, "IdentityConfirmed"},
		"in quarantine":                      {func(a *prune.AnswerView) { a.StaleReason, a.Offline = v1alpha1.ReasonQuarantined, true }, v1alpha1.ReasonQuarantined, "quarantine"},
		"a stale reason":                     {func(a *prune.AnswerView) { a.StaleReason = v1alpha1.ReasonPagesMissing }, v1alpha1.ReasonPagesMissing, "pages"},
		"no room in the report":              {func(a *prune.AnswerView) { a.StaleReason = v1alpha1.ReasonPagesOmitted }, v1alpha1.ReasonPagesOmitted, "no room"},
		"two agents":                         {func(a *prune.AnswerView) { a.StaleReason = v1alpha1.ReasonTwoAgents }, v1alpha1.ReasonTwoAgents, "IdentityConfirmed"},
		"an unknown stale reason":            {func(a *prune.AnswerView) { a.StaleReason = "OfTomorrow" }, "OfTomorrow", "see its MemberCluster"},
		"offline":                            {func(a *prune.AnswerView) { a.Offline = true }, v1alpha1.ReasonOffline, "does not report"},
		"offline and silent":                 {func(a *prune.AnswerView) { a.Offline, a.StaleReason = true, v1alpha1.ReasonSilent }, v1alpha1.ReasonOffline, "(Silent)"},
		"offline and replaced":               {func(a *prune.AnswerView) { a.Offline, a.StaleReason = true, v1alpha1.ReasonAnotherCluster }, v1alpha1.ReasonAnotherCluster, "IdentityConfirmed"},
		"offline and never reported":         {func(a *prune.AnswerView) { a.Offline, a.StaleReason = true, v1alpha1.ReasonNeverReported }, v1alpha1.ReasonNeverReported, "ot-agent"},
		"the agent refuses the plan": {func(a *prune.AnswerView) {
			withAnsweredPlan(1, 4, "four")(a)
			a.Root.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlanAccepted, Status: metav1.ConditionFalse, Message: "concurrency: " + strings.Repeat("x", 1000)}}
		}, v1alpha1.ReasonNotAnswered, "refuses the plan: concurrency"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			unknown, message := prune.UnansweredReason(newAnswerView(test.change))
			require.Equal(t, test.want, unknown)
			require.Contains(t, message, test.wantMessage)
			require.LessOrEqual(t, len(message), 512)
			require.Equal(t, test.want == "", message == "")
		})
	}
}
