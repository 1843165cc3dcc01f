package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// lineWriter is the connection of a reader of events.
type lineWriter struct {
	http.ResponseWriter
	mu        sync.Mutex
	text      strings.Builder
	deadlines int
	failing   error
}

func newLineWriter() *lineWriter { return &lineWriter{ResponseWriter: httptest.NewRecorder()} }

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing != nil {
		return 0, w.failing
	}
	return w.text.Write(p)
}

func (w *lineWriter) Flush() {}

func (w *lineWriter) SetWriteDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !at.IsZero() {
		w.deadlines++
	}
	return nil
}

func (w *lineWriter) events(t *testing.T) (all []readapi.Event) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if data, isData := strings.CutPrefix(line, "data: "); isData {
			var e readapi.Event
			require.NoError(t, json.Unmarshal([]byte(data), &e))
			all = append(all, e)
		}
	}
	return all
}

// openStream opens a stream in a synctest bubble, where time passes at once. It returns a
// function that ends it, and a channel that is closed when it ended.
func openStream(t *testing.T, api *API, w http.ResponseWriter, after string) (cancel func(), ended chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, readapi.Root+"events", nil)
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		api.streamEvents(w, request)
	}()
	synctest.Wait()
	return cancel, ended
}

func newEventsAPI() *API {
	return &API{Changes: NewChanges("one"), ReportsLoaded: func() bool { return true }, Stopping: make(chan struct{})}
}

func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestEventsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, w := newEventsAPI(), newLineWriter()
		cancel, ended := openStream(t, api, w, "")
		advance(eventInterval)
		assert.Equal(t, []readapi.Event{{Seq: "one.1", Topics: []readapi.Topic{}}}, w.events(t))
		for range 100 {
			api.Changes.Mark(readapi.TopicImages)
			api.Changes.Mark(readapi.TopicMembers)
			api.Changes.Mark()
			advance(100 * time.Millisecond)
		}
		events := w.events(t)
		assert.LessOrEqual(t, len(events), 12, "at most one a second")
		assert.Greater(t, len(events), 8)
		assert.Equal(t, []readapi.Topic{readapi.TopicImages, readapi.TopicMembers}, events[5].Topics)

		advance(2 * eventInterval)
		events = w.events(t)
		advance(time.Minute)
		assert.Len(t, w.events(t), len(events), "nothing changes")
		assert.Contains(t, w.text.String(), ": heartbeat\n\n")
		cancel()
		<-ended
		assert.Zero(t, api.streams.total)
		assert.Empty(t, api.streams.byCaller)
	})
}

func TestStreamGoesOnAfterItsLastEvent(t *testing.T) {
	for name, tt := range map[string]struct {
		after  string
		topics []readapi.Topic
		reset  bool
	}{
		"nothing was missed":       {"one.3", []readapi.Topic{}, false},
		"one topic was missed":     {"one.2", []readapi.Topic{readapi.TopicPolicy}, false},
		"all of it":                {"one.1", []readapi.Topic{readapi.TopicImages, readapi.TopicPolicy}, false},
		"another replica answered": {"two.2", readapi.Topics(), true},
		"an id of the future":      {"one.4", readapi.Topics(), true},
		"nonsense":                 {"x\x1b[31m", readapi.Topics(), true},
		"nothing of an id":         {".", readapi.Topics(), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, w := newEventsAPI(), newLineWriter()
				api.Changes.Mark(readapi.TopicImages)
				api.Changes.Mark(readapi.TopicPolicy)
				cancel, ended := openStream(t, api, w, tt.after)
				assert.Empty(t, w.events(t), "answers of before may still be sent")
				advance(eventInterval)
				assert.Equal(t, []readapi.Event{{Seq: "one.3", Topics: tt.topics, Reset: tt.reset}}, w.events(t))
				cancel()
				<-ended
			})
		})
	}
}

// An event comes once no answer from before it is sent any more; what changes meanwhile is in
// the next one.
func TestEventsLagBehindAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, w := newEventsAPI(), newLineWriter()
		cancel, ended := openStream(t, api, w, "")
		advance(2 * eventInterval)
		api.Changes.Mark(readapi.TopicImages)
		advance(freshFor - time.Millisecond)
		api.Changes.Mark(readapi.TopicPolicy)
		assert.Len(t, w.events(t), 1)
		advance(time.Millisecond)
		require.Len(t, w.events(t), 2)
		assert.Equal(t, []readapi.Topic{readapi.TopicImages}, w.events(t)[1].Topics)
		advance(eventInterval)
		require.Len(t, w.events(t), 3)
		assert.Equal(t, []readapi.Topic{readapi.TopicPolicy}, w.events(t)[2].Topics)
		cancel()
		<-ended
	})
}

func TestSlowReaderIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, w := newEventsAPI(), newLineWriter()
		_, ended := openStream(t, api, w, "")
		w.mu.Lock()
		assert.Equal(t, 1, w.deadlines, "each line has to be taken in time")
		w.failing = os.ErrDeadlineExceeded
		w.mu.Unlock()
		api.Changes.Mark(readapi.TopicImages)
		<-ended
		assert.Zero(t, api.streams.total)
	})
}

func TestStreamsEndWithTheProcessAndInTime(t *testing.T) {
	for name, end := range map[string]func(stop chan struct{}, api *API){
		"the process stops": func(stop chan struct{}, _ *API) { close(stop) },
		"it is old":         func(chan struct{}, *API) { advance(maxStreamAge + time.Second) },
		"it is old and busy": func(_ chan struct{}, api *API) {
			for range int(maxStreamAge/time.Second) + 2 {
				api.Changes.Mark(readapi.TopicImages)
				advance(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newEventsAPI()
				stop := make(chan struct{})
				api.Stopping = stop
				_, ended := openStream(t, api, newLineWriter(), "")
				end(stop, api)
				<-ended
			})
		})
	}
}

func TestStreamsAreBounded(t *testing.T) {
	var l streamLimit
	var releases []func()
	for range maxStreamsOfACaller {
		release, ok := l.acquire("a")
		require.True(t, ok)
		releases = append(releases, release)
	}
	_, ok := l.acquire("a")
	assert.False(t, ok, "one credential takes a part only")
	for i := range maxStreams - maxStreamsOfACaller {
		release, ok := l.acquire(strings.Repeat("b", 1+i))
		require.True(t, ok)
		releases = append(releases, release)
	}
	_, ok = l.acquire("c")
	assert.False(t, ok)
	for _, release := range releases {
		release()
	}
	assert.Zero(t, l.total)
	assert.Empty(t, l.byCaller)

	api := newEventsAPI()
	api.streams.total = maxStreams
	recorder := httptest.NewRecorder()
	api.streamEvents(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, readapi.Root+"events", nil))
	assert.Equal(t, http.StatusServiceUnavailable, recorder.Code)
	assert.NotEmpty(t, recorder.Header().Get("Retry-After"))
}

// A stream through another replica reaches its reader line by line, and its end, too.
func TestEventsAreForwarded(t *testing.T) {
	api := newEventsAPI()
	stop := make(chan struct{})
	api.Stopping = stop
	to := newOtherReplica(t, api.streamEvents)
	server := httptest.NewServer(newForwarder(newLeases(t, "other", to)).Wrap(http.NotFoundHandler()))
	defer server.Close()
	c, err := readapi.NewClient(server.URL, server.Client())
	require.NoError(t, err)
	var topics [][]readapi.Topic
	for e, err := range c.FollowEvents(t.Context()) {
		if err != nil {
			var answered *readapi.Error
			require.NotErrorAs(t, err, &answered)
			break // the replica is gone mid-stream
		}
		topics = append(topics, e.Topics)
		switch len(topics) {
		case 1:
			api.Changes.Mark(readapi.TopicRollouts)
		case 2:
			close(stop)
		}
	}
	assert.Equal(t, [][]readapi.Topic{{}, {readapi.TopicRollouts}}, topics)
}

// A replica that forwards a stream and stops ends it, though the elected one goes on; and so
// does a reader that takes no line in time.
func TestForwardedStreamsEnd(t *testing.T) {
	to := newOtherReplica(t, newEventsAPI().streamEvents)
	stop := make(chan struct{})
	f := newForwarder(newLeases(t, "other", to))
	f.Stopping = stop
	handler := f.Wrap(http.NotFoundHandler())
	server := httptest.NewServer(handler)
	defer server.Close()
	c, err := readapi.NewClient(server.URL, server.Client())
	require.NoError(t, err)
	for _, err := range c.FollowEvents(t.Context()) {
		if err != nil {
			break
		}
		close(stop)
	}

	f.Stopping = nil
	w := newLineWriter()
	w.failing = os.ErrDeadlineExceeded
	func() {
		defer func() { _ = recover() }() // the proxy aborts the answer
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, readapi.Root+"events", nil))
	}()
	assert.Equal(t, 1, w.deadlines)
}
