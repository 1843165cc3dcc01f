package preflight_test

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// serveRaw answers each connection with a text and returns the URL.
func serveRaw(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = c.Write([]byte(answer))
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func TestTextOfTheSourceIsNotQuoted(t *testing.T) {
	got := probeAndWait(t, newProber(), newSource("uid", serveRaw(t, "HTTP/1.1 404 "+strings.Repeat("phrase", 1000)+"\r\n\r\n")))
	require.NotNil(t, got.Refused)
	assert.Contains(t, got.Refused.Message, `"404 Not Found"`)
	assert.NotContains(t, got.Refused.Message, "phrase")
}

func TestAnswerWithoutEndIsNoAnswer(t *testing.T) {
	for name, answer := range map[string]string{
		"status line": "HTTP/1.1 404 " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"header":      "HTTP/1.1 404 Not Found\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"headers":     "HTTP/1.1 404 Not Found\r\n" + strings.Repeat("X: y\r\n", 16<<10) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := probeAndWait(t, newProber(), newSource("uid", serveRaw(t, answer)))
			assert.True(t, got.Known)
			assert.Nil(t, got.Refused)
		})
	}
}

func TestLongURLGetsAFailureThatCanBeStored(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	got := probeAndWait(t, newProber(), newSource("uid", s.URL+"/"+strings.Repeat("a", 1100)+"#secret"))
	require.NotNil(t, got.Refused)
	assert.Equal(t, v1alpha1.ReasonNotFound, got.Refused.Reason)
	assert.Less(t, len(got.Refused.Message), 512)
	assert.Contains(t, got.Refused.Message, s.URL)
	assert.True(t, strings.HasSuffix(got.Refused.Message, "nothing was downloaded"))
	assert.NotContains(t, got.Refused.Message, "secret")
}
