// Package hubclient makes connections between hub and members, in either direction:
// every request has a timeout, the watches of a mailbox are checked for staleness, and
// a bearer token can be renewed without reconnecting.
package hubclient

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A silent connection is pinged and closed without a reply: a watch has no timeout and
// would hang. pingAfter is longer than the default interval of probes, which need no ping
// beside them.
const (
	pingAfter   = 15 * time.Second
	pingTimeout = 5 * time.Second
)

// minHeaderTable is the size in bytes of the tables of HTTP/2's header compression: too small
// for any header. 0 would be the default.
const minHeaderTable = 1

// newTransport returns the transport of one connection, and closes its idle connections
// with done. All its waits are bounded by timeout, and its answers by limits. Invariant:
// every connection between hub and member is made here.
func newTransport(cfg *rest.Config, timeout time.Duration, limits transport.Limits, exceeded func(*transport.LimitError)) (through http.RoundTripper, done func(), err error) {
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second, Control: refuseForbidden}).DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    timeout,
		ResponseHeaderTimeout:  timeout,
		MaxResponseHeaderBytes: transport.MaxHeaderBytes,
		DisableCompression:     true, // a few bytes could become gigabytes
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
			// An API server's headers differ in each answer, and would fill the tables.
			MaxEncoderHeaderTableSize: minHeaderTable, MaxDecoderHeaderTableSize: minHeaderTable,
		},
	}
	if cfg.Proxy != nil {
		t.Proxy = cfg.Proxy
	}
	if cfg.Dial != nil {
		t.DialContext = cfg.Dial
	}
	return transport.Limit(t, limits, exceeded), t.CloseIdleConnections, nil
}

// requireJSON makes clients ask for JSON only, which transport.Limit meters.
func requireJSON(cfg *rest.Config) {
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
}

// NewClient returns a client for a few requests, each bounded by timeout. Call done to
// close its connections.
func NewClient(cfg *rest.Config, timeout time.Duration, options client.Options) (c client.Client, done func(), err error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = timeout
	requireJSON(cfg)
	t, done, err := newTransport(cfg, timeout, transport.Mailbox, nil)
	if err != nil {
		return nil, nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, t)
	if err != nil {
		return nil, nil, err
	}
	options.HTTPClient = newHTTPClient(wrapped, timeout)
	live, err := client.New(cfg, options)
	return checkedClient{live}, done, err
}

// newHTTPClient refuses redirects: API servers do not redirect, and a malicious one
// could redirect the token or reach internal addresses. A timeout of 0 means none.
func newHTTPClient(through http.RoundTripper, timeout time.Duration) *http.Client {
	return &http.Client{Transport: through, Timeout: timeout, CheckRedirect: func(to *http.Request, _ []*http.Request) error {
		return fmt.Errorf("it redirects to %s, which no API server does", to.URL.Host)
	}}
}

// Token is a bearer token that can be replaced while connections use it. The zero value
// is no token.
type Token struct{ value atomic.Pointer[string] }

// Set replaces the token for all later requests.
func (t *Token) Set(value string) {
	if value != "" {
		value = bearer + value
	}
	t.value.Store(&value)
}

// Get returns the current token.
func (t *Token) Get() string { return strings.TrimPrefix(t.header(), bearer) }

// header returns the value of header Authorization, which the requests in progress share;
// empty without a token.
func (t *Token) header() string {
	if value := t.value.Load(); value != nil {
		return *value
	}
	return ""
}

const bearer = "Bearer "

// tokenTransport adds the current token to requests.
type tokenTransport struct {
	token *Token
	next  http.RoundTripper
}

func (b *tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if header := b.token.header(); header != "" && request.Header.Get("Authorization") == "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", header)
	}
	return b.next.RoundTrip(request)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b *tokenTransport) WrappedRoundTripper() http.RoundTripper { return b.next }

// DedicatedConfig returns a configuration for libraries that make their own clients:
// all requests use one transport, wrapped by wrap if it is not nil, and are bounded by
// timeout. Call done to close its connections.
func DedicatedConfig(cfg *rest.Config, timeout time.Duration, wrap func(http.RoundTripper) http.RoundTripper) (own *rest.Config, done func(), err error) {
	t, done, err := newTransport(cfg, timeout, transport.Install, nil)
	if err != nil {
		return nil, nil, err
	}
	// Without TLS options an address without a scheme would be taken for one of HTTP.
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("the API server's address %q is not a URL", v1alpha1.SanitizeText(v1alpha1.RedactURL(cfg.Host), maxQuotedBytes))
	}
	own = rest.CopyConfig(cfg)
	own.Host, own.APIPath, own.Timeout = host.String(), "", timeout
	own.TLSClientConfig, own.Proxy, own.Dial = rest.TLSClientConfig{}, nil, nil
	own.Transport = noRedirectTransport{t}
	requireJSON(own)
	if wrap != nil {
		own.Transport = wrap(own.Transport)
	}
	return own, done, nil
}

// noRedirectTransport refuses redirects, as newHTTPClient does.
type noRedirectTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s noRedirectTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(request)
	if err == nil && response.StatusCode >= 300 && response.StatusCode < 400 && response.Header.Get("Location") != "" {
		_ = response.Body.Close()
		return nil, fmt.Errorf("it redirects to %q, which no API server does", v1alpha1.SanitizeText(v1alpha1.RedactURL(response.Header.Get("Location")), maxQuotedBytes))
	}
	return response, err
}
