package preflight_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// result is what the preflight makes of an answer.
type result struct {
	refused v1alpha1.Reason
	size    int64
}

var (
	notFound  = result{refused: v1alpha1.ReasonNotFound}
	forbidden = result{refused: v1alpha1.ReasonForbidden}
)

func sized(n int64) result { return result{size: n} }

// hostileCase is a source that answers wrongly.
type hostileCase struct {
	serve behaviour
	want  result
	// hangs: there is no result before the timeout.
	hangs bool
	// tls is the server's configuration for https.
	tls *tls.Config
	// plain serves an https URL without TLS.
	plain bool
}

const ok = "HTTP/1.1 200 OK\r\n"

// head is an answer with a status line and headers.
func head(status string, headers ...string) string {
	return "HTTP/1.1 " + status + "\r\n" + strings.Join(append(headers, "", ""), "\r\n")
}

// hostileCases are the sources of the suite, by name.
func hostileCases(t *testing.T, ca *authority, elsewhere string) map[string]hostileCase {
	stranger, valid := newAuthority(t), ca.issue(t, 0, nil)
	missing := sendAnswer(head("404 Not Found"))
	long := strings.Repeat("x", 1<<20)
	return map[string]hostileCase{
		// The size of an answer.
		"headers without end":          {serve: sendForever(ok, "X-A: b\r\n")},
		"a header without end":         {serve: sendForever(ok+"X-A: ", "b")},
		"a status line without end":    {serve: sendForever("HTTP/1.1 404 ", "b")},
		"a folded header without end":  {serve: sendForever(ok+"X-A: b\r\n", " b\r\n")},
		"a reason phrase of 1 MiB":     {serve: sendAnswer(head("404 " + long))},
		"a reason phrase of 8 KiB":     {serve: sendAnswer(head("404 " + long[:8<<10])), want: notFound},
		"a header of 1 MiB":            {serve: sendAnswer(head("404 Not Found", "X-A: "+long))},
		"cookies beyond the limit":     {serve: sendAnswer(head("404 Not Found", strings.Split(strings.Repeat("Set-Cookie: a=b\n", 2000), "\n")[:2000]...))},
		"cookies within the limit":     {serve: sendAnswer(head("404 Not Found", strings.Split(strings.Repeat("Set-Cookie: a=b\n", 200), "\n")[:200]...)), want: notFound},
		"100 without end":              {serve: sendForever("", "HTTP/1.1 100 Continue\r\n\r\n")},
		"103 with headers without end": {serve: sendForever("", "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n")},
		"three 103 and a 404":          {serve: sendAnswer(strings.Repeat(head("103 Early Hints"), 3) + head("404 Not Found")), want: notFound},
		"a body without end":           {serve: sendForever(head("200 OK", "Content-Length: 5"), "b"), want: sized(5)},
		"a 403 with a body without end": {
			serve: sendForever(head("403 Forbidden", "Content-Type: text/html"), "<p>"), want: forbidden,
		},
		"a gzip bomb": {
			serve: sendForever(head("200 OK", "Content-Encoding: gzip", "Content-Length: 754"), "\x1f\x8b\x08\x00\x00\x00"), want: sized(754),
		},

		// The time that it takes.
		"no answer":                    {serve: hang, hangs: true},
		"no answer to the request":     {serve: sendAndHang(""), hangs: true},
		"half a status line":           {serve: sendAndHang("HTTP/1.1 40"), hangs: true},
		"headers that do not end":      {serve: sendAndHang("HTTP/1.1 404 Not Found\r\nX-A: b\r\n"), hangs: true},
		"100, then nothing":            {serve: sendAndHang(head("100 Continue")), hangs: true},
		"a status line byte by byte":   {serve: sendThenSlowly("HTTP/1.1 404 ", "slow"), hangs: true},
		"headers byte by byte":         {serve: sendThenSlowly(ok, "X-A: b\r\n"), hangs: true},
		"closed at once":               {serve: closeAtOnce},
		"closed after the request":     {serve: sendAnswer("")},
		"closed in the status line":    {serve: sendAnswer("HTTP/1.1 404 No")},
		"closed in a header":           {serve: sendAnswer("HTTP/1.1 404 Not Found\r\nX-A")},
		"reset at once":                {serve: sendAndReset("")},
		"reset in a header":            {serve: sendAndReset("HTTP/1.1 404 Not Found\r\nX-A")},
		"answers and leaves it open":   {serve: sendAndHang(head("404 Not Found")), want: notFound},
		"a second answer, unasked for": {serve: sendAndHang(head("200 OK", "Content-Length: 5") + head("404 Not Found")), want: sized(5)},

		// Status lines.
		"status 000":                    {serve: sendAnswer(head("000 Nothing"))},
		"status 999":                    {serve: sendAnswer(head("999 Much"))},
		"status -404":                   {serve: sendAnswer(head("-404 Not Found"))},
		"status 4040":                   {serve: sendAnswer(head("4040 Not Found"))},
		"status of Arabic digits":       {serve: sendAnswer(head("٤٠٤ Not Found"))},
		"status 101":                    {serve: sendAnswer(head("101 Switching Protocols", "Connection: Upgrade", "Upgrade: h2c"))},
		"status 204":                    {serve: sendAnswer(head("204 No Content"))},
		"status 206":                    {serve: sendAnswer(head("206 Partial Content", "Content-Range: bytes 0-4/123456", "Content-Length: 5"))},
		"status 304":                    {serve: sendAnswer(head("304 Not Modified", "Content-Length: 5"))},
		"status 401":                    {serve: sendAnswer(head("401 Unauthorized", `WWW-Authenticate: Basic realm="again"`))},
		"status 407":                    {serve: sendAnswer(head("407 Proxy Authentication Required", `Proxy-Authenticate: Basic realm="again"`))},
		"status 410":                    {serve: sendAnswer(head("410 Gone")), want: notFound},
		"status 429 for centuries":      {serve: sendAnswer(head("429 Too Many Requests", "Retry-After: 99999999999999999999"))},
		"status 503 until the past":     {serve: sendAnswer(head("503 Service Unavailable", "Retry-After: Mon, 01 Jan 0001 00:00:00 GMT"))},
		"HTTP/0.9":                      {serve: sendAnswer("<html>404 Not Found</html>")},
		"HTTP/2 frames":                 {serve: sendAndHang("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04\x00\x01\x00\x00\x00\x05\x00\xff\xff\xff\r\n")},
		"HTTP/9.x":                      {serve: sendAnswer("HTTP/9.x 404 Not Found\r\n\r\n")},
		"another protocol":              {serve: sendAnswer("ICY 404 Not Found\r\n\r\n")},
		"SSH":                           {serve: sendAnswer("SSH-2.0-OpenSSH_9.9\r\n\r\n")},
		"binary instead of a status":    {serve: sendAnswer("\x00\x01\x02\xff\xfe\r\n\r\n")},
		"zeros without end":             {serve: sendForever("", "\x00")},
		"invalid UTF-8 in the phrase":   {serve: sendAnswer(head("404 \xff\xfe\xc0\xaf")), want: notFound},
		"control characters in it":      {serve: sendAnswer(head("404 \x1b[2J\x07\x00\u202e")), want: notFound},
		"lines that end with LF":        {serve: sendAnswer("HTTP/1.1 404 Not Found\n\n"), want: notFound},
		"a header name with spaces":     {serve: sendAnswer(head("404 Not Found", "X A: b")), want: notFound},
		"a header without a colon":      {serve: sendAnswer(head("404 Not Found", "X-A"))},
		"a header with control bytes":   {serve: sendAnswer(head("404 Not Found", "X-A\x00: b"))},
		"a first header that is folded": {serve: sendAnswer(head("404 Not Found", " folded: b"))},

		// Content-Length and Transfer-Encoding.
		"a negative length":            {serve: sendAnswer(head("200 OK", "Content-Length: -5"))},
		"a length beyond 64 bits":      {serve: sendAnswer(head("200 OK", "Content-Length: 99999999999999999999"))},
		"the largest length of 64 bit": {serve: sendAnswer(head("200 OK", "Content-Length: 9223372036854775807"))},
		"more than a pebibyte":         {serve: sendAnswer(head("200 OK", fmt.Sprintf("Content-Length: %d", int64(1)<<50+1)))},
		"a pebibyte":                   {serve: sendAnswer(head("200 OK", fmt.Sprintf("Content-Length: %d", int64(1)<<50))), want: sized(1 << 50)},
		"a length with a sign":         {serve: sendAnswer(head("200 OK", "Content-Length: +5"))},
		"a hexadecimal length":         {serve: sendAnswer(head("200 OK", "Content-Length: 0x5"))},
		"a list of lengths":            {serve: sendAnswer(head("200 OK", "Content-Length: 5, 6"))},
		"two lengths":                  {serve: sendAnswer(head("200 OK", "Content-Length: 5", "Content-Length: 6"))},
		"the same length twice":        {serve: sendAnswer(head("200 OK", "Content-Length: 5", "Content-Length: 5")), want: sized(5)},
		"chunked nonsense":             {serve: sendAnswer(head("200 OK", "Transfer-Encoding: chunked") + "zz\r\n-5\r\n")},
		"chunked, and a length":        {serve: sendAnswer(head("200 OK", "Transfer-Encoding: chunked", "Content-Length: 5")), want: sized(5)},
		"an unknown encoding":          {serve: sendAnswer(head("200 OK", "Transfer-Encoding: chonked", "Content-Length: 5"))},

		// Redirects are not followed, wherever they lead.
		"a redirect to itself":          {serve: sendAnswer(head("301 Moved Permanently", "Location: /"))},
		"a redirect elsewhere":          {serve: sendAnswer(head("302 Found", "Location: "+elsewhere))},
		"a redirect with credentials":   {serve: sendAnswer(head("307 Temporary Redirect", "Location: "+strings.Replace(elsewhere, "://", "://user:secret@", 1)))},
		"a redirect to metadata":        {serve: sendAnswer(head("302 Found", "Location: http://169.254.169.254/latest/meta-data/"))},
		"a redirect to a file":          {serve: sendAnswer(head("302 Found", "Location: file:///etc/passwd"))},
		"a redirect to another scheme":  {serve: sendAnswer(head("302 Found", "Location: gopher://127.0.0.1:11211/_stats"))},
		"a redirect with more headers":  {serve: sendAnswer(head("302 Found", "Location: /a\r\nContent-Length: 5\r\nX-A: b"))},
		"a redirect that is no URL":     {serve: sendAnswer(head("302 Found", "Location: ://%zz\x7f"))},
		"a redirect without a location": {serve: sendAnswer(head("308 Permanent Redirect"))},
		"a refresh":                     {serve: sendAnswer(head("200 OK", "Refresh: 0; url="+elsewhere, "Alt-Svc: h3=\":443\""))},

		// TLS. The first is answered, so that the others fail for their own reason.
		"TLS":                              {tls: valid, serve: missing, want: notFound},
		"TLS of an unknown authority":      {tls: stranger.issue(t, 0, nil), serve: missing},
		"TLS that has expired":             {tls: ca.issue(t, 0, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), serve: missing},
		"TLS that is not valid yet":        {tls: ca.issue(t, 0, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }), serve: missing},
		"TLS of another host":              {tls: ca.issue(t, 0, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"a.example.com"} }), serve: missing},
		"TLS for clients only":             {tls: ca.issue(t, 0, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), serve: missing},
		"TLS 1.1 at most":                  {tls: &tls.Config{Certificates: valid.Certificates, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, serve: missing},
		"TLS that wants a certificate":     {tls: &tls.Config{Certificates: valid.Certificates, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, serve: missing},
		"TLS with HTTP/2 inside":           {tls: &tls.Config{Certificates: valid.Certificates, NextProtos: []string{"h2"}}, serve: sendAnswer("\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n")},
		"TLS with headers without end":     {tls: valid, serve: sendForever(ok, "X-A: b\r\n")},
		"TLS with a chain of 1000":         {tls: ca.issue(t, 1000, nil), serve: missing},
		"TLS without a certificate":        {tls: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, http.ErrAbortHandler }}, serve: missing},
		"HTTP where TLS is expected":       {plain: true, serve: sendAtOnce(head("404 Not Found"))},
		"records without end":              {plain: true, serve: sendForever("", "\x16\x03\x03\x40\x00")},
		"an alert":                         {plain: true, serve: sendAtOnce("\x15\x03\x03\x00\x02\x02\x28")},
		"a handshake that does not go on":  {plain: true, serve: hang, hangs: true},
		"a handshake byte by byte":         {plain: true, serve: sendSlowly("\x16\x03\x03\x40\x00"), hangs: true},
		"closed after the client's hello":  {plain: true, serve: closeAtOnce},
		"TLS where HTTP is expected":       {serve: sendAtOnce("\x15\x03\x01\x00\x02\x02\x0a\r\n")},
		"an answer before the request":     {serve: sendAtOnce("nonsense\r\n\r\n")},
		"a length in a refusal, and a pad": {serve: sendAnswer(head("404 Not Found", "Content-Length: 9223372036854775807")), want: notFound},
	}
}

const (
	// maxBytesPerProbe bounds what one probe allocates, whatever it is answered. A TLS
	// handshake with a long chain takes most.
	maxBytesPerProbe = 8 << 20
	// imagesPerHost is more than what runs at a time.
	imagesPerHost = 40
)

// TestHostileSources asks each source for images, and wants the result that it should
// have, little memory, no goroutine left, and no delay for other hosts meanwhile.
func TestHostileSources(t *testing.T) {
	good := missingServer(t, "127.0.0.2")
	elsewhere := startHostileServer(t, sendAnswer(head("404 Not Found")))
	ca := newAuthority(t)
	cases := hostileCases(t, ca, "http://"+elsewhere.address()+"/")
	require.GreaterOrEqual(t, len(cases), 40)
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			scheme, serve := "http://", tt.serve
			if tt.tls != nil {
				serve = overTLS(tt.tls, tt.serve)
			}
			if tt.tls != nil || tt.plain {
				scheme = "https://"
			}
			s := startHostileServer(t, serve)
			url := scheme + s.address() + "/image.qcow2"
			tt.requireSmall(t, ca, url)
			tt.requireFair(t, ca, url, good, s)
			require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+imagesPerHost/4 }, time.Minute, 5*time.Millisecond, "each probe leaves a goroutine")
		})
	}
	assert.Zero(t, elsewhere.connections.Load(), "no redirect is followed")
}

// requireSmall asks for one image, and bounds what that allocates.
func (tt hostileCase) requireSmall(t *testing.T, ca *authority, url string) {
	t.Helper()
	timeout := time.Minute
	if tt.hangs {
		timeout = 100 * time.Millisecond
	}
	p := preflight.NewForTest(timeout, testServers, nil, nil)
	p.SetRoots(ca.pool())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := probeAndWait(t, p, newSource("alone", url))
	runtime.ReadMemStats(&after)
	tt.requireResult(t, got)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxBytesPerProbe), "bytes allocated")
}

// requireFair asks for many images of one namespace, and meanwhile for one of another
// namespace and host. It stops the server.
func (tt hostileCase) requireFair(t *testing.T, ca *authority, url, good string, s *hostileServer) {
	t.Helper()
	p := preflight.NewForTest(time.Minute, testServers, nil, nil)
	p.SetRoots(ca.pool())
	sources := make([]preflight.Source, imagesPerHost)
	var pending sync.WaitGroup
	for i := range sources {
		sources[i] = newSource(types.UID(fmt.Sprint(i)), fmt.Sprintf("%s?%d", url, i))
		pending.Add(1)
		p.ProbeAsync(t.Context(), sources[i], pending.Done)
	}
	other := probeAndWait(t, p, preflight.Source{UID: "other", Namespace: "other", URL: good, Attempt: 1})
	require.NotNil(t, other.Refused, "another host of another namespace is asked meanwhile")
	if tt.hangs {
		waiting, running := p.Waiting()
		assert.Equal(t, imagesPerHost, waiting+running, "none has a result")
		s.stop()
	}
	pending.Wait()
	s.stop()
	for _, source := range sources {
		tt.requireResult(t, p.CachedResult(source))
	}
}

func (tt hostileCase) requireResult(t *testing.T, got image.PreflightResult) {
	t.Helper()
	require.True(t, got.Known, "any end ends the wait")
	have := result{size: got.Size}
	if got.Refused != nil {
		have.refused = got.Refused.Reason
		assert.LessOrEqual(t, len(got.Refused.Message), 512)
		assert.True(t, utf8.ValidString(got.Refused.Message))
		assert.NotRegexp(t, `[[:cntrl:]]|xxx`, got.Refused.Message, "nothing of the source's own text")
	}
	require.Equal(t, tt.want, have)
}

// TestLongURLGetsAFailureThatCanBeStored: the URL is in the message, but not all of it.
func TestLongURLGetsAFailureThatCanBeStored(t *testing.T) {
	s := missingServer(t, "127.0.0.1")
	got := probeAndWait(t, newProber(), newSource("uid", s+"/"+strings.Repeat("a", 1100)+"#secret"))
	require.NotNil(t, got.Refused)
	assert.Equal(t, v1alpha1.ReasonNotFound, got.Refused.Reason)
	assert.Less(t, len(got.Refused.Message), 512)
	assert.Contains(t, got.Refused.Message, s)
	assert.Contains(t, got.Refused.Message, `"404 Not Found"`)
	assert.True(t, strings.HasSuffix(got.Refused.Message, "nothing was downloaded"))
	assert.NotContains(t, got.Refused.Message, "secret")
}
