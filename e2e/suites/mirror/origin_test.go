//go:build linux

package mirror_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// origin serves images by HTTPS with ranges and ETags, as an object store does, and counts what it
// sends.
type origin struct {
	*httptest.Server

	mu       sync.Mutex
	contents map[string][]byte
	sent     map[string]int64
	// notModified counts the answers without content.
	notModified map[string]int
	// logins counts requests with credentials.
	logins      int
	withoutETag bool
	gates       map[string]*gate
}

// gate holds requests for content from an offset on.
type gate struct {
	from    int64
	waiting int
	opened  chan struct{}
}

// startOrigin serves by the name localhost.
func startOrigin(certificate tls.Certificate) *origin {
	o := &origin{contents: map[string][]byte{}, sent: map[string]int64{}, notModified: map[string]int{}, gates: map[string]*gate{}}
	o.Server = httptest.NewUnstartedServer(o)
	o.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	o.StartTLS()
	return o
}

// host is where the mirrors reach the origin.
func (o *origin) host() string {
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	return net.JoinHostPort("localhost", port)
}

// put stores content at a path.
func (o *origin) put(path string, content []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.contents[path] = content
}

// omitETag has answers say nothing about the version of the content.
func (o *origin) omitETag() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.withoutETag = true
}

// holdRequests holds those for the content of a path from an offset on until release is called.
func (o *origin) holdRequests(path string, from int64) (release func()) {
	g := &gate{from: from, opened: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gates[path] = g
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.gates, path)
		close(g.opened)
	})
}

// countHeld returns how many requests for a path are held.
func (o *origin) countHeld(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g := o.gates[path]; g != nil {
		return g.waiting
	}
	return 0
}

// sentBytes returns how much of a path was sent.
func (o *origin) sentBytes(path string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent[path]
}

// countNotModified returns how many requests for a path were answered with 304.
func (o *origin) countNotModified(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notModified[path]
}

// countLogins returns how many requests had credentials.
func (o *origin) countLogins() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.logins
}

// ServeHTTP implements http.Handler.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	if r.Header.Get("Authorization") != "" {
		o.logins++
	}
	g := o.gates[r.URL.Path]
	var from int64
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from) // else from the beginning
	held := g != nil && from >= g.from
	if held {
		g.waiting++
		o.mu.Unlock()
		select {
		case <-g.opened:
		case <-r.Context().Done():
		}
		o.mu.Lock()
		g.waiting--
		if r.Context().Err() != nil { // who asked is gone
			o.mu.Unlock()
			return
		}
	}
	content, known := o.contents[r.URL.Path]
	tagged := !o.withoutETag
	o.mu.Unlock()
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if tagged {
		w.Header().Set("ETag", `"`+digest(content)+`"`)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(&countingWriter{w, o, r.URL.Path}, r, strings.TrimPrefix(r.URL.Path, "/"), time.Time{}, bytes.NewReader(content))
}

// countingWriter counts the content that is sent of a path.
type countingWriter struct {
	http.ResponseWriter
	origin *origin
	path   string
}

// WriteHeader implements http.ResponseWriter.
func (w *countingWriter) WriteHeader(status int) {
	if status == http.StatusNotModified {
		w.origin.mu.Lock()
		w.origin.notModified[w.path]++
		w.origin.mu.Unlock()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.origin.mu.Lock()
	defer w.origin.mu.Unlock()
	w.origin.sent[w.path] += int64(n)
	return n, err
}
