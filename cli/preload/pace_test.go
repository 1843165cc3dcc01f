package preload_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/preload"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// forecastAll returns the minutes of each image, by cluster.
func forecastAll(t require.TestingT, f preload.Fleet, images []*v1alpha1.FleetDiskImage, targets []preload.Target) (minutes [][]int) {
	items := make([]preload.Image, len(images))
	for i, img := range images {
		var err error
		items[i], err = preload.NewImage(img, targets, 600<<20)
		require.NoError(t, err)
	}
	f.Now = now
	require.NoError(t, preload.Forecast(f, items, images, targets))
	for i := range items {
		minutes = append(minutes, nil)
		for _, e := range items[i].Expected {
			minutes[i] = append(minutes[i], minutesOf(e))
		}
	}
	return minutes
}

func newNamed(name string) *v1alpha1.FleetDiskImage {
	img := newObserved()
	img.Name = name
	return img
}

func TestForecastOfImagesTogether(t *testing.T) {
	one := &policy.Budget{Concurrency: 1}
	for name, tt := range map[string]struct {
		change func(first *v1alpha1.FleetDiskImage, targets []preload.Target)
		fleet  preload.Fleet
		want   [][]int
	}{
		"each in its clusters":     {want: [][]int{{10, 10}, {20, 20}}},
		"one slot of the fleet":    {fleet: preload.Fleet{Budget: one}, want: [][]int{{10, 20}, {30, 40}}},
		"two slots of the fleet":   {fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 2}}, want: [][]int{{10, 10}, {20, 20}}},
		"one slot of their source": {fleet: preload.Fleet{Budget: withGroup(5, 1)}, want: [][]int{{10, 20}, {30, 40}}},
		"the first one at a time": {change: func(first *v1alpha1.FleetDiskImage, _ []preload.Target) {
			first.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
		}, want: [][]int{{10, 20}, {20, 30}}},
		"a closed window holds up no open one": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[0].Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(now.Add(6 * time.Hour)))}
		}, fleet: preload.Fleet{Budget: one}, want: [][]int{{370, 10}, {380, 20}}},
		"the slots are those of the second cluster": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			importForHours(&targets[1], 1, "a")
		}, fleet: preload.Fleet{Budget: one, Held: map[string]int32{"turku": 1}}, want: [][]int{{80, 70}, {90, 100}}},
		"the fleet's window closes meanwhile": {fleet: preload.Fleet{Budget: &policy.Budget{Concurrency: 1, LowerFrom: now.Add(15 * time.Minute)}}, want: [][]int{{10, 20}, {-1, -1}}},
		"nothing is known of the one that holds them": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[1].Activity = nil
		}, fleet: preload.Fleet{Budget: one, Held: map[string]int32{"turku": 1}}, want: [][]int{{-1, -1}, {-1, -1}}},
		"the window of the one that holds them is closed": {change: func(_ *v1alpha1.FleetDiskImage, targets []preload.Target) {
			targets[1].Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(now.Add(6 * time.Hour)))}
		}, fleet: preload.Fleet{Budget: one, Held: map[string]int32{"turku": 1}, HeldFor: 5 * time.Hour}, want: [][]int{{-1, 370}, {-1, 380}}},
	} {
		t.Run(name, func(t *testing.T) {
			images, targets := []*v1alpha1.FleetDiskImage{newNamed("win-11"), newNamed("win-10")}, []preload.Target{newIdle("oslo"), newIdle("turku")}
			if tt.change != nil {
				tt.change(images[0], targets)
			}
			assert.Equal(t, tt.want, forecastAll(t, tt.fleet, images, targets))
		})
	}
}

// An image that its cluster queues already begins as late as one that joins.
func TestQueuedImageBeyondTheBudget(t *testing.T) {
	for lower, want := range map[time.Duration]int{15 * time.Minute: 20, 5 * time.Minute: -1} {
		target := newIdle("oslo")
		for _, name := range []string{"first", "win-11-24.2"} {
			target.Activity.Head = append(target.Activity.Head, v1alpha1.QueuedImport{Namespace: "images", Name: name, Source: v1alpha1.SourceOther, Bytes: 600 << 20})
		}
		target.Activity.Queued = 2
		fleet := preload.Fleet{Budget: &policy.Budget{Concurrency: 1, LowerFrom: now.Add(lower)}}
		assert.Equal(t, [][]int{{want}}, forecastAll(t, fleet, []*v1alpha1.FleetDiskImage{newNamed("win-11")}, []preload.Target{target}), lower)
	}
}

// A lower fleetConcurrency makes an image no earlier: what is late without is late, also where it has no time.
func TestLateBeyondTheBudget(t *testing.T) {
	queued := newIdle("oslo")
	queued.Activity.Queued, queued.Activity.Head = 1, []v1alpha1.QueuedImport{{Namespace: "images", Name: "first", Source: v1alpha1.SourceOther, Bytes: 600 << 20}}
	listed := newIdle("oslo")
	listed.Activity.Queued, listed.Activity.Head = 2, slices.Concat(queued.Activity.Head, []v1alpha1.QueuedImport{{Namespace: "images", Name: "win-11-24.2", Source: v1alpha1.SourceOther, Bytes: 600 << 20}})
	for name, target := range map[string]preload.Target{"it joins": queued, "it is listed": listed} {
		t.Run(name, func(t *testing.T) {
			i := forecast(t, preload.Fleet{Budget: &policy.Budget{Concurrency: 1, LowerFrom: now.Add(5 * time.Minute)}}, newObserved(), []preload.Target{target})
			require.Equal(t, "NothingGranted", i.Expected[0].Reason)
			data, err := json.Marshal(i.Expected[0])
			require.NoError(t, err)
			assert.Contains(t, string(data), `"atBest":"2026-03-02T16:41:`, "who reads the JSON knows which cluster is late")
			for before, want := range map[time.Duration]preload.InTime{15 * time.Minute: preload.InTimeNo, 25 * time.Minute: preload.InTimeUnknown} {
				p := preload.New(now, []preload.Image{i})
				p.JudgeTime(now.Add(before))
				assert.Equal(t, want, p.InTime, before)
				if want == preload.InTimeNo {
					page := &render.Page{}
					p.Draw(page)
					assert.Contains(t, render.Print(page, render.Options{}), "oslo ~16:41 at best")
				}
			}
		})
	}
}

// A group of sources whose own limit is below what others leave of the lowest fleetConcurrency has as many slots as
// before.
func TestForecastOfAGroupBelowTheLowestBudget(t *testing.T) {
	for name, tt := range map[string]struct {
		least     int32
		fleet     preload.Fleet
		withOther bool
		want      []int
	}{
		"its limit is below":                 {least: 2, want: []int{10, 20}},
		"and nothing is left":                {least: 2, fleet: preload.Fleet{Held: map[string]int32{"lab": 2}, Running: map[string]map[string]int32{"lab": {"bucket": 2}}}, want: []int{10, -1}},
		"until what runs has ended":          {least: 2, fleet: preload.Fleet{HeldFor: time.Minute, Held: map[string]int32{"lab": 2}, Running: map[string]map[string]int32{"lab": {"bucket": 2}}}, want: []int{10, 20}},
		"the lowest is none":                 {least: 0, want: []int{10, -1}},
		"another group takes what it needs":  {least: 2, withOther: true, want: []int{10, -1}},
		"another group leaves what it needs": {least: 3, withOther: true, want: []int{10, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			b := withGroup(20, 1)
			b.Least, b.LowerFrom = tt.least, now.Add(5*time.Minute)
			b.Sources = append(b.Sources, policy.SourceBudget{Source: apipolicy.Source{Name: "bucket", Hosts: []string{"bucket.example.com"}}})
			tt.fleet.Budget = b
			images := []*v1alpha1.FleetDiskImage{newNamed("win-11")}
			if tt.withOther {
				other := newNamed("ubuntu")
				other.Spec.Template.SourceType, other.Spec.Template.URL = v1alpha1.SourceHTTP, "https://bucket.example.com/a"
				images = append(images, other)
			}
			assert.Equal(t, tt.want, forecastAll(t, tt.fleet, images, []preload.Target{newIdle("oslo"), newIdle("turku")})[0])
		})
	}
}

// What begins once fleetConcurrency is lower has no time, however far ahead that is.
func TestForecastBeyondTheBudget(t *testing.T) {
	saturday := time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC)
	p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "20", "windows": `[{cron: "0 0 * * 6", duration: 24h, fleetConcurrency: 1}]`})
	require.Empty(t, errs)
	for opens, want := range map[time.Time][]int{saturday.Add(-6 * time.Hour): {5869, 5869}, saturday.Add(6 * time.Hour): {-1, -1}} {
		targets := []preload.Target{newIdle("oslo"), newIdle("turku")}
		for i := range targets {
			targets[i].Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(opens))}
		}
		assert.Equal(t, [][]int{want}, forecastAll(t, preload.Fleet{Budget: p.Budget(now)}, []*v1alpha1.FleetDiskImage{newNamed("win-11")}, targets), opens)
	}
}

// No more imports are expected at a time than slots that nobody else may hold, and slots that others hold make
// none earlier.
func TestForecastKeepsToFreeSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clusters, count := rapid.IntRange(1, 6).Draw(t, "clusters"), rapid.IntRange(1, 3).Draw(t, "images")
		all, group := rapid.Int32Range(1, 6).Draw(t, "slots"), rapid.Int32Range(1, 6).Draw(t, "slots of the group")
		held := map[string]int32{"lab": rapid.Int32Range(0, 4).Draw(t, "held"), "edge": rapid.Int32Range(0, 2).Draw(t, "held")}
		bucket := rapid.Int32Range(0, held["lab"]).Draw(t, "held for another group")
		for i := range clusters {
			held[fmt.Sprintf("c%d", i)] = rapid.Int32Range(0, 1).Draw(t, "own")
		}
		opens := time.Duration(rapid.IntRange(0, 600).Draw(t, "opens")) * time.Minute
		closed := rapid.SliceOfN(rapid.Bool(), clusters, clusters).Draw(t, "closed")
		play := func(held map[string]int32, all, group int32) [][]int {
			var images []*v1alpha1.FleetDiskImage
			var targets []preload.Target
			for i := range count {
				images = append(images, newNamed(fmt.Sprintf("image-%d", i)))
			}
			for i := range clusters {
				target := newIdle(fmt.Sprintf("c%d", i))
				if closed[i] && opens > 0 {
					target.Member.Status.Window = &v1alpha1.MemberWindow{OpensAt: ptr.To(metav1.NewTime(now.Add(opens)))}
				}
				targets = append(targets, target)
			}
			return forecastAll(t, preload.Fleet{Budget: withGroup(all, group), Held: held, Running: map[string]map[string]int32{"lab": {"bucket": bucket}}}, images, targets)
		}
		minutes := play(held, all, group)
		more := maps.Clone(held)
		more["edge"]++
		withMoreHeld, withMoreSlots := play(more, all, group), play(held, all+1, group+1)
		free := min(int(all-held["lab"]-held["edge"]), int(group-(held["lab"]-bucket)-held["edge"]))
		var ends []int
		for i := range minutes {
			for j, end := range minutes[i] {
				if end < 0 {
					require.Negative(t, withMoreHeld[i][j], "it is known with a slot less")
					continue
				}
				require.True(t, withMoreHeld[i][j] < 0 || withMoreHeld[i][j] >= end, "%d with one more slot held, %d without", withMoreHeld[i][j], end)
				require.LessOrEqual(t, withMoreSlots[i][j], end, "with more slots")
				require.GreaterOrEqual(t, withMoreSlots[i][j], 0)
				ends = append(ends, end)
			}
		}
		for _, at := range ends {
			running := 0
			for _, end := range ends {
				if at-10 < end && end <= at {
					running++
				}
			}
			require.LessOrEqual(t, running, free, "imports that end at %d and in the 10 minutes before: %v", at, minutes)
		}
	})
}

func TestCountHeld(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "9", "attemptTimeout": "2h", "overrides": `[{cluster: lab, attemptTimeout: 3h}, {cluster: idle, attemptTimeout: 9h}]`})
	require.Empty(t, errs)
	var members []v1alpha1.MemberCluster
	activities := map[string]*v1alpha1.ReportedActivity{}
	for name, held := range map[string]int32{"lab": 3, "silent": 1, "unread": 2, "idle": 0} {
		m := newTarget(name, name == "silent", nil).Member
		m.Status.Transfers = &v1alpha1.MemberTransfers{Held: held}
		members = append(members, *m)
		if name != "unread" {
			activities[v1alpha1.MemberNamespacePrefix+name] = &v1alpha1.ReportedActivity{Active: []v1alpha1.ActiveImport{{Source: "bucket"}, {Source: "bucket"}, {}}}
		}
	}
	f := preload.Fleet{Now: now}
	f.CountHeld(p, members, activities)
	assert.Equal(t, map[string]int32{"lab": 3, "silent": 1, "unread": 2}, f.Held)
	assert.Equal(t, map[string]map[string]int32{"lab": {"bucket": 2}}, f.Running, "what a silent member imports is not known")
	assert.Equal(t, 3*time.Hour, f.HeldFor)

	until := metav1.NewTime(now.Add(5 * time.Hour))
	for i := range members {
		if members[i].Name == "silent" {
			members[i].Status.Transfers.HeldUntil = &until
		}
	}
	f = preload.Fleet{Now: now}
	f.CountHeld(p, members, nil)
	assert.Empty(t, f.Running)
	assert.Equal(t, 5*time.Hour, f.HeldFor)

	f.CountRunning([]readapi.Transfer{{Cluster: "lab", Source: "bucket"}, {Cluster: "lab", Source: "bucket", Unknown: "Silent"}, {Cluster: "unread"}})
	assert.Equal(t, map[string]map[string]int32{"lab": {"bucket": 1}}, f.Running)
}
