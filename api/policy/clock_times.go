package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // policies name time zones, and the images have none

	"github.com/robfig/cron/v3"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// zones are those that were loaded: each load would parse the zone again. Only names of zones
// that exist get in.
var zones sync.Map

// LoadZone returns a time zone by its IANA name; UTC for an empty one.
func LoadZone(name string) (*time.Location, error) {
	if zone, loaded := zones.Load(name); loaded {
		return zone.(*time.Location), nil
	}
	if name == "Local" {
		return nil, errors.New("the zone Local is another one in each process: name one, such as Europe/Berlin")
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name != "" && !timeZonePattern.MatchString(name) {
		return nil, fmt.Errorf("%q is unknown: use a name such as Europe/Berlin", name)
	}
	zones.Store(name, zone)
	return zone, nil
}

// ParseCron parses a schedule of windows or of PruneReports, which is interpreted in UTC: see
// NewClockTimes. zoneField is named to whoever writes a time zone into it.
func ParseCron(text, zoneField string) (cron.Schedule, error) {
	switch {
	case text == "":
		return nil, errors.New(`it is missing: name times of the clock, as in "0 22 * * *"`)
	case strings.Contains(text, "TZ="):
		return nil, fmt.Errorf("it must not contain a time zone: set %s", zoneField)
	case strings.HasPrefix(text, "@every"):
		return nil, errors.New(`it must not use @every: name times of the clock, such as "0 */6 * * *"`)
	}
	quoted := strconv.Quote(v1alpha1.SanitizeText(text, maxQuotedEntryLength))
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not in the Cron format, as in %q or @daily: %s", quoted, "0 22 * * 1-5", v1alpha1.SanitizeText(err.Error(), 160))
	}
	// The year has a 29 February.
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%s matches no date: correct it", quoted)
	}
	return schedule, nil
}

// ClockTimes are the times that a Cron schedule names by the clock of a zone, such as the openings
// of a window.
type ClockTimes struct {
	schedule cron.Schedule
	zone     *time.Location
	// everyHour: the schedule names each hour of the day, so that an hour that comes twice has
	// its times twice.
	everyHour bool
}

const allHours = 1<<24 - 1

// NewClockTimes returns the times of a schedule of ParseCron.
func NewClockTimes(schedule cron.Schedule, zone *time.Location) ClockTimes {
	spec, isSpec := schedule.(*cron.SpecSchedule)
	return ClockTimes{schedule: schedule, zone: zone, everyHour: isSpec && spec.Hour&allHours == allHours}
}

func newOpenings(w Window) (ClockTimes, error) {
	schedule, err := ParseCron(w.Cron, "timeZone")
	if err != nil {
		return ClockTimes{}, err
	}
	zone, err := LoadZone(w.TimeZone)
	if err != nil {
		return ClockTimes{}, err
	}
	return NewClockTimes(schedule, zone), nil
}

const (
	// maxZoneChanges bounds the search for a time: a zone changes its offset a few times
	// a year.
	maxZoneChanges = 128
	// maxScheduleSearches bounds it as well: cron.Schedule gives up after five years, and
	// eight may lie between two leap days.
	maxScheduleSearches = 3
)

// nextClockTime returns the first time after t that the schedule names. Both are what a clock
// shows, written as a time in UTC. It is zero where there is none.
func (c ClockTimes) nextClockTime(t time.Time) time.Time {
	for range maxScheduleSearches {
		if next := c.schedule.Next(t); !next.IsZero() {
			return next
		}
		t = time.Date(t.Year()+5, time.December, 31, 23, 59, 59, 0, time.UTC)
	}
	return time.Time{}
}

// Next returns the first of the times after t; zero where there is none. One that the clock skips is
// the first instant after the gap; one that the clock shows twice is the first of the two.
func (c ClockTimes) Next(t time.Time) time.Time {
	start, end := c.boundsOf(t)
	offset := offsetAt(t.In(c.zone))
	from := asClockTime(t, offset)
	var clock, searched time.Time
	for range maxZoneChanges {
		if !start.IsZero() && !c.everyHour {
			// Before the change the clock showed all that is before this.
			if shown := asClockTime(start, offsetAt(start.Add(-time.Nanosecond))); shown.After(from) {
				from = shown.Add(-time.Nanosecond)
			}
		}
		if searched.IsZero() || from.Before(searched) || !clock.After(from) {
			clock, searched = c.nextClockTime(from), from
		}
		if clock.IsZero() {
			return time.Time{}
		}
		if opening := clock.Add(-offset); end.IsZero() || opening.Before(end) {
			return opening
		}
		offset = offsetAt(end)
		changed := asClockTime(end, offset)
		if clock.Before(changed) {
			return end.UTC() // the clock skips it
		}
		from = changed.Add(-time.Nanosecond)
		start, end = c.boundsOf(end)
	}
	return time.Time{}
}

// boundsOf returns the time around t at which the zone may change its offset. Go ends the last
// time of a leap year on its last day, from which on it would be no further.
func (c ClockTimes) boundsOf(t time.Time) (start, end time.Time) {
	start, end = t.In(c.zone).ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = t.In(c.zone).Add(24 * time.Hour)
	}
	return start, end
}

// asClockTime returns what a clock with an offset shows, as a time in UTC.
func asClockTime(t time.Time, offset time.Duration) time.Time { return t.UTC().Add(offset) }

// offsetAt returns the offset of a time's zone from UTC.
func offsetAt(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}
