package preload_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/apitest"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/preload"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// newIdle is a cluster with one slot that imports 600 MiB in ten minutes, and nothing now.
func newIdle(name string) preload.Target {
	t := newTarget(name, false, nil)
	t.ObservedAt, t.Activity = now, &v1alpha1.ReportedActivity{
		ObservedAt: metav1.NewTime(now), Budget: 1,
		Rates: []v1alpha1.SourceRate{{Name: v1alpha1.SourceOther, P20: 900 << 10, P50: 1 << 20, P80: 1100 << 10, Samples: 9}},
	}
	return t
}

// waitingForStorage is what an agent reports of an image that waits for storage.
func waitingForStorage(name, size string) []v1alpha1.ReportedImage {
	return []v1alpha1.ReportedImage{report.NewReportedImage(apitest.Image("images/" + name).WithDiskSize(size).WithStatus(v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonInsufficientStorage, Message: "needs more room",
	}).Obj())}
}

// withGroup is a budget that limits the group of sources of newIdle.
func withGroup(all, group int32) *policy.Budget {
	return &policy.Budget{Concurrency: all, Sources: []policy.SourceBudget{{Source: apipolicy.Source{Name: v1alpha1.SourceOther}, Concurrency: &group}}}
}

// importForHours has a cluster import other images, as many as it may.
func importForHours(t *preload.Target, hours int64, names ...string) {
	t.Activity.Budget, t.Activity.Slots = int32(len(names)), int32(len(names))
	for _, name := range names {
		t.Activity.Active = append(t.Activity.Active, v1alpha1.ActiveImport{
			Namespace: "images", Name: name, Source: v1alpha1.SourceOther, BytesTotal: hours * 3600 << 20, BytesPerSecond: 1 << 20, StartedAt: metav1.NewTime(now), BytesDone: 1,
		})
	}
}

// closeWindows has the windows of clusters open in 6 hours.
func closeWindows(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
	for i := range targets {
		targets[i].Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(now.Add(6 * time.Hour)))}
	}
}

func newObserved() *v1alpha1.FleetDiskImage {
	img := newImage()
	img.Status.ObservedGeneration, img.Status.Phase = img.Generation, v1alpha1.RolloutSucceeded
	return img
}

func forecast(t *testing.T, f preload.Fleet, img *v1alpha1.FleetDiskImage, targets []preload.Target) preload.Image {
	t.Helper()
	i, err := preload.NewImage(img, targets, 600<<20)
	require.NoError(t, err)
	f.Now = now
	items := []preload.Image{i}
	require.NoError(t, preload.Forecast(f, items, []*v1alpha1.FleetDiskImage{img}, targets))
	return items[0]
}

// minutesOf returns -1 where no time is given.
func minutesOf(e preload.Expected) int {
	if e.At == nil {
		return -1
	}
	return int(e.At.Sub(now).Round(time.Minute).Minutes())
}

func TestForecast(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(*v1alpha1.FleetDiskImage, []preload.Target)
		fleet       preload.Fleet
		wantMinutes []int
		wantReason  string
	}{
		"idle": {wantMinutes: []int{10, 10}},
		"one at a time": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) {
			img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
		}, wantMinutes: []int{10, 20}},
		"others of the wave go first": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) {
			img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
			img.Status.Waves = []v1alpha1.WaveStatus{{Name: v1alpha1.WaveRest, Clusters: v1alpha1.ClusterCounts{Total: 1, Progressing: 1}}}
		}, wantReason: v1alpha1.ReasonMaxConcurrency},
		"failed":                    {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) { img.Status.Phase = v1alpha1.RolloutFailed }, wantReason: "WaitsForPerson"},
		"paused":                    {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) { img.Spec.Rollout.Paused = true }, wantReason: "WaitsForPerson"},
		"paused, and made directly": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) { img.Spec.Rollout.Paused = true }, fleet: preload.Fleet{Live: true}, wantMinutes: []int{10, 10}},
		"not approved": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) {
			img.Spec.Rollout.Waves = []v1alpha1.Wave{{Name: "all", RequireApproval: true}}
		}, wantReason: "WaitsForPerson"},
		"a wave before": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) {
			img.Spec.Rollout.Waves = []v1alpha1.Wave{{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}}}
			img.Status.Waves = []v1alpha1.WaveStatus{{Name: "canary", Clusters: v1alpha1.ClusterCounts{Total: 1, Progressing: 1}}}
		}, wantReason: "WavesBefore"},
		"not processed": {change: func(img *v1alpha1.FleetDiskImage, _ []preload.Target) { img.Generation++ }, wantReason: "NotObserved"},
		"no activity": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[0].Activity, targets[1].Activity = nil, nil
		}, wantReason: "NotReported"},
		"no room": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[0].Shortages = map[string]string{"win-11": "no node has 1 GiB"}
			targets[1].Reported = waitingForStorage("small", "512Mi")
		}, wantReason: "InsufficientStorage"},
		"it waits for storage itself": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			for i := range targets {
				targets[i].Reported = waitingForStorage("win-11-24.2", "512Mi")
			}
		}, wantReason: "InsufficientStorage"},
		"one waits that the queue does not list": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			for i := range targets {
				targets[i].Reported = waitingForStorage("large", "2Ti")
			}
		}, wantReason: "InsufficientStorage"},
		"room for a smaller one than waits": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[1].Reported = waitingForStorage("large", "2Ti")
			targets[1].Activity.Queued, targets[1].Activity.Head = 1, []v1alpha1.QueuedImport{
				{Namespace: "images", Name: "large", Source: v1alpha1.SourceOther, AtMostBytes: 2 << 40, Reason: v1alpha1.ReasonInsufficientStorage},
			}
		}, wantMinutes: []int{10, 10}},
		"imported there, which took its room": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			for i := range targets {
				targets[i].Shortages = map[string]string{"win-11": "no node has 1 GiB"}
				targets[i].Activity.Slots, targets[i].Activity.Active = 1, []v1alpha1.ActiveImport{
					{Namespace: "images", Name: "win-11-24.2", Source: v1alpha1.SourceOther, BytesTotal: 600 << 20, BytesDone: 480 << 20, BytesPerSecond: 1 << 20, StartedAt: metav1.NewTime(now.Add(-8 * time.Minute))},
				}
			}
		}, wantMinutes: []int{2, 2}},
		"one at a time, and the window is closed": {change: func(img *v1alpha1.FleetDiskImage, targets []preload.Target) {
			img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
			for i := range targets {
				targets[i].Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(now.Add(6 * time.Hour)))}
			}
		}, wantMinutes: []int{370, 380}},
		"one at a time, and their own slots are taken": {change: func(img *v1alpha1.FleetDiskImage, targets []preload.Target) {
			img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
			for i := range targets {
				targets[i].Activity.Slots, targets[i].Activity.Active = 1, []v1alpha1.ActiveImport{
					{Namespace: "images", Name: "other", Source: v1alpha1.SourceOther, BytesTotal: 3600 << 20, BytesPerSecond: 1 << 20, StartedAt: metav1.NewTime(now), BytesDone: 1},
				}
			}
		}, wantMinutes: []int{70, 80}},
		"the fleet's slots are others'": {fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}, Held: map[string]int32{"lab": 2, "oslo": 0}}, wantReason: "NothingGranted"},
		"one of the fleet's slots is another's": {
			fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}, Held: map[string]int32{"lab": 1, "oslo": 1}}, wantMinutes: []int{10, 20},
		},
		"other groups of sources hold slots": {
			fleet: preload.Fleet{Budget: withGroup(20, 4), Held: map[string]int32{"lab": 6}, Running: map[string]map[string]int32{"lab": {"bucket": 6}}}, wantMinutes: []int{10, 10},
		},
		"some of its group may be taken": {
			fleet: preload.Fleet{Budget: withGroup(20, 4), Held: map[string]int32{"lab": 6}, Running: map[string]map[string]int32{"lab": {"bucket": 3}}}, wantMinutes: []int{10, 20},
		},
		"all of its group may be taken": {fleet: preload.Fleet{Budget: withGroup(20, 4), Held: map[string]int32{"lab": 6}}, wantReason: "NothingGranted"},
		"one of its group runs here, and none is free": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			importForHours(&targets[0], 5, "a", "b")
			targets[0].Activity.Active[0].Source = "bucket"
		}, fleet: preload.Fleet{Budget: withGroup(20, 1), Held: map[string]int32{"oslo": 2}, Running: map[string]map[string]int32{"oslo": {"bucket": 1, v1alpha1.SourceOther: 1}}}, wantReason: "NothingGranted"},
		"an import here is of any group, and none is free": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			importForHours(&targets[0], 5, "a", "b")
			targets[0].Activity.Active[0].Source, targets[0].Activity.Active[1].Source = "bucket", ""
		}, fleet: preload.Fleet{Budget: withGroup(20, 1), Held: map[string]int32{"oslo": 2}, Running: map[string]map[string]int32{"oslo": {"bucket": 1}}}, wantReason: "NothingGranted"},
		"the fleet's slots are those of one of the clusters": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			importForHours(&targets[0], 5, "a", "b")
		}, fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}, Held: map[string]int32{"oslo": 2, "turku": 0}}, wantMinutes: []int{312, 322}},
		"idle for days before its window": {change: func(img *v1alpha1.FleetDiskImage, targets []preload.Target) {
			closeWindows(img, targets)
			for i := range targets {
				targets[i].Activity.ObservedAt = metav1.NewTime(now.Add(-48 * time.Hour))
			}
		}, wantMinutes: []int{370, 370}},
		"others hold slots, long before the windows open": {
			change: closeWindows, fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}, Held: map[string]int32{"lab": 2}, HeldFor: 5 * time.Hour}, wantMinutes: []int{370, 370},
		},
		"others hold slots, and may until the windows are open": {
			change: closeWindows, fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}, Held: map[string]int32{"lab": 2}, HeldFor: 7 * time.Hour}, wantReason: "NothingGranted",
		},
		"one slot for windows that open later": {
			change: closeWindows, fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 1}, Held: map[string]int32{"lab": 1}, HeldFor: 5 * time.Hour}, wantMinutes: []int{370, 380},
		},
		"failed there": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			for i := range targets {
				targets[i].Reported = []v1alpha1.ReportedImage{{Namespace: "images", Name: "win-11-24.2", Phase: v1alpha1.PhaseFailed}}
			}
		}, wantReason: "WaitsForPerson"},
		"queued already": {change: func(img *v1alpha1.FleetDiskImage, targets []preload.Target) {
			img.Spec.Placement.ClusterNames = []string{"oslo", "turku"}
			for i := range targets {
				targets[i].Activity.Queued = 2
				targets[i].Activity.Head = []v1alpha1.QueuedImport{{Namespace: "images", Name: "first", Source: v1alpha1.SourceOther, Bytes: 600 << 20}, {Namespace: "images", Name: "win-11-24.2", Source: v1alpha1.SourceOther, Bytes: 600 << 20}}
			}
		}, wantMinutes: []int{20, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			img, targets := newObserved(), []preload.Target{newIdle("oslo"), newIdle("turku")}
			if test.change != nil {
				test.change(img, targets)
			}
			i := forecast(t, test.fleet, img, targets)
			require.Len(t, i.Expected, 2)
			if test.wantReason == "" {
				assert.Equal(t, test.wantMinutes, []int{minutesOf(i.Expected[0]), minutesOf(i.Expected[1])})
				require.NotNil(t, i.ExpectedBy)
				assert.Equal(t, i.Expected[1].At, i.ExpectedBy.At)
				return
			}
			for _, e := range i.Expected {
				assert.Equal(t, test.wantReason, e.Reason)
				assert.Nil(t, e.At)
			}
			assert.Nil(t, i.ExpectedBy)
		})
	}
}

// A second image waits behind the first.
func TestForecastOfSeveralImages(t *testing.T) {
	first, second := newObserved(), newObserved()
	second.Name = "win-10"
	targets := []preload.Target{newIdle("oslo")}
	before := *targets[0].Activity
	forecast(t, preload.Fleet{}, first, targets)
	assert.Equal(t, 20, minutesOf(forecast(t, preload.Fleet{}, second, targets).Expected[0]))
	assert.Empty(t, before.Head)
}

func TestBefore(t *testing.T) {
	p := func(images ...preload.Image) *preload.Preload { return preload.New(now, images) }
	img := newObserved()
	timed := forecast(t, preload.Fleet{}, img, []preload.Target{newIdle("oslo")})
	unknown := forecast(t, preload.Fleet{}, img, []preload.Target{newIdle("oslo"), newTarget("edge-3", true, nil)})
	full := newIdle("lab-2")
	full.Shortages = map[string]string{"win-11": "no node has 1 GiB"}
	noRoom := forecast(t, preload.Fleet{}, img, []preload.Target{full, newTarget("edge-3", true, nil)})
	for name, test := range map[string]struct {
		p            *preload.Preload
		before       time.Duration
		allowUnknown bool
		wantCode     exit.Code
	}{
		"in time":                   {p: p(timed), before: time.Hour},
		"late":                      {p: p(timed), before: time.Minute, wantCode: exit.No},
		"unknown":                   {p: p(timed, unknown), before: time.Hour, wantCode: exit.Unknown},
		"unknown, and allowed":      {p: p(unknown), before: time.Hour, allowUnknown: true},
		"unknown, and another late": {p: p(unknown, timed), before: time.Minute, allowUnknown: true, wantCode: exit.No},
		"no room":                   {p: p(noRoom), before: 100 * time.Hour, wantCode: exit.No},
		"nothing to do":             {p: p(), before: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, exit.Yes, test.p.ExitCode(false), "nobody asked")
			test.p.JudgeTime(now.Add(test.before))
			assert.Equal(t, test.wantCode, test.p.ExitCode(test.allowUnknown))
		})
	}
	shown := p(timed, unknown, noRoom)
	shown.JudgeTime(now.Add(5 * time.Minute))
	rendertest.Golden(t, "late", now, shown)
}

func TestParseBefore(t *testing.T) {
	for text, want := range map[string]string{
		"18:00": "2026-03-02T18:00:00Z", "16:21": "2026-03-03T16:21:00Z", "2026-03-04 09:30": "2026-03-04T09:30:00Z", "2026-03-02T20:00:00+02:00": "2026-03-02T18:00:00Z",
	} {
		got, err := preload.ParseBefore(text, now)
		require.NoError(t, err)
		assert.Equal(t, want, got.UTC().Format(time.RFC3339), text)
	}
	for text, want := range map[string]string{"soon": "must be a time", "25:00": "must be a time", "2026-03-02T16:00:00Z": "has passed"} {
		_, err := preload.ParseBefore(text, now)
		require.ErrorContains(t, err, "--before "+text+": "+want)
	}
}
