// Package history remembers what the fleet transferred of late: rings of fixed size, for the
// fleet and each group of sources by the minute, and for each member by five minutes.
//
// Invariant: unknown is never zero. A point is NaN where nothing was known, and a sum over
// members says how many of them are missing in it.
package history

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// Step and Window of the fleet and its groups of sources.
	Step   = time.Minute
	Window = 24 * time.Hour
	// MemberStep and MemberWindow of each member.
	MemberStep   = 5 * time.Minute
	MemberWindow = 6 * time.Hour
	// maxMembers bounds the members that are remembered one by one: 2 kB each.
	maxMembers = 4000
	// maxRate bounds the bytes per second of a member: who claims more says nothing.
	maxRate = 100e9
	// maxBytes bounds a sum of bytes.
	maxBytes = 1 << 62
)

// series are the values of a point.
var series = [...]string{readapi.SeriesBytes, readapi.SeriesSlots, readapi.SeriesQueued}

// SeriesNames lists all series.
func SeriesNames() []string { return series[:] }

// MemberSample is what a member imports at the time of a sample.
type MemberSample struct {
	Member string
	// Known: the values are what the member does now.
	Known bool
	// BootID of the process that counts the bytes of Sources since its start.
	BootID  string
	Slots   int
	Queued  int
	Sources []SourceSample
}

// SourceSample is what a member imports from a group of sources.
type SourceSample struct {
	Name string
	// TransferredBytes since the start of the process; it only rises.
	TransferredBytes int64
	// Slots and Queued are negative where they are unknown.
	Slots  int
	Queued int
}

// History holds the rings. It is safe for concurrent use.
type History struct {
	mu      sync.RWMutex
	since   time.Time
	fleet   *line
	sources map[string]*line
	members map[string]*memberLine
	// past says what was filled from others' memory; nil where none is read.
	past *readapi.HistoryPrometheus
}

// memberLine is a member: its ring, and what it said last.
type memberLine struct {
	line
	bootID string
	// counted are the bytes of each group at the last sample that was known, at countedAt.
	counted   map[string]int64
	countedAt time.Time
	// inStep sums up the samples of the step that is not over.
	inStep tally
}

// line is a ring of each series and, for sums, of the number of unknown members.
type line struct {
	rings   [len(series)]ring
	unknown ring
}

func newLine(length int) line {
	l := line{}
	for i := range l.rings {
		l.rings[i] = newRing(length)
	}
	return l
}

// newSumLine returns a line of sums over members.
func newSumLine() *line {
	l := newLine(int(Window / Step))
	l.unknown = newRing(int(Window / Step))
	return &l
}

// New returns a History that begins at a time.
func New(now time.Time) *History {
	return &History{since: now, fleet: newSumLine(), sources: map[string]*line{}, members: map[string]*memberLine{}}
}

// tally sums up values of which the known ones count.
type tally struct {
	sums  [len(series)]float64
	known [len(series)]int
}

func (t *tally) add(values ...float64) {
	for i, v := range values {
		if !math.IsNaN(v) {
			t.sums[i], t.known[i] = t.sums[i]+v, t.known[i]+1
		}
	}
}

// sum is NaN where nothing is known.
func (t *tally) sum(i int) float64 {
	if t.known[i] == 0 {
		return math.NaN()
	}
	return t.sums[i]
}

func (t *tally) mean(i int) float64 { return t.sum(i) / float64(t.known[i]) }

// AddSample adds what all members do at a time: call it each Step. groups are the groups of
// sources of the policy in force: members count in others under SourceOther, and a group that
// the policy no longer has is forgotten.
func (h *History) AddSample(now time.Time, groups []string, samples []MemberSample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	isGroup := make(map[string]bool, len(groups))
	for _, name := range groups {
		isGroup[name] = true
	}
	at, memberAt := now.Unix()/int64(Step/time.Second), now.Unix()/int64(MemberStep/time.Second)
	var fleet tally
	unknown := 0
	bySource := map[string]*tally{}
	present := make(map[string]bool, len(samples))
	for i := range samples {
		s := &samples[i]
		present[s.Member] = true
		m := h.ensureMember(s.Member)
		rates, counted := m.countBytes(s, now)
		if !s.Known || !counted {
			// Without a count before it, what was transferred since is unknown.
			unknown++
		}
		if !s.Known {
			m.flush(memberAt)
			continue
		}
		total := math.NaN()
		if counted {
			total = 0
		}
		for _, source := range s.Sources {
			name := source.Name
			if !isGroup[name] {
				name = v1alpha1.SourceOther
			}
			t := bySource[name]
			if t == nil {
				t = &tally{}
				bySource[name] = t
			}
			rate := math.NaN()
			if counted {
				rate = rates[source.Name]
			}
			t.add(rate, orUnknown(source.Slots), orUnknown(source.Queued))
			total += rate
		}
		fleet.add(total, float64(s.Slots), float64(s.Queued))
		m.record(memberAt, total, s)
	}
	h.fleet.set(at, &fleet, unknown)
	maps.DeleteFunc(h.sources, func(name string, _ *line) bool { return !isGroup[name] && name != v1alpha1.SourceOther })
	h.setSources(at, append([]string{v1alpha1.SourceOther}, groups...), bySource, &fleet, unknown)
	maps.DeleteFunc(h.members, func(name string, _ *memberLine) bool { return !present[name] })
}

func (h *History) ensureMember(name string) *memberLine {
	m := h.members[name]
	if m == nil {
		m = &memberLine{}
		if len(h.members) < maxMembers {
			m.line = newLine(int(MemberWindow / MemberStep))
		}
		h.members[name] = m
	}
	return m
}

// countBytes returns the bytes per second of each group since the sample before. A process
// that has started since counts from zero. counted is false without a sample before.
func (m *memberLine) countBytes(s *MemberSample, now time.Time) (rates map[string]float64, counted bool) {
	if !s.Known {
		return nil, false
	}
	rates = make(map[string]float64, len(s.Sources))
	elapsed := now.Sub(m.countedAt).Seconds()
	counted = !m.countedAt.IsZero() && elapsed > 0
	next, sum := make(map[string]int64, len(s.Sources)), 0.0
	for _, source := range s.Sources {
		next[source.Name] = source.TransferredBytes
		if !counted {
			continue
		}
		before := m.counted[source.Name]
		if s.BootID != m.bootID || source.TransferredBytes < before {
			before = 0
		}
		rates[source.Name] = float64(source.TransferredBytes-before) / elapsed
		sum += rates[source.Name]
	}
	counted = counted && sum <= maxRate
	m.bootID, m.counted, m.countedAt = s.BootID, next, now
	return rates, counted
}

// record adds a sample to the member's current step.
func (m *memberLine) record(at int64, rate float64, s *MemberSample) {
	if m.rings[0].values == nil {
		return
	}
	m.flush(at)
	m.inStep.add(rate, float64(s.Slots), float64(s.Queued))
	for i := range m.rings {
		m.rings[i].set(at, m.inStep.mean(i))
	}
}

// flush begins another step if the current one is over.
func (m *memberLine) flush(at int64) {
	if m.rings[0].values != nil && m.rings[0].newest < at {
		m.inStep = tally{}
		for i := range m.rings {
			m.rings[i].set(at, math.NaN())
		}
	}
}

func (l *line) set(at int64, t *tally, unknown int) {
	for i := range l.rings {
		l.rings[i].set(at, t.sum(i))
	}
	l.unknown.set(at, float64(unknown))
}

// setSources sets the point of each group. One that no known member has is zero, as far as any
// member is known.
func (h *History) setSources(at int64, groups []string, bySource map[string]*tally, fleet *tally, unknown int) {
	for _, name := range groups {
		if h.sources[name] == nil {
			h.sources[name] = newSumLine()
		}
		t := bySource[name]
		if t == nil {
			t = &tally{known: fleet.known}
		}
		h.sources[name].set(at, t, unknown)
	}
}

// orUnknown returns NaN for a negative number, which is unknown.
func orUnknown(n int) float64 {
	if n < 0 {
		return math.NaN()
	}
	return float64(n)
}

// Query selects a part of the History.
type Query struct {
	// By is ByFleet, BySource or ByCluster of package readapi.
	By     string
	Series []string
	Window time.Duration
	// Points is how many there are at most.
	Points int
	// Clusters of ByCluster; those with the most of the first series, up to Limit, if nil.
	Clusters []string
	Limit    int
}

// namedLine is a line with its points.
type namedLine struct {
	name   string
	line   *line
	amount float64
}

// BuildAnswer returns a part of the History.
func (h *History) BuildAnswer(q Query, now time.Time) readapi.History {
	h.mu.RLock()
	defer h.mu.RUnlock()
	step, window := Step, Window
	if q.By == readapi.ByCluster {
		step, window = MemberStep, MemberWindow
	}
	window = min(q.Window, window)
	count := max(1, int((window+step-1)/step))
	merge := (count + q.Points - 1) / q.Points // steps that become one point
	points := (count + merge - 1) / merge
	// Points are aligned, so that one stays what it was.
	width := int64(merge) * int64(step/time.Second)
	last := now.Unix() / width
	first := (last - int64(points) + 1) * int64(merge)

	answer := readapi.History{
		By: q.By, Since: timestamp(h.since.Unix()), Start: timestamp(first * int64(step/time.Second)),
		StepSeconds: int(width), Lines: []readapi.HistoryLine{}, Prometheus: h.describePast(),
	}
	lines := h.selectLines(q)
	answer.Total = len(lines)
	for i := range lines {
		lines[i].amount = lines[i].line.rings[seriesIndex(q.Series[0])].sum(first, points*merge)
	}
	slices.SortFunc(lines, func(a, b namedLine) int {
		return cmp.Or(cmp.Compare(b.amount, a.amount), cmp.Compare(a.name, b.name))
	})
	for _, l := range lines[:min(len(lines), q.Limit)] {
		answer.Lines = append(answer.Lines, l.toLine(q, first, points, merge))
	}
	return answer
}

func (h *History) selectLines(q Query) (lines []namedLine) {
	switch q.By {
	case readapi.BySource:
		for name, l := range h.sources {
			lines = append(lines, namedLine{name: name, line: l})
		}
	case readapi.ByCluster:
		for name, m := range h.members {
			if m.rings[0].values != nil && (q.Clusters == nil || slices.Contains(q.Clusters, name)) {
				lines = append(lines, namedLine{name: name, line: &m.line})
			}
		}
	default:
		lines = []namedLine{{line: h.fleet}}
	}
	return lines
}

func (l *namedLine) toLine(q Query, first int64, points, merge int) readapi.HistoryLine {
	out := readapi.HistoryLine{Name: l.name, Values: map[string]readapi.Values{}}
	for _, name := range q.Series {
		out.Values[name] = l.line.rings[seriesIndex(name)].means(first, points, merge)
	}
	if q.By != readapi.ByCluster {
		out.UnknownMembers = l.line.unknown.maxima(first, points, merge)
	}
	return out
}

func seriesIndex(name string) int { return max(0, slices.Index(series[:], name)) }

// Bytes returns how much was transferred from a group, "" for the whole fleet, within a
// window; ok is false where nothing is known.
func (h *History) Bytes(source string, window time.Duration, now time.Time) (bytes int64, ok bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	l := h.fleet
	if source != "" {
		l = h.sources[source]
	}
	if l == nil {
		return 0, false
	}
	steps := int(min(window, Window) / Step)
	first := now.Unix()/int64(Step/time.Second) - int64(steps) + 1
	sum := 0.0
	for _, rate := range l.rings[0].read(first, steps) {
		if !math.IsNaN(rate) {
			sum, ok = sum+rate*Step.Seconds(), true
		}
	}
	return int64(min(sum, maxBytes)), ok
}

// Trend returns bytes per second of a group, "" for the whole fleet, over the last hour.
func (h *History) Trend(source string, now time.Time) readapi.Values {
	q := Query{By: readapi.ByFleet, Series: []string{readapi.SeriesBytes}, Window: time.Hour, Points: readapi.TrendPoints, Limit: v1alpha1.MaxSourceRates}
	if source != "" {
		q.By = readapi.BySource
	}
	for _, l := range h.BuildAnswer(q, now).Lines {
		if l.Name == source {
			return l.Values[readapi.SeriesBytes]
		}
	}
	return nil
}

// Since is when the History begins.
func (h *History) Since() time.Time { return h.since }
