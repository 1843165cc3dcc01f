//go:build linux

package faults

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

// Link is a network path to one API server. It forwards bytes, so that TLS ends at the API
// server itself.
type Link struct {
	mu     sync.Mutex
	proxy  *toxiproxy.Proxy
	target string
}

// StartLink opens a link to an API server until Close.
func StartLink(to *rest.Config) (*Link, error) {
	target, err := url.Parse(to.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address %q: %w", to.Host, err)
	}
	l := &Link{target: target.Host}
	for range 20 { // another process may take the port first
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
	return nil, fmt.Errorf("opening a link to %s: %w", l.target, err)
}

// Redirect routes a client over the link.
func (l *Link) Redirect(cfg *rest.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg.Host = "https://" + l.proxy.Listen
}

// Cut closes all connections and refuses new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
}

// Stall accepts connections and forwards nothing.
func (l *Link) Stall() error {
	return l.addToxic(`{"name": "fault", "type": "timeout", "stream": "downstream", "attributes": {"timeout": 0}}`)
}

// AddLatency delays every answer.
func (l *Link) AddLatency(by time.Duration) error {
	return l.addToxic(fmt.Sprintf(`{"name": "fault", "type": "latency", "stream": "downstream", "attributes": {"latency": %d}}`, by.Milliseconds()))
}

func (l *Link) addToxic(toxic string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return fmt.Errorf("adding a fault to the link to %s: %w", l.target, err)
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
	// The listener keeps the address that clients know.
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("reopening the link to %s: %w", l.target, err)
	}
	return nil
}

// Close closes the link.
func (l *Link) Close() { l.Cut() }
