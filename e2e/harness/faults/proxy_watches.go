package faults

import (
	"net/http"
	"strings"
)

// HoldWatches holds back the watch events of resources, such as "datavolumes", so that the
// client's cache stays as it is. Lists and single reads are answered.
func (p *Proxy) HoldWatches(resources ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range resources {
		if p.heldWatches[r] == nil {
			p.heldWatches[r] = make(chan struct{})
		}
	}
}

// ReleaseWatches forwards the held events of all resources in order.
func (p *Proxy) ReleaseWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, c := range p.heldWatches {
		close(c)
		delete(p.heldWatches, r)
	}
}

// watchedResource returns the resource that a request watches; empty for none.
func watchedResource(r *http.Request) string {
	if v := r.URL.Query().Get("watch"); v != "true" && v != "1" {
		return ""
	}
	return r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
}

func (p *Proxy) heldWatch(resource string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.heldWatches[resource]; c != nil {
		return c
	}
	return nil
}

// gatedWriter forwards an answer while its resource is not held.
type gatedWriter struct {
	http.ResponseWriter
	proxy    *Proxy
	resource string
	done     <-chan struct{}
}

func (g gatedWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g gatedWriter) Write(b []byte) (int, error) {
	if open := g.proxy.heldWatch(g.resource); open != nil {
		select {
		case <-open:
		case <-g.done:
			return 0, http.ErrAbortHandler
		}
	}
	return g.ResponseWriter.Write(b)
}
