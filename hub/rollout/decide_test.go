package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

type builder = apitest.FleetDiskImageBuilder

// Waves canary, eu and rest, with maxFailures 0 and no other limit.
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
		want       string // clusters that start
		wantPhase  v1alpha1.RolloutPhase
		wantReason string
	}{
		"no wave, no limit":                         {plain(), "a=...", "a-0 a-1 a-2", "Progressing", "AwaitingClusters"},
		"the first wave only":                       {newUbuntu(), "canary=.. eu=. a=.", "canary-0 canary-1", "Progressing", "AwaitingClusters"},
		"a wave is in progress":                     {newUbuntu(), "canary=SP eu=. a=.", "", "Progressing", "AwaitingClusters"},
		"the next wave":                             {newUbuntu(), "canary=SS eu=.. a=.", "eu-0 eu-1", "Progressing", "AwaitingClusters"},
		"rest":                                      {newUbuntu(), "canary=S eu=S a=..", "a-0 a-1", "Progressing", "AwaitingClusters"},
		"all done":                                  {newUbuntu(), "canary=S eu=S a=S", "", "Succeeded", "RolledOut"},
		"a late joiner of an earlier wave":          {newUbuntu(), "canary=S. eu=S. a=S", "canary-1", "Progressing", "AwaitingClusters"},
		"a late joiner after all was done":          {newUbuntu(), "canary=S eu=S. a=S", "eu-1", "Progressing", "AwaitingClusters"},
		"a wave without clusters":                   {newUbuntu(), "eu=.. a=.", "eu-0 eu-1", "Progressing", "AwaitingClusters"},
		"only rest has clusters":                    {newUbuntu(), "a=.", "a-0", "Progressing", "AwaitingClusters"},
		"no clusters":                               {newUbuntu(), "", "", "Waiting", "NoClusters"},
		"at maxConcurrency":                         {newUbuntu().WithMaxConcurrency("2"), "canary=....", "canary-0 canary-1", "Progressing", "MaxConcurrency"},
		"one slot is free":                          {newUbuntu().WithMaxConcurrency("2"), "canary=SP..", "canary-2", "Progressing", "MaxConcurrency"},
		"no slot is free":                           {newUbuntu().WithMaxConcurrency("2"), "canary=PP..", "", "Progressing", "MaxConcurrency"},
		"clusters back online hold a slot":          {newUbuntu().WithMaxConcurrency("2"), "canary=RP.", "", "Progressing", "MaxConcurrency"},
		"above maxConcurrency":                      {newUbuntu().WithMaxConcurrency("2"), "canary=RPP.", "", "Progressing", "MaxConcurrency"},
		"offline clusters hold no slot":             {newUbuntu().WithMaxConcurrency("2"), "canary=ddP..", "canary-3", "Progressing", "MaxConcurrency"},
		"a percentage, rounded down":                {newUbuntu().WithMaxConcurrency("25%"), "canary=....... eu=...........", "canary-0", "Progressing", "MaxConcurrency"},
		"a percentage, of offline clusters too":     {newUbuntu().WithMaxConcurrency("50%"), "canary=DD..", "canary-2 canary-3", "Progressing", "AwaitingClusters"},
		"at least one":                              {newUbuntu().WithMaxConcurrency("1%"), "canary=...", "canary-0", "Progressing", "MaxConcurrency"},
		"a wave's own limit":                        {plain().WithMaxConcurrency("1").WithWaves(own("canary", "2"), own("eu", "")), "canary=...", "canary-0 canary-1", "Progressing", "MaxConcurrency"},
		"another wave's limit":                      {plain().WithMaxConcurrency("1").WithWaves(own("canary", "2"), own("eu", "")), "canary=SSS eu=..", "eu-0", "Progressing", "MaxConcurrency"},
		"progress in other waves does not count":    {newUbuntu().WithMaxConcurrency("1"), "canary=S eu=. a=PP", "eu-0", "Progressing", "AwaitingClusters"},
		"one has failed":                            {newUbuntu(), "canary=F.", "", "Failed", "MaxFailures"},
		"one has timed out":                         {newUbuntu(), "canary=T.", "", "Failed", "MaxFailures"},
		"one has failed, another is in progress":    {newUbuntu(), "canary=FP.", "", "Progressing", "MaxFailures"},
		"one may fail":                              {newUbuntu().WithMaxFailures("1"), "canary=F..", "canary-1 canary-2", "Progressing", "AwaitingClusters"},
		"above maxFailures":                         {newUbuntu().WithMaxFailures("1"), "canary=FT..", "", "Failed", "MaxFailures"},
		"failures count over all waves":             {newUbuntu().WithMaxFailures("1"), "canary=F eu=F. a=.", "", "Failed", "MaxFailures"},
		"a percentage may fail, rounded down":       {newUbuntu().WithMaxFailures("25%"), "canary=F. eu=....", "canary-1", "Progressing", "AwaitingClusters"},
		"above the percentage":                      {newUbuntu().WithMaxFailures("25%"), "canary=FF eu=.....", "", "Failed", "MaxFailures"},
		"an allowed failure ends the wave":          {newUbuntu().WithMaxFailures("1"), "canary=FS eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"all failures are allowed":                  {newUbuntu().WithMaxFailures("100%"), "canary=FF eu=S", "", "Succeeded", "RolledOut"},
		"failed at the end":                         {newUbuntu(), "canary=S eu=S a=SF", "", "Failed", "MaxFailures"},
		"offline clusters do not hold up a wave":    {newUbuntu(), "canary=SD eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"all online clusters have it":               {newUbuntu(), "canary=Sd eu=Ds", "", "Succeeded", "RolledOut"},
		"all are offline":                           {newUbuntu(), "canary=Dd eu=D", "", "Waiting", "OfflineClusters"},
		"a failure in quarantine does not count":    {newUbuntu(), "canary=q eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"no wave waits for one in quarantine":       {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=Sq eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"offlineClusters: Wait":                     {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=SD eu=.", "", "Waiting", "OfflineClusters"},
		"offlineClusters: Wait, back online":        {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=S. eu=.", "canary-1", "Progressing", "AwaitingClusters"},
		"offlineClusters: Wait, succeeded":          {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=Ss eu=.", "eu-0", "Progressing", "AwaitingClusters"},
		"offlineClusters: Wait, others in progress": {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=PD eu=.", "", "Progressing", "AwaitingClusters"},
		"offlineClusters: Wait, in the last wave":   {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=S eu=SD", "", "Waiting", "OfflineClusters"},
		"paused":                          {newUbuntu().Paused(), "canary=S. eu=.", "", "Waiting", "Paused"},
		"paused while one is in progress": {newUbuntu().Paused(), "canary=P eu=.", "", "Progressing", "Paused"},
		"paused when nothing is left":     {newUbuntu().Paused(), "canary=S eu=S", "", "Succeeded", "RolledOut"},
		"paused after failures":           {newUbuntu().Paused(), "canary=F eu=.", "", "Failed", "MaxFailures"},
		"paused, all in progress":         {newUbuntu().Paused(), "canary=S eu=P", "", "Progressing", "AwaitingClusters"},
		"not approved":                    {plain().WithWaves(own("canary", ""), approval("eu")), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"approved":                        {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("eu", "1.0.0"), "canary=S eu=. a=.", "eu-0", "Progressing", "AwaitingClusters"},
		"another version was approved":    {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("eu", "0.9.0"), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"another wave was approved":       {plain().WithWaves(own("canary", ""), approval("eu")).WithApproval("canary", "1.0.0"), "canary=S eu=. a=.", "", "Waiting", "AwaitingApproval"},
		"the first wave is not approved":  {plain().WithWaves(approval("canary")), "canary=. a=.", "", "Waiting", "AwaitingApproval"},
		"approval of a later wave":        {plain().WithWaves(own("canary", ""), approval("eu")), "canary=. eu=. a=.", "canary-0", "Progressing", "AwaitingClusters"},
		"approval of an empty wave":       {plain().WithWaves(own("canary", ""), approval("eu")), "canary=S a=.", "a-0", "Progressing", "AwaitingClusters"},
		"full plans are skipped":          {newUbuntu().WithMaxConcurrency("1"), "canary=ff.", "canary-2", "Progressing", "PlanFull"},
		"full plans only":                 {newUbuntu(), "canary=fS eu=.", "", "Waiting", "PlanFull"},
		"full plans, others wait too":     {newUbuntu().WithMaxConcurrency("1"), "canary=f..", "canary-1", "Progressing", "MaxConcurrency"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAndCheck(t, newView(tt.img, tt.fleet))
			assert.Equal(t, tt.want, strings.Join(d.Start, " "))
			assert.Equal(t, tt.wantPhase, d.Status.Phase)
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			for _, p := range d.Placed {
				assert.False(t, p.Started && p.State == v1alpha1.ClusterToApply, p.Cluster)
				if strings.Contains(" "+tt.want+" ", " "+p.Cluster+" ") {
					assert.Equal(t, v1alpha1.ClusterProgressing, p.State, "a cluster that starts counts as progressing")
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
		"all":                   {v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}}, "a=.. b=.. c=.."},
		"selected":              {v1alpha1.Placement{ClusterSelector: labelled("b")}, "b=.."},
		"named":                 {v1alpha1.Placement{ClusterNames: []string{"c-1", "a-0"}}, "a=. c=."},
		"selected and named":    {v1alpha1.Placement{ClusterSelector: labelled("b"), ClusterNames: []string{"c-1"}}, "b=.. c=."},
		"without excluded ones": {v1alpha1.Placement{ClusterSelector: labelled("b"), ClusterNames: []string{"c-1", "c-0"}, ExcludedClusters: []string{"c-0", "b-1"}}, "b=. c=."},
		"unknown named ones":    {v1alpha1.Placement{ClusterNames: []string{"d-0"}}, ""},
		"unknown excluded ones": {v1alpha1.Placement{ClusterSelector: labelled("b"), ExcludedClusters: []string{"d-0"}}, "b=.."},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").WithPlacement(tt.placement).WithWave("a").WithWave("b").WithWave("c").Paused()
			assert.Equal(t, tt.want, formatStates(decideAndCheck(t, newView(img, "a=.. b=.. c=.."))))
		})
	}
}

// Placed is sorted by wave, then name.
func TestClusterBelongsToFirstMatchingWave(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithWave("b").WithWaves(v1alpha1.Wave{Name: "all"}).WithWave("a")
	d := decideAndCheck(t, newView(img, "a=.. b=.. c=.."))
	assert.Equal(t, "b=PP all=....", formatStates(d))
	assert.Equal(t, []string{"b-0", "b-1"}, d.Start)
	assert.Equal(t, []string{"b-0", "b-1", "a-0", "a-1", "c-0", "c-1"}, startedNames(d))
	assert.Equal(t, "b", d.Status.CurrentWave)
	assert.Equal(t, []string{"b", "all", "a"}, listWaveNames(d), "an empty rest is left out")
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
	v.Clusters = parseClusters("canary=SS eu=. a=.")
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
	assert.Equal(t, toStoredTime(done), d.Status.Waves[0].DoneAt, "doneAt stays")
	assert.Equal(t, time.Second, d.RequeueAfter)

	// A cluster joins: the wave is no longer done, and minSuccessTime starts again.
	joined := advanceView(v, d, time.Second)
	joined.Clusters = parseClusters("canary=SSP eu=. a=.")
	d2 := decideAndCheck(t, joined)
	assert.Empty(t, d2.Start)
	assert.Nil(t, d2.Status.Waves[0].DoneAt)
	joined = advanceView(joined, d2, time.Minute)
	joined.Clusters = parseClusters("canary=SSS eu=. a=.")
	assert.Equal(t, time.Hour, decideAndCheck(t, joined).RequeueAfter)

	v = advanceView(v, d, time.Second)
	d = decideAndCheck(t, v)
	assert.Equal(t, []string{"eu-0"}, d.Start)
	assert.Equal(t, 100*time.Hour+time.Millisecond, d.RequeueAfter, "the deadline of the started cluster")
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
	assert.Contains(t, d.Status.Message, `kubectl patch fdi ubuntu --type=json -p '[{"op":"add","path":"/spec/approvals/-","value":{"wave":"eu","version":"1.0.0","by":"<your user name>"}}]'`)
	assert.Zero(t, d.RequeueAfter)
}

// A restarted hub finds what it started in the plans, and since when it waits in the status.
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
	restarted.Clusters = parseClusters("canary=SS eu=P. a=.")
	assert.Empty(t, decideAndCheck(t, restarted).Start)
}

// The report is about the former revision.
func TestStartedClusterHasNoReasonYet(t *testing.T) {
	v := newView(newUbuntu(), "canary=F")
	v.Clusters[0].PlannedDigest = "former"
	d := decideAndCheck(t, v)
	assert.Equal(t, []rollout.PlacedCluster{{Cluster: "canary-0", Wave: "canary", State: v1alpha1.ClusterProgressing, Effective: d.Placed[0].Effective, Started: true}}, d.Placed)
}

func TestRecoveredFailuresResumeRollout(t *testing.T) {
	v := newView(newUbuntu(), "canary=F. eu=.")
	d := decideAndCheck(t, v)
	assert.Equal(t, v1alpha1.RolloutFailed, d.Status.Phase)
	v = advanceView(v, d, time.Minute)
	v.Clusters = parseClusters("canary=S. eu=.")
	d = decideAndCheck(t, v)
	assert.Equal(t, []string{"canary-1"}, d.Start)
	assert.Equal(t, v1alpha1.RolloutProgressing, d.Status.Phase)
	assert.Empty(t, d.Status.Failing)
}

// A cluster that was in progress and offline when its wave became done holds up the next wave while
// it is back, and does not let minSuccessTime start again. What starts in the wave does.
func TestMinSuccessTimeOutlastsClusterThatComesAndGoes(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour).WithProgressDeadline(100*time.Hour), "canary=Sd eu=.")
	done := v.Now
	d := decideAndCheck(t, v)
	require.Equal(t, toStoredTime(done), d.Status.Waves[0].DoneAt)
	for range 3 {
		v = advanceView(v, d, 10*time.Minute)
		v.Clusters[1].OfflineReason, v.Clusters[1].OnlineSince = "", v.Now
		d = decideAndCheck(t, v)
		assert.Equal(t, "canary", d.Status.CurrentWave)
		assert.Nil(t, d.Status.Waves[0].DoneAt)
		v = advanceView(v, d, time.Minute)
		v.Clusters[1].OfflineReason, v.Clusters[1].OnlineSince = v1alpha1.ReasonSilent, time.Time{}
		d = decideAndCheck(t, v)
		assert.Equal(t, toStoredTime(done), d.Status.Waves[0].DoneAt)
		assert.Nil(t, d.Status.Waves[0].FirstDoneAt)
	}
	v = advanceView(v, d, time.Hour-33*time.Minute)
	assert.Equal(t, []string{"eu-0"}, decideAndCheck(t, v).Start)

	// The status is of a release that did not record it: as soon as the wave is open, nothing is known.
	v.Clusters[1].OfflineReason, v.Clusters[1].OnlineSince = "", v.Now
	d = decideAndCheck(t, v)
	v = advanceView(v, d, time.Minute)
	v.Image.Status.Waves[0].FirstDoneAt = nil
	v.Clusters[1] = newCluster("canary-1", 'S')
	d = decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(v.Now), d.Status.Waves[0].DoneAt)
}

// A cluster that had the image when its wave became done, went offline and came back, loses the
// image: its wave has not been done all along.
func TestLostImageRestartsMinSuccessTime(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=SS eu=.")
	v = advanceView(v, decideAndCheck(t, v), 30*time.Minute)
	v.Clusters[0].OnlineSince = v.Now.Add(-time.Minute)
	v = advanceView(v, decideAndCheck(t, v), time.Minute)
	v.Clusters[0].PlannedAt = now
	v.Clusters[0].Report.Phase, v.Clusters[0].Report.ServingRevision = v1alpha1.PhaseSyncing, ""
	d := decideAndCheck(t, v)
	assert.Equal(t, "canary=PS eu=.", formatStates(d))
	assert.Nil(t, d.Status.Waves[0].FirstDoneAt)

	// So does one that was awaited, once it had the image.
	v = newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=Sd eu=.")
	d = decideAndCheck(t, v)
	require.Equal(t, []string{"canary-1"}, d.Status.Waves[0].AwaitedClusters)
	back := newCluster("canary-1", 'S')
	back.OnlineSince = v.Now
	v = advanceView(v, d, time.Minute)
	v.Clusters[1] = back
	d = decideAndCheck(t, v)
	require.Equal(t, toStoredTime(now), d.Status.Waves[0].DoneAt)
	assert.Empty(t, d.Status.Waves[0].AwaitedClusters)
	v = advanceView(v, d, time.Minute)
	v.Clusters[1].Report.Phase, v.Clusters[1].Report.ServingRevision = v1alpha1.PhaseSyncing, ""
	assert.Nil(t, decideAndCheck(t, v).Status.Waves[0].FirstDoneAt)
}

func TestWhatStartsInAWaveRestartsMinSuccessTime(t *testing.T) {
	for name, change := range map[string]func(v *rollout.View){
		"another cluster joins": func(v *rollout.View) {
			v.Clusters = append(v.Clusters[:2:2], newCluster("canary-2", '.'), v.Clusters[2])
		},
		"a cluster that never started is back": func(v *rollout.View) {
			v.Clusters[1] = newCluster("canary-1", '.')
			v.Clusters[1].OnlineSince = v.Now
		},
		"its source changes": func(v *rollout.View) { v.Clusters[0].PlannedDigest = "former" },
		"it started since": func(v *rollout.View) {
			v.Clusters[1] = newCluster("canary-1", 'P')
			v.Clusters[1].OnlineSince, v.Clusters[1].PlannedAt = v.Now, v.Now
		},
		"it was online": func(v *rollout.View) { v.Clusters[0] = newCluster("canary-0", 'P') },
		"a person has it start over": func(v *rollout.View) {
			v.Clusters[1] = newCluster("canary-1", 'F')
			v.Clusters[1].OnlineSince, v.Clusters[1].KnowsRetry = v.Now, true
			v.Image.Spec.Retry = &v1alpha1.RetryRequest{Token: "1"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=Sd eu=.")
			v = advanceView(v, decideAndCheck(t, v), time.Minute)
			change(&v)
			d := decideAndCheck(t, v)
			require.Nil(t, d.Status.Waves[0].DoneAt)
			v = advanceView(v, d, time.Minute)
			v.Clusters = parseClusters("canary=SS eu=.")
			assert.Equal(t, toStoredTime(v.Now), decideAndCheck(t, v).Status.Waves[0].DoneAt)
		})
	}
}

// A hub whose clock was ahead hands over: the next wave does not wait until that clock's hour.
func TestDoneAtThatLiesAhead(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=S eu=.")
	v = advanceView(v, decideAndCheck(t, v), -24*time.Hour)
	d := decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(v.Now), d.Status.Waves[0].DoneAt)
	assert.Equal(t, time.Hour, d.RequeueAfter)
}
