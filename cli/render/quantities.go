package render

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pelotech/ot-fleet/api/numbers"
)

// Bytes formats a size, as in 24 GiB.
func Bytes(n int64) string {
	const unit = 1024
	if n > -unit && n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, at := float64(n), -1
	for at < 5 && math.Abs(value) >= unit-0.5 {
		value /= unit
		at++
	}
	if rounded := math.Round(value*10) / 10; math.Abs(rounded) < 10 && rounded != math.Trunc(rounded) {
		return fmt.Sprintf("%.1f %ciB", rounded, "KMGTPE"[at])
	}
	return fmt.Sprintf("%.0f %ciB", value, "KMGTPE"[at])
}

// Rate formats bytes per second, as in 62 MiB/s.
func Rate(bytesPerSecond int64) string { return Bytes(bytesPerSecond) + "/s" }

// Percent formats a share from 0 to 1. It is 100% only for all, and 0% only for nothing.
func Percent(share float64) string {
	percent := math.Round(share * 100)
	switch {
	case share > 0 && percent == 0:
		percent = 1
	case share < 1 && percent >= 100:
		percent = 99
	}
	return fmt.Sprintf("%.0f%%", percent)
}

// Duration formats a time span as kubectl does, as in 14m.
func Duration(d time.Duration) string { return duration.HumanDuration(d) }

// Age formats how long ago a time was, as in 3s.
func Age(now, then time.Time) string { return Duration(max(0, now.Sub(then))) }

// Clock formats a time to come or past, by the time zone of now: 16:42 today, else with its
// day.
func Clock(now, t time.Time) string {
	t = t.In(now.Location())
	switch days := t.Sub(now).Hours() / 24; {
	case t.YearDay() == now.YearDay() && t.Year() == now.Year():
		return t.Format("15:04")
	case days > -6 && days < 6:
		return t.Format("Mon 15:04")
	default:
		return t.Format("2006-01-02 15:04")
	}
}

// Number formats a whole number, as in 1,000.
func Number[N int | int32 | int64](n N) string { return numbers.Format(int64(n)) }

// Count formats a number with its noun, as in 1 image, 2 images.
func Count[N int | int32 | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Number(n) + " " + noun
}
