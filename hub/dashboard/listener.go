package dashboard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/ui"
)

// stopTimeout bounds the wait for answers that are under way.
const stopTimeout = 10 * time.Second

// maxConnections bounds what strangers can hold in memory.
const maxConnections = 1024

// Listener serves a dashboard over HTTPS until the manager stops. It implements manager.Runnable.
type Listener struct {
	Address string
	Handler http.Handler
	TLS     *tls.Config
}

// Start implements manager.Runnable.
func (l *Listener) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", l.Address)
	if err != nil {
		return fmt.Errorf("serving the dashboard at --ui-bind-address: %w", err)
	}
	listener = netutil.LimitListener(listener, maxConnections)
	server := ui.NewServer(l.Handler)
	server.TLSConfig = l.TLS
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	log.FromContext(ctx).Info("Serving the dashboard", "address", listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("serving the dashboard: %w", err)
	case <-ctx.Done():
	}
	// Streams end by their own signal.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (*Listener) NeedLeaderElection() bool { return false }
