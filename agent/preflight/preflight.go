// Package preflight probes HTTP sources for an image before a slot or any egress is
// spent on it.
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
	// probeTimeout bounds one probe. Meanwhile the image blocks those behind it in the
	// queue.
	probeTimeout        = 3 * time.Second
	maxConcurrentProbes = 32
	// maxHeaderBytes bounds what one answer occupies in memory; the body of an answer to
	// HEAD is never read.
	maxHeaderBytes = 16 << 10
	maxURLBytes    = 256
)

// Prober probes sources. It keeps one result per image, for one URL and attempt,
// until Forget.
type Prober struct {
	client    *http.Client
	semaphore chan struct{}

	mu      sync.Mutex
	results map[types.UID]probeResult
}

// probe is what is asked for.
type probe struct {
	url     string
	attempt int32
}

// probeResult is the result of a probe; zero while it runs.
type probeResult struct {
	probe
	result image.PreflightResult
}

// New returns a Prober without results.
func New() *Prober { return newProber(probeTimeout) }

func newProber(timeout time.Duration) *Prober {
	dialer := &net.Dialer{Timeout: timeout, Control: refuseLinkLocal}
	return &Prober{
		semaphore: make(chan struct{}, maxConcurrentProbes),
		results:   map[types.UID]probeResult{},
		client: &http.Client{
			Timeout: timeout,
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				DialContext:         dialer.DialContext,
				TLSHandshakeTimeout: timeout,
				// What a source sends unasked on an idle connection would be logged.
				DisableKeepAlives:      true,
				MaxResponseHeaderBytes: maxHeaderBytes,
			},
			// The target of a redirect may need another request; CDI finds that out.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

var errLinkLocal = errors.New("link-local addresses are not probed")

// refuseLinkLocal keeps image authors from making the agent call the metadata
// service of its cloud.
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

// CachedResult returns the source's answer before an attempt; Known is false while
// there is none.
func (p *Prober) CachedResult(uid types.UID, url string, attempt int32) image.PreflightResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.results[uid]; r.probe == (probe{url, attempt}) {
		return r.result
	}
	return image.PreflightResult{}
}

// ProbeAsync probes the source of an image in the background, and calls onDone when
// the result is there. It does nothing where that probe runs or has a result.
func (p *Prober) ProbeAsync(ctx context.Context, uid types.UID, url string, attempt int32, onDone func()) {
	asked := probe{url, attempt}
	p.mu.Lock()
	if r, ok := p.results[uid]; ok && r.probe == asked {
		p.mu.Unlock()
		return
	}
	p.results[uid] = probeResult{probe: asked}
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
		if r, ok := p.results[uid]; ok && r.probe == asked {
			p.results[uid] = probeResult{asked, result}
		}
		p.mu.Unlock()
		onDone()
	}()
}

// Forget drops the result of an image.
func (p *Prober) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.results, uid)
}

// sendHead respects definite answers only: with 404 and 410 the image does not
// exist, with 403 it is refused. Anything else is left to CDI, which may reach what
// the agent does not.
func (p *Prober) sendHead(ctx context.Context, url string) image.PreflightResult {
	result := image.PreflightResult{Known: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return result
	}
	response, err := p.client.Do(request)
	if err != nil {
		return result
	}
	defer func() { _ = response.Body.Close() }()
	refuse := func(reason v1alpha1.Reason) {
		// The reason phrase of the status line is the source's own text.
		status := fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode))
		result.Refused = &v1alpha1.Failure{
			Reason: reason,
			Message: fmt.Sprintf("the source answered %q when asked for the image (HEAD %s); nothing was downloaded",
				status, v1alpha1.SanitizeText(v1alpha1.RedactURL(url), maxURLBytes)),
		}
	}
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		refuse(v1alpha1.ReasonNotFound)
	case http.StatusForbidden:
		refuse(v1alpha1.ReasonForbidden)
	case http.StatusOK:
		result.Size = max(0, response.ContentLength)
	}
	return result
}
