package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var hello = program{name: "hello", pkg: "./testdata/hello", description: "says so"}

func build(t *testing.T, platforms ...string) string {
	t.Helper()
	directory := t.TempDir()
	o := options{directory: directory, registry: "registry.example/ot", version: "v1.2.3", revision: "abc", platforms: platforms}
	require.NoError(t, run(t.Context(), o, []program{hello}))
	return directory
}

func files(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		require.NotContains(t, all, header.Name)
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		all[header.Name] = content
	}
}

func decode[T any](t *testing.T, data []byte) (into T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &into))
	return into
}

// Two builds, in whatever folder and at whatever time, are the same to the last byte.
func TestTwoBuildsAreOne(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	one, other := build(t, "amd64", "arm64"), build(t, "amd64", "arm64")
	for _, name := range []string{"hello-amd64.tar", "hello-arm64.tar", "hello.tar"} {
		first, err := os.ReadFile(filepath.Join(one, name))
		require.NoError(t, err)
		second, err := os.ReadFile(filepath.Join(other, name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(first, second), name)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000001")
	later, err := os.ReadFile(filepath.Join(build(t, "amd64"), "hello-amd64.tar"))
	require.NoError(t, err)
	first, err := os.ReadFile(filepath.Join(one, "hello-amd64.tar"))
	require.NoError(t, err)
	assert.False(t, bytes.Equal(first, later), "the time is the one that is given")
}

// One binary is all that there is, and whoever runs it is not root.
func TestImageHoldsOneBinary(t *testing.T) {
	directory := build(t, runtime.GOARCH)
	text, err := os.ReadFile(filepath.Join(directory, "hello-"+runtime.GOARCH+".tar"))
	require.NoError(t, err)
	content := files(t, text)
	for name, data := range content {
		if digest, is := strings.CutPrefix(name, "blobs/sha256/"); is {
			sum := sha256.Sum256(data)
			assert.Equal(t, digest, hex.EncodeToString(sum[:]))
		}
	}
	top := decode[index](t, content["index.json"])
	require.Len(t, top.Manifests, 1)
	assert.Equal(t, "registry.example/ot/hello:v1.2.3", top.Manifests[0].Annotations["io.containerd.image.name"])
	blobOf := func(d descriptor) []byte {
		data, is := content["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		require.True(t, is, d.Digest)
		require.Len(t, data, d.Size)
		return data
	}
	m := decode[manifest](t, blobOf(top.Manifests[0]))
	c := decode[config](t, blobOf(m.Config))
	assert.Equal(t, "65532:65532", c.Config.User)
	assert.Equal(t, []string{"/hello"}, c.Config.Entrypoint)
	assert.Equal(t, platform{runtime.GOARCH, "linux"}, c.platform)
	assert.Equal(t, "v1.2.3", c.Config.Labels["org.opencontainers.image.version"])

	// What `docker load` reads names the same blobs.
	saved := decode[[]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}](t, content["manifest.json"])
	require.Len(t, saved, 1)
	assert.Equal(t, []string{"registry.example/ot/hello:v1.2.3"}, saved[0].RepoTags)
	assert.Contains(t, content, saved[0].Config)
	assert.Equal(t, []string{"blobs/sha256/" + strings.TrimPrefix(m.Layers[0].Digest, "sha256:")}, saved[0].Layers)

	zipped, err := gzip.NewReader(bytes.NewReader(blobOf(m.Layers[0])))
	require.NoError(t, err)
	layer, err := io.ReadAll(zipped)
	require.NoError(t, err)
	sum := sha256.Sum256(layer)
	assert.Equal(t, []string{"sha256:" + hex.EncodeToString(sum[:])}, c.RootFS.DiffIDs)
	inside := files(t, layer)
	assert.Len(t, inside, 1)
	binary := inside["hello"]
	require.NotEmpty(t, binary)
	assert.Contains(t, string(binary), "v1.2.3")
	assert.NotContains(t, string(binary), "/lib64/ld-linux", "it is static")
}

// The archive of all platforms has one index that the name leads to.
func TestArchiveOfAllPlatforms(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(build(t, "amd64", "arm64"), "hello.tar"))
	require.NoError(t, err)
	content := files(t, text)
	assert.NotContains(t, content, "manifest.json", "`docker save` knows no platforms")
	top := decode[index](t, content["index.json"])
	require.Len(t, top.Manifests, 1)
	assert.Equal(t, mediaIndex, top.Manifests[0].MediaType)
	nested := decode[index](t, content["blobs/sha256/"+strings.TrimPrefix(top.Manifests[0].Digest, "sha256:")])
	var platforms []platform
	for _, d := range nested.Manifests {
		platforms = append(platforms, *d.Platform)
		assert.Contains(t, content, "blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"))
	}
	assert.Equal(t, []platform{{"amd64", "linux"}, {"arm64", "linux"}}, platforms)
}

func TestTimeThatIsNone(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	require.ErrorContains(t, run(t.Context(), options{directory: t.TempDir()}, nil), "SOURCE_DATE_EPOCH")
}
