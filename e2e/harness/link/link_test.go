//go:build linux

package link_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/link"
)

func TestLinkFaults(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	l, err := link.StartLink(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	defer l.Close()
	cfg := &rest.Config{}
	l.Redirect(cfg)
	get := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host, nil)
		require.NoError(t, err)
		response, err := server.Client().Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	const patience = 3 * time.Minute
	require.NoError(t, get(patience))

	l.Cut()
	require.ErrorIs(t, get(patience), syscall.ECONNREFUSED)
	require.NoError(t, l.Repair(t.Context()))
	require.NoError(t, get(patience), "on the same address")

	require.NoError(t, l.Stall())
	err = get(200 * time.Millisecond)
	require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded), "got %v", err)
	require.NoError(t, l.Repair(t.Context()))
	require.NoError(t, get(patience))

	const slow = 300 * time.Millisecond
	require.NoError(t, l.AddLatency(slow))
	start := time.Now()
	require.NoError(t, get(patience))
	require.GreaterOrEqual(t, time.Since(start), slow)
	require.NoError(t, l.Repair(t.Context()))
}
