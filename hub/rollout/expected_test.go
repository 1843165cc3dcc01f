package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// perSecond of an hour is within the disk of newUbuntu.
const perSecond = 1 << 18

// newActivity is of a member that imports 256 KiB per second and is idle.
func newActivity() *v1alpha1.ReportedActivity {
	rate := v1alpha1.SourceRate{Name: v1alpha1.SourceOther, P20: perSecond, P50: perSecond, P80: perSecond, Samples: 9}
	return &v1alpha1.ReportedActivity{ObservedAt: metav1.NewTime(now), BootID: "boot", Budget: 1, Rates: []v1alpha1.SourceRate{rate}}
}

// withImport returns an activity with the image of newUbuntu, some minutes before its end.
func withImport(minutes int64) *v1alpha1.ReportedActivity {
	a := newActivity()
	a.Slots = 1
	a.Active = []v1alpha1.ActiveImport{{
		Namespace: "images", Name: "ubuntu-1.0.0", Source: v1alpha1.SourceOther, StartedAt: metav1.NewTime(now.Add(-time.Minute)),
		BytesDone: (60 - minutes) * 60 * perSecond, BytesTotal: 60 * 60 * perSecond, BytesPerSecond: perSecond,
	}}
	return a
}

// withActivity sets the activity of a cluster.
func withActivity(v rollout.View, cluster string, a *v1alpha1.ReportedActivity) rollout.View {
	i := slices.IndexFunc(v.Clusters, func(c rollout.Cluster) bool { return c.Name == cluster })
	v.Clusters[i].Activity, v.Clusters[i].ActivityAt = a, v.Now
	return v
}

func TestEstimateByActivity(t *testing.T) {
	hour := newUbuntu().WithMinSuccessTime(time.Hour)
	other := withImport(10)
	other.Active[0].Name = "fedora-1.0.0"
	unknown := withImport(10)
	unknown.Active[0].BytesPerSecond, unknown.Rates = 0, nil
	for name, tt := range map[string]struct {
		img        *builder
		fleet      string
		activities map[string]*v1alpha1.ReportedActivity
		want       time.Duration
		wantReason string
	}{
		"one that imports":                 {newUbuntu(), "canary=P", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20)}, 20 * time.Minute, ""},
		"the last one counts":              {newUbuntu(), "canary=PP", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "canary-1": withImport(50)}, 50 * time.Minute, ""},
		"one that starts downloads it all": {newUbuntu(), "canary=PP", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "canary-1": newActivity()}, time.Hour, ""},
		"its queue goes first":             {newUbuntu(), "canary=PP", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "canary-1": other}, 70 * time.Minute, ""},
		"maxConcurrency": {newUbuntu().WithMaxConcurrency("1"), "canary=P..",
			map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "canary-1": newActivity(), "canary-2": newActivity()}, 140 * time.Minute, ""},
		"a wave after the other": {newUbuntu(), "canary=P eu=.",
			map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "eu-0": newActivity()}, 80 * time.Minute, ""},
		"minSuccessTime": {hour, "canary=P eu=.",
			map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20), "eu-0": newActivity()}, 140 * time.Minute, ""},
		"minSuccessTime of the last wave does not count": {hour, "canary=P", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20)}, 20 * time.Minute, ""},
		"one of which nothing is known takes as long as others": {newUbuntu().WithMaxConcurrency("1"), "canary=P.",
			map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20)}, 40 * time.Minute, ""},
		"activities say more than the pace": {newUbuntu(), "canary=SP", map[string]*v1alpha1.ReportedActivity{"canary-1": withImport(20)}, 20 * time.Minute, ""},
		"too few samples":                   {newUbuntu(), "canary=P", map[string]*v1alpha1.ReportedActivity{"canary-0": unknown}, 0, string(eta.UnknownTooFewSamples)},
		"no activity":                       {newUbuntu(), "canary=P", nil, 0, string(eta.UnknownNotReported)},
		"offline ones are not waited for":   {newUbuntu(), "canary=PD", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20)}, 20 * time.Minute, ""},
		"paused, and all have started":      {newUbuntu().Paused(), "canary=P", map[string]*v1alpha1.ReportedActivity{"canary-0": withImport(20)}, 20 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(tt.img, tt.fleet)
			for cluster, a := range tt.activities {
				v = withActivity(v, cluster, a)
			}
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.wantReason, d.Status.ExpectedReason)
			assert.Positive(t, d.EstimateAfter, "activities change without an event")
			if tt.want == 0 {
				assert.Nil(t, d.Status.ExpectedAt)
				return
			}
			require.NotNil(t, d.Status.ExpectedAt)
			assert.InDelta(t, tt.want.Minutes(), d.Status.ExpectedAt.Sub(now).Minutes(), 2)
		})
	}
}

// What waits for a person, or for a cluster that is offline, has no end.
func TestNothingIsExpectedWhileAPersonIsAwaited(t *testing.T) {
	approval := apitest.FleetDiskImage("ubuntu").WithProgressDeadline(deadline).WithWave("canary").
		WithWaves(v1alpha1.Wave{Name: "eu", RequireApproval: true, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": "eu"}}})
	for want, v := range map[string]rollout.View{
		v1alpha1.ReasonRolloutPaused:    newView(newUbuntu().Paused(), "canary=SP."),
		v1alpha1.ReasonAwaitingApproval: newView(approval, "canary=SP eu=."),
		v1alpha1.ReasonMaxFailures:      newView(newUbuntu(), "canary=SPF."),
		v1alpha1.ReasonClustersBlocked:  block(newView(newUbuntu(), "canary=SPP"), "canary-1"),
		v1alpha1.ReasonFieldsUnknown:    age(newView(newUbuntu(), "canary=SP."), "canary-2"),
		v1alpha1.ReasonPlanFull:         newView(newUbuntu(), "canary=SPf"),
		v1alpha1.ReasonOfflineClusters:  newView(newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=SPD"),
		v1alpha1.ReasonNameConflict:     newView(newUbuntu(), "canary=SP"),
		v1alpha1.ReasonDeletingImages:   newView(newUbuntu().Deleted(now, v1alpha1.DeletionDelete), "canary=SP"),
		v1alpha1.ReasonSelectorInvalid:  newView(newUbuntu(), "canary=SP"),
	} {
		t.Run(want, func(t *testing.T) {
			v = withActivity(v, "canary-1", withImport(20))
			v.Image.Status.ExpectedAt = toStoredTime(now.Add(time.Hour))
			switch want {
			case v1alpha1.ReasonNameConflict:
				v.Conflict = "jammy"
			case v1alpha1.ReasonSelectorInvalid:
				v.Image.Spec.Placement.ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "wave", Operator: "Near"}}}
			}
			d := decideAndCheck(t, v)
			assert.Nil(t, d.Status.ExpectedAt)
			assert.Equal(t, want, d.Status.ExpectedReason)
		})
	}
	d := decideAndCheck(t, newView(newUbuntu(), "canary=SD"))
	assert.Nil(t, d.Status.ExpectedAt)
	assert.Empty(t, d.Status.ExpectedReason, "all that are online have it")
}

// A status is written rarely: when what is expected moves by a tenth of the time left.
func TestExpectedAtMovesRarely(t *testing.T) {
	v := withActivity(newView(newUbuntu(), "canary=P"), "canary-0", withImport(40))
	d := decideAndCheck(t, v)
	first := d.Status.ExpectedAt
	require.Equal(t, toStoredTime(now.Add(40*time.Minute)), first)
	for _, tt := range []struct {
		minutes int64
		moves   bool
	}{{39, false}, {43, false}, {37, false}, {30, true}, {50, true}} {
		v = withActivity(advanceView(v, d, 0), "canary-0", withImport(tt.minutes))
		moved := decideAndCheck(t, v).Status.ExpectedAt
		assert.Equal(t, tt.moves, !moved.Equal(first), "%d minutes", tt.minutes)
	}
}

// What is late is pushed forward, each time for longer.
func TestLateRolloutIsPushedForward(t *testing.T) {
	v := newView(newUbuntu(), "canary=SP")
	v.Clusters[1].PlannedAt = now
	v.Image.Spec.Rollout.ProgressDeadline = nil
	v.Image.Status.Versions = []v1alpha1.VersionStatus{{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(now.Add(-10 * time.Minute))}}
	moves := 0
	for end := now.Add(24 * time.Hour); v.Now.Before(end); {
		d := decideAndCheck(t, v)
		if !v.Image.Status.ExpectedAt.Equal(d.Status.ExpectedAt) {
			moves++
		}
		require.Positive(t, d.EstimateAfter)
		v = advanceView(v, d, d.EstimateAfter)
	}
	assert.Less(t, moves, 12, "within a day")
}

func TestExpectedAtIsAheadWhileClustersAreUnfinished(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := func(wave string) string {
			return wave + "=" + rapid.StringMatching("[.PSFTDdsRf]{0,5}").Draw(t, wave)
		}
		img := newUbuntu().WithMinSuccessTime(rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "minSuccessTime")).
			WithMaxConcurrency(rapid.SampledFrom([]string{"1", "2", "50%"}).Draw(t, "maxConcurrency")).WithMaxFailures("100%")
		v := newView(img, strings.Join([]string{letters("canary"), letters("eu"), letters("rest")}, " "))
		v.Image.Status.Versions = []v1alpha1.VersionStatus{{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(now.Add(-time.Hour))}}
		if rapid.Bool().Draw(t, "stored") {
			v.Image.Status.ExpectedAt = toStoredTime(now.Add(time.Duration(rapid.IntRange(-200, 200).Draw(t, "expected")) * time.Minute))
		}
		for i := range v.Clusters {
			switch rapid.IntRange(0, 3).Draw(t, "activity") {
			case 0:
				v.Clusters[i].Activity = newActivity()
			case 1:
				v.Clusters[i].Activity = withImport(rapid.Int64Range(-10, 60).Draw(t, "minutes"))
			case 2:
				v.Clusters[i].Activity, v.Clusters[i].ActivityAt = withImport(10), now.Add(-time.Duration(rapid.IntRange(0, 30).Draw(t, "age"))*time.Minute)
			}
		}
		for range 4 {
			d := decideAndCheck(t, v)
			v = advanceView(v, d, time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds"))*time.Second)
		}
	})
}

func TestEstimateByPace(t *testing.T) {
	since := now.Add(-100 * time.Minute)
	status := func(succeeded int32, last time.Time) v1alpha1.FleetDiskImageStatus {
		return v1alpha1.FleetDiskImageStatus{
			Versions: []v1alpha1.VersionStatus{{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(since)}},
			Clusters: v1alpha1.ClusterCounts{Succeeded: succeeded}, LastSuccessAt: toStoredTime(last),
		}
	}
	hour := func(b *builder) *builder { return b.WithMinSuccessTime(time.Hour) }
	for name, tt := range map[string]struct {
		img    *builder
		fleet  string
		status v1alpha1.FleetDiskImageStatus
		want   *metav1.Time
	}{
		"none has succeeded":                             {newUbuntu(), "canary=PP", status(0, since), nil},
		"none is left":                                   {newUbuntu(), "canary=SS", status(2, now), nil},
		"those that are offline are not left":            {newUbuntu(), "canary=SD", status(1, now), nil},
		"one of two":                                     {newUbuntu(), "canary=S.", status(1, now.Add(-40*time.Minute)), toStoredTime(now.Add(20 * time.Minute))},
		"it moves with the next success":                 {newUbuntu(), "canary=SSP.", status(1, now.Add(-50*time.Minute)), toStoredTime(now.Add(100 * time.Minute))},
		"failed ones are not left":                       {newUbuntu().WithMaxFailures("1"), "canary=SSPF", status(2, now), toStoredTime(now.Add(50 * time.Minute))},
		"minSuccessTime ahead is added":                  {hour(newUbuntu()), "canary=SP eu=. a=.", status(1, since.Add(10*time.Minute)), toStoredTime(since.Add(40*time.Minute + 2*time.Hour))},
		"minSuccessTime of the last wave does not count": {hour(newUbuntu()), "canary=S.", status(1, since.Add(90*time.Minute)), toStoredTime(since.Add(3 * time.Hour))},
		"a past minSuccessTime is not part of the pace":  {hour(newUbuntu()), "canary=S eu=SP", status(2, now), toStoredTime(now.Add(20 * time.Minute))},
		"a running minSuccessTime":                       {hour(newUbuntu()), "canary=S eu=..", status(1, since.Add(20*time.Minute)), toStoredTime(now.Add(20 * time.Minute))},
		"minSuccessTime longer than the rollout":         {newUbuntu().WithMinSuccessTime(10 * time.Hour), "canary=S eu=SP", status(2, now), toStoredTime(now.Add(time.Minute))},
		"what is late takes as long again as it is late": {newUbuntu(), "canary=SP", status(1, since.Add(10*time.Minute)), toStoredTime(now.Add(80 * time.Minute))},
		"late, with a wave behind it":                    {hour(newUbuntu()), "canary=SP eu=.", status(1, since.Add(10*time.Minute)), toStoredTime(now.Add(20*time.Minute + time.Hour))},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(tt.img.WithStatus(tt.status), tt.fleet)
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.want, d.Status.ExpectedAt)
			v = advanceView(v, d, time.Second)
			d = decideAndCheck(t, v)
			assert.Equal(t, tt.want, d.Status.ExpectedAt, "time alone changes nothing")
		})
	}
}

// One member that lies about size and group does not move what is expected of the others.
func TestOneMemberDoesNotMoveTheOthers(t *testing.T) {
	lie := newActivity()
	lie.Head = []v1alpha1.QueuedImport{{Namespace: "images", Name: "ubuntu-1.0.0", Source: "zzz", Bytes: 1 << 47, QueuedAt: metav1.NewTime(now)}}
	lie.Queued = 1
	v := newView(newUbuntu(), "canary=PPPP")
	for _, name := range []string{"canary-0", "canary-1"} {
		v = withActivity(v, name, withImport(20))
	}
	v = withActivity(withActivity(v, "canary-2", newActivity()), "canary-3", lie)
	d := decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	assert.InDelta(t, 60, d.Status.ExpectedAt.Sub(now).Minutes(), 2)
}

// The grant for a group limits each member, and the policy the fleet.
func TestEstimateWithinTheBudgetOfASource(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "9", "fleetSources": `[{name: bucket, hosts: ["images.example.com"], concurrency: 1}]`})
	require.Empty(t, errs)
	v := newView(newUbuntu(), "canary=PPP")
	v.Budget = p.Budget(v.Now)
	for i := range v.Clusters {
		a := newActivity()
		a.Rates[0].Name = "bucket"
		v = withActivity(v, v.Clusters[i].Name, a)
		v.Clusters[i].SourceLimits = map[string]int32{"bucket": 0}
	}
	d := decideAndCheck(t, v)
	assert.Nil(t, d.Status.ExpectedAt)
	assert.Equal(t, string(eta.UnknownNothingGranted), d.Status.ExpectedReason)

	importing := withImport(20)
	importing.Active[0].Source = "bucket"
	v = withActivity(v, "canary-0", importing)
	v.Clusters[0].SourceLimits["bucket"] = 1
	d = decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	assert.InDelta(t, 60, d.Status.ExpectedAt.Sub(now).Minutes(), 2, "one after the other")
}

// A cluster is estimated by the source that it gets.
func TestEstimateIsOfTheOwnSource(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "9", "fleetSources": `[{name: bucket, hosts: ["images.example.com"], concurrency: 1}]`})
	require.Empty(t, errs)
	mirror := v1alpha1.ImageOverride{ClusterSelector: everyCluster, URL: ptr.To("https://mirror.example.net/ubuntu.qcow2")}
	for name, tt := range map[string]struct {
		img        *builder
		wantReason string
	}{
		"no slot of its group": {newUbuntu(), string(eta.UnknownNothingGranted)},
		"of another group":     {newUbuntu().WithOverride(mirror), ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := planEffective(newView(tt.img, "canary=PP"), "canary-0 canary-1")
			v.Budget = p.Budget(v.Now)
			for i := range v.Clusters {
				a := newActivity()
				a.Rates[0].Name = v1alpha1.SourceOther
				v = withActivity(v, v.Clusters[i].Name, a)
				v.Clusters[i].SourceLimits = map[string]int32{"bucket": 0}
			}
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.wantReason, d.Status.ExpectedReason)
			assert.Equal(t, tt.wantReason == "", d.Status.ExpectedAt != nil)
		})
	}
}

func TestNoTimeWhereOneWaitsForAPerson(t *testing.T) {
	paused := newActivity()
	paused.Budget, paused.Queued = 0, 1
	paused.Head = []v1alpha1.QueuedImport{{Namespace: "images", Name: "ubuntu-1.0.0", Source: v1alpha1.SourceOther, Reason: v1alpha1.ReasonPaused, QueuedAt: metav1.NewTime(now)}}
	v := newView(newUbuntu(), "canary=PPP")
	v = withActivity(withActivity(withActivity(v, "canary-0", withImport(20)), "canary-1", withImport(20)), "canary-2", paused)
	d := decideAndCheck(t, v)
	assert.Nil(t, d.Status.ExpectedAt)
	assert.Equal(t, string(eta.UnknownWaitsForPerson), d.Status.ExpectedReason)
}

func TestExpectedAtDoesNotOverflow(t *testing.T) {
	v := newView(newUbuntu(), "canary=S"+strings.Repeat("P", 1000))
	v.Image.Spec.Rollout.ProgressDeadline = nil
	v.Image.Status.Versions = []v1alpha1.VersionStatus{{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(now.Add(-200 * 24 * time.Hour))}}
	v.Image.Status.Clusters.Succeeded, v.Image.Status.LastSuccessAt = 1, toStoredTime(now.Add(-time.Minute))
	d := decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt)
	assert.Greater(t, d.Status.ExpectedAt.Sub(now), 365*24*time.Hour)
	assert.Positive(t, d.EstimateAfter)

	v = withActivity(newView(newUbuntu().WithMinSuccessTime(100*365*24*time.Hour), "canary=P eu=."), "canary-0", withImport(20))
	d = decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now.Add(50*365*24*time.Hour)), d.Status.ExpectedAt)
	next := decideAndCheck(t, advanceView(v, d, time.Minute))
	assert.Equal(t, d.Status.ExpectedAt, next.Status.ExpectedAt, "what is beyond the bound is not written each minute")
}
