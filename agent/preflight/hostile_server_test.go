package preflight_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// behaviour is what a hostile source does with a connection. done ends with the server.
type behaviour func(c net.Conn, done <-chan struct{})

// hostileServer is a source that does what a test says.
type hostileServer struct {
	listener    net.Listener
	connections atomic.Int32

	mu   sync.Mutex
	open map[net.Conn]bool
	done chan struct{}
	wait sync.WaitGroup
}

func startHostileServer(t testing.TB, serve behaviour) *hostileServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &hostileServer{listener: listener, open: map[net.Conn]bool{}, done: make(chan struct{})}
	s.wait.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			if !s.track(c) {
				continue
			}
			s.wait.Go(func() {
				defer s.untrack(c)
				serve(c, s.done)
			})
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *hostileServer) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		_ = c.Close()
		return false
	}
	s.open[c] = true
	return true
}

func (s *hostileServer) untrack(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	_ = c.Close()
}

// stop closes all connections and waits for what serves them.
func (s *hostileServer) stop() {
	_ = s.listener.Close()
	s.mu.Lock()
	if s.open != nil {
		close(s.done)
	}
	for c := range s.open {
		_ = c.Close()
	}
	s.open = nil
	s.mu.Unlock()
	s.wait.Wait()
}

func (s *hostileServer) address() string { return s.listener.Addr().String() }

// sendAnswer reads the request and writes a text.
func sendAnswer(text string) behaviour {
	return func(c net.Conn, _ <-chan struct{}) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = c.Write([]byte(text))
		}
	}
}

// sendAndHang is sendAnswer, and leaves the connection open.
func sendAndHang(text string) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		sendAnswer(text)(c, done)
		<-done
	}
}

// sendForever is sendAnswer, and then repeats a text for as long as somebody reads it.
func sendForever(text, repeated string) behaviour {
	chunk := []byte(strings.Repeat(repeated, 1+4096/len(repeated)))
	return func(c net.Conn, done <-chan struct{}) {
		sendAnswer(text)(c, done)
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}
}

// sendThenSlowly is sendAnswer, and then writes a text byte by byte.
func sendThenSlowly(text, slowly string) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		sendAnswer(text)(c, done)
		sendSlowly(slowly)(c, done)
	}
}

// sendSlowly writes a text byte by byte, again and again.
func sendSlowly(slowly string) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			if _, err := c.Write([]byte{slowly[i%len(slowly)]}); err != nil {
				return
			}
		}
	}
}

// sendAndReset is sendAnswer, and then resets the connection.
func sendAndReset(text string) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		if text != "" {
			sendAnswer(text)(c, done)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	}
}

func hang(_ net.Conn, done <-chan struct{}) { <-done }

func closeAtOnce(net.Conn, <-chan struct{}) {}

// sendAtOnce writes a text without reading the request, and leaves the connection open.
func sendAtOnce(text string) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		_, _ = c.Write([]byte(text))
		<-done
	}
}

// overTLS does the same over TLS.
func overTLS(config *tls.Config, serve behaviour) behaviour {
	return func(c net.Conn, done <-chan struct{}) {
		secure := tls.Server(c, config)
		if secure.Handshake() == nil {
			serve(secure, done)
		}
	}
}

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{certificate, key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// issue returns a server's configuration with a certificate for 127.0.0.1, changed by
// change. extra certificates make its chain long.
func (a *authority) issue(t *testing.T, extra int, change func(*x509.Certificate)) *tls.Config {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	require.NoError(t, err)
	chain := [][]byte{der}
	for range extra {
		chain = append(chain, a.certificate.Raw)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: key}}}
}
