package events

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func at(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }

// event of the older API, which counts.
func event(uid, kind, name, reason, note string, minutes int) corev1.Event {
	return corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: metav1.NewTime(at(minutes))},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "vmdi-farm", Name: name}, Reason: reason, Message: note, LastTimestamp: metav1.NewTime(at(minutes)),
	}
}

func reasons(events []Event) (all []string) {
	for _, e := range events {
		all = append(all, e.Reason)
	}
	return all
}

func TestEventsAreMergedByTime(t *testing.T) {
	series := event("4", "VMDiskImage", "a", "Series", "", 90)
	series.LastTimestamp, series.EventTime = metav1.Time{}, metav1.NewMicroTime(at(90))
	series.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(at(2))}
	counted := event("2", "VMDiskImage", "a", "Counted", "", 4)
	counted.Count, counted.CreationTimestamp = 3, metav1.NewTime(at(100))
	v := New(now, "a", 0, nil,
		Source{Side: "hub", Events: []corev1.Event{event("1", "FleetDiskImage", "a", "Newest", "", 1), event("1b", "FleetDiskImage", "a", "Oldest", "", 50)}},
		Source{Side: "bergen", Events: []corev1.Event{series, counted}})
	assert.Equal(t, []string{"Oldest", "Counted", "Series", "Newest"}, reasons(v.Events))
	assert.Equal(t, int32(3), v.Events[1].Count)
	assert.Equal(t, int32(7), v.Events[2].Count)

	v = New(now, "a", 2, []string{"bergen does not answer"}, Source{Side: "hub", Events: []corev1.Event{event("1", "", "", "1", "", 1), event("2", "", "", "2", "", 2), event("3", "", "", "3", "", 3)}})
	assert.Equal(t, []string{"2", "1"}, reasons(v.Events), "the newest are kept")
	assert.Equal(t, 1, v.Older)
	assert.Equal(t, exit.Unknown, v.ExitCode())
}

func TestAbout(t *testing.T) {
	all := []corev1.Event{event("1", "VMDiskImage", "a", "1", "", 1), event("2", "Pod", "a", "2", "", 1), event("3", "VMDiskImage", "b", "3", "", 1)}
	other := event("4", "VMDiskImage", "a", "4", "", 1)
	other.InvolvedObject.Namespace = "elsewhere"
	got := About(append(all, other), map[Subject]bool{{"VMDiskImage", "vmdi-farm", "a"}: true})
	assert.Len(t, got, 1)
	assert.Equal(t, "1", got[0].Reason)
	assert.Len(t, all, 3)
}

func TestStreamShowsEachChangeOnce(t *testing.T) {
	first := event("1", "VMDiskImage", "a", "First", "", 5)
	see := func(events ...corev1.Event) *Events {
		return New(now, "a", 0, nil, Source{Side: "hub", Events: events})
	}
	s := &Stream{}
	assert.Equal(t, []string{"First"}, reasons(s.Next(see(first))))
	assert.Empty(t, s.Next(see(first)))
	second := event("2", "VMDiskImage", "a", "Second", "", 4)
	assert.Equal(t, []string{"Second"}, reasons(s.Next(see(first, second))))
	first.Count, first.LastTimestamp = 2, metav1.NewTime(at(1))
	assert.Equal(t, []string{"First"}, reasons(s.Next(see(first, second))), "repeated")
	for i := range 1000 { // an API server forgets what it was told an hour ago
		s.Next(see(event(strconv.Itoa(i), "VMDiskImage", "a", "Next", "", 1)))
	}
	assert.Len(t, s.known, 1)
}

func TestStreamKeepsWhatIsNotRead(t *testing.T) {
	hub := Source{Side: "hub", Events: []corev1.Event{event("1", "FleetDiskImage", "a", "Oldest", "", 9), event("2", "FleetDiskImage", "a", "Second", "", 5)}}
	member := Source{Side: "bergen", Events: []corev1.Event{event("3", "VMDiskImage", "a", "Third", "", 4)}}
	see := func(sources ...Source) *Events { return New(now, "a", 2, nil, sources...) }
	s := &Stream{}
	assert.Equal(t, []string{"Second", "Third"}, reasons(s.Next(see(hub, member))))
	assert.Empty(t, s.Next(see(hub)), "what --limit has left out is old")
	assert.Empty(t, s.Next(see(hub, member)), "the member has forgotten nothing")
	member.Events = append(member.Events, event("4", "VMDiskImage", "a", "Fourth", "", 1))
	assert.Equal(t, []string{"Fourth"}, reasons(s.Next(see(hub, member))))
	member.Events = nil
	s.Next(see(hub, member))
	assert.Len(t, s.known, 2, "what the member has forgotten is forgotten")
}

// TestStreamKeepsWhatIsNotReadOfASide: a namespace that could not be read has forgotten nothing, and is read
// for the first time when it is.
func TestStreamKeepsWhatIsNotReadOfASide(t *testing.T) {
	farm := Source{Side: "bergen", Namespace: "farm", Events: []corev1.Event{event("1", "VMDiskImage", "a", "Farm", "", 1)}}
	images := Source{Side: "bergen", Namespace: "images", Events: []corev1.Event{event("2", "VMDiskImage", "a", "Images", "", 5)}}
	for name, test := range map[string]struct {
		limit int
		looks [][]Source
		want  [][]string
	}{
		"not read once":        {looks: [][]Source{{farm, images}, {farm}, {farm, images}}, want: [][]string{{"Images", "Farm"}, nil, nil}},
		"not read at first":    {looks: [][]Source{{farm}, {farm, images}}, want: [][]string{{"Farm"}, {"Images"}}},
		"that, beyond --limit": {limit: 1, looks: [][]Source{{farm}, {farm, images}, {farm, images}}, want: [][]string{{"Farm"}, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Stream{}
			for i, sources := range test.looks {
				assert.Equal(t, test.want[i], reasons(s.Next(New(now, "a", test.limit, nil, sources...))), "look %d", i)
			}
		})
	}
}

// TestStreamPrintsAllThatIsNew: --limit is about what was there at first.
func TestStreamPrintsAllThatIsNew(t *testing.T) {
	of := Source{Side: "hub", Events: []corev1.Event{event("1", "FleetDiskImage", "a", "Left out", "", 9), event("2", "FleetDiskImage", "a", "First", "", 8)}}
	s := &Stream{}
	assert.Equal(t, []string{"First"}, reasons(s.Next(New(now, "a", 1, nil, of))))
	of.Events = append(of.Events, event("3", "FleetDiskImage", "a", "Second", "", 5), event("4", "FleetDiskImage", "a", "Third", "", 4))
	assert.Equal(t, []string{"Second", "Third"}, reasons(s.Next(New(now, "a", 1, nil, of))))
	assert.Empty(t, s.Next(New(now, "a", 1, nil, of)))
}

func TestScreen(t *testing.T) {
	warning := event("2", "Pod", "importer-vmdi-ubuntu", "FailedScheduling", "0/3 nodes are available: \x1b[31minsufficient memory\nand more", 14)
	warning.Type, warning.Count = corev1.EventTypeWarning, 12
	v := New(now, "ubuntu", 2, []string{"kiel: the API server does not answer"},
		Source{Side: "eu-prod", Events: []corev1.Event{event("1", "FleetDiskImage", "ubuntu", "WaveStarted", "wave production has started", 20), event("0", "FleetDiskImage", "ubuntu", "Old", "", 40)}},
		Source{Side: "bergen", Events: []corev1.Event{warning}})
	rendertest.Golden(t, "events", now, v)
	rendertest.Golden(t, "none", now, New(now, "ubuntu", 2, nil))
}
