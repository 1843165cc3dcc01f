//go:build linux

package agent

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// startRawSource serves each connection with a function, at every address of 127.0.0.0/8. It
// returns its port.
func startRawSource(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { close(done); _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				if serve == nil {
					<-done
					return
				}
				serve(c)
			}()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// createImagesAt creates images at a path of one host each, from 127.1.0.1 on.
func createImagesAt(t *testing.T, ns, name, port string, n int) (images []*v1alpha1.VMDiskImage) {
	t.Helper()
	for i := range n {
		img := env.NewImage(ns, fmt.Sprintf("%s-%d", name, i), "")
		img.Spec.URL = fmt.Sprintf("http://127.1.0.%d:%s/ok/0s/%s", i+1, port, name)
		env.Create(t, img)
		images = append(images, img)
	}
	return images
}

// readAgentMemory returns the agent's resident memory in bytes.
func readAgentMemory(t *testing.T) float64 {
	t.Helper()
	text, err := env.Agent.ReadMetrics(t.Context())
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`).FindStringSubmatch(text)
	require.NotNil(t, found)
	bytes, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return bytes
}

// TestSilentSourcesDelayOnlyTheirNamespace: images at a hundred hosts that do not answer wait
// for their turn, and say so; the image of another namespace is checked before.
func TestSilentSourcesDelayOnlyTheirNamespace(t *testing.T) {
	testenv.RunInTurn(t, 4)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	hostile, ns := env.CreateHomeNamespace(t), env.CreateHomeNamespace(t)
	images := createImagesAt(t, hostile, "silent", startRawSource(t, nil), 100)
	last := images[len(images)-1]
	env.AwaitImage(t, last, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Reason == v1alpha1.ReasonChecking && strings.Contains(img.Status.Message, "waits for its turn")
	})
	gone := env.NewImage(ns, "gone", "/gone/"+ns)
	env.Create(t, gone)
	env.AwaitFailed(t, gone, v1alpha1.ReasonNotFound)
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(last), last))
	assert.Equal(t, v1alpha1.ReasonChecking, last.Status.Reason, "the backlog before it is left")
	env.AwaitImage(t, last, testenv.HasReason(v1alpha1.ReasonPaused))
}

// TestHostileAnswersCostLittleMemory: each of these answers once cost what it was long, for
// each image, and the status could not be stored.
func TestHostileAnswersCostLittleMemory(t *testing.T) {
	testenv.RunInTurn(t, 6)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	ns := env.CreateHomeNamespace(t)
	phrase := []byte("HTTP/1.1 404 " + strings.Repeat("x", 9<<20) + "\r\n\r\n")
	sources := map[string]struct {
		serve func(net.Conn)
		want  v1alpha1.Reason
	}{
		"phrase": {func(c net.Conn) { _, _ = c.Write(phrase) }, v1alpha1.ReasonPaused},
		"short": {func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 404 \xff" + strings.Repeat("x", 8<<10) + "\r\n\r\n"))
		}, v1alpha1.ReasonNotFound},
		"headers": {func(c net.Conn) {
			for _, err := c.Write([]byte("HTTP/1.1 200 OK\r\n")); err == nil; {
				_, err = c.Write([]byte("X-A: b\r\n"))
			}
		}, v1alpha1.ReasonPaused},
		"closed": {func(net.Conn) {}, v1alpha1.ReasonPaused},
		"length": {func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n"))
		}, v1alpha1.ReasonPaused},
		"loop": {func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n")) }, v1alpha1.ReasonPaused},
	}
	before := readAgentMemory(t)
	created := map[string][]*v1alpha1.VMDiskImage{}
	for name, source := range sources {
		created[name] = createImagesAt(t, ns, name, startRawSource(t, source.serve), 20)
	}
	for name, images := range created {
		for _, img := range images {
			got := env.AwaitImage(t, img, testenv.HasReason(sources[name].want))
			assert.NotContains(t, got.Status.Message, "xxx")
			assert.Zero(t, got.Status.BytesTotal)
		}
	}
	after := readAgentMemory(t)
	t.Logf("%d images at hostile sources: %.0f MB before, %.0f MB after", 20*len(sources), before/1e6, after/1e6)
	assert.Less(t, after-before, 128e6, "bytes")
}

// TestInternalSourcesAreNotAsked: without preflightAllow, the server of these tests is
// internal, and the image goes its way.
func TestInternalSourcesAreNotAsked(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("preflightAllow", ""))
	requireImportedUnasked(t)

	testenv.AdmitInvalidPolicy(t, env.Client())
	env.StorePolicy(t, testenv.NewPolicy("preflightAllow", "127.0.0.0/33"))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, "False", "Invalid")
	assert.Contains(t, c.Message, `preflightAllow: "127.0.0.0/33" is neither a CIDR`)
}
