package helm

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errFence = errors.New("the Lease is lost")

func TestFencedTransport(t *testing.T) {
	var reads, writes atomic.Int32
	release, arrived := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			arrived <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		}
		if isMutating(r.Method) {
			writes.Add(1)
		} else {
			reads.Add(1)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	defer close(release)
	ctx, cancel := context.WithCancelCause(t.Context())
	var lost atomic.Bool
	client := &http.Client{Transport: &fencedTransport{ctx: ctx, next: http.DefaultTransport, fence: func() error {
		if lost.Load() {
			return errFence
		}
		return nil
	}}}
	send := func(method, path string) error {
		request, err := http.NewRequestWithContext(context.Background(), method, server.URL+path, nil) //nolint:noctx // Helm's requests have none
		require.NoError(t, err)
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	methods := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	for _, method := range append(methods, http.MethodGet) {
		require.NoError(t, send(method, "/"))
	}
	require.Equal(t, int32(4), writes.Load())

	lost.Store(true)
	for _, method := range methods {
		require.ErrorIs(t, send(method, "/"), errFence, method)
	}
	require.NoError(t, send(http.MethodGet, "/"), "looking does no harm")
	assert.Equal(t, int32(4), writes.Load())
	assert.Equal(t, int32(2), reads.Load())

	lost.Store(false)
	ended := make(chan error, 1)
	go func() { ended <- send(http.MethodPost, "/slow") }()
	<-arrived
	gone := errors.New("no longer elected")
	cancel(gone)
	require.Error(t, <-ended, "running requests are cancelled")
	require.ErrorIs(t, send(http.MethodGet, "/"), gone)
	require.ErrorIs(t, send(http.MethodPost, "/"), gone)
	assert.Equal(t, int32(4), writes.Load())
}
