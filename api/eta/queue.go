package eta

import (
	"container/heap"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// slot is a running import that frees its slot.
type slot struct {
	work   // until it ends
	source string
}

// slotHeap is a min-heap of slots by when they are free.
type slotHeap []slot

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i].seconds < h[j].seconds }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(slot)) }
func (h *slotHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// player plays the queue forward.
type player struct {
	Snapshot
	running slotHeap
	// held are slots that are not freed in time: those of unlisted imports, which end later
	// than the listed ones, and those whose end is unknown, for reason unknown.
	held    int
	unknown Unknown
	// awaitsWindow: the image waits for a window, which opens at windowOpens, in seconds since the
	// observation.
	awaitsWindow bool
	windowOpens  float64
	bySource     map[string]int32
	// now is when the last slot was freed or a backoff ended.
	now work
}

// playQueue returns when the image at an index of the queue is imported, with only those ahead
// of it.
func (s Snapshot) playQueue(target int) work {
	head := s.Activity.Head
	if why := s.blocked(&head[target]); why != "" {
		return work{why: why}
	}
	p := player{Snapshot: s, bySource: map[string]int32{}}
	if q := &head[target]; q.Reason == v1alpha1.ReasonWaitingForWindow && q.OpensAt != nil {
		p.awaitsWindow, p.windowOpens = true, s.secondsUntil(q.OpensAt)
	}
	for i := range s.Activity.Active {
		a := &s.Activity.Active[i]
		p.holdSlot(slot{work: s.remainingImport(a).asMean(), source: a.Source})
	}
	unlisted := max(0, int(s.Activity.Slots)-len(s.Activity.Active))
	p.held += unlisted
	waiting := make([]int, 0, target+1)
	for i := range head[:target+1] {
		// The agent passes over what waits for a person.
		if i == target || s.blocked(&head[i]) == "" {
			waiting = append(waiting, i)
		}
	}
	for {
		for n := 0; n < len(waiting) && p.hasFreeSlot(); n++ {
			q := &head[waiting[n]]
			if s.notBefore(q) > p.now.seconds || !p.sourceHasRoom(q.Source) {
				continue
			}
			if waiting[n] == target {
				return p.finishImport(q)
			}
			p.startImport(q)
			waiting = append(waiting[:n], waiting[n+1:]...)
			n--
		}
		if !p.advanceTime(head, waiting) {
			switch {
			case p.unknown != "":
				return work{why: p.unknown}
			case unlisted > 0:
				return work{why: UnknownNotListed}
			}
			return work{why: UnknownNothingGranted}
		}
	}
}

// blocked returns why an image gets no slot, whatever becomes free.
func (s Snapshot) blocked(q *v1alpha1.QueuedImport) Unknown {
	limit, limited := s.SourceLimits[q.Source]
	switch {
	case q.Reason.NeedsUserAction() || q.Reason == v1alpha1.ReasonPaused:
		return UnknownWaitsForPerson
	case q.Reason == v1alpha1.ReasonWaitingForWindow && q.OpensAt != nil:
		return ""
	case s.Activity.Budget <= 0 && (q.Reason == v1alpha1.ReasonWaitingForFleet || q.Reason == v1alpha1.ReasonWaitingForSource || len(s.SourceLimits) > 0):
		return UnknownNothingGranted
	case s.Activity.Budget <= 0:
		return UnknownWaitsForPerson
	case limited && limit <= 0:
		return UnknownNothingGranted
	default:
		return ""
	}
}

// notBefore is the end of a backoff, in seconds since the observation. A window is no bound: a slot
// that is freed before it opens is taken.
func (s Snapshot) notBefore(q *v1alpha1.QueuedImport) float64 { return s.secondsUntil(q.NotBefore) }

// secondsUntil a time since the observation; 0 for none, and for a time that has passed.
func (s Snapshot) secondsUntil(at *metav1.Time) float64 {
	if at == nil {
		return 0
	}
	return min(max(0, at.Sub(s.Activity.ObservedAt.Time).Seconds()), maxSeconds)
}

// hasFreeSlot: of the slots that a window opens, one is believed in.
func (p *player) hasFreeSlot() bool {
	budget := int(p.Activity.Budget)
	if p.awaitsWindow && p.now.seconds >= p.windowOpens {
		budget++
	}
	return len(p.running)+p.held < budget
}

func (p *player) sourceHasRoom(source string) bool {
	limit, limited := p.SourceLimits[source]
	return !limited || p.bySource[source] < limit
}

func (p *player) holdSlot(s slot) {
	p.bySource[s.source]++
	if s.why != "" {
		p.held++
		if p.unknown == "" {
			p.unknown = s.why
		}
		return
	}
	heap.Push(&p.running, s)
}

func (p *player) startImport(q *v1alpha1.QueuedImport) {
	w := p.wholeImport(q).asMean()
	w.seconds, w.variance, w.atMost = p.now.seconds+w.seconds, p.now.variance+w.variance, p.now.atMost || w.atMost
	p.holdSlot(slot{work: w, source: q.Source})
}

// finishImport returns when an image that starts now is imported.
func (p *player) finishImport(q *v1alpha1.QueuedImport) work {
	// Which slot is free first is unknown where the end of one is.
	if p.now.why != "" {
		return p.now
	}
	w := p.wholeImport(q)
	if w.why != "" {
		return w
	}
	w.begin = p.now.seconds
	w.seconds, w.variance, w.atMost = p.now.seconds+w.seconds, p.now.variance+w.variance, p.now.atMost || w.atMost
	return w
}

// advanceTime goes to the next time at which something may start.
func (p *player) advanceTime(head []v1alpha1.QueuedImport, waiting []int) bool {
	next := -1.0
	if p.awaitsWindow && p.windowOpens > p.now.seconds {
		next = p.windowOpens
	}
	for _, i := range waiting {
		if at := p.notBefore(&head[i]); at > p.now.seconds && (next < 0 || at < next) {
			next = at
		}
	}
	if len(p.running) > 0 && (next < 0 || p.running[0].seconds <= next) {
		freed := heap.Pop(&p.running).(slot)
		p.bySource[freed.source]--
		p.now = freed.work
		p.now.why = p.unknown
		return true
	}
	p.now.seconds, p.now.variance = next, 0
	return next >= 0
}
