package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxRateSamples bounds the finished imports per group of sources that its rates are of.
	maxRateSamples = 64
	// minMeasuredSamples is how many of them must have a measured download for the others to
	// be left out.
	minMeasuredSamples = 3
	// rateTimeConstant weighs progress of the last minute about as much as all before.
	rateTimeConstant = time.Minute
	// progressOverdue is when progress is certainly overdue: image statuses store that of an
	// import that moves twice as often.
	progressOverdue = time.Minute
)

// RateTracker measures how fast imports are, from the statuses of their images. All times are
// of the member's clock, and stored, so that a process which takes over finds most of it again.
//
// A RateTracker is not safe for concurrent use.
type RateTracker struct {
	startedAt time.Time
	// attempts are the newest attempts of images that this process has seen to run, or that
	// were started since it was.
	attempts map[Key]*observedAttempt
	groups   map[string]*sourceGroup
}

// NewRateTracker returns a tracker of a process that was started at a time.
func NewRateTracker(startedAt time.Time) *RateTracker {
	return &RateTracker{startedAt: startedAt, attempts: map[Key]*observedAttempt{}, groups: map[string]*sourceGroup{}}
}

// observedAttempt is an attempt whose download was observed.
type observedAttempt struct {
	id     attemptID
	source string
	ended  bool
	// counted are the bytes that are in transferred.
	counted int64
	// first and last are the first and the newest known progress.
	first, last progressPoint
	// rate is the weighted mean; estimated: it is only the mean since the start.
	rate      float64
	estimated bool
}

type progressPoint struct {
	bytes int64
	at    time.Time
}

// attemptID identifies an attempt at an image; no number is used twice.
type attemptID struct {
	uid     types.UID
	attempt int32
}

// sourceGroup is what is known of one group of sources.
type sourceGroup struct {
	// samples are the newest finished imports, by end.
	samples     []rateSample
	transferred int64
}

// rateSample is a finished import.
type rateSample struct {
	id      attemptID
	endedAt time.Time
	rate    float64
	// overhead is the time that was not the download, if it was measured.
	overhead time.Duration
	measured bool
}

// ObserveImage takes in the status of an image whose source is in a group. Observing a status
// again changes nothing.
func (t *RateTracker) ObserveImage(img *v1alpha1.VMDiskImage, source string) {
	rev := findNewestAttempt(&img.Status)
	if rev == nil {
		return
	}
	key, id, running := Key{Namespace: img.Namespace, Name: img.Name}, attemptID{img.UID, rev.Attempt}, rev.Attempt > rev.AttemptEnded
	a := t.attempts[key]
	if a == nil || a.id != id {
		a = nil
		if isOwn := !timeOf(rev.StartedAt).Before(t.startedAt); running || isOwn {
			a = &observedAttempt{id: id, source: source}
			if !isOwn {
				a.counted = img.Status.BytesDone // downloaded while another process was running
			}
			t.attempts[key] = a
		}
	}
	switch {
	case running:
		t.countBytes(a, img.Status.BytesDone)
		a.observeProgress(rev, img.Status.BytesDone)
	case a != nil && a.ended:
	case rev.Outcome == v1alpha1.OutcomeSucceeded:
		if a != nil {
			t.countBytes(a, img.Status.BytesDone)
			source = a.source
		}
		t.addFinished(img, rev, source, a)
	}
	if a != nil {
		a.ended = !running
	}
}

// ForgetImage drops what is known of an image that no longer exists.
func (t *RateTracker) ForgetImage(key Key) { delete(t.attempts, key) }

// KeepImages forgets all images that do not exist.
func (t *RateTracker) KeepImages(exists func(Key) bool) {
	maps.DeleteFunc(t.attempts, func(key Key, _ *observedAttempt) bool { return !exists(key) })
}

// findNewestAttempt returns the revision with the newest attempt, which the bytes in a status
// are of; nil if none was started.
func findNewestAttempt(status *v1alpha1.VMDiskImageStatus) (newest *v1alpha1.RevisionStatus) {
	for i := range status.Revisions {
		if rev := &status.Revisions[i]; rev.Attempt > 0 && (newest == nil || rev.Attempt > newest.Attempt) {
			newest = rev
		}
	}
	return newest
}

func (a *observedAttempt) observeProgress(rev *v1alpha1.RevisionStatus, bytes int64) {
	at := timeOf(rev.ProgressedAt)
	if bytes <= a.last.bytes || !at.After(a.last.at) {
		return
	}
	switch elapsed := at.Sub(a.last.at).Seconds(); {
	case a.last.at.IsZero():
		if started := timeOf(rev.StartedAt); at.After(started) && !started.IsZero() {
			a.rate, a.estimated = float64(bytes)/at.Sub(started).Seconds(), true
		}
		a.first = progressPoint{bytes, at}
	case a.estimated || a.rate == 0:
		a.rate, a.estimated = float64(bytes-a.last.bytes)/elapsed, false
	default:
		a.rate = weighRate(a.rate, float64(bytes-a.last.bytes)/elapsed, elapsed)
	}
	a.last = progressPoint{bytes, at}
}

// weighRate returns the mean of a rate and a newer one, which was measured over some seconds.
func weighRate(rate, newer, seconds float64) float64 {
	weight := 1 - math.Exp(-seconds/rateTimeConstant.Seconds())
	return rate + weight*(newer-rate)
}

// RateOf returns the rate of a running import in bytes per second; 0 if it is unknown. It
// falls while progress is overdue.
func (t *RateTracker) RateOf(key Key, now time.Time) int64 {
	a := t.attempts[key]
	if a == nil || a.ended || a.last.at.IsZero() {
		return 0
	}
	rate := a.rate
	if idle := now.Sub(a.last.at); idle > progressOverdue {
		rate = weighRate(rate, 0, (idle - progressOverdue).Seconds())
	}
	return int64(rate)
}

// addFinished adds a successful attempt to the samples of its group. observed is what was
// seen of it while it ran; nil for nothing.
func (t *RateTracker) addFinished(img *v1alpha1.VMDiskImage, rev *v1alpha1.RevisionStatus, source string, observed *observedAttempt) {
	started, ended, bytes := timeOf(rev.StartedAt), timeOf(rev.ImportedAt), img.Status.BytesTotal
	if rev.Revision != img.Status.Revision || !knowsDownloadSize(img) || started.IsZero() || !ended.After(started) {
		return
	}
	id := attemptID{img.UID, rev.Attempt}
	for _, g := range t.groups {
		if slices.ContainsFunc(g.samples, func(s rateSample) bool { return s.id == id }) {
			return
		}
	}
	sample := rateSample{id: id, endedAt: ended, rate: float64(bytes) / ended.Sub(started).Seconds()}
	if observed != nil && observed.last.at.After(observed.first.at) {
		sample.rate = float64(observed.last.bytes-observed.first.bytes) / observed.last.at.Sub(observed.first.at).Seconds()
		sample.measured = true
		download := time.Duration(float64(bytes) / sample.rate * float64(time.Second))
		sample.overhead = max(0, ended.Sub(started)-download)
	}
	t.groupOf(source).addSample(sample)
}

// addSample keeps the newest samples, whatever the order in which they come.
func (g *sourceGroup) addSample(s rateSample) {
	i, _ := slices.BinarySearchFunc(g.samples, s, func(a, b rateSample) int {
		return cmp.Or(a.endedAt.Compare(b.endedAt), cmp.Compare(a.id.uid, b.id.uid), cmp.Compare(a.id.attempt, b.id.attempt))
	})
	g.samples = slices.Insert(g.samples, i, s)
	g.samples = slices.Delete(g.samples, 0, max(0, len(g.samples)-maxRateSamples))
}

// countBytes counts what an attempt has downloaded since it was last counted.
func (t *RateTracker) countBytes(a *observedAttempt, bytes int64) {
	if bytes > a.counted {
		t.groupOf(a.source).transferred += bytes - a.counted
		a.counted = bytes
	}
}

func (t *RateTracker) groupOf(source string) *sourceGroup {
	g := t.groups[source]
	if g == nil {
		g = &sourceGroup{}
		t.groups[source] = g
	}
	return g
}

// Rates returns what is known of each group of sources, the most transferring ones if there
// are too many, by name.
func (t *RateTracker) Rates() []v1alpha1.SourceRate {
	var rates []v1alpha1.SourceRate
	for name, g := range t.groups {
		if rate := g.toRate(name); rate != (v1alpha1.SourceRate{Name: name}) {
			rates = append(rates, rate)
		}
	}
	slices.SortFunc(rates, func(a, b v1alpha1.SourceRate) int {
		return cmp.Or(cmp.Compare(b.TransferredBytes, a.TransferredBytes), cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Name, b.Name))
	})
	rates = rates[:min(len(rates), v1alpha1.MaxSourceRates)]
	slices.SortFunc(rates, func(a, b v1alpha1.SourceRate) int { return cmp.Compare(a.Name, b.Name) })
	return rates
}

func (g *sourceGroup) toRate(name string) v1alpha1.SourceRate {
	out := v1alpha1.SourceRate{Name: name, TransferredBytes: g.transferred}
	samples := slices.Clone(g.samples)
	measured := slices.DeleteFunc(slices.Clone(samples), func(s rateSample) bool { return !s.measured })
	if len(measured) >= minMeasuredSamples {
		samples = measured
	}
	if len(samples) == 0 {
		return out
	}
	out.Samples = int32(len(samples))
	since := storedtime.Truncate(samples[0].endedAt)
	out.Since = &since
	if len(measured) > 0 {
		slices.SortFunc(measured, func(a, b rateSample) int { return cmp.Compare(a.overhead, b.overhead) })
		out.OverheadSeconds = int64(measured[(len(measured)-1)/2].overhead / time.Second)
	}
	slices.SortFunc(samples, func(a, b rateSample) int { return cmp.Compare(a.rate, b.rate) })
	at := func(percent int) int64 { return int64(samples[(len(samples)-1)*percent/100].rate) }
	out.P20, out.P50, out.P80 = at(20), at(50), at(80)
	return out
}

// knowsDownloadSize reports whether bytesTotal is the size of the download. Where the source
// reports none, it is diskSize.
func knowsDownloadSize(img *v1alpha1.VMDiskImage) bool {
	return img.Status.BytesTotal > 0 && img.Status.BytesTotal != img.Spec.DiskSize.Value()
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
