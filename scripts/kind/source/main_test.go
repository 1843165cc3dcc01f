package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSourceCounts(t *testing.T) {
	files := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(files, "disk"), []byte("0123456789"), 0o600))
	server := httptest.NewServer(newSource(files))
	defer server.Close()
	ask := func(method, path, span string) (int, string, error) {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		require.NoError(t, err)
		if span != "" {
			request.Header.Set("Range", span)
		}
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text), err
	}

	for _, test := range []struct {
		method, path, span string
		wantCode           int
		wantText           string
		wantCut            bool
	}{
		{http.MethodHead, "/disk", "", http.StatusOK, "", false},
		{http.MethodGet, "/disk", "", http.StatusOK, "0123456789", false},
		{http.MethodGet, "/disk", "bytes=2-4", http.StatusPartialContent, "234", false},
		{http.MethodGet, "/of/a/test/disk", "", http.StatusOK, "0123456789", false},
		{http.MethodGet, "/cut/disk", "", http.StatusOK, "01234", true},
		{http.MethodGet, "/cut/ranged/disk", "bytes=1-3", http.StatusPartialContent, "123", false},
		{http.MethodGet, "/cut/ranged/disk", "bytes=3-", http.StatusPartialContent, "34", true},
		{http.MethodGet, "/cut/ranged/disk", "bytes=7-", http.StatusPartialContent, "", true},
		{http.MethodGet, "/slow/1/disk", "bytes=2-4", http.StatusPartialContent, "234", false},
		{http.MethodGet, "/slow/never/disk", "", http.StatusNotFound, "404 page not found\n", false},
		{http.MethodGet, "/status/503/disk", "", http.StatusServiceUnavailable, "service unavailable\n", false},
		{http.MethodGet, "/status/200/disk", "", http.StatusNotFound, "not found\n", false},
	} {
		code, text, err := ask(test.method, test.path, test.span)
		assert.Equal(t, test.wantCode, code, test.path)
		assert.Equal(t, test.wantText, text, test.path)
		assert.Equal(t, test.wantCut, err != nil, test.path)
	}

	counts := func() map[string]requestCounts {
		_, text, err := ask(http.MethodGet, "/counts", "")
		require.NoError(t, err)
		var all map[string]requestCounts
		require.NoError(t, json.Unmarshal([]byte(text), &all))
		return all
	}
	all := counts()
	assert.Equal(t, requestCounts{Heads: 1, Gets: 1, Ranges: 1, Bytes: 13}, all["/disk"])
	assert.Equal(t, requestCounts{Gets: 1, Bytes: 10}, all["/of/a/test/disk"])
	assert.Equal(t, requestCounts{Ranges: 1, Bytes: 3}, all["/slow/1/disk"])
	assert.Equal(t, requestCounts{Gets: 1, Bytes: 5}, all["/cut/disk"])
	assert.Equal(t, requestCounts{Ranges: 3, Bytes: 5}, all["/cut/ranged/disk"])
	assert.EqualValues(t, 1, all["/status/503/disk"].Gets)
	_, _, err := ask(http.MethodDelete, "/counts", "")
	require.NoError(t, err)
	assert.Empty(t, counts())
}
