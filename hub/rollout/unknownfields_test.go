package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// age has the agents of some clusters not know what the template uses.
func age(v rollout.View, names string) rollout.View {
	for i := range v.Clusters {
		if c := &v.Clusters[i]; slices.Contains(strings.Fields(names), c.Name) {
			c.AgentVersion, c.UnknownFields = "v0.2.0", []string{"extraHeaders", "sourceType=gcs"}
		}
	}
	return v
}

// A cluster whose agent would drop a field, or refuse a value, does not begin, and says so.
func TestClustersWithOlderAgents(t *testing.T) {
	for name, tt := range map[string]struct {
		img         *builder
		fleet       string
		old         string
		wantStates  string
		wantPhase   v1alpha1.RolloutPhase
		wantReason  string
		wantStalled bool
		wantStart   []string
		wantListed  string
	}{
		"the only one":                    {newUbuntu(), "canary=.", "canary-0", "canary=. eu=", v1alpha1.RolloutWaiting, v1alpha1.ReasonFieldsUnknown, true, nil, "canary-0"},
		"the others have it":              {newUbuntu(), "canary=.S eu=.", "canary-0", "canary=.S eu=.", v1alpha1.RolloutWaiting, v1alpha1.ReasonFieldsUnknown, true, nil, "canary-0"},
		"another starts":                  {newUbuntu(), "canary=..", "canary-0", "canary=.P", v1alpha1.RolloutProgressing, v1alpha1.ReasonFieldsUnknown, false, []string{"canary-1"}, "canary-0"},
		"another proceeds":                {newUbuntu(), "canary=.P", "canary-0", "canary=.P", v1alpha1.RolloutProgressing, v1alpha1.ReasonFieldsUnknown, false, nil, "canary-0"},
		"another has no room":             {newUbuntu(), "canary=.f", "canary-0", "canary=..", v1alpha1.RolloutWaiting, v1alpha1.ReasonFieldsUnknown, true, nil, "canary-0"},
		"it does not take maxConcurrency": {newUbuntu().WithMaxConcurrency("1"), "canary=...", "canary-0", "canary=.P.", v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency, false, []string{"canary-1"}, "canary-0"},
		"in a later wave":                 {newUbuntu(), "canary=P eu=.", "eu-0", "canary=P eu=.", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, nil, "eu-0"},
		"it has this revision already":    {newUbuntu(), "canary=S", "canary-0", "canary=.", v1alpha1.RolloutWaiting, v1alpha1.ReasonFieldsUnknown, true, nil, "canary-0"},
		"it imports this revision":        {newUbuntu(), "canary=P", "canary-0", "canary=.", v1alpha1.RolloutWaiting, v1alpha1.ReasonFieldsUnknown, true, nil, "canary-0"},
		"offline":                         {newUbuntu(), "canary=DP", "canary-0", "canary=DP", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, nil, ""},
		"paused":                          {newUbuntu().Paused(), "canary=.", "canary-0", "canary=.", v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused, false, nil, "canary-0"},
		"too many others have failed":     {newUbuntu(), "canary=F.", "canary-1", "canary=F.", v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures, true, nil, "canary-1"},
		"none":                            {newUbuntu(), "canary=.", "", "canary=P", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, []string{"canary-0"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := age(newView(tt.img, tt.fleet), tt.old)
			first := decideAndCheck(t, v)
			assert.Equal(t, tt.wantStart, first.Start)
			assert.False(t, first.Status.Reason == v1alpha1.ReasonFieldsUnknown && meta.IsStatusConditionTrue(first.Status.Conditions, v1alpha1.ConditionStalled), "the agent may be upgraded at this moment")
			d := decideAndCheck(t, advanceView(v, first, time.Minute))
			assert.Equal(t, strings.TrimSuffix(tt.wantStates, " eu="), formatStates(d))
			assert.Equal(t, tt.wantPhase, d.Status.Phase)
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			assert.Equal(t, tt.wantStalled, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled))
			if tt.wantListed == "" {
				assert.Empty(t, d.Status.Blocked)
				return
			}
			const message = "its agent v0.2.0, or a CustomResourceDefinition there, does not know spec.template's extraHeaders, sourceType gcs: upgrade chart ot-agent"
			for _, said := range []rollout.Decision{first, d} {
				assert.Equal(t, []v1alpha1.ClusterSummary{{Cluster: tt.wantListed, State: v1alpha1.ClusterToApply, Reason: v1alpha1.ReasonFieldsUnknown, Message: message}}, said.Status.Blocked)
				assert.Contains(t, said.Status.Message, ". In 1 cluster a person has to act: "+tt.wantListed+" (FieldsUnknown: "+message+"). See status.blocked")
			}
			i := slices.IndexFunc(d.Placed, func(p rollout.PlacedCluster) bool { return p.Cluster == tt.wantListed })
			assert.Equal(t, []string{v1alpha1.ReasonFieldsUnknown, message}, []string{d.Placed[i].Reason, d.Placed[i].Message}, "the read API has it, too")

			upgraded := advanceView(v, d, time.Second)
			upgraded.Clusters = parseClusters(tt.fleet)
			healed := decideAndCheck(t, upgraded)
			assert.NotEqual(t, v1alpha1.ReasonFieldsUnknown, healed.Status.Reason)
			assert.Empty(t, healed.Status.Blocked)
			assert.Nil(t, healed.Status.BlockedSince)
		})
	}
}

func TestUnknownFieldsAreBounded(t *testing.T) {
	v := age(newView(newUbuntu(), "canary=."), "canary-0")
	v.Clusters[0].AgentVersion = strings.Repeat("9", 1000)
	v.Clusters[0].UnknownFields = slices.Repeat([]string{strings.Repeat("f", 60)}, 64)
	d := decideAndCheck(t, v)
	assert.LessOrEqual(t, len(d.Status.Blocked[0].Message), 256)
	v.Clusters[0].AgentVersion, v.Clusters[0].UnknownFields = "", []string{"a", "b", "c", "d", "e", "f", "g"}
	assert.Equal(t, "its agent, or a CustomResourceDefinition there, does not know spec.template's a, b, c, d, e and 2 more: upgrade chart ot-agent", decideAndCheck(t, v).Status.Blocked[0].Message)
}
