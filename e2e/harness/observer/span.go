package observer

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Span is the time during which an attempt could download: from the creation of its DataVolume
// until that and its importer Pods have ended. Ended is zero for one that still can.
type Span struct {
	Image        types.UID
	Begun, Ended time.Time
}

// Spans lists the spans of all attempts in the order of their beginning.
func (h History) Spans() []Span {
	var spans []Span
	open := map[string]int{} // by attempt
	h.replay(func(e event, created bool, r runningImports, _ int) {
		if created {
			open[attemptKey(e.object)] = len(spans)
			spans = append(spans, Span{Image: types.UID(e.object.GetLabels()["pelotech.ot/image-uid"]), Begun: e.seen})
		}
		runs := r.attempts()
		for attempt, i := range open {
			if !runs[attempt] {
				spans[i].Ended = e.seen
				delete(open, attempt)
			}
		}
	})
	return spans
}
