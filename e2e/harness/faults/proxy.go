package faults

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Write is a request that changes something. Leases, Events, dry runs and access reviews do
// not count: no promise rests on them.
type Write struct {
	// N is the number of the write through this proxy, from 1.
	N      int
	Method string
	Path   string
	Body   []byte
	// Status is the HTTP status of the answer, 0 before there is one.
	Status int
}

func (w Write) String() string { return fmt.Sprintf("write %d: %s %s", w.N, w.Method, w.Path) }

// Target is the object of a write; status is true for its status subresource.
func (w Write) Target() (resource, name string, status bool) {
	parts := strings.Split(strings.Trim(w.Path, "/"), "/")
	i := slices.Index(parts, "namespaces")
	if i < 0 || len(parts) <= i+2 {
		return path.Base(w.Path), "", false
	}
	if parts = parts[i+2:]; len(parts) > 1 {
		name = parts[1]
	}
	return parts[0], name, len(parts) > 2 && parts[2] == "status"
}

// MatchWrite matches the writes of a method to a resource, or to its status.
func MatchWrite(method, resource string, status bool) func(Write) bool {
	return func(w Write) bool {
		r, _, s := w.Target()
		return w.Method == method && r == resource && s == status
	}
}

// Hook is called with a write, which waits for it. An error loses the write or its answer:
// the connection is closed.
type Hook func(Write) error

// Proxy forwards requests to one API server. A test stops the world at any write: it holds
// it, loses it, or kills its writer just before or just after it is stored.
type Proxy struct {
	listener net.Listener
	ca       []byte // of the serving certificate
	server   *http.Server

	mu                    sync.Mutex
	writes                int
	beforeHook, afterHook Hook
	log                   []Write
	forwarded             []chan struct{} // of the writes that are at the API server; closed once answered
	bearerToken           string
	heldWatches           map[string]chan struct{} // closed when released, by resource
	forbidden             []string                 // resources
}

// StartProxy runs a proxy in front of an API server until Close. It serves HTTP/1.1 over TLS:
// the hub accepts no other way to a member.
func StartProxy(target *rest.Config) (*Proxy, error) { return startTLSProxy(target, "http/1.1") }

// StartTLSProxy is StartProxy with HTTP/2; see Endpoint.
func StartTLSProxy(target *rest.Config) (*Proxy, error) {
	return startTLSProxy(target, "h2", "http/1.1")
}

func startTLSProxy(target *rest.Config, protocols ...string) (*Proxy, error) {
	certificate, ca, err := newServingCertificate()
	if err != nil {
		return nil, err
	}
	p, err := startProxy(target, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: protocols})
	if err != nil {
		return nil, err
	}
	p.ca = ca
	return p, nil
}

// Endpoint returns the URL of a TLS proxy and the CA of its certificate.
func (p *Proxy) Endpoint() (url string, ca []byte) {
	return "https://" + p.listener.Addr().String(), p.ca
}

// newServingCertificate returns a self-signed certificate for this machine.
func newServingCertificate() (tls.Certificate, []byte, error) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if len(server.TLS.Certificates) == 0 {
		return tls.Certificate{}, nil, errors.New("httptest made no certificate")
	}
	return server.TLS.Certificates[0], ca, nil
}

func startProxy(target *rest.Config, secure *tls.Config) (*Proxy, error) {
	transport, err := rest.TransportFor(&rest.Config{Host: target.Host, TLSClientConfig: rest.TLSClientConfig{CAData: target.CAData, CAFile: target.CAFile}})
	if err != nil {
		return nil, fmt.Errorf("reaching %s: %w", target.Host, err)
	}
	host, err := url.Parse(target.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address %q: %w", target.Host, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	p := &Proxy{listener: tls.NewListener(listener, secure), heldWatches: map[string]chan struct{}{}}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(host)
			if r.Out.Header.Get("Authorization") == "" {
				r.Out.Header.Set("Authorization", "Bearer "+p.currentToken())
			}
		},
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // clients that were killed
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveRequest(forward, w, r) }),
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = p.server.Serve(p.listener) }()
	return p, nil
}

// Close closes the proxy and all its connections.
func (p *Proxy) Close() error { return p.server.Close() }

// Redirect routes a client through the proxy. The proxy adds the client's token to requests
// without one.
func (p *Proxy) Redirect(cfg *rest.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bearerToken = cfg.BearerToken
	cfg.Host = "https://" + p.listener.Addr().String()
	cfg.TLSClientConfig = rest.TLSClientConfig{CAData: p.ca}
}

func (p *Proxy) currentToken() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bearerToken
}

// SetBeforeHook sets the hook that is called before a write is forwarded; nil for none.
func (p *Proxy) SetBeforeHook(h Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beforeHook = h
}

// SetAfterHook sets the hook that is called after a write is stored and before its answer
// is forwarded; nil for none.
func (p *Proxy) SetAfterHook(h Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.afterHook = h
}

// Writes lists all answered writes. It waits for those that the API server may have stored and
// has not answered: a test that has read what one of them stored finds it here.
func (p *Proxy) Writes() []Write {
	p.mu.Lock()
	forwarded := slices.Clone(p.forwarded)
	p.mu.Unlock()
	for _, answered := range forwarded {
		<-answered
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

func isWrite(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
		return false
	}
	return !r.URL.Query().Has("dryRun") && !strings.Contains(r.URL.Path, "/leases") && !strings.Contains(r.URL.Path, "/events") && !strings.Contains(r.URL.Path, "/selfsubject")
}

var errConnectionDropped = errors.New("lost")

func (p *Proxy) serveRequest(forward http.Handler, w http.ResponseWriter, r *http.Request) {
	if p.denyForbidden(w, r) {
		return
	}
	if resource := watchedResource(r); resource != "" {
		forward.ServeHTTP(gatedWriter{w, p, resource, r.Context().Done()}, r)
		return
	}
	if !isWrite(r) {
		forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	write, before, after := p.countWrite(r, body)
	if before != nil && before(write) != nil {
		panic(http.ErrAbortHandler)
	}
	answer := p.forwardWrite(forward, &write, r)
	if after != nil && after(write) != nil {
		panic(http.ErrAbortHandler)
	}
	for key, values := range answer.header {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body.Bytes())
}

func (p *Proxy) countWrite(r *http.Request, body []byte) (Write, Hook, Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	return Write{N: p.writes, Method: r.Method, Path: r.URL.Path, Body: body}, p.beforeHook, p.afterHook
}

// forwardWrite logs a write once it is answered, and sets its status.
func (p *Proxy) forwardWrite(forward http.Handler, w *Write, r *http.Request) *bufferedResponse {
	answered := make(chan struct{})
	p.mu.Lock()
	p.forwarded = append(p.forwarded, answered)
	p.mu.Unlock()
	defer func() { // also where the API server breaks the connection off
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forwarded = slices.DeleteFunc(p.forwarded, func(c chan struct{}) bool { return c == answered })
		close(answered)
	}()
	answer := &bufferedResponse{header: http.Header{}}
	forward.ServeHTTP(answer, r)
	w.Status = answer.status
	p.mu.Lock()
	defer p.mu.Unlock()
	logged := *w
	logged.Body = nil
	p.log = append(p.log, logged)
	return answer
}

// bufferedResponse holds an answer back for the hook.
type bufferedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *bufferedResponse) Header() http.Header         { return r.header }
func (r *bufferedResponse) WriteHeader(status int)      { r.status = status }
func (r *bufferedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

// DropConnection returns the error by which a hook loses a write or its answer.
func DropConnection() error { return errConnectionDropped }
