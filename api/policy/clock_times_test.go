package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newTestOpenings(t require.TestingT, cron, zone string) ClockTimes {
	o, err := newOpenings(Window{Cron: cron, TimeZone: zone, Duration: time.Hour})
	require.NoError(t, err)
	return o
}

// Both changes of the clock in a year, an hour and half an hour wide, at 2 o'clock and at
// midnight; and zones that never change.
func TestOpeningsAtChangesOfTheClock(t *testing.T) {
	for name, tt := range map[string]struct {
		zone, cron, from string
		want             []string
	}{
		"Berlin, in the hour that is skipped":          {"Europe/Berlin", "30 2 * * *", "2026-03-27T12:00:00Z", []string{"2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		"Berlin, at its beginning":                     {"Europe/Berlin", "0 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		"Berlin, at its end":                           {"Europe/Berlin", "0 3 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T03:00:00+02:00"}},
		"Berlin, twice within it":                      {"Europe/Berlin", "15,45 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"}},
		"Berlin, in the hour that comes twice":         {"Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		"Berlin, at its beginning, which comes twice":  {"Europe/Berlin", "0 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:00:00+02:00", "2026-10-26T02:00:00+01:00"}},
		"Berlin, after the hour that comes twice":      {"Europe/Berlin", "0 3 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T03:00:00+01:00", "2026-10-26T03:00:00+01:00"}},
		"Berlin, from within its second time":          {"Europe/Berlin", "50 2 * * *", "2026-10-25T02:40:00+01:00", []string{"2026-10-26T02:50:00+01:00"}},
		"Berlin, each hour has its opening":            {"Europe/Berlin", "0 * * * *", "2026-10-25T01:30:00+02:00", []string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		"Berlin, each hour, one of which is skipped":   {"Europe/Berlin", "0 * * * *", "2026-03-29T00:30:00+01:00", []string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		"New York, in the hour that is skipped":        {"America/New_York", "30 2 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		"New York, in the hour that comes twice":       {"America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		"Lord Howe, in the half hour that is skipped":  {"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		"Lord Howe, after it":                          {"Australia/Lord_Howe", "45 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-04T02:45:00+11:00"}},
		"Lord Howe, in the half hour that comes twice": {"Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00Z", []string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		"Santiago, where midnight is skipped":          {"America/Santiago", "@daily", "2026-09-05T12:00:00Z", []string{"2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"}},
		"Tokyo, which never changes":                   {"Asia/Tokyo", "30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T02:30:00+09:00", "2026-03-30T02:30:00+09:00"}},
		"UTC by default":                               {"", "30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T02:30:00Z"}},
		"a leap day":                                   {"Europe/Berlin", "0 0 29 2 *", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00+01:00", "2032-02-29T00:00:00+01:00"}},
		"eight years between two leap days":            {"", "0 0 29 2 *", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		"a day of some months, in the hour":            {"Europe/Berlin", "30 2 29 * *", "2026-03-01T00:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-04-29T02:30:00+02:00"}},
		"a day that the zone left out":                 {"Pacific/Apia", "0 12 30 * *", "2011-12-01T00:00:00Z", []string{"2011-12-31T00:00:00+14:00", "2012-01-30T12:00:00+14:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestOpenings(t, tt.cron, tt.zone)
			at, err := time.Parse(time.RFC3339, tt.from)
			require.NoError(t, err)
			for _, want := range tt.want {
				at = o.Next(at)
				assert.Equal(t, want, at.In(o.zone).Format(time.RFC3339))
			}
		})
	}
}

var zonesWithChanges = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Beirut", "Asia/Tokyo", "Antarctica/Troll"}

// drawCron draws one that opens often enough that changes of the clock matter.
func drawCron(t *rapid.T) string {
	list := func(label string, most, last int) string {
		numbers := rapid.SliceOfNDistinct(rapid.IntRange(0, last), 1, most, rapid.ID).Draw(t, label)
		text := ""
		for i, n := range numbers {
			if i > 0 {
				text += ","
			}
			text += fmt.Sprint(n)
		}
		return text
	}
	minute := rapid.OneOf(rapid.Just("*"), rapid.Just("*/7"), rapid.Custom(func(*rapid.T) string { return list("minutes", 3, 59) })).Draw(t, "minute")
	hour := rapid.OneOf(rapid.Just("*"), rapid.Just("*/2"), rapid.Just("0-4"), rapid.Custom(func(*rapid.T) string { return list("hours", 4, 23) })).Draw(t, "hour")
	day := rapid.SampledFrom([]string{"* * *", "* * 0", "* * 1-6", "*/2 * *", "28,29 * *", "1 * 6"}).Draw(t, "day")
	return minute + " " + hour + " " + day
}

// The openings are those that one finds by watching a clock minute by minute.
func TestOpeningsAreThoseOfAClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zonesWithChanges).Draw(t, "zone")
		o := newTestOpenings(t, drawCron(t), zone)
		from := nextChange(o.zone, time.Date(2026, time.Month(rapid.IntRange(1, 12).Draw(t, "month")), 1, 0, 0, 0, 0, time.UTC)).Add(-36 * time.Hour)
		until := from.Add(72 * time.Hour)
		want := watchClock(o, from, until)
		var got []time.Time
		for at := o.Next(from); !at.IsZero() && at.Before(until); at = o.Next(at) {
			got = append(got, at)
			require.Less(t, len(got), 5000)
		}
		require.Len(t, got, len(want), "%v\n%v", want, got)
		for i := range want {
			require.True(t, want[i].Equal(got[i]), "opening %d: want %s, got %s", i, want[i].In(o.zone), got[i].In(o.zone))
		}
		// It does not matter from where one asks.
		between := from.Add(time.Duration(rapid.Int64Range(0, int64(71*time.Hour)).Draw(t, "between")))
		i := slices.IndexFunc(want, func(w time.Time) bool { return w.After(between) })
		if i >= 0 {
			require.True(t, want[i].Equal(o.Next(between)), "after %s: want %s, got %s", between.In(o.zone), want[i].In(o.zone), o.Next(between).In(o.zone))
		}
	})
}

func nextChange(zone *time.Location, t time.Time) time.Time {
	if _, end := t.In(zone).ZoneBounds(); !end.IsZero() {
		return end
	}
	return t
}

// watchClock reads the clock each minute, from a while before.
func watchClock(o ClockTimes, from, until time.Time) (at []time.Time) {
	isNamed := func(clock time.Time) bool { return o.schedule.Next(clock.Add(-time.Second)).Equal(clock) }
	shown := map[time.Time]bool{}
	add := func(opening time.Time) {
		if opening.After(from) && opening.Before(until) && !slices.ContainsFunc(at, opening.Equal) {
			at = append(at, opening)
		}
	}
	last := time.Time{}
	for now := from.Add(-12 * time.Hour).Truncate(time.Minute); now.Before(until); now = now.Add(time.Minute) {
		local := now.In(o.zone)
		clock := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
		if !last.IsZero() {
			for skipped := last.Add(time.Minute); skipped.Before(clock); skipped = skipped.Add(time.Minute) {
				if isNamed(skipped) {
					add(now)
				}
			}
		}
		if isNamed(clock) && (!shown[clock] || o.everyHour) {
			add(now)
		}
		shown[clock], last = true, clock
	}
	return at
}

// A window of each day opens on each day of a year, whatever the clock does.
func TestNoDayIsWithoutItsWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newTestOpenings(t, fmt.Sprintf("%d %d * * *", rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 23).Draw(t, "hour")), rapid.SampledFrom(zonesWithChanges).Draw(t, "zone"))
		year := rapid.IntRange(2025, 2040).Draw(t, "year")
		at := time.Date(year, 1, 1, 0, 0, 0, 0, o.zone).Add(-time.Nanosecond)
		for day := time.Date(year, 1, 1, 12, 0, 0, 0, time.UTC); day.Year() == year; day = day.AddDate(0, 0, 1) {
			at = o.Next(at)
			require.Equal(t, day.Format(time.DateOnly), at.In(o.zone).Format(time.DateOnly))
		}
	})
}
