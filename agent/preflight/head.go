package preflight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxHeaderBytes bounds what one answer occupies in memory; bodies are never read.
	maxHeaderBytes = 16 << 10
	maxURLBytes    = 256
	// maxImageBytes is more than any disk has. What a source claims beyond it is not
	// believed: sums of sizes would overflow.
	maxImageBytes = 1 << 50
)

// headRequest requests the headers of one source, each time over a connection of its own:
// what else a server sends on it cannot become the answer to another request.
type headRequest struct {
	judge    addressJudge
	proxy    proxyFunc
	resolver *net.Resolver
	roots    *x509.CertPool // nil for the system's
	timeout  time.Duration
	headers  http.Header
	// notPermitted: an address of the host is internal. Then nothing is reported of the
	// answer, also if another address gave it.
	notPermitted atomic.Bool
}

var errNotPermitted = errors.New("internal addresses are not probed")

// send respects definite answers only: with 404 and 410 the image does not exist, with
// 403 it is refused. Anything else is left to CDI, which may reach what the agent does
// not. silent: there was no answer in time.
//
// A refusal of HEAD is confirmed by a GET of one byte: some servers, and URLs that are
// signed for GET, refuse HEAD alone.
func (h *headRequest) send(ctx context.Context, address string) (result image.PreflightResult, silent bool) {
	result.Known = true
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	answer, err := h.roundTrip(ctx, http.MethodHead, address)
	if err != nil {
		return result, !h.notPermitted.Load() && isTimeout(ctx, err)
	}
	method := http.MethodHead
	if refusalReason(answer.status) != "" {
		method = http.MethodGet
		if answer, err = h.roundTrip(ctx, method, address); err != nil {
			return result, false
		}
	}
	if h.notPermitted.Load() {
		return result, false
	}
	result.Size = answer.size
	if reason := refusalReason(answer.status); reason != "" {
		result.Refused = &v1alpha1.Failure{
			Reason: reason,
			// The reason phrase of the status line is the source's own text.
			Message: fmt.Sprintf("the source answered \"%d %s\" when asked for the image (%s %s); nothing was downloaded",
				answer.status, http.StatusText(answer.status), method, v1alpha1.SanitizeText(v1alpha1.RedactURL(address), maxURLBytes)),
		}
	}
	return result, false
}

func refusalReason(status int) v1alpha1.Reason {
	switch status {
	case http.StatusNotFound, http.StatusGone:
		return v1alpha1.ReasonNotFound
	case http.StatusForbidden:
		return v1alpha1.ReasonForbidden
	default:
		return ""
	}
}

// sourceAnswer is what is used of an answer; size is 0 for unknown.
type sourceAnswer struct {
	status int
	size   int64
}

// roundTrip sends one request over a connection of its own, and never reads the body. A GET
// asks for the first byte; a server that sends the whole image all the same is cut off.
func (h *headRequest) roundTrip(ctx context.Context, method, address string) (sourceAnswer, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return sourceAnswer{}, err
	}
	for name, values := range h.headers {
		request.Header[name] = values
	}
	if method == http.MethodGet {
		request.Header.Set("Range", "bytes=0-0")
	}
	transport, err := h.newTransport(ctx, request.URL)
	if err != nil {
		return sourceAnswer{}, err
	}
	defer transport.CloseIdleConnections()
	// Redirects are not followed: the target may need another request, and CDI finds
	// that out.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return sourceAnswer{}, err
	}
	_ = response.Body.Close()
	answer := sourceAnswer{status: response.StatusCode}
	size := int64(0)
	switch response.StatusCode {
	case http.StatusOK:
		size = response.ContentLength
	case http.StatusPartialContent:
		if method == http.MethodGet {
			size = totalSize(response.Header.Get("Content-Range"))
		}
	}
	if size > 0 && size <= maxImageBytes {
		answer.size = size
	}
	return answer, nil
}

// totalSize returns the length of the whole file that a Content-Range names, as in
// "bytes 0-0/4711"; 0 for unknown.
func totalSize(contentRange string) int64 {
	_, total, _ := strings.Cut(contentRange, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return 0
	}
	return size
}

func isTimeout(ctx context.Context, err error) bool {
	var timeout net.Error
	return ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout()
}

// newTransport returns the way to a source: directly, or through the proxy for it.
func (h *headRequest) newTransport(ctx context.Context, source *url.URL) (*http.Transport, error) {
	if !h.judge.permitsName(source.Hostname()) {
		return nil, errNotPermitted
	}
	proxy, err := h.proxy(source)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		// What a source sends unasked on an idle connection would be logged.
		DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeaderBytes, TLSHandshakeTimeout: h.timeout,
		TLSClientConfig: &tls.Config{RootCAs: h.roots},
	}
	if proxy == nil {
		transport.DialContext = h.dialPermitted
		return transport, nil
	}
	// The proxy is the platform's own; it is the target that an author chooses.
	transport.Proxy = http.ProxyURL(proxy)
	transport.DialContext = (&net.Dialer{Resolver: h.resolver}).DialContext
	return transport, h.judgeBehindProxy(ctx, source.Hostname())
}

// dialPermitted judges each address when it is dialed, so that no answer of a DNS server
// gets past it.
func (h *headRequest) dialPermitted(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Resolver: h.resolver, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		if !h.judge.permits(host, to.Addr()) {
			h.notPermitted.Store(true)
			return errNotPermitted
		}
		return nil
	}}
	return dialer.DialContext(ctx, network, net.JoinHostPort(h.absoluteName(host), port))
}

// judgeBehindProxy judges the addresses that a host has here. Where it has none, only the
// proxy knows what the host is, and the allow-list has to name it.
func (h *headRequest) judgeBehindProxy(ctx context.Context, host string) error {
	addrs, err := h.resolver.LookupNetIP(ctx, "ip", h.absoluteName(host))
	if err != nil || len(addrs) == 0 {
		if h.judge.allow.ContainsHost(host) {
			return nil
		}
		return errNotPermitted
	}
	for _, addr := range addrs {
		if !h.judge.permits(host, addr) {
			return errNotPermitted
		}
	}
	return nil
}

// absoluteName keeps the resolver from the search path of the agent's Pod, which is not
// that of the importer. Hosts of the allow-list may need it.
func (h *headRequest) absoluteName(host string) string {
	if _, err := netip.ParseAddr(host); err == nil || h.judge.allow.ContainsHost(host) || host == "" || host[len(host)-1] == '.' {
		return host
	}
	return host + "."
}
