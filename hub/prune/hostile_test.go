package prune_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// Reports are bounded by their schema already; the status of the hub does not rely on it.
func TestStatusCanBeStoredWhateverMembersReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return apitest.HostileText().Draw(t, what) }
		clusters := drawClusters(t)
		for i := range clusters {
			c := &clusters[i]
			if c.Unknown != "" {
				c.Unknown, c.Message = text("unknown"), text("message")
			}
			for j := range c.Images {
				if rapid.IntRange(0, 5).Draw(t, "hostile") == 0 {
					img := &c.Images[j]
					img.Reason, img.Message, img.Source = v1alpha1.Reason(text("reason")), text("message"), text("source")
				}
			}
			if c.Root != nil {
				c.Root.AgentVersion = text("version")
			}
		}
		judged := judgeAll(drawSpec(t), clusters)
		pages, digest, err := prune.Paginate("u", judged)
		require.NoError(t, err)
		for _, c := range judged {
			require.NotContains(t, c.Message, apitest.Secret)
		}
		st := prune.CompleteStatus(newReport(withStarted), judged, len(pages), digest, now)
		schemacheck.RequireStorable(t, "PruneReport", &st)
		answers := make([]prune.AnswerState, len(clusters))
		for i := range answers {
			answers[i] = prune.AnswerState{Cluster: clusters[i].Name, Unknown: text("answer"), Message: text("says"), Offline: rapid.Bool().Draw(t, "offline")}
		}
		d := decideReport(t, prune.ReportView{Report: newReport(withStarted), Clusters: answers, Now: now})
		schemacheck.RequireStorable(t, "PruneReport", &d.Status)
		require.NotContains(t, toJSON(t, d.Status), apitest.Secret)
	})
}

// What clusters report of an ImagePrune, and what its PruneReport says, ends in its status.
func TestImagePruneCanBeStoredWhateverMembersReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return apitest.HostileText().Draw(t, what) }
		s := newPruneScenario(func(p *v1alpha1.ImagePrune) {
			if rapid.Bool().Draw(t, "not started") {
				p.Status = v1alpha1.ImagePruneStatus{ObservedGeneration: -1}
			}
			p.Spec.Undo = rapid.Bool().Draw(t, "undo")
		})
		if rapid.Bool().Draw(t, "many") {
			s.Targets = prune.SelectTargets(&s.Prune.Spec, append(newReviewedClusters(), newLargeCluster("large", v1alpha1.MaxPlannedPrunes+60, 0, 0)))
			s.Members["large"] = prune.Member{ClusterUID: "uid-large"}
		}
		states := append(v1alpha1.PruneStates(), "", "Invented", v1alpha1.PruneState(text("state")))
		state, reason, message := rapid.SampledFrom(states).Draw(t, "reported state"), text("reason"), text("message")
		for i, target := range s.Targets {
			if i < 3 { // the large cluster says the same of each of its images
				state, reason, message = rapid.SampledFrom(states).Draw(t, "reported state"), text("reason"), text("message")
			}
			if rapid.IntRange(0, 3).Draw(t, "silent") > 0 {
				s.reported[targetKey(target)] = v1alpha1.PruneStatus{UID: s.Prune.UID, State: state, Reason: reason, Message: message}
			}
		}
		held := rapid.SampledFrom([]string{"", v1alpha1.PruneAnotherPrune, text("held")}).Draw(t, "held reason")
		offline := rapid.SampledFrom([]string{"", v1alpha1.ReasonSilent, v1alpha1.ReasonTwoAgents}).Draw(t, "offline")
		s.HeldReason = func(prune.Target) string { return held }
		s.Members["a"] = prune.Member{ClusterUID: "uid-a", OfflineReason: offline}
		s.Now = s.Now.Add(rapid.SampledFrom([]time.Duration{0, 48 * time.Hour}).Draw(t, "passed"))
		s.AbsentClusters = rapid.SampledFrom([][]string{nil, {text("absent")}}).Draw(t, "absent clusters")
		s.ChangedReason = rapid.SampledFrom([]string{"", text("changed")}).Draw(t, "changed reason")
		if rapid.IntRange(0, 3).Draw(t, "failed report") == 0 {
			s.Report.Status.Phase, s.Report.Status.Reason = v1alpha1.PruneReportFailed, text("why the report failed")
		}
		s.ApprovalGuarded = metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyNotInForce, Message: text("guard")}

		d := prune.Decide(s.PruneView)
		schemacheck.RequireStorable(t, "ImagePrune", &d.Status)
		statuscheck.RequireOneTrue(t, d.Status.Conditions)
		require.NotContains(t, toJSON(t, d.Status), apitest.Secret)
	})
}
