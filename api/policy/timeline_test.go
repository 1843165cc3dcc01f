package policy

import (
	"fmt"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func window(cron string, duration time.Duration, zone string, concurrency int32) Window {
	return Window{Cron: cron, Duration: duration, TimeZone: zone, Concurrency: &concurrency}
}

func TestPolicyAt(t *testing.T) {
	night := window("0 22 * * *", 8*time.Hour, "Europe/Berlin", 4)
	fleetNight := night
	fleetNight.Concurrency, fleetNight.FleetConcurrency = nil, ptr.To[int32](50)
	noon := window("0 12 * * *", time.Hour, "", 9)
	for name, tt := range map[string]struct {
		windows   Windows
		now       string
		want      int32
		wantFleet int32
		wantEdge  string
	}{
		"none":                                    {nil, "2026-06-01T12:00:00Z", 1, 10, ""},
		"before it opens":                         {Windows{night}, "2026-06-01T19:59:59Z", 1, 10, "2026-06-01T20:00:00Z"},
		"when it opens":                           {Windows{night}, "2026-06-01T20:00:00Z", 4, 10, "2026-06-02T04:00:00Z"},
		"before it closes":                        {Windows{night}, "2026-06-02T03:59:59Z", 4, 10, "2026-06-02T04:00:00Z"},
		"when it closes":                          {Windows{night}, "2026-06-02T04:00:00Z", 1, 10, "2026-06-02T20:00:00Z"},
		"across the change in spring":             {Windows{night}, "2026-03-29T00:00:00Z", 4, 10, "2026-03-29T05:00:00Z"},
		"across the change in autumn":             {Windows{night}, "2026-10-25T00:00:00Z", 4, 10, "2026-10-25T04:00:00Z"},
		"opened in the hour that comes twice":     {Windows{window("30 2 * * *", time.Hour, "Europe/Berlin", 4)}, "2026-10-25T00:30:00Z", 4, 10, "2026-10-25T01:30:00Z"},
		"its second time":                         {Windows{window("30 2 * * *", time.Hour, "Europe/Berlin", 4)}, "2026-10-25T01:30:00Z", 1, 10, "2026-10-26T01:30:00Z"},
		"opened after the hour that is skipped":   {Windows{window("30 2 * * *", time.Hour, "Europe/Berlin", 4)}, "2026-03-29T01:00:00Z", 4, 10, "2026-03-29T02:00:00Z"},
		"the last one wins":                       {Windows{window("@daily", 24*time.Hour, "", 2), noon}, "2026-06-01T12:30:00Z", 9, 10, "2026-06-01T13:00:00Z"},
		"also where it allows less":               {Windows{noon, window("30 12 * * *", 10*time.Minute, "", 0)}, "2026-06-01T12:30:00Z", 0, 10, "2026-06-01T12:40:00Z"},
		"key by key":                              {Windows{night, fleetNight}, "2026-06-01T20:00:00Z", 4, 50, "2026-06-02T04:00:00Z"},
		"an opening before it closes":             {Windows{window("0 */6 * * *", 8*time.Hour, "", 4)}, "2026-06-01T00:00:00Z", 4, 10, "2026-06-04T20:00:00Z"},
		"one opens as another closes":             {Windows{window("0 1 * * *", time.Hour, "", 3), window("0 2 * * *", time.Hour, "", 4)}, "2026-06-01T02:00:00Z", 4, 10, "2026-06-01T03:00:00Z"},
		"one that opens as it closes stays open":  {Windows{window("@daily", 24*time.Hour, "", 3)}, "2026-06-01T02:00:00Z", 3, 10, "2026-06-17T00:00:00Z"},
		"a zone that never changes":               {Windows{window("0 22 * * *", time.Hour, "Asia/Tokyo", 3)}, "2026-06-01T13:00:00Z", 3, 10, "2026-06-01T14:00:00Z"},
		"one that cannot be parsed is never open": {Windows{{Cron: "no", Duration: time.Hour, Concurrency: ptr.To[int32](9)}}, "2026-06-01T02:00:00Z", 1, 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			numbers, edge := tt.windows.At(at(tt.now), Numbers{Concurrency: 1, FleetConcurrency: 10})
			assert.Equal(t, Numbers{Concurrency: tt.want, FleetConcurrency: tt.wantFleet}, numbers)
			if tt.wantEdge == "" {
				assert.Zero(t, edge)
			} else {
				assert.Equal(t, tt.wantEdge, edge.UTC().Format(time.RFC3339))
			}
			inForce, policyEdge := Policy{Concurrency: 1, RetryLimit: 5, Windows: tt.windows}.At(at(tt.now))
			assert.True(t, inForce.Equal(Policy{Concurrency: tt.want, RetryLimit: 5}))
			assert.Equal(t, edge, policyEdge)
		})
	}
}

// A plan is limited by a ConfigMap without concurrency only within its windows.
func TestCombineAtJudgesEachSideByItself(t *testing.T) {
	day, night := at("2026-06-01T12:00:00Z"), at("2026-06-01T23:00:00Z")
	own := func(concurrency int32, unset bool, atNight int32) *Policy {
		return &Policy{Concurrency: concurrency, ConcurrencyUnset: unset, Windows: Windows{window("0 22 * * *", 8*time.Hour, "", atNight)}}
	}
	plain := func(concurrency int32) *Policy { return &Policy{Concurrency: concurrency} }
	for name, tt := range map[string]struct {
		own, planned       *Policy
		wantDay, wantNight int32
	}{
		"its own raises its own":               {own(0, false, 4), plain(8), 0, 4},
		"never beyond the plan":                {own(1, false, 9), plain(8), 1, 8},
		"its own lowers":                       {own(5, false, 2), plain(8), 5, 2},
		"the plan's alone":                     {plain(5), own(1, false, 9), 1, 5},
		"both":                                 {own(1, false, 3), own(2, false, 5), 1, 3},
		"only its own":                         {own(1, false, 3), nil, 1, 3},
		"only the plan":                        {nil, own(1, false, 3), 1, 3},
		"it sets none outside, under a plan":   {own(3, true, 2), plain(8), 8, 2},
		"it sets the default in a window":      {own(3, true, 3), plain(8), 8, 3},
		"it sets none outside, without a plan": {own(3, true, 2), nil, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			atDay, edge := CombineAt(tt.own, tt.planned, day)
			assert.Equal(t, tt.wantDay, atDay.Concurrency)
			assert.Equal(t, at("2026-06-01T22:00:00Z"), edge)
			atNight, edge := CombineAt(tt.own, tt.planned, night)
			assert.Equal(t, tt.wantNight, atNight.Concurrency)
			assert.Equal(t, at("2026-06-02T06:00:00Z"), edge)
			opening, found := NextOpening(tt.own, tt.planned, day)
			if tt.wantNight > tt.wantDay {
				assert.Equal(t, Opening{At: at("2026-06-01T22:00:00Z"), Concurrency: tt.wantNight}, opening)
			} else {
				assert.False(t, found, "%+v", opening)
			}
		})
	}
	none, edge := CombineAt(nil, nil, day)
	assert.Nil(t, none)
	assert.Zero(t, edge)
}

func TestNextOpening(t *testing.T) {
	berlin := window("0 22 * * *", 8*time.Hour, "Europe/Berlin", 4)
	for name, tt := range map[string]struct {
		own, planned *Policy
		want         Opening
	}{
		"no windows":           {own: &Policy{Concurrency: 3}},
		"no policy":            {},
		"the window":           {own: &Policy{Windows: Windows{berlin}}, want: Opening{At: at("2026-06-01T20:00:00Z"), Concurrency: 4, TimeZone: "Europe/Berlin"}},
		"as much as now":       {own: &Policy{Concurrency: 4, Windows: Windows{berlin}}},
		"one that closes":      {own: &Policy{Concurrency: 4, Windows: Windows{window("0 6 * * *", 12*time.Hour, "Asia/Tokyo", 1), window("0 12 * * *", time.Hour, "", 0)}}, want: Opening{At: at("2026-06-01T13:00:00Z"), Concurrency: 4}},
		"both have to be open": {own: &Policy{Windows: Windows{window("0 20 * * *", 8*time.Hour, "", 3)}}, planned: &Policy{Windows: Windows{window("0 23 * * *", 8*time.Hour, "Asia/Tokyo", 2), window("0 22 * * *", 8*time.Hour, "Europe/Berlin", 5)}}, want: Opening{At: at("2026-06-01T20:00:00Z"), Concurrency: 3, TimeZone: "Europe/Berlin"}},
		"they never are":       {own: &Policy{Windows: Windows{window("0 1 * * *", time.Hour, "", 3)}}, planned: &Policy{Windows: Windows{window("0 5 * * *", time.Hour, "", 3)}}},
		"the other allows 0":   {own: &Policy{Windows: Windows{berlin}}, planned: &Policy{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := NextOpening(tt.own, tt.planned, at("2026-06-01T12:30:00Z"))
			assert.Equal(t, tt.want != Opening{}, found)
			assert.Equal(t, tt.want, got)
		})
	}
}

func drawWindows(t *rapid.T) Windows {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Window {
		return Window{
			Cron:        drawCron(t),
			Duration:    time.Duration(rapid.SampledFrom([]int{5, 30, 60, 61, 600, 1440, 7 * 1440}).Draw(t, "minutes")) * time.Minute,
			TimeZone:    rapid.SampledFrom(zonesWithChanges).Draw(t, "zone"),
			Concurrency: rapid.SampledFrom([]*int32{nil, ptr.To[int32](0), ptr.To[int32](2), ptr.To[int32](5)}).Draw(t, "concurrency"),
		}
	}), 0, 4).Draw(t, "windows")
}

// Between two edges nothing changes, the edges strictly grow, and what applies is what one
// finds by looking for an opening within the duration.
func TestNothingChangesBetweenEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		windows := drawWindows(t)
		plain := Numbers{Concurrency: 1}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(t, "now")))
		for range 5 {
			numbers, edge := windows.At(now, plain)
			require.Equal(t, lookForOpenings(windows, now, plain), numbers)
			if edge.IsZero() {
				require.Empty(t, windows)
				return
			}
			require.True(t, edge.After(now))
			later := now.Add(time.Duration(rapid.Int64Range(0, int64(edge.Sub(now))-1).Draw(t, "later")))
			then, sameEdge := windows.At(later, plain)
			require.Equal(t, numbers, then, "%s is before the edge %s", later, edge)
			require.False(t, sameEdge.Before(edge), "asked later, the edge is no earlier")
			now = edge
		}
	})
}

func lookForOpenings(windows Windows, now time.Time, plain Numbers) Numbers {
	for _, w := range windows {
		o, err := newOpenings(w)
		if err != nil || w.Concurrency == nil {
			continue
		}
		if opening := o.Next(now.Add(-w.Duration)); !opening.After(now) {
			plain.Concurrency = *w.Concurrency
		}
	}
	return plain
}

// The next opening is the first edge at which more may run.
func TestNextOpeningIsTheFirstRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		own, planned := &Policy{Concurrency: 1, Windows: drawWindows(t)}, &Policy{Concurrency: rapid.Int32Range(0, 3).Draw(t, "planned"), Windows: drawWindows(t)}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(t, "now")))
		inForce, edge := CombineAt(own, planned, now)
		opening, found := NextOpening(own, planned, now)
		for range 40 {
			if edge.IsZero() || found && !edge.Before(opening.At) {
				break
			}
			var then *Policy
			at := edge
			then, edge = CombineAt(own, planned, at)
			require.LessOrEqual(t, then.Concurrency, inForce.Concurrency, "at %s", at)
		}
		if found {
			then, _ := CombineAt(own, planned, opening.At)
			require.Equal(t, opening.Concurrency, then.Concurrency)
			require.Greater(t, then.Concurrency, inForce.Concurrency)
		}
	})
}

// The cost does not depend on how many openings there are between now and then.
func BenchmarkAt(b *testing.B) {
	for _, cron := range []string{"* * * * *", "@daily", "0 0 29 2 *"} {
		b.Run(cron, func(b *testing.B) {
			windows := make(Windows, MaxWindows)
			for i := range windows {
				windows[i] = window(cron, MaxWindowDuration, "Europe/Berlin", int32(i))
			}
			for b.Loop() {
				windows.At(at("2026-06-01T12:30:00Z"), Numbers{})
			}
		})
	}
}

// The number of schedule searches is bounded, however often a window opens.
func TestAtSearchesABoundedNumberOfTimes(t *testing.T) {
	for _, duration := range []time.Duration{MinWindowDuration, MaxWindowDuration} {
		steps := &countedSchedule{}
		w := window("* * * * *", duration, "Europe/Berlin", 1)
		timeline := newTimeline(Windows{w}, at("2026-06-01T12:30:30Z"))
		steps.Schedule = timeline.states[0].schedule
		timeline.states[0].schedule = steps
		timeline.update(0)
		assert.LessOrEqual(t, steps.searches, 2*(maxJoinedOpenings+1), fmt.Sprint(duration))
	}
}

type countedSchedule struct {
	cron.Schedule
	searches int
}

func (c *countedSchedule) Next(t time.Time) time.Time {
	c.searches++
	return c.Schedule.Next(t)
}
