package preflight_test

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/preflight"
)

// FuzzAnswer: whatever a source answers, there is a result, with a size that can be summed
// and a message that can be stored and has none of the source's own text.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"", head("404 Not Found"), head("403 x"), head("410"), head("200 OK", "Content-Length: 5"), head("200 OK", "Content-Length: -5"),
		head("200 OK", "Transfer-Encoding: chunked", "Content-Length: 5"), head("100 Continue") + head("404 \xff"), head("101 Switching Protocols", "Upgrade: h2c"),
		head("302 Found", "Location: //[::1]/"), "HTTP/1.0 404\n\n", "\x00\x00\x12\x04", head("206 Partial Content", "Content-Range: bytes 0-0/5"),
	} {
		f.Add([]byte(seed))
	}
	var answer atomic.Pointer[[]byte]
	s := startHostileServer(f, func(c net.Conn, done <-chan struct{}) { sendAnswer(string(*answer.Load()))(c, done) })
	p := preflight.NewForTest(time.Minute, testServers, nil, nil)
	f.Fuzz(func(t *testing.T, text []byte) {
		answer.Store(&text)
		got := probeAndWait(t, p, newSource("uid", "http://"+s.address()+"/image"))
		p.Forget("uid")
		require.True(t, got.Known)
		require.GreaterOrEqual(t, got.Size, int64(0))
		require.LessOrEqual(t, got.Size, int64(1)<<50)
		if got.Refused == nil {
			return
		}
		require.Zero(t, got.Size)
		require.LessOrEqual(t, len(got.Refused.Message), 512)
		require.True(t, utf8.ValidString(got.Refused.Message))
		require.False(t, strings.ContainsFunc(got.Refused.Message, unicode.IsControl))
	})
}

// FuzzHost: no way to write a host reaches a server on loopback that is not listed, and none
// keeps the image from its import.
func FuzzHost(f *testing.F) {
	for _, seed := range []string{
		"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "0x7f.1", "017700000001", "2130706433", "[::1%25lo]", "127.0.0.1.", "a@127.0.0.1", "127.0.0.1%2e",
		"a.example.com", "①②⑦.0.0.1", "[::7f00:1]", "[64:ff9b::7f00:1]", "%31%32%37.0.0.1", "127.0.0.1#", "127.0.0.1:1@a.example.com", "kubernetes.default.svc", "\x00", "[", "",
	} {
		f.Add(seed)
	}
	dns := &fakeDNS{answers: map[string][][]string{"a.example.com": {{"127.0.0.1"}}}}
	s := startHostileServer(f, sendAnswer(head("404 Not Found")))
	_, port, err := net.SplitHostPort(s.address())
	require.NoError(f, err)
	p := preflight.NewForTest(time.Minute, nil, dns.start(f), nil)
	f.Fuzz(func(t *testing.T, host string) {
		if u, err := url.Parse("http://" + host); err == nil {
			if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.Unmap().IsGlobalUnicast() {
				t.Skip("it may be a server of somebody else")
			}
		}
		got := probeAndWait(t, p, newSource("uid", "http://"+host+":"+port+"/image"))
		p.Forget("uid")
		require.True(t, got.Known)
		require.Nil(t, got.Refused)
		require.Zero(t, s.connections.Load(), "the server is asked")
	})
}
