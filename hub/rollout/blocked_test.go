package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// block has the clusters of some names wait for a Secret.
func block(v rollout.View, names string) rollout.View {
	for i := range v.Clusters {
		if c := &v.Clusters[i]; strings.Contains(" "+names+" ", " "+c.Name+" ") {
			c.Report.Phase, c.Report.Reason, c.Report.Message = v1alpha1.PhaseQueued, v1alpha1.ReasonSecretMissing, "Secret images/pull does not exist"
		}
	}
	return v
}

// decideAfterGrace decides, and again once blocked clusters count. The starts are those of the
// first decision.
func decideAfterGrace(t *testing.T, v rollout.View) rollout.Decision {
	t.Helper()
	first := decideAndCheck(t, v)
	assert.NotEqual(t, v1alpha1.ReasonClustersBlocked, first.Status.Reason, "a cluster may be blocked for a moment")
	d := decideAndCheck(t, advanceView(v, first, time.Minute))
	d.Start = first.Start
	return d
}

// A namespace or Secret often arrives seconds after the image.
func TestBlockedGrace(t *testing.T) {
	blocked := block(newView(newUbuntu(), "canary=P"), "canary-0")
	first := decideAndCheck(t, blocked)
	assert.Equal(t, v1alpha1.RolloutProgressing, first.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonAwaitingClusters, first.Status.Reason)
	assert.Len(t, first.Status.Blocked, 1, "it is listed at once")
	assert.True(t, meta.IsStatusConditionTrue(first.Status.Conditions, v1alpha1.ConditionReconciling))
	require.Equal(t, time.Minute, first.RequeueAfter)

	waiting := advanceView(blocked, first, time.Minute-time.Second)
	second := decideAndCheck(t, waiting)
	assert.Equal(t, v1alpha1.ReasonAwaitingClusters, second.Status.Reason)
	assert.Equal(t, time.Second, second.RequeueAfter)
	stalled := decideAndCheck(t, advanceView(waiting, second, second.RequeueAfter))
	assert.Equal(t, v1alpha1.ReasonClustersBlocked, stalled.Status.Reason)

	proceeds := waiting
	proceeds.Clusters = parseClusters("canary=P")
	d := decideAndCheck(t, proceeds)
	assert.Nil(t, d.Status.BlockedSince, "the next time gets a minute of its own")

	restored := advanceView(blocked, first, -time.Hour)
	assert.Equal(t, time.Minute, decideAndCheck(t, restored).RequeueAfter, "the hub's clock was set back")
}

// A member that somebody has paused is listed, and nothing is wrong with it.
func TestPausedClusters(t *testing.T) {
	pause := func(v rollout.View, names ...string) rollout.View {
		for i := range v.Clusters {
			if c := &v.Clusters[i]; slices.Contains(names, c.Name) {
				c.Report.Phase, c.Report.Reason = v1alpha1.PhaseQueued, v1alpha1.ReasonPaused
			}
		}
		return v
	}
	d := decideAfterGrace(t, pause(newView(newUbuntu(), "canary=PP"), "canary-0", "canary-1"))
	assert.Len(t, d.Status.Blocked, 2)
	assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonAwaitingClusters, d.Status.Reason)
	assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionReconciling))

	d = decideAfterGrace(t, pause(block(newView(newUbuntu(), "canary=PP"), "canary-0"), "canary-1"))
	assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled), "the other lacks something")
}

func TestBlockedClusters(t *testing.T) {
	for name, tt := range map[string]struct {
		img         *builder
		fleet       string
		blocked     string
		wantPhase   v1alpha1.RolloutPhase
		wantReason  string
		wantStalled bool
		wantStart   []string
	}{
		"the only one":                {newUbuntu(), "canary=P", "canary-0", v1alpha1.RolloutWaiting, v1alpha1.ReasonClustersBlocked, true, nil},
		"the others have it":          {newUbuntu(), "canary=PS eu=.", "canary-0", v1alpha1.RolloutWaiting, v1alpha1.ReasonClustersBlocked, true, nil},
		"another proceeds":            {newUbuntu(), "canary=PP", "canary-0", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, nil},
		"another starts":              {newUbuntu(), "canary=P.", "canary-0", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, []string{"canary-1"}},
		"they hold maxConcurrency":    {newUbuntu().WithMaxConcurrency("1"), "canary=P.", "canary-0", v1alpha1.RolloutWaiting, v1alpha1.ReasonClustersBlocked, true, nil},
		"one holds maxConcurrency":    {newUbuntu().WithMaxConcurrency("2"), "canary=PP.", "canary-0", v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency, false, nil},
		"too many others have failed": {newUbuntu(), "canary=FP", "canary-1", v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures, true, nil},
		"paused":                      {newUbuntu().Paused(), "canary=P.", "canary-0", v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused, false, nil},
		"none is":                     {newUbuntu(), "canary=P", "", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, nil},
		"past its deadline":           {newUbuntu(), "canary=T", "canary-0", v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures, true, nil},
		"offline":                     {newUbuntu(), "canary=dP", "canary-0", v1alpha1.RolloutProgressing, v1alpha1.ReasonAwaitingClusters, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAfterGrace(t, block(newView(tt.img, tt.fleet), tt.blocked))
			assert.Equal(t, tt.wantPhase, d.Status.Phase)
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			assert.Equal(t, tt.wantStart, d.Start)
			assert.Equal(t, tt.wantStalled, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled))
			assert.Equal(t, tt.wantPhase == v1alpha1.RolloutProgressing, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionProgressing))
			if tt.blocked == "" || strings.ContainsAny(tt.fleet, "Td") {
				assert.Empty(t, d.Status.Blocked)
				return
			}
			assert.Equal(t, []v1alpha1.ClusterSummary{{
				Cluster: tt.blocked, State: v1alpha1.ClusterProgressing, Reason: "SecretMissing", Message: "Secret images/pull does not exist",
			}}, d.Status.Blocked)
			assert.Contains(t, d.Status.Message, ". In 1 cluster a person has to act: "+tt.blocked+" (SecretMissing: Secret images/pull does not exist). See status.blocked")
		})
	}
}

// A cluster is blocked for reasons that do not pass by themselves, whoever reports them.
func TestBlockedReasons(t *testing.T) {
	waiting := func(reason v1alpha1.Reason, revision string) rollout.Report {
		return rollout.Report{ItemState: v1alpha1.PlanItemWaiting, ItemReason: reason, ItemMessage: "says why", ItemRevision: revision}
	}
	queued := func(reason v1alpha1.Reason, revision string) rollout.Report {
		return rollout.Report{Exists: true, Revision: revision, Phase: v1alpha1.PhaseQueued, Reason: reason, Message: "says why", ItemState: v1alpha1.PlanItemApplied}
	}
	stalled := func(reason v1alpha1.Reason, revision string) rollout.Report {
		r := queued(reason, revision)
		r.Stalled = true
		return r
	}
	for name, tt := range map[string]struct {
		report rollout.Report
		want   bool
	}{
		"no namespace":                     {waiting(v1alpha1.ReasonNamespaceMissing, revision), true},
		"no namespace, without a revision": {waiting(v1alpha1.ReasonNamespaceMissing, ""), true},
		"quota of images":                  {waiting(v1alpha1.ReasonQuotaExceeded, revision), true},
		"no namespace for the former one":  {waiting(v1alpha1.ReasonNamespaceMissing, "former"), false},
		"not created yet":                  {waiting("", revision), false},
		"no StorageClass":                  {queued(v1alpha1.ReasonStorageClassMissing, revision), true},
		"no Secret":                        {queued(v1alpha1.ReasonSecretMissing, revision), true},
		"Secrets may not be read":          {queued(v1alpha1.ReasonSecretForbidden, revision), true},
		"a Secret has no headers":          {queued(v1alpha1.ReasonSecretInvalid, revision), true},
		"no ConfigMap":                     {queued(v1alpha1.ReasonCertConfigMapMissing, revision), true},
		"no CDI":                           {queued(v1alpha1.ReasonCDIMissing, revision), true},
		"no storage":                       {queued(v1alpha1.ReasonInsufficientStorage, revision), true},
		"no policy":                        {queued(v1alpha1.ReasonPolicyMissing, revision), true},
		"concurrency 0":                    {queued(v1alpha1.ReasonPaused, revision), true},
		"the API server refuses, by quota": {queued(v1alpha1.ReasonQuotaExceeded, revision), true},
		"the agent says so":                {stalled(v1alpha1.ReasonVolumePending, revision), true},
		"the agent said so before":         {stalled(v1alpha1.ReasonVolumePending, "former"), false},
		"may pass":                         {queued(v1alpha1.ReasonVolumePending, revision), false},
		"held by machines":                 {queued(v1alpha1.ReasonReferenced, revision), true},
		"no Secret for the former one":     {queued(v1alpha1.ReasonSecretMissing, "former"), false},
		"waits for a slot":                 {queued(v1alpha1.ReasonWaitingForSlot, revision), false},
		"waits for the fleet":              {queued(v1alpha1.ReasonWaitingForFleet, revision), false},
		"backs off":                        {queued(v1alpha1.ReasonBackingOff, revision), false},
		"is checked":                       {queued(v1alpha1.ReasonChecking, revision), false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu(), "canary=P")
			v.Clusters[0].Report = tt.report
			d := decideAfterGrace(t, v)
			assert.Equal(t, tt.want, len(d.Status.Blocked) == 1, "%+v", d.Status)
			assert.Equal(t, tt.want && !strings.Contains(name, "concurrency 0"), d.Status.Reason == v1alpha1.ReasonClustersBlocked)
		})
	}
}

func TestBlockedClustersAreBounded(t *testing.T) {
	v := newView(newUbuntu(), "canary="+strings.Repeat("P", 300))
	names := ""
	for i := range v.Clusters {
		c := &v.Clusters[i]
		names += fmt.Sprintf("%s ", c.Name)
	}
	v = block(v, names)
	for i := range v.Clusters {
		v.Clusters[i].Report.Message = strings.Repeat("m", 4000)
	}
	d := decideAndCheck(t, v)
	require.Len(t, d.Status.Blocked, v1alpha1.MaxBlockedClusters)
	assert.Less(t, len(d.Status.Message), 2048)
	assert.Contains(t, d.Status.Message, "and 295 more. See status.blocked")
	for _, c := range d.Status.Blocked {
		assert.LessOrEqual(t, len(c.Message), 256)
	}
}
