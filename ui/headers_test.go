package ui

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// deadlineRecorder counts the deadlines of its writes.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadlines int
	// undue are parts that were written without a new deadline.
	undue, seen int
}

func (r *deadlineRecorder) SetWriteDeadline(at time.Time) error {
	if at.After(time.Now()) {
		r.deadlines++
	}
	return nil
}

func (r *deadlineRecorder) Write(p []byte) (int, error) {
	if r.deadlines == r.seen {
		r.undue++
	}
	r.seen = r.deadlines
	return r.ResponseRecorder.Write(p)
}

// Each part of each answer has a deadline, of those that need no sign-in, too: who reads none of
// it does not hold it in memory.
func TestAnswersHaveDeadlines(t *testing.T) {
	h := newTestHandler(t, newTestAPI(t))
	h.Reads = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = w.Write([]byte("part")) // a recorder takes all
		}
	})
	for _, path := range []string{"/", "/nothing.js", "/auth/me", "/fleet/v1/summary", "/k8s/apis/pelotech.ot/v1alpha1/imageprunes"} {
		request := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		request.Host = "127.0.0.1:8080"
		r := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(r, request)
		assert.Positive(t, r.deadlines, path)
		assert.Zero(t, r.undue, path)
	}
}
