package rollout_test

import (
	"fmt"
	"strings"
	"testing"

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
			d := decideAndCheck(t, block(newView(tt.img, tt.fleet), tt.blocked))
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
		"no ConfigMap":                     {queued(v1alpha1.ReasonCertConfigMapMissing, revision), true},
		"no CDI":                           {queued(v1alpha1.ReasonCDIMissing, revision), true},
		"no storage":                       {queued(v1alpha1.ReasonInsufficientStorage, revision), true},
		"no policy":                        {queued(v1alpha1.ReasonPolicyMissing, revision), true},
		"concurrency 0":                    {queued(v1alpha1.ReasonPaused, revision), true},
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
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.want, len(d.Status.Blocked) == 1, "%+v", d.Status)
			assert.Equal(t, tt.want, d.Status.Reason == v1alpha1.ReasonClustersBlocked)
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
