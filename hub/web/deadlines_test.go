package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// deadlineRecorder records the order of what a stream does.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	did []string
}

func (r *deadlineRecorder) Write(text []byte) (int, error) {
	r.did = append(r.did, "write")
	return r.ResponseRecorder.Write(text)
}

func (r *deadlineRecorder) FlushError() error {
	r.did = append(r.did, "flush")
	return nil
}

func (r *deadlineRecorder) SetWriteDeadline(at time.Time) error {
	if at.IsZero() {
		r.did = append(r.did, "no deadline")
	} else {
		r.did = append(r.did, "deadline")
	}
	return nil
}

// With HTTP/2, a deadline that passes between two heartbeats ends the stream.
func TestStreamsHaveNoDeadlineWhileTheyRest(t *testing.T) {
	want := []string{"deadline", "write", "flush", "no deadline"}
	events := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	s := eventStream{writer: events, controller: http.NewResponseController(events)}
	require.True(t, s.write(": heartbeat\n\n"))
	assert.Equal(t, want, events.did)

	forwarded := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	w := &streamWriter{forwarded, http.NewResponseController(forwarded)}
	_, err := w.Write([]byte(": heartbeat\n\n"))
	require.NoError(t, err)
	require.NoError(t, http.NewResponseController(w).Flush())
	assert.Equal(t, want, forwarded.did)
}
