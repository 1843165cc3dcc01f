// Package events merges what the API servers of hub and members have recorded about an image or
// a cluster.
package events

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// maxNoteBytes bounds what is kept of an event's text.
const maxNoteBytes = 1024

// Source is what one API server has recorded in one namespace.
type Source struct {
	// Side is the hub's or member's context.
	Side      string
	Namespace string
	Events    []corev1.Event
}

// sourceKey names a Source: one namespace of a side may be read while another one is not.
type sourceKey struct{ side, namespace string }

// Subject is an object of which events are wanted.
type Subject struct{ Kind, Namespace, Name string }

// About returns those of a list of events that are about one of the subjects.
func About(all []corev1.Event, subjects map[Subject]bool) []corev1.Event {
	return slices.DeleteFunc(slices.Clone(all), func(e corev1.Event) bool {
		o := e.InvolvedObject
		return !subjects[Subject{o.Kind, o.Namespace, o.Name}]
	})
}

// Events is the answer.
type Events struct {
	render.Envelope
	// Of names what was asked about.
	Of string `json:"of"`
	// Events, the oldest first.
	Events []Event `json:"events"`
	// Older counts those that are left out for --limit.
	Older int `json:"older,omitempty"`
	// Unread says what could not be read.
	Unread []string `json:"unread,omitempty"`

	now time.Time
	// all has those too that are left out for --limit; sources are those that were read.
	all     []Event
	sources map[sourceKey]bool
}

// Event is one, with its repetitions.
type Event struct {
	// Time of the last one.
	Time  metav1.Time `json:"time"`
	Count int32       `json:"count"`
	// Side is the context that it was recorded in.
	Side    string `json:"side"`
	Warning bool   `json:"warning"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Note    string `json:"note"`

	key    string
	source sourceKey
}

// New merges events by time and keeps the newest.
func New(now time.Time, of string, limit int, unread []string, sources ...Source) *Events {
	v := &Events{Envelope: render.NewEnvelope("Events"), Of: of, Events: []Event{}, Unread: unread, now: now, sources: map[sourceKey]bool{}}
	for _, source := range sources {
		key := sourceKey{source.Side, source.Namespace}
		v.sources[key] = true
		for i := range source.Events {
			v.Events = append(v.Events, newEvent(key, &source.Events[i]))
		}
	}
	slices.SortStableFunc(v.Events, func(a, b Event) int {
		return cmp.Or(a.Time.Compare(b.Time.Time), cmp.Compare(a.Side, b.Side), cmp.Compare(a.key, b.key))
	})
	v.all = v.Events
	if limit > 0 && len(v.Events) > limit {
		v.Older = len(v.Events) - limit
		v.Events = v.Events[v.Older:]
	}
	return v
}

// newEvent reads an event of either API: one counts by itself, the other in a series.
func newEvent(source sourceKey, e *corev1.Event) Event {
	at, count := e.CreationTimestamp, max(1, e.Count)
	for _, t := range []metav1.Time{{Time: e.EventTime.Time}, e.FirstTimestamp, e.LastTimestamp} {
		if t.After(at.Time) {
			at = t
		}
	}
	if e.Series != nil {
		count = max(count, e.Series.Count)
		if e.Series.LastObservedTime.After(at.Time) {
			at = metav1.Time{Time: e.Series.LastObservedTime.Time}
		}
	}
	object := e.InvolvedObject.Kind + " "
	if e.InvolvedObject.Namespace != "" {
		object += e.InvolvedObject.Namespace + "/"
	}
	return Event{
		Time: at, Count: count, Side: source.side, Warning: e.Type == corev1.EventTypeWarning,
		Object: v1alpha1.SanitizeText(object+e.InvolvedObject.Name, 512), Reason: v1alpha1.SanitizeText(e.Reason, 128), Note: v1alpha1.SanitizeText(e.Message, maxNoteBytes),
		key: source.side + "/" + string(e.UID), source: source,
	}
}

// ExitCode is Unknown where something could not be read.
func (v *Events) ExitCode() exit.Code {
	if len(v.Unread) > 0 {
		return exit.Unknown
	}
	return exit.Yes
}

// Draw draws the screen.
func (v *Events) Draw(p *render.Page) {
	if len(v.Events) == 0 {
		p.Line(render.Text("No events of %s. API servers forget them, by default after an hour.", v.Of))
	} else {
		for _, e := range v.Events {
			repeated := ""
			if e.Count > 1 {
				repeated = ", " + render.Count(e.Count, "time")
			}
			line := render.Line{render.Text("%s  ", render.Clock(v.now, e.Time.Time))}
			line = append(append(line, e.reason()...), render.Text("  %s ", e.Object), render.Dim("(%s%s)", e.Side, repeated))
			p.Lines(line, render.Line{render.Text("         %s", e.Note)})
		}
	}
	if v.Older > 0 {
		p.Line(render.Dim("%d older are left out: --limit", v.Older))
	}
	for _, unread := range v.Unread {
		p.Line(render.Unknown.With("%s", unread)...)
	}
}

func (e Event) reason() render.Line {
	if e.Warning {
		return render.Attention.With("%s", e.Reason)
	}
	return render.Line{render.Text("  %s", e.Reason)}
}

func (e Event) countedNote() string {
	if e.Count > 1 {
		return e.Note + " (" + render.Count(e.Count, "time") + ")"
	}
	return e.Note
}

// Line returns an event as one line of a stream.
func (e Event) Line(now time.Time) render.Line {
	line := render.Line{render.Text("%s  %s  ", render.Clock(now, e.Time.Time), e.Side)}
	return append(append(line, e.reason()...), render.Text("  %s: %s", e.Object, e.countedNote()))
}

// Stream remembers what was there, so that each event is shown once, and again when it is repeated.
// It forgets what the API servers have forgotten.
type Stream struct {
	known map[string]Event
	// read are the sources that were read once: --limit is about what they had then.
	read map[sourceKey]bool
}

// Next returns those events that were not there yet. Invariant: a source that could not be read has
// forgotten nothing, what --limit has left out at first is not news later, and nothing that comes later is
// left out.
func (s *Stream) Next(v *Events) (news []Event) {
	known := map[string]Event{}
	for key, e := range s.known {
		if !v.sources[e.source] {
			known[key] = e
		}
	}
	for i, e := range v.all {
		before, isKnown := s.known[e.key]
		if isNews := !isKnown || before.Count != e.Count || !before.Time.Equal(&e.Time) || before.Note != e.Note; isNews && (s.read[e.source] || i >= v.Older) {
			news = append(news, e)
		}
		known[e.key] = e
	}
	s.known = known
	if s.read == nil {
		s.read = map[sourceKey]bool{}
	}
	maps.Copy(s.read, v.sources)
	return news
}
