package ui

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPathsOfTheApp(t *testing.T) {
	handler := newTestHandler(t, newTestAPI(t))
	for path, tt := range map[string]struct {
		accept string
		want   int
	}{
		"/":                             {"", 200},
		"/index.html":                   {"", 200},
		"/clusters/bergen":              {"", 200},
		"/images/a%2Fb%20https:%2F%2Fx": {"", 200},
		"/rollouts/ubuntu-24.04":        {"text/html,*/*;q=0.8", 200},
		"/favicon.ico":                  {"image/*", 404},
		"/robots.txt":                   {"*/*", 404},
		"/assets/app-0000.js":           {"text/html", 404},
		"/assets/":                      {"text/html", 404},
		"/x/../k8s/api":                 {"text/html", 200},
		"//k8s/api/v1":                  {"text/html", 200},
	} {
		answer := send(handler, http.MethodGet, path, "", map[string]string{"Accept": tt.accept, "Nobody": "1"})
		assert.Equal(t, tt.want, answer.Code, path)
		if tt.want == http.StatusOK {
			assert.Equal(t, "text/html; charset=utf-8", answer.Header().Get("Content-Type"), path)
			assert.Equal(t, "no-cache", answer.Header().Get("Cache-Control"), path)
		}
	}
	for _, path := range []string{"/%6b8s/apis", "/fleet%2fv1/x", "/auth/%6de", "/fleet/v1/%2e%2e/x"} {
		answer := send(handler, http.MethodGet, path, "", nil)
		assert.Equal(t, http.StatusBadRequest, answer.Code, path)
	}
	for _, path := range []string{"/fleet/", "/fleet/v2/summary", "/fleet/../k8s/"} {
		answer := send(handler, http.MethodGet, path, "", nil)
		assert.Equal(t, http.StatusNotFound, answer.Code, path)
	}
}

func TestAssetsAreKeptAndCompressed(t *testing.T) {
	script := strings.Repeat("const a = 1;\n", 1000)
	files, err := loadAssets(fstest.MapFS{"index.html": {Data: []byte("<p>")}, "assets/app-1.js": {Data: []byte(script)}, "assets/x.bin": {Data: []byte{1}}})
	require.NoError(t, err)
	get := func(path string, headers map[string]string) *httptest.ResponseRecorder {
		request, recorder := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil), httptest.NewRecorder()
		for name, value := range headers {
			request.Header.Set(name, value)
		}
		files[path].writeAnswer(recorder, request)
		return recorder
	}
	plain := get("/assets/app-1.js", nil)
	assert.Equal(t, script, plain.Body.String())
	assert.Equal(t, "text/javascript; charset=utf-8", plain.Header().Get("Content-Type"))
	assert.Contains(t, plain.Header().Get("Cache-Control"), "immutable")
	assert.Contains(t, get("/assets/x.bin", nil).Header().Get("Content-Type"), "octet-stream")
	assert.Equal(t, "no-cache", get("/index.html", nil).Header().Get("Cache-Control"))

	for accepted, want := range map[string]string{"gzip": "gzip", "br, gzip;q=0.5": "gzip", "*": "gzip", "gzip;q=0": "", "br": "", "gzip;q=x": "", "": ""} {
		assert.Equal(t, want, get("/assets/app-1.js", map[string]string{"Accept-Encoding": accepted}).Header().Get("Content-Encoding"), accepted)
	}
	packed := get("/assets/app-1.js", map[string]string{"Accept-Encoding": "gzip"})
	assert.Less(t, packed.Body.Len(), 1000)
	assert.NotEqual(t, plain.Header().Get("ETag"), packed.Header().Get("ETag"))
	assert.Equal(t, "Accept-Encoding", packed.Header().Get("Vary"))
	reader, err := gzip.NewReader(bytes.NewReader(packed.Body.Bytes()))
	require.NoError(t, err)
	unpacked, err := io.ReadAll(reader)
	require.NoError(t, err)
	assert.Equal(t, script, string(unpacked))

	known := get("/assets/app-1.js", map[string]string{"Accept-Encoding": "gzip", "If-None-Match": `"x", W/` + packed.Header().Get("ETag")})
	assert.Equal(t, http.StatusNotModified, known.Code)
	assert.Empty(t, known.Body.String())
	other := get("/assets/app-1.js", map[string]string{"If-None-Match": packed.Header().Get("ETag")})
	assert.Equal(t, http.StatusOK, other.Code)
}
