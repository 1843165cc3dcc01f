// Package preflight asks HTTP sources whether they have an image, before a slot
// or any egress is spent on it.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// probeTimeout of one question. While it is open, the image holds up those behind
	// it in the queue.
	probeTimeout = 3 * time.Second
	// maxConcurrentProbes questions at a time.
	maxConcurrentProbes = 32
)

// Prober asks sources. Each image has at most one answer, for one URL and
// attempt; it is kept until it is forgotten.
type Prober struct {
	client    *http.Client
	semaphore chan struct{}

	mu      sync.Mutex
	results map[types.UID]probeResult
}

type probeResult struct {
	url     string
	attempt int32
	image.PreflightResult
}

// New returns a Prober with nothing asked yet.
func New() *Prober {
	dialer := &net.Dialer{Timeout: probeTimeout, Control: refuseLinkLocal}
	return &Prober{
		semaphore: make(chan struct{}, maxConcurrentProbes),
		results:   map[types.UID]probeResult{},
		client: &http.Client{
			Timeout: probeTimeout,
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				DialContext:         dialer.DialContext,
				TLSHandshakeTimeout: probeTimeout,
				MaxIdleConnsPerHost: 2,
				IdleConnTimeout:     30 * time.Second,
			},
			// Whether the target of a redirect wants the same request is CDI's to find out.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

var errLinkLocal = errors.New("link-local addresses are not asked")

// refuseLinkLocal keeps people who may create images from having the agent ask
// the metadata service of its cloud.
func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if host.Addr().Unmap().IsLinkLocalUnicast() {
		return errLinkLocal
	}
	return nil
}

// CachedResult returns what the source of an image said before an attempt.
func (p *Prober) CachedResult(uid types.UID, url string, attempt int32) image.PreflightResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.results[uid]; a.url == url && a.attempt == attempt {
		return a.PreflightResult
	}
	return image.PreflightResult{}
}

// ProbeAsync asks the source of an image in the background, unless that question is
// open or answered already, and calls then once there is an answer.
func (p *Prober) ProbeAsync(ctx context.Context, uid types.UID, url string, attempt int32, then func()) {
	p.mu.Lock()
	a, asked := p.results[uid]
	if asked && a.url == url && a.attempt == attempt {
		p.mu.Unlock()
		return
	}
	p.results[uid] = probeResult{url: url, attempt: attempt}
	p.mu.Unlock()
	go func() {
		select {
		case p.semaphore <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-p.semaphore }()
		result := p.sendHead(ctx, url)
		p.mu.Lock()
		if now, open := p.results[uid]; open && now.url == url && now.attempt == attempt {
			p.results[uid] = probeResult{url, attempt, result}
		}
		p.mu.Unlock()
		then()
	}()
}

// Forget drops the answer of an image.
func (p *Prober) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.results, uid)
}

// sendHead counts only what is definite: 404 and 410 mean that the image is not
// there, 403 that it is not given. Whatever else happens is left to CDI, which
// may reach what the agent does not.
func (p *Prober) sendHead(ctx context.Context, url string) image.PreflightResult {
	known := image.PreflightResult{Known: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return known
	}
	response, err := p.client.Do(request)
	if err != nil {
		return known
	}
	defer func() { _ = response.Body.Close() }()
	refused := func(reason v1alpha1.Reason) image.PreflightResult {
		known.Refused = &v1alpha1.Failure{
			Reason:  reason,
			Message: fmt.Sprintf("the source answered %q when asked for the image (HEAD %s); nothing was downloaded", response.Status, url),
		}
		return known
	}
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		return refused(v1alpha1.ReasonNotFound)
	case http.StatusForbidden:
		return refused(v1alpha1.ReasonForbidden)
	case http.StatusOK:
		known.Size = max(0, response.ContentLength)
	}
	return known
}
