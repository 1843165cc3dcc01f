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

// A template may change in fields outside the revision. A cluster that does not know them
// keeps its item, and counts as before.
func TestUnknownFieldsNeverUndoAStart(t *testing.T) {
	for name, tt := range map[string]struct {
		img   *builder
		fleet string
		old   string
		now   string // with the states that follow
	}{
		"succeeded, and the next wave starts": {newUbuntu(), "canary=SS eu=.", "canary-0 canary-1", "canary=SS eu=P"},
		"the whole fleet":                     {newUbuntu(), "canary=SS eu=S", "canary-0 canary-1 eu-0", "canary=SS eu=S"},
		"failed, and counts":                  {newUbuntu(), "canary=F.", "canary-0", "canary=F."},
		"timed out, and counts":               {newUbuntu(), "canary=T.", "canary-0", "canary=T."},
		"takes maxConcurrency":                {newUbuntu().WithMaxConcurrency("1"), "canary=P.", "canary-0", "canary=P."},
		"offline":                             {newUbuntu(), "canary=d.", "canary-0", "canary=DP"},
	} {
		t.Run(name, func(t *testing.T) {
			young := newView(tt.img, tt.fleet)
			want, d := decideAndCheck(t, young), decideAndCheck(t, age(newView(tt.img, tt.fleet), tt.old))
			assert.Equal(t, tt.now, formatStates(d))
			assert.Equal(t, want.Start, d.Start)
			assert.Equal(t, want.Status.Phase, d.Status.Phase)
			assert.Equal(t, want.Status.Reason, d.Status.Reason)
			assert.Equal(t, want.Status.Clusters, d.Status.Clusters)
			assert.Equal(t, want.Status.Waves, d.Status.Waves)
			assert.Equal(t, want.RequeueAfter, d.RequeueAfter, "the deadline stays")
			assert.Contains(t, d.Status.Message, "keep the former fields of spec.template")
			assert.NotContains(t, want.Status.Message, "keep the former fields")
			for _, p := range d.Placed {
				isOld := slices.Contains(strings.Fields(tt.old), p.Cluster)
				assert.Equal(t, isOld, p.KeepsItem, p.Cluster)
				if isOld {
					assert.True(t, p.Started, p.Cluster)
					assert.NotEqual(t, v1alpha1.ReasonFieldsUnknown, p.Reason)
					assert.Contains(t, p.Message, "its plan keeps the former fields: its agent v0.2.0")
				}
			}
		})
	}
}

// A cluster that cannot start holds later waves, as one whose plan is full. The message names
// it and both ways on.
func TestUnknownFieldsHoldLaterWavesUntilExcluded(t *testing.T) {
	d := decideAndCheck(t, age(newView(newUbuntu(), "canary=.S eu=."), "canary-0 eu-0"))
	assert.Equal(t, "canary=.S eu=.", formatStates(d))
	assert.Contains(t, d.Status.Message, "1 cluster in wave canary cannot start, and later waves wait for that: upgrade the agents (canary-0), or add these clusters to spec.placement.excludedClusters")
	full := decideAndCheck(t, newView(newUbuntu(), "canary=fS eu=."))
	assert.Equal(t, "canary=.S eu=.", formatStates(full), "for example where a plan is full")

	excluded := age(newView(newUbuntu(), "canary=.S eu=."), "canary-0")
	excluded.Image.Spec.Placement.ExcludedClusters = []string{"canary-0"}
	assert.Equal(t, "canary=S eu=P", formatStates(decideAndCheck(t, excluded)))
	quarantined := age(newView(newUbuntu(), "canary=qS eu=."), "canary-0")
	assert.Equal(t, "canary=DS eu=P", formatStates(decideAndCheck(t, quarantined)))
}
