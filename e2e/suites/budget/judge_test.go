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

// watchLatency bounds how much later one observer sees the end of an import than another
// sees the start that waited for it. Shorter overlaps do not count.
const watchLatency = time.Second

// span is an import of a member; ended is far in the future while it can still download.
type span struct {
	member       string
	image        types.UID
	begun, ended time.Time
}

// listSpans returns all imports that ended after a time, ordered by their start.
func (f *testFleet) listSpans(t *testing.T, since time.Time) []span {
	t.Helper()
	var all []span
	for _, m := range f.Members {
		for _, one := range testenv.History(t, m.Observer).Spans() {
			ended := one.Ended
			if ended.IsZero() {
				ended = time.Now().Add(time.Hour)
			}
			if ended.After(since) {
				all = append(all, span{m.Name(), one.Image, one.Begun, ended})
			}
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.begun.Compare(b.begun) })
	return all
}

// maxOverlap returns the highest number of imports at a time over all members, of those that
// all filters select, and the members that ran them.
func maxOverlap(spans []span, filters ...func(span) bool) (n int, then string) {
	spans = slices.Clone(spans)
	for _, selects := range filters {
		spans = slices.DeleteFunc(spans, func(s span) bool { return !selects(s) })
	}
	for _, at := range spans {
		running := map[string]int{}
		count := 0
		for _, s := range spans {
			ended := s.ended.Add(-watchLatency)
			if ended.Before(s.begun) {
				ended = s.ended
			}
			if !s.begun.After(at.begun) && ended.After(at.begun) {
				running[s.member]++
				count++
			}
		}
		if count > n {
			n, then = count, fmt.Sprint(running, " at ", at.begun.Format("15:04:05.000"))
		}
	}
	return n, then
}

// ofImages selects the imports of some images.
func ofImages(images ...types.UID) func(span) bool {
	return func(s span) bool { return slices.Contains(images, s.image) }
}

// firstBegin returns when the first of the selected imports began; the zero time for none.
func firstBegin(spans []span, selects func(span) bool) time.Time {
	i := slices.IndexFunc(spans, selects)
	if i < 0 {
		return time.Time{}
	}
	return slices.MinFunc(slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return !selects(s) }), func(a, b span) int {
		return cmp.Compare(a.begun.UnixNano(), b.begun.UnixNano())
	}).begun
}

// formatSpans lists imports in seconds from a time.
func formatSpans(spans []span, from time.Time) (text string) {
	for _, s := range spans {
		text += fmt.Sprintf("%s %s %.1f to %.1f\n", s.member, s.image, s.begun.Sub(from).Seconds(), s.ended.Sub(from).Seconds())
	}
	return text
}
