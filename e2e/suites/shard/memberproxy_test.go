//go:build linux

package shard_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// memberProxy is the HTTPS proxy through which one replica reaches all members, as <name>.test.
type memberProxy struct {
	listener net.Listener
	to       string

	mu   sync.Mutex
	open map[net.Conn]string
	// cut are the members that it refuses.
	cut map[string]bool
}

func newMemberProxy(to string) (*memberProxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &memberProxy{listener: listener, to: to, open: map[net.Conn]string{}, cut: map[string]bool{}}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			go r.serveConnection(c)
		}
	}()
	return r, nil
}

func (r *memberProxy) proxyEnv() []string {
	return []string{"HTTPS_PROXY=http://" + r.listener.Addr().String(), "NO_PROXY="}
}

func (r *memberProxy) serveConnection(c net.Conn) {
	defer c.Close()
	request, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	member, _, _ := strings.Cut(request.Host, ".")
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	r.mu.Lock()
	closed := r.cut[member]
	if !closed {
		r.open[c] = member
	}
	r.mu.Unlock()
	if closed {
		return
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c)
	}()
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, c) // either end may close
		_ = server.Close()
	}()
	_, _ = io.Copy(c, server)
}

// reachedMembers returns the members that the replica is connected to.
func (r *memberProxy) reachedMembers() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	members := map[string]bool{}
	for _, member := range r.open {
		members[member] = true
	}
	return members
}

// setBlocked cuts the replica off from a member, or ends that.
func (r *memberProxy) setBlocked(member string, blocked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut[member] = blocked
	for c, of := range r.open {
		if blocked && of == member {
			_ = c.Close()
		}
	}
}
