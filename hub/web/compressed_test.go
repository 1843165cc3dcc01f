package web

import (
	"compress/gzip"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Compressed, an answer is the same answer, and its tag matches that of the other encoding.
func TestAnswersAreCompressedOnRequest(t *testing.T) {
	f := newTestFleet(t, "a", "b", "c")
	plain := f.get(t, "members", nil)
	require.Empty(t, plain.Header().Get("Content-Encoding"))
	require.Greater(t, plain.Body.Len(), minCompressedBytes)
	for range 2 { // the second is remembered
		compressed := f.get(t, "members", http.Header{"Accept-Encoding": {"gzip, br"}})
		require.Equal(t, "gzip", compressed.Header().Get("Content-Encoding"))
		assert.Equal(t, "Accept-Encoding", compressed.Header().Get("Vary"))
		assert.Equal(t, "W/"+plain.Header().Get("ETag"), compressed.Header().Get("ETag"))
		assert.Less(t, compressed.Body.Len(), plain.Body.Len())
		reader, err := gzip.NewReader(compressed.Body)
		require.NoError(t, err)
		text, err := io.ReadAll(reader)
		require.NoError(t, err)
		assert.Equal(t, plain.Body.String(), string(text))
	}
	for _, tag := range []string{plain.Header().Get("ETag"), "W/" + plain.Header().Get("ETag")} {
		unchanged := f.get(t, "members", http.Header{"Accept-Encoding": {"gzip"}, "If-None-Match": {tag}})
		assert.Equal(t, http.StatusNotModified, unchanged.Code)
		assert.Empty(t, unchanged.Header().Get("Content-Encoding"))
		assert.Zero(t, unchanged.Body.Len())
	}
	assert.Equal(t, plain.Body.String(), f.get(t, "members", nil).Body.String(), "who does not accept it gets it as it is")
}

func TestShortAnswersAreNotCompressed(t *testing.T) {
	f := newTestFleet(t)
	response := f.get(t, "rollouts?after=z", http.Header{"Accept-Encoding": {"gzip"}})
	assert.Empty(t, response.Header().Get("Content-Encoding"))
	assert.Contains(t, response.Body.String(), `"rollouts":[]`)
}

// What is remembered is bounded with what is compressed.
func TestCompressedBytesCount(t *testing.T) {
	f := newTestFleet(t, "a", "b", "c")
	f.get(t, "members", nil)
	before := f.rendered.bytes
	f.get(t, "members", http.Header{"Accept-Encoding": {"gzip"}})
	compressed := f.rendered.answers["/fleet/v1/members?"].gzipped
	require.NotEmpty(t, compressed)
	assert.Equal(t, before+len(compressed), f.rendered.bytes)
}
