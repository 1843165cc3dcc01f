package preflight_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// probeAndWait probes a source and waits for the result.
func probeAndWait(t *testing.T, p *preflight.Prober, uid types.UID, url string) image.PreflightResult {
	t.Helper()
	done := make(chan struct{})
	p.ProbeAsync(t.Context(), uid, url, 1, func() { close(done) })
	<-done
	return p.CachedResult(uid, url, 1)
}

func TestProbeResults(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead {
			t.Errorf("%s downloads", r.Method)
		}
		switch strings.TrimPrefix(r.URL.Path, "/") {
		case "there":
			w.Header().Set("Content-Length", "4711")
		case "missing":
			w.WriteHeader(http.StatusNotFound)
		case "gone":
			w.WriteHeader(http.StatusGone)
		case "forbidden":
			w.WriteHeader(http.StatusForbidden)
		case "unauthorized":
			w.WriteHeader(http.StatusUnauthorized)
		case "broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "no-head":
			w.WriteHeader(http.StatusMethodNotAllowed)
		case "moved":
			http.Redirect(w, r, "/missing", http.StatusFound)
		case "silent":
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]struct {
		refused v1alpha1.Reason
		size    int64
	}{
		"there":        {size: 4711},
		"missing":      {refused: v1alpha1.ReasonNotFound},
		"gone":         {refused: v1alpha1.ReasonNotFound},
		"forbidden":    {refused: v1alpha1.ReasonForbidden},
		"unauthorized": {}, // the importer may have credentials
		"broken":       {},
		"no-head":      {},
		"moved":        {}, // the target may need another request
		"silent":       {},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := preflight.New()
			if path == "silent" {
				p = preflight.NewWithTimeout(50 * time.Millisecond)
			}
			got := probeAndWait(t, p, "uid", s.URL+"/"+path)
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

func TestMetadataServiceIsNotProbed(t *testing.T) {
	got := probeAndWait(t, preflight.New(), "uid", "http://169.254.169.254/latest/meta-data")
	assert.True(t, got.Known)
	assert.Nil(t, got.Refused)
}

func TestSourceIsProbedOncePerAttempt(t *testing.T) {
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(s.Close)
	p := preflight.New()
	require.True(t, probeAndWait(t, p, "uid", s.URL).Known)
	p.ProbeAsync(t.Context(), "uid", s.URL, 1, func() { t.Error("probed again for the same attempt") })
	assert.EqualValues(t, 1, requests.Load())

	assert.False(t, p.CachedResult("uid", s.URL, 2).Known, "another attempt needs another probe")
	assert.False(t, p.CachedResult("uid", s.URL+"/other", 1).Known, "another source needs another probe")
	assert.False(t, p.CachedResult("other", s.URL, 1).Known)
	p.Forget("uid")
	assert.False(t, p.CachedResult("uid", s.URL, 1).Known)
}
