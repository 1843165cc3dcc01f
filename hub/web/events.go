package web

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of the streams of events.
const (
	maxStreams          = 128
	maxStreamsOfACaller = 16
	// eventInterval is the shortest time between two events of a stream.
	eventInterval = time.Second
	// streamWriteTimeout bounds how long a reader may take for a line: a slower one is dropped.
	streamWriteTimeout = 10 * time.Second
	// maxStreamAge ends a stream: its reader comes back, and is authorized again.
	maxStreamAge = 10 * time.Minute
)

// streamLimit bounds the open streams, in total and of one credential. Its zero value is
// ready for use.
type streamLimit struct {
	mu       sync.Mutex
	total    int
	byCaller map[[sha256.Size]byte]int
}

// acquire returns a function that ends the stream; false: there are too many.
func (l *streamLimit) acquire(credential string) (release func(), ok bool) {
	caller := sha256.Sum256([]byte(credential))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= maxStreams || l.byCaller[caller] >= maxStreamsOfACaller {
		return nil, false
	}
	if l.byCaller == nil {
		l.byCaller = map[[sha256.Size]byte]int{}
	}
	l.total++
	l.byCaller[caller]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.total--
		if l.byCaller[caller]--; l.byCaller[caller] == 0 {
			delete(l.byCaller, caller)
		}
	}, true
}

// streamEvents sends what changes, as server-sent events.
func (a *API) streamEvents(w http.ResponseWriter, request *http.Request) {
	err := a.checkRequest(w, request)
	if err == nil {
		err = endpoint{parameters: []string{}}.checkParameters(request)
	}
	if err != nil {
		writeError(w, request, err)
		return
	}
	release, ok := a.streams.acquire(callerCredential(request))
	if !ok {
		w.Header().Set("Retry-After", "30")
		writeError(w, request, httpError{http.StatusServiceUnavailable, fmt.Sprintf("there are %d streams of events, or %d of this credential: ask for the answers every 15 s instead", maxStreams, maxStreamsOfACaller)})
		return
	}
	defer release()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if request.Method == http.MethodHead {
		return
	}
	s := eventStream{writer: w, controller: http.NewResponseController(w), after: v1alpha1.Truncate(request.Header.Get("Last-Event-ID"), maxKeyBytes)}
	s.run(a, request)
}

// eventStream is one open stream.
type eventStream struct {
	writer     http.ResponseWriter
	controller *http.ResponseController
	// after is the id of the last event that was sent.
	after string
}

// run sends events until the reader is gone or too slow, the process stops, or the stream is
// old. Invariant: nothing is queued for a reader; a slow one gets fewer events with more
// topics each. Invariant: an event is sent eventInterval after what it is about, so that no
// answer that is asked for then was rendered before that.
func (s *eventStream) run(a *API, request *http.Request) {
	if !s.write(": opened\n\n") {
		return
	}
	old := time.NewTimer(maxStreamAge)
	defer old.Stop()
	heartbeat := time.NewTicker(readapi.HeartbeatInterval)
	defer heartbeat.Stop()
	next := a.Changes.Current()
	if s.after != "" {
		next = a.Changes.Since(s.after)
	}
	for first := true; ; first = false {
		changed := a.Changes.Changed()
		if !first {
			next = a.Changes.Since(s.after)
		}
		if first || len(next.Topics) > 0 {
			changed = nil
		}
		var due <-chan time.Time
		if changed == nil {
			due = time.After(eventInterval)
		}
		if !s.awaitChange(a, request, changed, due, heartbeat.C, old.C) {
			return
		}
		if changed == nil && !s.send(next) {
			return
		}
	}
}

// awaitChange waits for one of two channels, and writes heartbeats meanwhile. It is false where the
// stream ends.
func (s *eventStream) awaitChange(a *API, request *http.Request, changed <-chan struct{}, due, heartbeat, old <-chan time.Time) bool {
	for {
		select {
		case <-changed:
			return true
		case <-due:
			return true
		case <-heartbeat:
			if !s.write(": heartbeat\n\n") {
				return false
			}
		case <-old:
			return false
		case <-request.Context().Done():
			return false
		case <-a.Stopping:
			return false
		}
	}
}

func (s *eventStream) send(e readapi.Event) bool {
	text, err := json.Marshal(e)
	if err != nil {
		return false
	}
	s.after = e.Seq
	return s.write(fmt.Sprintf("id: %s\ndata: %s\n\n", e.Seq, text))
}

// write reports whether the reader takes it in time. Invariant: no deadline is left when nothing is
// being written: with HTTP/2, one that passes ends the stream.
func (s *eventStream) write(text string) bool {
	// Writers without deadlines are those of tests.
	_ = s.controller.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	defer func() { _ = s.controller.SetWriteDeadline(time.Time{}) }()
	if _, err := s.writer.Write([]byte(text)); err != nil {
		return false
	}
	return s.controller.Flush() == nil
}
