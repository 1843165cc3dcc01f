package eta

import (
	"math"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// work is how long something takes, or until when, in seconds since the observation.
type work struct {
	seconds, variance float64
	begin             float64 // of an image that waits: when it gets its slot
	atMost            bool
	why               Unknown
}

// groupRate is how fast imports from a group of sources are. Durations are distributed
// log-normally: deviation is the standard deviation of their logarithm.
type groupRate struct {
	bytesPerSecond, deviation, overhead float64
	known                               bool
}

const (
	// quintileWidth is how many standard deviations are between the median and the p20 or p80.
	quintileWidth = 0.8416
	// minDeviation and maxDeviation bound what few samples say.
	minDeviation, maxDeviation = 0.1, 1.0
)

func (s Snapshot) rateOf(source string) groupRate {
	for i := range s.Activity.Rates {
		r := &s.Activity.Rates[i]
		if r.Name != source {
			continue
		}
		rate := groupRate{bytesPerSecond: float64(r.P50), overhead: float64(max(0, r.OverheadSeconds)), deviation: minDeviation}
		rate.known = r.Samples >= MinSamples && r.P50 > 0
		if r.P20 > 0 && r.P80 > r.P20 {
			rate.deviation = min(max(math.Log(float64(r.P80)/float64(r.P20))/(2*quintileWidth), minDeviation), maxDeviation)
		}
		return rate
	}
	return groupRate{deviation: maxDeviation}
}

// remainingImport is how long a running import still takes: by its own rate, else by that of its
// group. Half of the overhead is taken to follow the download.
func (s Snapshot) remainingImport(a *v1alpha1.ActiveImport) work {
	rate := s.rateOf(a.Source)
	total, w := float64(a.BytesTotal), work{}
	if total <= 0 {
		total, w.atMost = float64(a.AtMostBytes), true
	}
	done := float64(max(0, a.BytesDone))
	overhead := rate.overhead / 2
	if done == 0 {
		age := s.Activity.ObservedAt.Sub(a.StartedAt.Time).Seconds()
		overhead = max(overhead, rate.overhead-max(0, age))
	}
	// Its own rate says more about it than those of others do.
	bytesPerSecond, deviation := float64(a.BytesPerSecond), max(minDeviation, rate.deviation/2)
	if bytesPerSecond <= 0 {
		bytesPerSecond, deviation = rate.bytesPerSecond, rate.deviation
	}
	switch {
	case total <= 0:
		return work{why: UnknownSize}
	case a.BytesPerSecond <= 0 && !rate.known:
		return work{why: UnknownTooFewSamples}
	}
	w.addDuration(max(0, total-done)/bytesPerSecond, deviation)
	w.addDuration(overhead, rate.deviation)
	return w
}

// wholeImport is how long an image that waits takes once it has a slot.
func (s Snapshot) wholeImport(q *v1alpha1.QueuedImport) work {
	rate := s.rateOf(q.Source)
	bytes, w := float64(q.Bytes), work{}
	if bytes <= 0 {
		bytes, w.atMost = float64(q.AtMostBytes), true
	}
	switch {
	case bytes <= 0:
		return work{why: UnknownSize}
	case !rate.known:
		return work{why: UnknownTooFewSamples}
	}
	w.addDuration(bytes/rate.bytesPerSecond, rate.deviation)
	w.addDuration(rate.overhead, rate.deviation)
	return w
}

// addDuration adds a duration that is distributed log-normally around its median.
func (w *work) addDuration(seconds, deviation float64) {
	w.seconds = min(w.seconds+seconds, maxSeconds)
	w.variance += seconds * seconds * deviation * deviation
}

// asMean corrects medians to means: long waits are sums of many imports, which are about
// their mean.
func (w work) asMean() work {
	if w.seconds > 0 {
		w.seconds *= math.Exp(min(w.variance/(w.seconds*w.seconds), maxDeviation) / 2)
	}
	return w
}
