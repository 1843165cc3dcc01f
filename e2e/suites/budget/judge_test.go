//go:build linux

package budget_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// watchLatency is how much later one observer may be told of an import's end than another
// of the next one's beginning, when the latter had to wait for the former by way of
// the hub. What overlaps for no longer is not held against anybody.
const watchLatency = time.Second

// span is an import of a member. Ended is far away for one that still can download.
type span struct {
	site         string
	image        types.UID
	begun, ended time.Time
}

// listSpans are all imports that began since a time, in the order of their beginning.
func (f *testFleet) listSpans(t *testing.T, since time.Time) []span {
	t.Helper()
	var all []span
	for _, s := range f.Members {
		for _, one := range testenv.History(t, s.Observer).Spans() {
			ended := one.Ended
			if ended.IsZero() {
				ended = time.Now().Add(time.Hour)
			}
			if ended.After(since) {
				all = append(all, span{s.name, one.Image, one.Begun, ended})
			}
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.begun.Compare(b.begun) })
	return all
}

// maxOverlap is how many of them ran at a time, over all members, at the most, and what the
// members ran then.
func maxOverlap(spans []span, but ...func(span) bool) (n int, then string) {
	spans = slices.Clone(spans)
	for _, is := range but {
		spans = slices.DeleteFunc(spans, func(s span) bool { return !is(s) })
	}
	for _, at := range spans {
		run := map[string]int{}
		count := 0
		for _, s := range spans {
			ended := s.ended.Add(-watchLatency)
			if ended.Before(s.begun) {
				ended = s.ended
			}
			if !s.begun.After(at.begun) && ended.After(at.begun) {
				run[s.site]++
				count++
			}
		}
		if count > n {
			n, then = count, fmt.Sprint(run, " at ", at.begun.Format("15:04:05.000"))
		}
	}
	return n, then
}

// ofImages are the images that a judgement is about.
func ofImages(images ...types.UID) func(span) bool {
	return func(s span) bool { return slices.Contains(images, s.image) }
}

// firstBegin is when the first of some imports began.
func firstBegin(spans []span, is func(span) bool) time.Time {
	i := slices.IndexFunc(spans, is)
	if i < 0 {
		return time.Time{}
	}
	return slices.MinFunc(slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return !is(s) }), func(a, b span) int {
		return cmp.Compare(a.begun.UnixNano(), b.begun.UnixNano())
	}).begun
}

// formatSpans shows imports in seconds from a time.
func formatSpans(spans []span, from time.Time) (text string) {
	for _, s := range spans {
		text += fmt.Sprintf("%s %s %.1f to %.1f\n", s.site, s.image, s.begun.Sub(from).Seconds(), s.ended.Sub(from).Seconds())
	}
	return text
}
