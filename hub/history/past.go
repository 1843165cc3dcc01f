package history

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SeriesUnknown is the number of unknown members, which FillPast takes for the fleet.
const SeriesUnknown = "unknown"

// maxPastValue bounds what is believed of others' memory.
const maxPastValue = 1e15

// PastPoint is a value that somebody else remembers.
type PastPoint struct {
	At    time.Time
	Value float64
}

// FillPast adds points from before this History began: of the fleet, of a group of sources or of
// a member. Points of later times, and of what this History does not have, are left out.
//
// Invariant: what this process has seen itself is never replaced.
func (h *History) FillPast(by, name, series string, points []PastPoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, step := h.fleet, Step
	switch by {
	case readapi.BySource:
		l = h.sources[name]
	case readapi.ByCluster:
		l, step = nil, MemberStep
		if m := h.members[name]; m != nil {
			l = &m.line
		}
	}
	if l == nil {
		return
	}
	filled := &l.unknown
	if series != SeriesUnknown {
		filled = &l.rings[seriesIndex(series)]
	}
	seconds := int64(step / time.Second)
	for _, p := range points {
		at := p.At.Unix() / seconds
		if math.IsNaN(p.Value) || p.Value < 0 || p.Value > maxPastValue || at >= h.since.Unix()/seconds {
			continue
		}
		if filled.setPast(at, p.Value) && by == readapi.ByFleet {
			h.extendPast(at*seconds, (at+1)*seconds)
		}
	}
}

// extendPast records which part of the time was filled.
func (h *History) extendPast(from, until int64) {
	if h.past == nil {
		h.past = &readapi.HistoryPrometheus{}
	}
	if h.past.From == nil || from < h.past.From.Unix() {
		at := timestamp(from)
		h.past.From = &at
	}
	if h.past.Until == nil || until > h.past.Until.Unix() {
		at := timestamp(until)
		h.past.Until = &at
	}
}

// SetPastProblem records why others' memory could not be read; empty once it could.
func (h *History) SetPastProblem(problem string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.past == nil {
		h.past = &readapi.HistoryPrometheus{}
	}
	at := timestamp(now.Unix())
	h.past.ReadAt, h.past.Problem = &at, v1alpha1.SanitizeText(problem, maxProblemBytes)
}

// maxProblemBytes bounds the message of an error.
const maxProblemBytes = 256

// describePast returns a copy of what is known of others' memory; nil where none is read.
func (h *History) describePast() *readapi.HistoryPrometheus {
	if h.past == nil {
		return nil
	}
	past := *h.past
	return &past
}

// FilledSince is since when others' memory fills what was before this History; nil where it
// does not.
func (h *History) FilledSince() *metav1.Time {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.past == nil || h.past.From == nil {
		return nil
	}
	return h.past.From.DeepCopy()
}

// setPast sets a step before the newest one that is unknown; false where it is not that.
func (r *ring) setPast(at int64, value float64) bool {
	length := int64(len(r.values))
	if length == 0 || at >= r.newest || at <= r.newest-length || at < 0 || !math.IsNaN(float64(r.values[at%length])) {
		return false
	}
	r.values[at%length] = float32(value)
	return true
}

// LatestSample is the newest sample of the fleet, for its metrics. Values by name; those that
// are unknown are absent.
type LatestSample struct {
	// BySource has the groups of sources, and "" for the fleet, each with its series.
	BySource map[string]map[string]float64
	// UnknownMembers of the fleet.
	UnknownMembers float64
	// BytesByMember are bytes per second.
	BytesByMember map[string]float64
}

// Latest returns the newest sample; false where there is none of the last two steps.
func (h *History) Latest(now time.Time) (LatestSample, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at := h.fleet.unknown.newest
	if at == 0 || now.Unix()/int64(Step/time.Second)-at > 1 {
		return LatestSample{}, false
	}
	s := LatestSample{BySource: map[string]map[string]float64{}, BytesByMember: map[string]float64{}, UnknownMembers: h.fleet.unknown.get(at)}
	add := func(name string, l *line) {
		values := map[string]float64{}
		for i := range series {
			if v := l.rings[i].get(at); !math.IsNaN(v) {
				values[series[i]] = v
			}
		}
		s.BySource[name] = values
	}
	add("", h.fleet)
	for name, l := range h.sources {
		add(name, l)
	}
	memberAt := now.Unix() / int64(MemberStep/time.Second)
	for name, m := range h.members {
		if v := m.rings[0].get(memberAt); !math.IsNaN(v) {
			s.BytesByMember[name] = v
		}
	}
	return s, true
}
