package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	files := map[string]string{}
	for reader := tar.NewReader(compressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

func newBundle(reversed bool) *Bundle {
	b := New()
	add := []func(){
		func() { b.Add("hub/memberclusters.yaml", []byte("a: 1\n"), 2) },
		func() { b.Add("frankfurt/ot-agent.log", []byte("line\n"), 0) },
		func() {
			b.Unread = append(b.Unread, Unread{"frankfurt: quotas", "needs the right to list resourcequotas"})
		},
	}
	if reversed {
		add[0], add[1] = add[1], add[0]
	}
	for _, f := range add {
		f()
	}
	b.Close()
	return b
}

// The order in which things were read shows nowhere.
func TestArchiveIsDeterministic(t *testing.T) {
	var first, second bytes.Buffer
	require.NoError(t, newBundle(false).WriteArchive(&first, "bundle"))
	require.NoError(t, newBundle(true).WriteArchive(&second, "bundle"))
	assert.Equal(t, first.Bytes(), second.Bytes())
	files := unpack(t, first.Bytes())
	assert.Len(t, files, 3)
	assert.Equal(t, "a: 1\n", files["bundle/hub/memberclusters.yaml"])
	manifest := files["bundle/"+ManifestName]
	assert.Contains(t, manifest, "       2  hub/memberclusters.yaml")
	assert.Contains(t, manifest, "not read: frankfurt: quotas: needs the right to list resourcequotas")
	assert.Contains(t, manifest, "2 files, 10 bytes, 2 values redacted")
}

func TestArchiveIsBounded(t *testing.T) {
	b := New()
	long := []byte(strings.Repeat("0123456789\n", MaxFileBytes/11+2))
	for i := range MaxBytes/MaxFileBytes + 2 {
		b.Add(string(rune('a'+i)), long, 0)
	}
	b.Close()
	assert.LessOrEqual(t, b.TotalBytes, MaxBytes)
	assert.NotEmpty(t, b.Omitted)
	assert.True(t, b.Files[0].Cut)
	assert.True(t, bytes.HasPrefix(b.Files[0].Content, []byte("0123456789\n")), "whole lines")
	assert.Contains(t, string(b.Manifest()), "omitted, the bundle is full: "+b.Omitted[0])
}

func TestScreens(t *testing.T) {
	b := newBundle(false)
	rendertest.Golden(t, "list", time.Time{}, b)
	b.Archive = "ot-support.tar.gz"
	rendertest.Golden(t, "written", time.Time{}, b)
}
