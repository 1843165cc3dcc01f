package explain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var now = time.Date(2026, 3, 2, 16, 20, 0, 0, time.UTC)

func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		of        explain.ImageSnapshot
		want      readapi.WhyVerdict
		wantState string
		wantText  string
	}{
		"ready":              {explain.ImageSnapshot{Phase: v1alpha1.PhaseSucceeded, Reason: "Ready"}, readapi.WhyReady, "Succeeded, Ready", ""},
		"being pruned":       {explain.ImageSnapshot{Phase: v1alpha1.PhasePrunePending}, readapi.WhyReady, "PrunePending", ""},
		"failed":             {explain.ImageSnapshot{Phase: v1alpha1.PhaseFailed, Reason: v1alpha1.ReasonNotFound, Message: "404"}, readapi.WhyFailed, "Failed, NotFound", ""},
		"stalled":            {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Stalled: true}, readapi.WhyHeld, "Queued", ""},
		"paused":             {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonPaused}, readapi.WhyHeld, "Queued, Paused", ""},
		"out of date":        {explain.ImageSnapshot{Phase: v1alpha1.PhaseSucceeded, Unknown: "Silent"}, readapi.WhyUnknown, "Succeeded", ""},
		"missing":            {explain.ImageSnapshot{Missing: true}, readapi.WhyUnknown, "not known", ""},
		"new":                {explain.ImageSnapshot{}, readapi.WhyWaits, "new", ""},
		"planned":            {explain.ImageSnapshot{Plan: v1alpha1.PlanItemWaiting, Message: "not created yet"}, readapi.WhyWaits, "Planned", ""},
		"planned, held":      {explain.ImageSnapshot{Plan: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing, Message: "create it"}, readapi.WhyHeld, "Planned, NamespaceMissing", ""},
		"planned and silent": {explain.ImageSnapshot{Plan: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing, Unknown: "Silent"}, readapi.WhyUnknown, "Planned, NamespaceMissing", ""},
		"rejected":           {explain.ImageSnapshot{Plan: v1alpha1.PlanItemRejected, Message: "not allowed"}, readapi.WhyFailed, "Rejected", ""},
		"queued":             {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Namespace: "n", Name: "b", Activity: activity()}, readapi.WhyWaits, "Queued", "Waits for a slot. 1 image goes first."},
		"waits for a window": {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForWindow, Message: "opens at 22:00", Namespace: "n", Name: "b", Activity: activity()}, readapi.WhyWaits, "Queued, WaitingForWindow", ""},
		"queued and silent":  {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Namespace: "n", Name: "b", Activity: activity(), Unknown: "Silent"}, readapi.WhyUnknown, "Queued", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.of.Now = now
			w := explain.NewImage(c.of)
			assert.Equal(t, c.want, w.Verdict)
			assert.Equal(t, c.wantState, w.State())
			assert.Equal(t, c.wantText, w.Waiting())
			if c.wantText == "" {
				assert.Equal(t, c.of.Message, w.ShownMessage())
			}
		})
	}
}

// TestEstimates: what is in no queue yet has none, also no reason why there is none. So the hub answers.
func TestEstimates(t *testing.T) {
	for name, c := range map[string]struct {
		of         explain.ImageSnapshot
		wantReason string // empty: no estimate
	}{
		"queued":               {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Name: "b", Activity: activity()}, string(eta.UnknownSize)},
		"queued, not listed":   {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Name: "c", Activity: activity()}, string(eta.UnknownNotListed)},
		"imported, not listed": {explain.ImageSnapshot{Phase: v1alpha1.PhaseSyncing, Name: "c", Activity: activity()}, string(eta.UnknownNotListed)},
		"queued, not reported": {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Name: "b"}, string(eta.UnknownNotReported)},
		"queued and silent":    {explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Name: "b", Activity: activity(), Unknown: "Silent"}, ""},
		"new":                  {explain.ImageSnapshot{Name: "c", Activity: activity()}, ""},
		"new, listed already":  {explain.ImageSnapshot{Name: "b", Activity: activity()}, string(eta.UnknownSize)},
		"new, not reported":    {explain.ImageSnapshot{Name: "b"}, ""},
		"planned":              {explain.ImageSnapshot{Plan: v1alpha1.PlanItemWaiting, Name: "c", Activity: activity()}, ""},
		"planned, held":        {explain.ImageSnapshot{Plan: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing, Name: "c", Activity: activity()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.of.Now, c.of.ObservedAt, c.of.Namespace = now, now, "n"
			if c.of.Activity != nil {
				c.of.Activity.ObservedAt = metav1.NewTime(now)
			}
			w := explain.NewImage(c.of)
			if c.wantReason == "" {
				assert.Nil(t, w.Expected)
				return
			}
			require.NotNil(t, w.Expected)
			assert.Equal(t, c.wantReason, w.Expected.Reason)
		})
	}
}

// TestReportedPlan: what an agent did with a planned image explains one that it did not create.
func TestReportedPlan(t *testing.T) {
	for name, c := range map[string]struct {
		of                     v1alpha1.ReportedImage
		want                   readapi.WhyVerdict
		wantState, wantMessage string
	}{
		"waits":            {v1alpha1.ReportedImage{Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Message: "not created yet"}}, readapi.WhyWaits, "Planned", "not created yet"},
		"of a person":      {v1alpha1.ReportedImage{Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceTerminating, Message: "it is being deleted"}}, readapi.WhyHeld, "Planned, NamespaceTerminating", "it is being deleted"},
		"rejected":         {v1alpha1.ReportedImage{Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: "namespace images is not allowed"}}, readapi.WhyFailed, "Rejected", "namespace images is not allowed"},
		"created":          {v1alpha1.ReportedImage{UID: "1", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied}}, readapi.WhyWaits, "new", "the agent has not processed it yet"},
		"an edit rejected": {v1alpha1.ReportedImage{UID: "1", Phase: v1alpha1.PhaseSucceeded, Message: "ready", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: "immutable"}}, readapi.WhyReady, "Succeeded", "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			s := explain.ImageSnapshot{Now: now}
			s.SetReported(&c.of, false)
			w := explain.NewImage(s)
			assert.Equal(t, c.want, w.Verdict)
			assert.Equal(t, c.wantState, w.State())
			assert.Equal(t, c.wantMessage, w.ShownMessage())
		})
	}
}

func activity() *v1alpha1.ReportedActivity {
	return &v1alpha1.ReportedActivity{Budget: 1, Queued: 2, Head: []v1alpha1.QueuedImport{{Namespace: "n", Name: "a"}, {Namespace: "n", Name: "b"}}}
}

func TestPassedOver(t *testing.T) {
	later, earlier := metav1.NewTime(now.Add(time.Minute)), metav1.NewTime(now.Add(-time.Minute))
	for name, c := range map[string]struct {
		of   explain.Import
		want string
	}{
		"its turn":     {explain.Import{Place: 1}, ""},
		"runs":         {explain.Import{NotBefore: &later}, ""},
		"backs off":    {explain.Import{Place: 1, NotBefore: &later, Attempt: 2}, "backs off until 16:21, after attempt 2"},
		"has done so":  {explain.Import{Place: 1, NotBefore: &earlier, Attempt: 2}, ""},
		"of a person":  {explain.Import{Place: 1, Reason: v1alpha1.ReasonSecretMissing}, "is passed over: SecretMissing"},
		"of the fleet": {explain.Import{Place: 1, Reason: v1alpha1.ReasonWaitingForFleet}, "WaitingForFleet"},
		"of a window":  {explain.Import{Place: 1, Reason: v1alpha1.ReasonWaitingForWindow}, "WaitingForWindow"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, c.of.PassedOver(now, func(at time.Time) string { return at.Format("15:04") }))
		})
	}
}

func TestBudgetChain(t *testing.T) {
	w := explain.NewImage(explain.ImageSnapshot{Phase: v1alpha1.PhaseQueued, Budget: explain.Budget{
		Budget: ptr.To(int32(3)), PolicyConcurrency: ptr.To(int32(4)), PolicySource: "fleet default", Granted: ptr.To(int32(3)), FleetConcurrency: ptr.To(int64(20)),
	}})
	assert.Equal(t, []string{"policy: concurrency 4 (fleet default)", "this cluster's own ConfigMap: none", "grant: 3 of 20"}, w.BudgetChain())
	w.Budget.Budget = nil
	assert.Empty(t, w.BudgetChain(), "an unknown budget is not explained")
}
