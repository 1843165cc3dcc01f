package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

type builder = apitest.FleetDiskImageBuilder

// Waves canary and eu, and rest; nothing but maxFailures 0 keeps them.
func TestDecideStartsClusters(t *testing.T) {
	approval := func(wave string) v1alpha1.Wave {
		return v1alpha1.Wave{Name: wave, RequireApproval: true, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": wave}}}
	}
	own := func(wave, most string) v1alpha1.Wave {
		w := approval(wave)
		w.RequireApproval = false
		if most != "" {
			n := intstr.Parse(most)
			w.MaxConcurrency = &n
		}
		return w
	}
	plain := func() *builder { return apitest.FleetDiskImage("ubuntu").WithProgressDeadline(deadline) }
	for name, tt := range map[string]struct {
		img        *builder
		fleet      string
		want       string // who begins
		wantPhase  v1alpha1.RolloutPhase
		wantReason string
	}{
		"no wave, no limit":                      {plain(), "a=...", "a-0 a-1 a-2", "Progressing", "AwaitingClusters"},
		"the first wave only":                    {newUbuntu(), "canary=.. eu=. a=.", "canary-0 canary-1", "Progressing", "AwaitingClusters"},
		"a wave is on its way":                   {newUbuntu(), "canary=SP eu=. a=.", "", "Progressing", "AwaitingClusters"},
		"the next wave":                          {newUbuntu(), "canary=SS eu=.. a=.", "eu-0 eu-1", "Progressing", "AwaitingClusters"},
		"rest":                                   {newUbuntu(), "canary=S eu=S a=..", "a-0 a-1", "Progressing", "AwaitingClusters"},
		"all done":                               {newUbuntu(), "canary=S eu=S a=S", "", "Succeeded", "RolledOut"},
		"a late joiner of an earlier wave":       {newUbuntu(), "canary=S. eu=S. a=S", "canary-1", "Progressing", "AwaitingClusters"},
		"a late joiner after all was done":       {newUbuntu(), "canary=S eu=S. a=S", "eu-1", "Progressing", "AwaitingClusters"},
		"a wave without clusters":                {newUbuntu(), "eu=.. a=.", "eu-0 eu-1", "Progressing", "AwaitingClusters"},
		"only rest has clusters":                 {newUbuntu(), "a=.", "a-0", "Progressing", "AwaitingClusters"},
		"no clusters":                            {newUbuntu(), "", "", "Waiting", "NoClusters"},
		"as many as may":                         {newUbuntu().WithMaxConcurrency("2"), "canary=....", "canary-0 canary-1", "Progressing", "MaxConcurrency"},
		"one has ended":                          {newUbuntu().WithMaxConcurrency("2"), "canary=SP..", "canary-2", "Progressing", "MaxConcurrency"},
		"none has ended":                         {newUbuntu().WithMaxConcurrency("2"), "canary=PP..", "", "Progressing", "MaxConcurrency"},
		"those that come back hold concurrency":  {newUbuntu().WithMaxConcurrency("2"), "canary=RP.", "", "Progressing", "MaxConcurrency"},
		"more are on their way than may":         {newUbuntu().WithMaxConcurrency("2"), "canary=RPP.", "", "Progressing", "MaxConcurrency"},
		"those that are offline hold none":       {newUbuntu().WithMaxConcurrency("2"), "canary=ddP..", "canary-3", "Progressing", "MaxConcurrency"},
		"a part of the wave, rounded down":       {newUbuntu().WithMaxConcurrency("25%"), "canary=....... eu=...........", "canary-0", "Progressing", "MaxConcurrency"},
		"a part of the wave, offline ones too":   {newUbuntu().WithMaxConcurrency("50%"), "canary=DD..", "canary-2 canary-3", "Progressing", "AwaitingClusters"},
		"at least one":                           {newUbuntu().WithMaxConcurrency("1%"), "canary=...", "canary-0", "Progressing", "MaxConcurrency"},
		"a wave's own limit":                     {plain().WithMaxConcurrency("1").WithWaves(own("canary", "2"), own("eu", "")), "canary=...", "canary-0 canary-1", "Progressing", "MaxConcurrency"},
		"another wave's limit":                   {plain().WithMaxConcurrency("1").WithWaves(own("canary", "2"), own("eu", "")), "canary=SSS eu=..", "eu-0", "Progressing", "MaxConcurrency"},
		"others' progress is no matter":          {newUbuntu().WithMaxConcurrency("1"), "canary=S eu=. a=PP", "eu-0", "Progressing", "AwaitingClusters"},
		"one has failed":                         {newUbuntu(), "canary=F.", "", "Failed", "MaxFailures"},
		"one has timed out":                      {newUbuntu(), "canary=T.", "", "Failed", "MaxFailures"},
		"one has failed, another is on its way":  {newUbuntu(), "canary=FP.", "", "Progressing", "MaxFailures"},
		"one may fail":                           {newUbuntu().WithMaxFailures("1"), "canary=F..", "canary-1 canary-2", "Progressing", "AwaitingClusters"},
		"two are more than one":                  {newUbuntu().WithMaxFailures("1"), "canary=FT..", "", "Failed", "MaxFailures"},
		"failures count over all waves":          {newUbuntu().WithMaxFailures("1"), "canary=F eu=F. a=.", "", "Failed", "MaxFailures"},
		"a part may fail, rounded down":          {newUbuntu().WithMaxFailures("25%"), "canary=F. eu=....", "canary-1", "Progressing", "AwaitingClusters"},
		"it is no more than that":                {newUbuntu().WithMaxFailures("25%"), "canary=FF eu=.....", "", "Failed", "MaxFailures"},
		"failed as it may is done":               {newUbuntu().WithMaxFailures("1"), "canary=FS eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"all failed as they may":                 {newUbuntu().WithMaxFailures("100%"), "canary=FF eu=S", "", "Succeeded", "RolledOut"},
		"failed at the end":                      {newUbuntu(), "canary=S eu=S a=SF", "", "Failed", "MaxFailures"},
		"offline ones are left behind":           {newUbuntu(), "canary=SD eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"all that are online have it":            {newUbuntu(), "canary=Sd eu=Ds", "", "Succeeded", "RolledOut"},
		"all are offline":                        {newUbuntu(), "canary=Dd eu=D", "", "Waiting", "OfflineClusters"},
		"offline ones are waited for":            {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=SD eu=.", "", "Waiting", "OfflineClusters"},
		"and may begin when they are back":       {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=S. eu=.", "canary-1", "Progressing", "AwaitingClusters"},
		"those that succeeded are not":           {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=Ss eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"waited for beside others":               {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=PD eu=.", "", "Progressing", "AwaitingClusters"},
		"waited for at the end":                  {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=S eu=SD", "", "Waiting", "OfflineClusters"},
		"paused":                                 {newUbuntu().Paused(), "canary=S. eu=.", "", "Waiting", "Paused"},
		"paused while one is on its way":         {newUbuntu().Paused(), "canary=P eu=.", "", "Progressing", "Paused"},
		"paused when nothing is left":            {newUbuntu().Paused(), "canary=S eu=S", "", "Succeeded", "RolledOut"},
		"paused after failures":                  {newUbuntu().Paused(), "canary=F eu=.", "", "Failed", "MaxFailures"},
		"paused, and all are on their way":       {newUbuntu().Paused(), "canary=S eu=P", "", "Progressing", "AwaitingClusters"},
		"not approved":                           {plain().WithWaves(own("canary", ""), approval("eu")), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"approved":                               {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("eu", "1.0.0"), "canary=S eu=. a=.", "eu-0", "Progressing", "AwaitingClusters"},
		"another version was approved":           {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("eu", "0.9.0"), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"another wave was approved":              {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("canary", "1.0.0"), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"the first wave is not approved":         {plain().WithWaves(approval("canary")), "canary=. a=.", "", "Waiting", "AwaitingApproval"},
		"approval of a wave whose turn is later": {plain().WithWaves(own("canary", ""), approval("eu")), "canary=. eu=. a=.", "canary-0", "Progressing", "AwaitingClusters"},
		"an approval that nobody waits for":      {plain().WithWaves(own("canary", ""), approval("eu")), "canary=S a=.", "a-0", "Progressing", "AwaitingClusters"},
		"full plans are passed over":             {newUbuntu().WithMaxConcurrency("1"), "canary=ff.", "canary-2", "Progressing", "PlanFull"},
		"full plans only":                        {newUbuntu(), "canary=fS eu=.", "", "Waiting", "PlanFull"},
		"full plans, and others wait too":        {newUbuntu().WithMaxConcurrency("1"), "canary=f..", "canary-1", "Progressing", "MaxConcurrency"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAndCheck(t, newView(tt.img, tt.fleet))
			assert.Equal(t, tt.want, strings.Join(d.Start, " "))
			assert.Equal(t, tt.wantPhase, d.Status.Phase)
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			for _, p := range d.Placed {
				assert.False(t, p.Started && p.State == v1alpha1.ClusterToApply, p.Cluster)
				if strings.Contains(" "+tt.want+" ", " "+p.Cluster+" ") {
					assert.Equal(t, v1alpha1.ClusterProgressing, p.State, "who begins is on its way already")
					assert.True(t, p.Started)
				}
			}
		})
	}
}

func TestPlacementSelectsClusters(t *testing.T) {
	labelled := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"wave": value}}
	}
	for name, tt := range map[string]struct {
		placement v1alpha1.Placement
		want      string
	}{
		"all":                              {v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}}, "a=.. b=.. c=.."},
		"selected":                         {v1alpha1.Placement{ClusterSelector: labelled("b")}, "b=.."},
		"named":                            {v1alpha1.Placement{ClusterNames: []string{"c-1", "a-0"}}, "a=. c=."},
		"selected and named":               {v1alpha1.Placement{ClusterSelector: labelled("b"), ClusterNames: []string{"c-1"}}, "b=.. c=."},
		"without those that are excluded":  {v1alpha1.Placement{ClusterSelector: labelled("b"), ClusterNames: []string{"c-1", "c-0"}, ExcludedClusters: []string{"c-0", "b-1"}}, "b=. c=."},
		"named ones that are not there":    {v1alpha1.Placement{ClusterNames: []string{"d-0"}}, ""},
		"excluded ones that are not there": {v1alpha1.Placement{ClusterSelector: labelled("b"), ExcludedClusters: []string{"d-0"}}, "b=.."},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").WithPlacement(tt.placement).WithWave("a").WithWave("b").WithWave("c").Paused()
			assert.Equal(t, tt.want, formatStates(decideAndCheck(t, newView(img, "a=.. b=.. c=.."))))
		})
	}
}

// A cluster that several waves select is in the first of them; the matrix is in
// the order of waves, then names.
func TestClusterBelongsToFirstMatchingWave(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithWave("b").WithWaves(v1alpha1.Wave{Name: "all"}).WithWave("a")
	d := decideAndCheck(t, newView(img, "a=.. b=.. c=.."))
	assert.Equal(t, "b=PP all=....", formatStates(d))
	assert.Equal(t, []string{"b-0", "b-1"}, d.Start)
	assert.Equal(t, []string{"b-0", "b-1", "a-0", "a-1", "c-0", "c-1"}, startedNames(d))
	assert.Equal(t, "b", d.Status.CurrentWave)
	assert.Equal(t, []string{"b", "all", "a"}, listWaveNames(d), "rest has no clusters, and nobody has named it")
	assert.Contains(t, d.Status.Message, "in wave a:")
}

func startedNames(d rollout.Decision) (names []string) {
	for _, p := range d.Placed {
		names = append(names, p.Cluster)
	}
	return names
}

func listWaveNames(d rollout.Decision) (names []string) {
	for _, w := range d.Status.Waves {
		names = append(names, w.Name)
	}
	return names
}

func TestNextWaveWaitsForMinSuccessTime(t *testing.T) {
	img := newUbuntu().WithMinSuccessTime(time.Hour).WithProgressDeadline(100 * time.Hour)
	v := newView(img, "canary=SP eu=. a=.")
	d := decideAndCheck(t, v)
	assert.Nil(t, d.Status.Waves[0].DoneAt)

	v = advanceView(v, d, time.Minute)
	v.Clusters = pluralClusters("canary=SS eu=. a=.")
	done := v.Now
	d = decideAndCheck(t, v)
	assert.Empty(t, d.Start)
	assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonMinSuccessTime, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "wave eu starts at "+done.Add(time.Hour).Format(time.RFC3339))
	assert.Equal(t, toStoredTime(done), d.Status.Waves[0].DoneAt)
	assert.Equal(t, "eu", d.Status.CurrentWave)
	assert.Equal(t, time.Hour, d.RequeueAfter)

	v = advanceView(v, d, time.Hour-time.Second)
	d = decideAndCheck(t, v)
	assert.Empty(t, d.Start)
	assert.Equal(t, toStoredTime(done), d.Status.Waves[0].DoneAt, "it is remembered")
	assert.Equal(t, time.Second, d.RequeueAfter)

	// One joins, and the wave is not done any more: it soaks anew.
	joined := advanceView(v, d, time.Second)
	joined.Clusters = pluralClusters("canary=SSP eu=. a=.")
	d2 := decideAndCheck(t, joined)
	assert.Empty(t, d2.Start)
	assert.Nil(t, d2.Status.Waves[0].DoneAt)
	joined = advanceView(joined, d2, time.Minute)
	joined.Clusters = pluralClusters("canary=SSS eu=. a=.")
	assert.Equal(t, time.Hour, decideAndCheck(t, joined).RequeueAfter)

	v = advanceView(v, d, time.Second)
	d = decideAndCheck(t, v)
	assert.Equal(t, []string{"eu-0"}, d.Start)
	assert.Equal(t, 100*time.Hour+time.Millisecond, d.RequeueAfter, "the deadline of the one that begins")
}

func TestLongestMinSuccessTimeOfEarlierWavesCounts(t *testing.T) {
	img := newUbuntu().WithMinSuccessTime(time.Hour)
	v := newView(img, "canary=S eu=S a=.")
	v.Image.Spec.Rollout.Waves[0].MinSuccessTime = &metav1.Duration{Duration: 3 * time.Hour}
	v.Image.Spec.Rollout.Waves[1].MinSuccessTime = &metav1.Duration{}
	d := decideAndCheck(t, v)
	assert.Equal(t, 3*time.Hour, d.RequeueAfter)
	assert.Equal(t, v1alpha1.ReasonMinSuccessTime, d.Status.Reason)
	v = advanceView(v, d, d.RequeueAfter)
	assert.Equal(t, []string{"a-0"}, decideAndCheck(t, v).Start)
}

func TestApprovalIsRequestedAfterMinSuccessTime(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=S eu=.")
	v.Image.Spec.Rollout.Waves[1].RequireApproval = true
	d := decideAndCheck(t, v)
	assert.Equal(t, v1alpha1.ReasonMinSuccessTime, d.Status.Reason)
	d = decideAndCheck(t, advanceView(v, d, time.Hour))
	assert.Equal(t, v1alpha1.ReasonAwaitingApproval, d.Status.Reason)
	assert.Contains(t, d.Status.Message, `{wave: eu, version: "1.0.0", by: <your user name>}`)
	assert.Zero(t, d.RequeueAfter)
}

// A hub that has been restarted finds what it has begun in the plans, and what it
// has waited for in the status.
func TestRestartLosesNoState(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour).WithMaxConcurrency("1"), "canary=SS eu=.. a=.")
	d := decideAndCheck(t, v)
	restarted := v
	restarted.Image = v.Image.DeepCopy()
	restarted.Image.Status = *roundTripStatus(t, &d.Status)
	restarted.Now = now.Add(30 * time.Minute)
	assert.Equal(t, 30*time.Minute, decideAndCheck(t, restarted).RequeueAfter)
	restarted.Now = now.Add(time.Hour)
	d = decideAndCheck(t, restarted)
	assert.Equal(t, []string{"eu-0"}, d.Start)
	restarted.Clusters = pluralClusters("canary=SS eu=P. a=.")
	assert.Empty(t, decideAndCheck(t, restarted).Start)
}

// What is reported is of what was before, and no reason of what begins.
func TestStartedClusterHasNoReasonYet(t *testing.T) {
	v := newView(newUbuntu(), "canary=F")
	v.Clusters[0].PlannedRevision = "former"
	d := decideAndCheck(t, v)
	assert.Equal(t, []rollout.PlacedCluster{{Cluster: "canary-0", Wave: "canary", State: v1alpha1.ClusterProgressing, Started: true}}, d.Placed)
}

func TestRecoveredFailuresResumeRollout(t *testing.T) {
	v := newView(newUbuntu(), "canary=F. eu=.")
	d := decideAndCheck(t, v)
	assert.Equal(t, v1alpha1.RolloutFailed, d.Status.Phase)
	v = advanceView(v, d, time.Minute)
	v.Clusters = pluralClusters("canary=S. eu=.")
	d = decideAndCheck(t, v)
	assert.Equal(t, []string{"canary-1"}, d.Start)
	assert.Equal(t, v1alpha1.RolloutProgressing, d.Status.Phase)
	assert.Empty(t, d.Status.Failing)
}
