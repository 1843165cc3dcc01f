package v1alpha1

import (
	"slices"
	"time"
)

// Length returns how long a stretch has lasted by a time; 0 where it begins later.
func (s *MemberStretch) Length(now time.Time) time.Duration {
	if s.Until != nil && s.Until.Time.Before(now) {
		now = s.Until.Time
	}
	return max(0, now.Sub(s.From.Time))
}

// StretchAt returns the index of the last stretch that began by a time; -1 for none.
func StretchAt(list []MemberStretch, at time.Time) int {
	for i, s := range slices.Backward(list) {
		if !s.From.After(at) {
			return i
		}
	}
	return -1
}

// StretchTimeSince returns for how long stretches lasted from a time until now. It is less where
// that time is before the first one, or in one that is not listed.
func StretchTimeSince(list []MemberStretch, at, now time.Time) time.Duration {
	if len(list) == 0 {
		return 0
	}
	var before time.Duration
	switch i := StretchAt(list, at); {
	case i < 0:
		before = list[0].startReading()
	case i+1 < len(list) && list[i].Until != nil && !at.Before(list[i].Until.Time):
		before = list[i+1].startReading()
	default:
		before = list[i].startReading() + list[i].Length(at)
	}
	last := &list[len(list)-1]
	return max(0, last.startReading()+last.Length(now)-before)
}

// startReading is how long all stretches before this one lasted.
func (s *MemberStretch) startReading() time.Duration {
	return time.Duration(s.SecondsBefore) * time.Second
}
