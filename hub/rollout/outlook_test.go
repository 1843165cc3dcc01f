package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func TestReachOfAWave(t *testing.T) {
	disk := newUbuntu().Obj().Spec.Template.DiskSize.Value()
	for name, tt := range map[string]struct {
		img      *builder
		fleet    string
		known    []string // clusters with an activity
		budget   *policy.Budget
		bytes    int64
		want     time.Duration
		wantWhy  eta.Unknown
		starting []string
		offline  int
		each     int64
		atMost   bool
	}{
		"all together":                           {newUbuntu(), "canary=S eu=..", []string{"eu-0", "eu-1"}, nil, 3600 * perSecond, time.Hour, "", []string{"eu-0", "eu-1"}, 0, 3600 * perSecond, false},
		"one after the other":                    {newUbuntu().WithMaxConcurrency("1"), "canary=S eu=..", []string{"eu-0", "eu-1"}, nil, 3600 * perSecond, 2 * time.Hour, "", []string{"eu-0", "eu-1"}, 0, 3600 * perSecond, false},
		"the fleet's slots":                      {newUbuntu(), "canary=S eu=...", []string{"eu-0", "eu-1", "eu-2"}, &policy.Budget{Concurrency: 1}, 3600 * perSecond, 3 * time.Hour, "", []string{"eu-0", "eu-1", "eu-2"}, 0, 3600 * perSecond, false},
		"no slots":                               {newUbuntu(), "canary=S eu=.", []string{"eu-0"}, &policy.Budget{}, 3600 * perSecond, 0, eta.UnknownNothingGranted, []string{"eu-0"}, 0, 3600 * perSecond, false},
		"those without activity are as others":   {newUbuntu().WithMaxConcurrency("1"), "canary=S eu=..", []string{"eu-1"}, nil, 3600 * perSecond, 2 * time.Hour, "", []string{"eu-0", "eu-1"}, 0, 3600 * perSecond, false},
		"nothing is known":                       {newUbuntu(), "canary=S eu=.", nil, nil, 3600 * perSecond, 0, eta.UnknownNotReported, []string{"eu-0"}, 0, 3600 * perSecond, false},
		"offline ones start, and take no time":   {newUbuntu(), "canary=S eu=D", nil, nil, 3600 * perSecond, 0, "", []string{"eu-0"}, 1, 3600 * perSecond, false},
		"what has started does not count":        {newUbuntu(), "canary=SSS eu=SPF", []string{"eu-1"}, nil, 3600 * perSecond, 0, "", nil, 0, 3600 * perSecond, false},
		"without a size that of the disk counts": {newUbuntu(), "canary=S eu=D", nil, nil, 0, 0, "", []string{"eu-0"}, 1, disk, true},
		"a size beyond the disk is not believed": {newUbuntu(), "canary=S eu=D", nil, nil, 1 << 60, 0, "", []string{"eu-0"}, 1, disk, true},
		"the disk's size is not a download's":    {newUbuntu(), "canary=S eu=D", nil, nil, disk, 0, "", []string{"eu-0"}, 1, disk, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(tt.img, tt.fleet)
			v.Image.Spec.Rollout.Waves[1].RequireApproval = true
			v.Budget = tt.budget
			for _, cluster := range tt.known {
				a := newActivity()
				if tt.budget != nil && tt.budget.Concurrency == 0 {
					a.Budget = 0
				}
				v = withActivity(v, cluster, a)
			}
			reach, found := rollout.EstimateReach(v, "eu", tt.bytes)
			require.True(t, found)
			var starting []string
			offline := 0
			for _, p := range reach.Starting {
				starting = append(starting, p.Cluster)
				if p.State == v1alpha1.ClusterDeferred {
					offline++
				}
			}
			assert.Equal(t, tt.starting, starting)
			assert.Equal(t, tt.offline, offline)
			assert.Equal(t, tt.each, reach.EachBytes)
			assert.Equal(t, tt.atMost, reach.AtMost)
			assert.Equal(t, tt.wantWhy, reach.Why)
			assert.InDelta(t, tt.want.Minutes(), reach.Takes.Minutes(), 2)
			assert.LessOrEqual(t, reach.Low, reach.Takes)
			assert.LessOrEqual(t, reach.Takes, reach.High)
		})
	}
	_, found := rollout.EstimateReach(newView(newUbuntu(), "canary=S"), "asia", 0)
	assert.False(t, found)
}

// Fewer clusters at a time never take less time.
func TestReachTakesLongerWithLessConcurrency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "clusters")
		fleet := "canary=S eu="
		for range n {
			fleet += "."
		}
		takes := func(limit int32) time.Duration {
			v := newView(newUbuntu(), fleet)
			v.Image.Spec.Rollout.Waves[1].RequireApproval = true
			v.Budget = &policy.Budget{Concurrency: limit}
			for i := range v.Clusters {
				v.Clusters[i].Activity, v.Clusters[i].ActivityAt = newActivity(), v.Now
			}
			reach, _ := rollout.EstimateReach(v, "eu", 3600*perSecond)
			require.Empty(t, reach.Why)
			return reach.Takes
		}
		limit := rapid.Int32Range(1, 12).Draw(t, "limit")
		assert.GreaterOrEqual(t, takes(limit), takes(limit+1))
	})
}

func TestOutlooks(t *testing.T) {
	v := withActivity(newView(newUbuntu(), "canary=PS eu=D"), "canary-0", withImport(20))
	outlooks := rollout.ListOutlooks(v)
	require.Len(t, outlooks, 3)
	require.NotNil(t, outlooks[0].Expected)
	assert.InDelta(t, 20, outlooks[0].Expected.At.Sub(now).Minutes(), 2)
	assert.Equal(t, now.Add(-deadline/2), outlooks[0].PlannedAt)
	assert.Nil(t, outlooks[1].Expected, "it is ready")
	assert.Zero(t, outlooks[2].PlannedAt)
	// A plan that has the version before says nothing of this one.
	v.Clusters[0].PlannedDigest = "former"
	for _, o := range rollout.ListOutlooks(v) {
		if o.Cluster == "canary-0" {
			assert.Zero(t, o.PlannedAt)
		}
	}
}
