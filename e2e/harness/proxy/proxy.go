// Package proxy stands between an agent and its API server, so that a test can
// stop the world at any write: hold it, lose it, or kill its writer just before
// or just after it is stored.
package proxy

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

// Write is one request that changes something. Leases and Events are none: they
// are renewed and repeated at will, and hold nothing that a promise rests on. Nor are
// dry runs, and the question what one may do.
type Write struct {
	// N counts the writes through this proxy, from 1.
	N      int
	Method string
	Path   string
	Body   []byte
	// Status is the answer's, 0 before there is one.
	Status int
}

func (w Write) String() string { return fmt.Sprintf("write %d: %s %s", w.N, w.Method, w.Path) }

// Target is what a write is made to; status: to its status.
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

// MatchWrite matches writes to a resource, or to its status.
func MatchWrite(method, resource string, status bool) func(Write) bool {
	return func(w Write) bool {
		r, _, s := w.Target()
		return w.Method == method && r == resource && s == status
	}
}

// Hook is called with a write and may take its time. One that returns an error
// has the write, or its answer, lost: the connection is cut.
type Hook func(Write) error

// Proxy forwards requests to one API server.
type Proxy struct {
	listener net.Listener
	ca       []byte // of the certificate, where TLS is spoken
	server   *http.Server

	mu                    sync.Mutex
	writes                int
	beforeHook, afterHook Hook
	log                   []Write
	bearerToken           string
	heldWatches           map[string]chan struct{} // closed when released, by resource
	forbidden             []string                 // resources
}

// StartProxy runs a proxy in front of an API server until Close.
func StartProxy(target *rest.Config) (*Proxy, error) { return startProxy(target, nil) }

// StartTLSProxy runs one that speaks TLS, for clients that send their token to nobody
// else. Reach tells how it is reached.
func StartTLSProxy(target *rest.Config) (*Proxy, error) {
	certificate, ca, err := newServingCertificate()
	if err != nil {
		return nil, err
	}
	p, err := startProxy(target, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return nil, err
	}
	p.ca = ca
	return p, nil
}

// Endpoint is the URL, and what its certificate is checked by.
func (p *Proxy) Endpoint() (url string, ca []byte) {
	return "https://" + p.listener.Addr().String(), p.ca
}

// newServingCertificate is the certificate of a server on this machine, which vouches for itself.
func newServingCertificate() (tls.Certificate, []byte, error) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if len(server.TLS.Certificates) == 0 {
		return tls.Certificate{}, nil, errors.New("there is no certificate for a server on this machine")
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
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	p := &Proxy{listener: listener, heldWatches: map[string]chan struct{}{}}
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
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// Close ends the proxy and cuts all its connections.
func (p *Proxy) Close() error { return p.server.Close() }

// Redirect has a client go through the proxy, which from then on adds that
// client's token: from a kubeconfig, none is sent without TLS.
func (p *Proxy) Redirect(cfg *rest.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bearerToken = cfg.BearerToken
	cfg.Host = "http://" + p.listener.Addr().String()
	cfg.TLSClientConfig = rest.TLSClientConfig{}
}

func (p *Proxy) currentToken() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bearerToken
}

// SetBeforeHook has a hook called before each write is passed on; nil for none.
func (p *Proxy) SetBeforeHook(h Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beforeHook = h
}

// SetAfterHook has a hook called when a write is stored and its answer has not been
// passed on; nil for none.
func (p *Proxy) SetAfterHook(h Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.afterHook = h
}

// Writes lists the writes so far.
func (p *Proxy) Writes() []Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Write(nil), p.log...)
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
	answer := &bufferedResponse{header: http.Header{}}
	forward.ServeHTTP(answer, r)
	write.Status = answer.status
	p.logWrite(write)
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

func (p *Proxy) logWrite(w Write) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Body = nil
	p.log = append(p.log, w)
}

// bufferedResponse holds an answer back until the hook has seen it.
type bufferedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *bufferedResponse) Header() http.Header         { return r.header }
func (r *bufferedResponse) WriteHeader(status int)      { r.status = status }
func (r *bufferedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

// DropConnection is what a hook returns to have a write or its answer lost.
func DropConnection() error { return errConnectionDropped }
