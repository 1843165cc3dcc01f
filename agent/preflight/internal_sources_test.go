package preflight_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/policy"
)

// fakeDNS answers for names: with addresses, each query with the next of the list.
type fakeDNS struct {
	mu      sync.Mutex
	answers map[string][][]string
	asked   []string
}

// start returns a resolver that asks it.
func (d *fakeDNS) start(t testing.TB) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := d.reply(buffer[:n]); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// reply answers a query; names that it does not know do not exist, and those without
// answers get none.
func (d *fakeDNS) reply(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	question := m.Questions[0]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, question.Name.String())
	answers, known := d.answers[strings.TrimSuffix(question.Name.String(), ".")]
	if known && len(answers) == 0 {
		return nil
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	} else if question.Type == dnsmessage.TypeA || question.Type == dnsmessage.TypeAAAA {
		for _, text := range answers[0] {
			m.Answers = append(m.Answers, newRecord(question, text)...)
		}
	}
	if question.Type == dnsmessage.TypeA && len(answers) > 1 {
		d.answers[strings.TrimSuffix(question.Name.String(), ".")] = answers[1:]
	}
	reply, _ := m.Pack()
	return reply
}

func newRecord(question dnsmessage.Question, text string) []dnsmessage.Resource {
	header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1, Type: question.Type}
	addr := netip.MustParseAddr(text)
	switch {
	case addr.Is4() && question.Type == dnsmessage.TypeA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}}}
	case addr.Is6() && question.Type == dnsmessage.TypeAAAA:
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}}}
	}
	return nil
}

// TestInternalSourcesAreNotAsked: a server on loopback stands for all that is internal. No
// way to write its address reaches it, and no result shows it.
func TestInternalSourcesAreNotAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		host    string
		answers [][]string
		allow   policy.PreflightAllow
		// reached: it is asked all the same; untold: and what it answers is not in the result.
		reached, untold bool
	}{
		"an address":                        {host: "127.0.0.1"},
		"listed":                            {host: "127.0.0.1", allow: testServers, reached: true},
		"another one listed":                {host: "127.0.0.1", allow: policy.PreflightAllow{"127.0.0.2/32", "a.example.com"}},
		"mapped":                            {host: "[::ffff:127.0.0.1]"},
		"mapped, listed":                    {host: "[::ffff:127.0.0.1]", allow: testServers, reached: true},
		"unspecified":                       {host: "0.0.0.0"},
		"unspecified, IPv6":                 {host: "[::]"},
		"localhost":                         {host: "localhost"},
		"localhost with a dot":              {host: "LOCALHOST."},
		"short":                             {host: "127.1"},
		"a number":                          {host: "2130706433"},
		"hexadecimal":                       {host: "0x7f000001"},
		"octal":                             {host: "0177.0.0.1"},
		"a name":                            {host: "a.example.com", answers: [][]string{{"127.0.0.1"}}},
		"a name, address listed":            {host: "a.example.com", answers: [][]string{{"127.0.0.1"}}, allow: testServers, reached: true},
		"a name, name listed":               {host: "a.example.com", answers: [][]string{{"127.0.0.1"}}, allow: policy.PreflightAllow{"a.example.com"}}, // loopback needs a CIDR
		"a name of a mapped address":        {host: "a.example.com", answers: [][]string{{"::ffff:127.0.0.1"}}},
		"a name of no address":              {host: "a.example.com", answers: [][]string{{"0.0.0.0"}}},
		"a name of metadata and it":         {host: "a.example.com", answers: [][]string{{"169.254.169.254", "127.0.0.1"}}},
		"a name that changes its addresses": {host: "a.example.com", answers: [][]string{{"192.0.2.1"}, {"127.0.0.1"}}},
		"after another internal address":    {host: "a.example.com", answers: [][]string{{"127.0.0.9", "127.0.0.1"}}, allow: policy.PreflightAllow{"127.0.0.1/32"}, reached: true, untold: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := startHostileServer(t, sendAnswer(head("404 Not Found")))
			_, port, err := net.SplitHostPort(s.address())
			require.NoError(t, err)
			dns := &fakeDNS{answers: map[string][][]string{"a.example.com": tt.answers}}
			p := preflight.NewForTest(time.Minute, tt.allow, dns.start(t), nil)
			got := probeAndWait(t, p, newSource("uid", "http://"+tt.host+":"+port+"/image"))
			assert.True(t, got.Known, "the import goes its way")
			assert.Equal(t, tt.reached, s.connections.Load() > 0, "connections")
			assert.Equal(t, tt.reached && !tt.untold, got.Refused != nil, "what the result shows")
		})
	}
}

// TestNamesThatDoNotResolve: the import goes its way.
func TestNamesThatDoNotResolve(t *testing.T) {
	dns := &fakeDNS{answers: map[string][][]string{"silent.example.com": {}, "empty.example.com": {{}}}}
	p := preflight.NewForTest(100*time.Millisecond, nil, dns.start(t), nil)
	for _, host := range []string{"kubernetes", "db.prod.svc", "db.prod.svc.cluster.local", "printer.local", "silent.example.com", "empty.example.com", "missing.example.com", "a..example.com", strings.Repeat("a", 64) + ".example.com"} {
		got := probeAndWait(t, p, newSource("uid", "http://"+host+"/image"))
		assert.True(t, got.Known, host)
		assert.Nil(t, got.Refused, host)
		p.Forget("uid")
	}
	dns.mu.Lock()
	defer dns.mu.Unlock()
	for _, asked := range dns.asked {
		assert.True(t, strings.HasSuffix(asked, ".example.com."), "%s is of a search path", asked)
	}
}

// TestProxies: behind a proxy, the target is judged as it resolves here, and the proxy's
// own address is not.
func TestProxies(t *testing.T) {
	for name, tt := range map[string]struct {
		url   string
		allow policy.PreflightAllow
		// proxied: the proxy is asked.
		proxied bool
	}{
		"a public name":             {url: "http://public.example.com/a", proxied: true},
		"TLS":                       {url: "https://public.example.com/a", proxied: true},
		"an internal name":          {url: "http://internal.example.com/a"},
		"an internal name, TLS":     {url: "https://internal.example.com/a"},
		"one internal address":      {url: "http://mixed.example.com/a"},
		"listed":                    {url: "http://internal.example.com/a", allow: policy.PreflightAllow{"internal.example.com"}, proxied: true},
		"an internal address":       {url: "http://10.0.0.1/a"},
		"an address on the node":    {url: "http://127.0.0.1:1/a"},
		"a listed address":          {url: "http://10.0.0.1/a", allow: policy.PreflightAllow{"10.0.0.0/8"}, proxied: true},
		"metadata":                  {url: "http://169.254.169.254/latest", allow: policy.PreflightAllow{"0.0.0.0/0"}},
		"only the proxy knows it":   {url: "http://unknown.example.com/a"},
		"only it does, but listed":  {url: "http://unknown.example.com/a", allow: policy.PreflightAllow{"*.example.com"}, proxied: true},
		"a name of the cluster":     {url: "http://kubernetes.default.svc/a"},
		"a name of private domains": {url: "http://metadata.google.internal/a"},
	} {
		t.Run(name, func(t *testing.T) {
			requests := make(chan string, 8)
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests <- r.Method + " " + r.Host
				w.WriteHeader(http.StatusNotFound)
			}))
			t.Cleanup(proxy.Close)
			at, err := url.Parse(proxy.URL)
			require.NoError(t, err)
			dns := &fakeDNS{answers: map[string][][]string{
				"public.example.com": {{"93.184.216.34"}}, "internal.example.com": {{"10.0.0.1"}}, "mixed.example.com": {{"93.184.216.34", "10.0.0.1"}},
			}}
			p := preflight.NewForTest(time.Minute, tt.allow, dns.start(t), at)
			got := probeAndWait(t, p, newSource("uid", tt.url))
			assert.True(t, got.Known)
			assert.Equal(t, tt.proxied, len(requests) > 0, "requests of the proxy")
			assert.Equal(t, tt.proxied && strings.HasPrefix(tt.url, "http:"), got.Refused != nil, "a refused CONNECT is no answer of the source")
		})
	}
}

// TestProxyThatCannotBeUsed: it is not left out.
func TestProxyThatCannotBeUsed(t *testing.T) {
	s := startHostileServer(t, sendAnswer(head("404 Not Found")))
	p := preflight.NewForTest(time.Minute, testServers, nil, nil)
	p.SetProxyError(errors.New("no URL"))
	got := probeAndWait(t, p, newSource("uid", "http://"+s.address()))
	assert.True(t, got.Known)
	assert.Nil(t, got.Refused)
	assert.Zero(t, s.connections.Load())
}
