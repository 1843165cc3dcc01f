package policy

import (
	"errors"
	"fmt"
	"sync"
	"time"
	_ "time/tzdata" // windows name time zones, and the images have none

	"github.com/robfig/cron/v3"
)

// zones are those that were loaded: each load would parse the zone again. Only names of zones
// that exist get in.
var zones sync.Map

// loadZone returns a time zone by its IANA name; UTC for an empty one.
func loadZone(name string) (*time.Location, error) {
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

// openings are the times at which one window opens.
type openings struct {
	schedule cron.Schedule
	zone     *time.Location
	// everyHour: the window opens in each hour of the day, so that an hour that comes twice
	// has two openings.
	everyHour bool
}

const allHours = 1<<24 - 1

func newOpenings(w Window) (openings, error) {
	schedule, err := parseCron(w.Cron)
	if err != nil {
		return openings{}, err
	}
	zone, err := loadZone(w.TimeZone)
	if err != nil {
		return openings{}, err
	}
	spec, isSpec := schedule.(*cron.SpecSchedule)
	return openings{schedule: schedule, zone: zone, everyHour: isSpec && spec.Hour&allHours == allHours}, nil
}

const (
	// maxZoneChanges bounds the search for an opening: a zone changes its offset a few times
	// a year.
	maxZoneChanges = 128
	// maxScheduleSearches bounds it as well: cron.Schedule gives up after five years, and
	// eight may lie between two leap days.
	maxScheduleSearches = 3
)

// nextClockTime returns the first time after t that the schedule names. Both are what a clock
// shows, written as a time in UTC. It is zero where there is none.
func (o openings) nextClockTime(t time.Time) time.Time {
	for range maxScheduleSearches {
		if next := o.schedule.Next(t); !next.IsZero() {
			return next
		}
		t = time.Date(t.Year()+5, time.December, 31, 23, 59, 59, 0, time.UTC)
	}
	return time.Time{}
}

// next returns the first opening after t; zero where there is none. An opening that the clock
// skips is at the first instant after the gap; one that the clock shows twice is at the
// first of the two.
func (o openings) next(t time.Time) time.Time {
	start, end := o.boundsOf(t)
	offset := offsetAt(t.In(o.zone))
	from := asClockTime(t, offset)
	var clock, searched time.Time
	for range maxZoneChanges {
		if !start.IsZero() && !o.everyHour {
			// Before the change the clock showed all that is before this.
			if shown := asClockTime(start, offsetAt(start.Add(-time.Nanosecond))); shown.After(from) {
				from = shown.Add(-time.Nanosecond)
			}
		}
		if searched.IsZero() || from.Before(searched) || !clock.After(from) {
			clock, searched = o.nextClockTime(from), from
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
		start, end = o.boundsOf(end)
	}
	return time.Time{}
}

// boundsOf returns the time around t at which the zone may change its offset. Go ends the last
// time of a leap year on its last day, from which on it would be no further.
func (o openings) boundsOf(t time.Time) (start, end time.Time) {
	start, end = t.In(o.zone).ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = t.In(o.zone).Add(24 * time.Hour)
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
