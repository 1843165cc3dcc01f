package hubclient

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// However the stream is cut into reads, and whatever is between events, each is found
// once and in order.
func TestReadEventsFindsEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringN(0, -1, 3*idleBufferBytes), 1, 8).Draw(t, "texts")
		var stream strings.Builder
		for _, text := range texts {
			_, _ = fmt.Fprintf(&stream, rapid.SampledFrom([]string{
				`{"type":"ADDED","object":%q}%s`, `{"object":%q,"type":"ADDED"}%s`, "{\n \"type\": \"ADDED\",\n \"other\": {\"object\":1}, \"object\": %q }%s",
			}).Draw(t, "form"), strings.Map(printable, text), rapid.SampledFrom([]string{"", "\n", " \n\n"}).Draw(t, "between"))
		}
		var from io.Reader = strings.NewReader(stream.String())
		if rapid.Bool().Draw(t, "byte by byte") {
			from = iotest.OneByteReader(from)
		}
		var got int
		err := readEvents(from, newText, func(event watchEvent) error {
			assert.Equal(t, watch.Added, event.Type)
			assert.Equal(t, strings.Map(printable, texts[got]), *event.Object.(*string))
			got++
			return nil
		})
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, len(texts), got)
	})
}

// Streams whose events are read at the same time, or after others that failed, get their own only.
func TestStreamsShareNoEvents(t *testing.T) {
	var streams errgroup.Group
	for n := range 16 {
		streams.Go(func() error {
			for round := range 200 {
				want := strings.Repeat(string(rune('a'+n)), 1+(n*round)%(3*idleBufferBytes))
				text, got := fmt.Sprintf(`{"type":"ADDED","object":%q}`+"\n", want), 0
				broken := round%3 == 0 // what follows the first event is none, and was read with it
				if broken {
					text += `{"type":"ADDED","object":"left`
				} else {
					text += text
				}
				err := readEvents(strings.NewReader(text), newText, func(event watchEvent) error {
					got++
					if have := *event.Object.(*string); have != want {
						return fmt.Errorf("stream %d has an event of another: %q", n, have)
					}
					return nil
				})
				switch {
				case broken && (got != 1 || !errors.Is(err, io.ErrUnexpectedEOF)), !broken && (got != 2 || !errors.Is(err, io.EOF)):
					return fmt.Errorf("stream %d has %d events, then %w", n, got, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, streams.Wait())
}

func printable(r rune) rune {
	if r < ' ' || r > '~' || r == '"' || r == '\\' {
		return 'x'
	}
	return r
}

func newText(watch.EventType) any { return new(string) }

func TestReadEventsEndsInTheMiddle(t *testing.T) {
	const event = `{"type":"ADDED","object":"x"}`
	for end := 1; end < len(event); end++ {
		err := readEvents(strings.NewReader(event+event[:end]), newText, func(watchEvent) error { return nil })
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, event[:end])
	}
	for _, text := range []string{`"x"`, `[]`, `null`, `{"type":1}`, `{"type":"ADDED","object":{}}`, `{"object":{},"type":"ADDED"}`, `{]`,
		`{"type":"ADDED","type":"ERROR"}`, `{"type":"ADDED","object":"x","type":"ERROR"}`, `{"object":"x","object":"x","type":"ADDED"}`,
	} {
		err := readEvents(strings.NewReader(text), newText, func(watchEvent) error { return nil })
		require.Error(t, err, text)
		require.NotErrorIs(t, err, io.EOF, text)
	}
}

// answerInTurn answers each request with the next of these texts.
func answerInTurn(texts <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case text := <-texts:
			_, _ = io.WriteString(w, text)
		case <-r.Context().Done():
		}
	}
}

// A watch that ends continues where it was; after 410 the kind is listed again, and what
// no longer exists then is reported as deleted.
func TestWatchContinuesAndListsAgain(t *testing.T) {
	page := func(name, version string) string {
		return strings.Replace(reportPage(name, "", 1), `"resourceVersion":"5"`, `"resourceVersion":"`+version+`"`, 1)
	}
	lists := make(chan string, 2)
	lists <- reportList("", page("page-0", "3"), page("page-1", "4"))
	lists <- reportList("", page("page-1", "4"))
	var asked []string
	var mu sync.Mutex
	c := connectTo(t, scriptedServer{
		list: answerInTurn(lists),
		watch: func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked = append(asked, r.URL.Query().Get("resourceVersion"))
			n := len(asked)
			mu.Unlock()
			switch n {
			case 1:
				_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, page("page-0", "6"))
			case 2:
				_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`+"\n"+
					`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`)
			default:
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		},
	})
	events := make(chan string, 10)
	c.OnMailboxEvent(func(e Event) {
		if e.Deleted {
			events <- e.Object.GetName() + " " + e.Object.GetResourceVersion()
		}
	})
	require.NoError(t, c.Start(t.Context()))
	select {
	case deleted := <-events:
		require.Equal(t, "page-0 6", deleted, "the state that the watch has delivered")
	case <-time.After(time.Minute):
		require.Fail(t, "nothing is deleted")
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) == 3
	}, time.Minute, time.Millisecond)
	require.Equal(t, []string{"5", "6", "5"}, asked, "from the list, from the last event, from the second list")
	require.Empty(t, c.watchErrors)
}

// An API server whose CustomResourceDefinitions were changed has delivered an object without its
// new fields, and ends the watch. The list shows the same resourceVersion.
func TestWatchThatEndsEarlyIsListedAgain(t *testing.T) {
	stored := strings.Replace(reportPage("page-0", "", 1), `"resourceVersion":"5"`, `"resourceVersion":"6"`, 1)
	pruned := stored
	stored = strings.Replace(stored, `"references":0`, `"references":0,"source":"http https://a/b"`, 1)
	lists, watches := make(chan string, 2), make(chan struct{}, 1)
	lists <- reportList("", reportPage("page-0", "", 1))
	lists <- reportList("", stored)
	watches <- struct{}{}
	c := connectTo(t, scriptedServer{
		list: answerInTurn(lists),
		watch: func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-watches:
				_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, pruned)
				w.(http.Flusher).Flush()
				<-time.After(minWatchDuration)
			default:
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		},
	})
	sources := make(chan string, 10)
	c.OnMailboxEvent(func(e Event) {
		if report, ok := e.Object.(*v1alpha1.ClusterReport); ok && report.ResourceVersion == "6" {
			sources <- report.Page.Images[0].Source
		}
	})
	require.NoError(t, c.Start(t.Context()))
	for _, want := range []string{"", "http https://a/b"} {
		select {
		case source := <-sources:
			require.Equal(t, want, source)
		case <-time.After(time.Minute):
			require.Fail(t, "no event", "of source %q", want)
		}
	}
	require.Empty(t, c.watchErrors)
}

func TestMailboxCacheReads(t *testing.T) {
	m := newMailboxCache("ot-agent")
	kind, err := kindOf(&v1alpha1.ClusterReport{})
	require.NoError(t, err)
	m.addKind(kind)
	stored := &v1alpha1.ClusterReport{ClusterUID: "u", Root: &v1alpha1.ReportRoot{Budget: 1}}
	stored.Namespace, stored.Name, stored.ResourceVersion = "ot-agent", "default", "7"
	kept, tooLarge := boundObject(stored, kind)
	require.False(t, tooLarge)
	m.setAll(kind, []keptObject{kept})

	var got v1alpha1.ClusterReport
	require.NoError(t, m.Get(t.Context(), client.ObjectKeyFromObject(stored), &got))
	require.Equal(t, "7", got.ResourceVersion)
	got.Root.Budget = 2
	require.EqualValues(t, 1, stored.Root.Budget, "it is a copy")
	require.NoError(t, m.Get(t.Context(), client.ObjectKeyFromObject(stored), &got, client.UnsafeDisableDeepCopy))
	require.Same(t, stored.Root, got.Root)
	require.True(t, apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKey{Namespace: "ot-agent", Name: "x"}, &got)))
	require.True(t, apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKey{Namespace: "x", Name: "default"}, &got)))
	require.ErrorIs(t, m.Get(t.Context(), client.ObjectKeyFromObject(stored), &v1alpha1.ClusterPlan{}), errUnsupportedRead)

	var list v1alpha1.ClusterReportList
	require.NoError(t, m.List(t.Context(), &list, client.InNamespace("ot-agent")))
	require.Len(t, list.Items, 1)
	require.NoError(t, m.List(t.Context(), &list, client.InNamespace("x")))
	require.Empty(t, list.Items)
	require.ErrorIs(t, m.List(t.Context(), &list, client.MatchingLabels{"a": "b"}), errUnsupportedRead)
}

// Replaced, changed and removed objects do not count twice, or for longer than they are
// kept.
func TestMailboxCacheCountsWhatItKeeps(t *testing.T) {
	reports, _ := kindOf(&v1alpha1.ClusterReport{})
	plans, _ := kindOf(&v1alpha1.ClusterPlan{})
	rapid.Check(t, func(t *rapid.T) {
		m := newMailboxCache("ot-agent")
		m.addKind(reports)
		m.addKind(plans)
		object := rapid.Custom(func(t *rapid.T) keptObject {
			o := &v1alpha1.ClusterReport{}
			o.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			return keptObject{o, rapid.Int64Range(1, 100).Draw(t, "bytes")}
		})
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			kind := rapid.SampledFrom([]cachedKind{reports, plans}).Draw(t, "kind")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				m.setAll(kind, rapid.SliceOfNDistinct(object, 0, 3, func(o keptObject) string { return o.GetName() }).Draw(t, "all"))
			case 1:
				m.set(kind, object.Draw(t, "one"))
			case 2:
				m.remove(kind, object.Draw(t, "gone"))
			}
			objects, bytes := 0, int64(0)
			for _, all := range m.kinds {
				for _, o := range all {
					objects, bytes = objects+1, bytes+o.bytes
				}
			}
			require.Equal(t, objects, m.objects)
			require.Equal(t, bytes, m.bytes)
		}
	})
}

func decodeText(t *testing.T, w *mailboxWatch, object string) watchEvent {
	event, err := decodeEvent(kjson.NewDecoderCaseSensitivePreserveInts(strings.NewReader(`{"type":"ADDED","object":`+object+`}`)), w.newEventObject)
	require.NoError(t, err)
	return event
}

// A field in other letters is none, in lists and in events. Otherwise each reconnect would change the object.
func TestEventsHaveTheFieldsOfLists(t *testing.T) {
	w, err := connectTo(t, scriptedServer{}).newWatch(&v1alpha1.ClusterReport{})
	require.NoError(t, err)
	for _, events := range []string{`{"type":"ADDED","object":%s}`, `{"object":%s,"type":"ADDED"}`} {
		page := reportPage("page-0", "", 1)
		for _, text := range []string{page, strings.Replace(page, `"page":`, `"Page":`, 1), strings.Replace(page, `"images":`, `"IMAGES":`, 1)} {
			listed, err := w.decode([]byte(text))
			require.NoError(t, err)
			var event watchEvent
			require.ErrorIs(t, readEvents(strings.NewReader(fmt.Sprintf(events, text)), w.newEventObject, func(e watchEvent) error { event = e; return nil }), io.EOF)
			require.Equal(t, listed, event.Object)
			read := event.Object.(*v1alpha1.ClusterReport).Page
			require.Equal(t, text == page, read != nil && len(read.Images) == 1)
		}
	}
}

// Whatever a server sends as an event is refused or applied.
func TestEventsOfHostileServers(t *testing.T) {
	c := connectTo(t, scriptedServer{})
	w, err := c.newWatch(&v1alpha1.ClusterReport{})
	require.NoError(t, err)
	c.cache.addKind(w.kind)
	fields := []string{`"other":{"type":"ERROR"}`}
	for _, value := range []string{`"ADDED"`, `"ERROR"`, `"BOOKMARK"`, `"DELETED"`, `"x"`, `""`, `null`, `1`} {
		fields = append(fields, `"type":`+value)
	}
	for _, value := range []string{reportPage("page-0", "", 1), `{"kind":"Status","status":"Failure"}`, `{"metadata":{"resourceVersion":"9"}}`, `null`, `[]`} {
		fields = append(fields, `"object":`+value)
	}
	events := []string{""}
	for from := 0; from < len(events); from++ {
		event, err := decodeEvent(kjson.NewDecoderCaseSensitivePreserveInts(strings.NewReader("{"+events[from]+"}")), w.newEventObject)
		if err == nil {
			require.NotPanics(t, func() { _, _ = w.apply(t.Context(), event) }, events[from])
		}
		if strings.Count(events[from], "\n") < 3 {
			for _, field := range fields {
				events = append(events, strings.TrimPrefix(events[from]+",\n"+field, ","))
			}
		}
	}
	require.Len(t, events, 1+14+14*14+14*14*14)
}

// An object that was not asked for is dropped, and counts as a failure.
func TestWatchDropsObjectsOfOthers(t *testing.T) {
	c := connectTo(t, scriptedServer{})
	w, err := c.newWatch(&v1alpha1.ClusterReport{})
	require.NoError(t, err)
	c.cache.addKind(w.kind)
	for _, text := range []string{
		strings.Replace(reportPage("page-0", "", 1), `"ot-agent"`, `"kube-system"`, 1),
		strings.Replace(reportPage("page-0", "", 1), `"ClusterReport"`, `"ClusterPlan"`, 1),
		reportPage("", "", 1),
	} {
		changed, err := w.apply(t.Context(), decodeText(t, w, text))
		require.NoError(t, err)
		require.False(t, changed)
		failure := <-c.watchErrors
		require.ErrorIs(t, errors.Unwrap(failure), errAnotherObject)
	}
	require.Zero(t, c.cache.objects)
}
