package prune_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
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

// The states of an ImagePrune's targets are their members' words, unknown ones included.
func TestImagePruneCanBeStoredWhateverMembersReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newPruneScenario()
		states := append(v1alpha1.PruneStates(), "", "Invented")
		for _, target := range s.Targets {
			if rapid.IntRange(0, 3).Draw(t, "silent") == 0 {
				continue
			}
			s.reported[targetKey(target)] = v1alpha1.PruneStatus{
				UID: s.Prune.UID, State: rapid.SampledFrom(states).Draw(t, "state"),
				Reason: apitest.HostileText().Draw(t, "reason"), Message: apitest.HostileText().Draw(t, "message"),
			}
		}
		d := decideAndCheck(t, s.PruneView)
		schemacheck.RequireStorable(t, "ImagePrune", &d.Status)
		require.NotContains(t, toJSON(t, d.Status), apitest.Secret)
	})
}
