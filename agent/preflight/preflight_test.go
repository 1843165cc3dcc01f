package preflight_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// testServers are the addresses of the servers of these tests.
var testServers = policy.PreflightAllow{"127.0.0.0/8"}

// newProber returns a Prober that waits long for test servers.
func newProber() *preflight.Prober { return preflight.NewForTest(time.Minute, testServers, nil, nil) }

func newSource(uid types.UID, url string) preflight.Source {
	return preflight.Source{UID: uid, Namespace: "ns", URL: url, Attempt: 1}
}

// probeAndWait probes a source and waits for the result.
func probeAndWait(t *testing.T, p *preflight.Prober, s preflight.Source) image.PreflightResult {
	t.Helper()
	done := make(chan struct{})
	p.ProbeAsync(t.Context(), s, func() { close(done) })
	<-done
	return p.CachedResult(s)
}

func TestProbeResults(t *testing.T) {
	tests := map[string]struct {
		status  int
		refused v1alpha1.Reason
		size    int64
	}{
		"there":        {size: 4711},
		"missing":      {status: http.StatusNotFound, refused: v1alpha1.ReasonNotFound},
		"gone":         {status: http.StatusGone, refused: v1alpha1.ReasonNotFound},
		"forbidden":    {status: http.StatusForbidden, refused: v1alpha1.ReasonForbidden},
		"unauthorized": {status: http.StatusUnauthorized}, // the importer may have credentials
		"broken":       {status: http.StatusInternalServerError},
		"no-head":      {status: http.StatusMethodNotAllowed},
		"get-only-403": {size: 4711}, // signed for GET
		"get-only-404": {size: 4711}, // and without ranges
		"get-moved":    {},
		"moved":        {}, // the target may need another request
		"silent":       {},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead && r.Header.Get("Range") != "bytes=0-0" {
			t.Errorf("%s downloads", r.Method)
		}
		switch path := strings.TrimPrefix(r.URL.Path, "/"); path {
		case "there":
			w.Header().Set("Content-Length", "4711")
		case "get-only-403":
			answerGetOnly(w, r, http.StatusForbidden, true)
		case "get-only-404":
			answerGetOnly(w, r, http.StatusNotFound, false)
		case "get-moved":
			if r.Method == http.MethodGet {
				http.Redirect(w, r, "/missing", http.StatusFound)
				return
			}
			w.WriteHeader(http.StatusForbidden)
		case "moved":
			http.Redirect(w, r, "/missing", http.StatusFound)
		case "silent":
			<-r.Context().Done()
		default:
			w.WriteHeader(tests[path].status)
		}
	}))
	t.Cleanup(s.Close)
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := newProber()
			if path == "silent" {
				p = preflight.NewForTest(50*time.Millisecond, testServers, nil, nil)
			}
			got := probeAndWait(t, p, newSource("uid", s.URL+"/"+path))
			assert.True(t, got.Known, "any answer ends the wait")
			assert.Equal(t, want.size, got.Size)
			if want.refused == "" {
				assert.Nil(t, got.Refused)
				return
			}
			require.NotNil(t, got.Refused)
			assert.Equal(t, want.refused, got.Refused.Reason)
			assert.Contains(t, got.Refused.Message, s.URL+"/"+path)
		})
	}
}

// answerGetOnly refuses all but GET.
func answerGetOnly(w http.ResponseWriter, r *http.Request, refusal int, ranges bool) {
	switch {
	case r.Method != http.MethodGet:
		w.WriteHeader(refusal)
	case ranges:
		w.Header().Set("Content-Range", "bytes 0-0/4711")
		w.WriteHeader(http.StatusPartialContent)
	default:
		w.Header().Set("Content-Length", "4711")
	}
}

// A server that answers a GET with the whole image is cut off.
func TestConfirmationDownloadsNothing(t *testing.T) {
	cutOff := make(chan bool, 1)
	const image = 256 // MiB, more than any buffer on the way
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		block := make([]byte, 1<<20)
		for range image {
			if _, err := w.Write(block); err != nil {
				cutOff <- true
				return
			}
		}
		cutOff <- false
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // before, or Close waits for a response that nobody reads
	got := probeAndWait(t, newProber(), newSource("uid", s.URL))
	assert.Nil(t, got.Refused)
	select {
	case was := <-cutOff:
		assert.True(t, was, "the whole image was read")
	case <-time.After(time.Minute):
		t.Error("the connection stays open")
	}
}

// A result is kept for as long as its image.
func TestResultHoldsNothingOfItsRequest(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	p, source := newProber(), newSource("uid", s.URL)
	probe := func() (ctx, onDone weak.Pointer[[1024]byte]) {
		inContext, inCallback, done := new([1024]byte), new([1024]byte), make(chan struct{})
		p.ProbeAsync(context.WithValue(t.Context(), t, inContext), source, func() {
			inCallback[0]++
			close(done)
		})
		<-done
		return weak.Make(inContext), weak.Make(inCallback)
	}
	ctx, onDone := probe()
	require.Eventually(t, func() bool {
		runtime.GC()
		return ctx.Value() == nil && onDone.Value() == nil
	}, time.Minute, time.Millisecond)
	assert.True(t, p.CachedResult(source).Known)
}

func TestSourceIsProbedOncePerAttempt(t *testing.T) {
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(s.Close)
	p, source := newProber(), newSource("uid", s.URL)
	require.True(t, probeAndWait(t, p, source).Known)
	p.ProbeAsync(t.Context(), source, func() { t.Error("probed again for the same attempt") })
	assert.EqualValues(t, 1, requests.Load())

	next, elsewhere := source, source
	next.Attempt, elsewhere.URL = 2, s.URL+"/other"
	assert.False(t, p.CachedResult(next).Known, "another attempt needs another probe")
	assert.False(t, p.CachedResult(elsewhere).Known, "another source needs another probe")
	assert.False(t, p.CachedResult(newSource("other", s.URL)).Known)
	p.Forget("uid")
	assert.False(t, p.CachedResult(source).Known)
}

// hangingServer answers nothing until it is released, at every address of 127.0.0.0/8.
func hangingServer(t *testing.T) (port string, release func()) {
	t.Helper()
	released := make(chan struct{})
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	})}}
	s.Start()
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(func() { release(); s.Close() })
	_, port, err = net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port, release
}

// missingServer has no image, at an address of its own: a host of its own.
func missingServer(t *testing.T, address string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	require.NoError(t, err)
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.NotFoundHandler()}}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// TestBacklogDelaysOnlyItself: 320 images at a server that does not answer leave the
// probes of other namespaces, and of other hosts of theirs, as fast as without them.
func TestBacklogDelaysOnlyItself(t *testing.T) {
	port, release := hangingServer(t)
	hanging, good := "http://127.0.0.1:"+port, missingServer(t, "127.0.0.2")
	p := newProber()
	var pending sync.WaitGroup
	for i := range 320 {
		pending.Add(1)
		p.ProbeAsync(t.Context(), newSource(types.UID(fmt.Sprint(i)), hanging), pending.Done)
	}
	waiting, running := p.Waiting()
	assert.Equal(t, preflight.ProbeLimits().PerHost, running)
	assert.Equal(t, 320-running, waiting)
	assert.True(t, p.CachedResult(newSource("319", hanging)).Waiting)
	assert.False(t, p.CachedResult(newSource("0", hanging)).Waiting)
	assert.True(t, p.CachedResult(newSource("new", hanging)).Waiting, "it is known before it is asked for")

	other := preflight.Source{UID: "other", Namespace: "other", URL: good, Attempt: 1}
	assert.False(t, p.CachedResult(other).Waiting)
	require.NotNil(t, probeAndWait(t, p, other).Refused)
	require.NotNil(t, probeAndWait(t, p, newSource("another host", good)).Refused)
	still, _ := p.Waiting()
	assert.Equal(t, waiting, still, "none of the 320 has an answer yet")

	release()
	pending.Wait()
}

// TestHostsOfOneNamespaceDelayOnlyIt: images at a hundred hosts that do not answer take no
// more than the turns of their namespace.
func TestHostsOfOneNamespaceDelayOnlyIt(t *testing.T) {
	port, release := hangingServer(t)
	good := missingServer(t, "127.0.0.2")
	p := newProber()
	var pending sync.WaitGroup
	for i := range 100 {
		pending.Add(1)
		p.ProbeAsync(t.Context(), newSource(types.UID(fmt.Sprint(i)), fmt.Sprintf("http://127.1.0.%d:%s", i+1, port)), pending.Done)
	}
	_, running := p.Waiting()
	assert.Equal(t, preflight.ProbeLimits().PerNamespace, running)
	assert.Less(t, running, preflight.ProbeLimits().Total)
	other := preflight.Source{UID: "other", Namespace: "other", URL: good, Attempt: 1}
	assert.False(t, p.CachedResult(other).Waiting)
	require.NotNil(t, probeAndWait(t, p, other).Refused)
	_, still := p.Waiting()
	assert.Equal(t, running, still, "none of the hundred has an answer yet")

	release()
	pending.Wait()
}

// TestSilentServerIsRemembered: the images behind those that waited in vain are not
// probed, but those of other namespaces and servers are.
func TestSilentServerIsRemembered(t *testing.T) {
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1); r.URL.Path == "/hangs" {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	p := preflight.NewForTest(50*time.Millisecond, testServers, nil, nil)
	var pending sync.WaitGroup
	for i := range 100 {
		pending.Add(1)
		p.ProbeAsync(t.Context(), newSource(types.UID(fmt.Sprint(i)), s.URL+"/hangs"), pending.Done)
	}
	pending.Wait()
	assert.LessOrEqual(t, int(requests.Load()), preflight.ProbeLimits().PerHost, "only those that ran at a time were asked for")
	for i := range 100 {
		got := p.CachedResult(newSource(types.UID(fmt.Sprint(i)), s.URL+"/hangs"))
		require.True(t, got.Known)
		require.Nil(t, got.Refused)
	}

	// With more time, as the machine may be busy: what hangs in one namespace says
	// nothing in another.
	p.SetTimeout(time.Minute)
	assert.Nil(t, probeAndWait(t, p, newSource("same namespace", s.URL+"/missing")).Refused)
	assert.NotNil(t, probeAndWait(t, p, preflight.Source{UID: "b", Namespace: "other", URL: s.URL + "/missing", Attempt: 1}).Refused)
}

func TestForgottenSourceIsNotProbed(t *testing.T) {
	port, release := hangingServer(t)
	hanging, p := "http://127.0.0.1:"+port, newProber()
	var pending sync.WaitGroup
	for i := range preflight.ProbeLimits().PerHost {
		pending.Add(1)
		p.ProbeAsync(t.Context(), newSource(types.UID(fmt.Sprint(i)), hanging), pending.Done)
	}
	p.ProbeAsync(t.Context(), newSource("deleted", hanging), func() { t.Error("a deleted image is probed") })
	changed := newSource("changed", hanging)
	p.ProbeAsync(t.Context(), changed, func() { t.Error("a former source is probed") })
	changed.URL += "/other"
	pending.Add(1)
	p.ProbeAsync(t.Context(), changed, pending.Done)
	p.Forget("deleted")
	waiting, _ := p.Waiting()
	assert.Equal(t, 1, waiting)
	release()
	pending.Wait()
	waiting, running := p.Waiting()
	assert.Zero(t, waiting+running)
}
