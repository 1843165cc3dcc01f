package preflight

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/preflight/fairqueue"
	"github.com/pelotech/ot-fleet/api/policy"
)

// NewForTest returns a Prober for sources of the tests: of other addresses, names and
// timeouts than in a cluster.
func NewForTest(timeout time.Duration, allow policy.PreflightAllow, resolver *net.Resolver, proxy *url.URL) *Prober {
	cluster := NewClusterReader(nil)
	p := New(cluster, func() policy.PreflightAllow { return allow })
	p.timeout = timeout
	if resolver != nil {
		p.resolver = resolver
	}
	if proxy != nil {
		cluster.current = network{proxy: func(*url.URL) (*url.URL, error) { return proxy, nil }}
		cluster.readAt = time.Now().Add(time.Hour)
	}
	return p
}

// ProbeLimits are the limits of a Prober.
func ProbeLimits() fairqueue.Limits { return probeLimits }

// Waiting returns how many probes wait and run.
func (p *Prober) Waiting() (waiting, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Len()
}

// SetSecrets replaces the Secrets of the cluster.
func (p *Prober) SetSecrets(read func(types.NamespacedName) (map[string][]byte, error)) {
	p.secret = func(_ context.Context, key types.NamespacedName) (map[string][]byte, error) { return read(key) }
}

// SetRoots replaces the certificate authorities that the probes trust.
func (p *Prober) SetRoots(roots *x509.CertPool) { p.roots = roots }

// SetTimeout changes the timeout of the probes that start from now on.
func (p *Prober) SetTimeout(timeout time.Duration) { p.timeout = timeout }

// SetProxyError lets no proxy be found.
func (p *Prober) SetProxyError(err error) {
	p.network = func(context.Context) network {
		return network{proxy: func(*url.URL) (*url.URL, error) { return nil, err }}
	}
}
