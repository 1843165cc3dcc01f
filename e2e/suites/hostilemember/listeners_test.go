//go:build linux

package hostilemember_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// Servers that are wrong before they answer a request.

func silentServer(t *testing.T) string { return listenTCP(t, func(net.Conn) {}) }

func resettingServer(t *testing.T) string { return listenTCP(t, resetConnection) }

func garbageServer(t *testing.T) string {
	return listenTCP(t, func(c net.Conn) { writeForever(c, "\x16\x03\x01garbage") })
}

func plainServer(t *testing.T) string {
	return listenTCP(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") })
}

// closedPort refuses connections.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func certifiedServer(certificate tls.Certificate) func(t *testing.T) string {
	return func(t *testing.T) string {
		server := newServer(http.NotFoundHandler(), true, certificate)
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
}

var (
	expiredServer  = certifiedServer(trusted.certificate(time.Now().Add(-time.Hour), "127.0.0.1"))
	misnamedServer = certifiedServer(trusted.certificate(time.Now().Add(time.Hour), "somebody.else.example"))
	strangerServer = certifiedServer(stranger.certificate(time.Now().Add(time.Hour), "127.0.0.1"))
)

// secureServer speaks TLS with one protocol, and serve the rest.
func secureServer(protocol string, serve func(*tls.Conn)) func(t *testing.T) string {
	config := &tls.Config{Certificates: []tls.Certificate{trusted.certificate(time.Now().Add(time.Hour), "127.0.0.1")}, NextProtos: []string{protocol}}
	return func(t *testing.T) string {
		return listenTCP(t, func(c net.Conn) {
			secure := tls.Server(c, config)
			if secure.Handshake() == nil {
				serve(secure)
			}
			_ = secure.Close()
		})
	}
}

var (
	hangingUpServer   = secureServer("http/1.1", func(*tls.Conn) {})
	mumblingServer    = secureServer("http/1.1", func(c *tls.Conn) { writeForever(c, "mumble mumble\r\n") })
	endlessLineServer = secureServer("http/1.1", func(c *tls.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 "); writeForever(c, "x") })
	endlessHeadServer = secureServer("http/1.1", func(c *tls.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		writeForever(c, "X-Y: z\r\n")
	})
	wrongLengthServer = secureServer("http/1.1", func(c *tls.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")
	})
	wrongChunkServer = secureServer("http/1.1", func(c *tls.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n")
	})
)

// version2Server begins HTTP/2 and answers each frame by serve.
func version2Server(serve func(*http2.Framer, http2.Frame) error) func(t *testing.T) string {
	return secureServer("h2", func(c *tls.Conn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c, preface); err != nil {
			return
		}
		framer := http2.NewFramer(c, c)
		if framer.WriteSettings() != nil {
			return
		}
		for {
			frame, err := framer.ReadFrame()
			if err != nil || serve(framer, frame) != nil {
				return
			}
		}
	})
}

var (
	goAwayServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		if _, asked := frame.(*http2.HeadersFrame); !asked {
			return nil
		}
		return f.WriteGoAway(0, http2.ErrCodeNo, nil)
	})
	streamResetServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		if _, asked := frame.(*http2.HeadersFrame); !asked {
			return nil
		}
		return f.WriteRSTStream(frame.Header().StreamID, http2.ErrCodeInternal)
	})
	refusedStreamServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		if _, asked := frame.(*http2.HeadersFrame); !asked {
			return nil
		}
		return f.WriteRSTStream(frame.Header().StreamID, http2.ErrCodeRefusedStream)
	})
	pingFloodServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		for range 1000 {
			if err := f.WritePing(false, [8]byte{}); err != nil {
				return err
			}
		}
		return nil
	})
	continuationServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		if _, asked := frame.(*http2.HeadersFrame); !asked {
			return nil
		}
		id := frame.Header().StreamID
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}}); err != nil {
			return err
		}
		for {
			if err := f.WriteContinuation(id, false, make([]byte, 1<<14)); err != nil {
				return err
			}
		}
	})
	pushServer = version2Server(func(f *http2.Framer, frame http2.Frame) error {
		if _, asked := frame.(*http2.HeadersFrame); !asked {
			return nil
		}
		return f.WritePushPromise(http2.PushPromiseParam{StreamID: frame.Header().StreamID, PromiseID: 2, BlockFragment: []byte{0x88}, EndHeaders: true})
	})
)
