//go:build linux

// Package link is the network between a hub and one member, with the faults
// that networks have. It carries bytes, so that what speaks TLS through it still
// speaks with the API server itself.
package link

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// Link leads to one API server.
type Link struct {
	mu     sync.Mutex
	proxy  *toxiproxy.Proxy
	target string
}

// StartLink leads to an API server until Close.
func StartLink(to *rest.Config) (*Link, error) {
	target, err := url.Parse(to.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address %q: %w", to.Host, err)
	}
	l := &Link{target: target.Host}
	for range 20 { // somebody else may take the port first
		var port int
		if port, err = process.FreePort(); err != nil {
			break
		}
		listen := fmt.Sprintf("127.0.0.1:%d", port)
		l.proxy = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), l.target, listen, l.target)
		if err = l.proxy.Start(); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("leading to %s: %w", l.target, err)
}

// Redirect has a client take this way.
func (l *Link) Redirect(cfg *rest.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg.Host = "https://" + l.proxy.Listen
}

// Cut ends all connections and refuses new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
}

// Stall takes connections and carries nothing over them.
func (l *Link) Stall() error {
	return l.addToxic(`{"name": "fault", "type": "timeout", "stream": "downstream", "attributes": {"timeout": 0}}`)
}

// AddLatency has every answer take longer.
func (l *Link) AddLatency(by time.Duration) error {
	return l.addToxic(fmt.Sprintf(`{"name": "fault", "type": "latency", "stream": "downstream", "attributes": {"latency": %d}}`, by.Milliseconds()))
}

func (l *Link) addToxic(toxic string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return fmt.Errorf("disturbing the link to %s: %w", l.target, err)
	}
	return nil
}

// Repair ends every fault.
func (l *Link) Repair(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Toxics.ResetToxics(ctx)
	if l.proxy.Enabled {
		return nil
	}
	// On the address that clients know.
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("leading to %s again: %w", l.target, err)
	}
	return nil
}

// Close ends the link.
func (l *Link) Close() { l.Cut() }
