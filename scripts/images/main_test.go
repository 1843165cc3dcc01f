package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var helloProgram = program{name: "hello", pkg: "./testdata/hello", description: "says so"}

func buildTestImages(t *testing.T, p program, platforms ...string) string {
	t.Helper()
	directory := t.TempDir()
	o := options{directory: directory, registry: "registry.example/ot", version: "v1.2.3", revision: "abc", platforms: platforms}
	require.NoError(t, buildAll(t.Context(), o, []program{p}, program{}))
	return directory
}

func readArchive(t *testing.T, archive []byte) map[string][]byte {
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

func decodeJSON[T any](t *testing.T, data []byte) (into T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &into))
	return into
}

// copyHello copies the program into a module of its own, next to further files, and changes
// to that directory. `go env -w` is read from there too.
func copyHello(t *testing.T, further map[string]string) program {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "hello", "main.go"))
	require.NoError(t, err)
	directory := t.TempDir()
	all := map[string]string{"main.go": string(source), "go.mod": "module hello.example\n\ngo 1.26\n"}
	maps.Copy(all, further)
	for name, text := range all {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
	}
	t.Chdir(directory)
	t.Setenv("XDG_CONFIG_HOME", directory)
	return program{name: helloProgram.name, pkg: ".", description: helloProgram.description}
}

// readArchives builds for all platforms and returns the archives.
func readArchives(t *testing.T, p program) map[string][]byte {
	t.Helper()
	directory := buildTestImages(t, p, "amd64", "arm64")
	all := map[string][]byte{}
	for _, name := range []string{"hello-amd64.tar", "hello-arm64.tar", "hello.tar"} {
		content, err := os.ReadFile(filepath.Join(directory, name))
		require.NoError(t, err)
		all[name] = content
	}
	return all
}

// TestBuildsAreReproducible builds in other directories and with other settings of Go: the
// archives are the same to the last byte.
func TestBuildsAreReproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var first map[string][]byte
	t.Run("the first", func(t *testing.T) { first = readArchives(t, copyHello(t, nil)) })
	for name, test := range map[string]struct {
		environment, files map[string]string
		wantOther          bool
	}{
		"another folder":    {},
		"flags":             {environment: map[string]string{"GOFLAGS": "-gcflags=-N"}},
		"x86-64 of a level": {environment: map[string]string{"GOAMD64": "v3"}},
		"ARM of a version":  {environment: map[string]string{"GOARM64": "v9.0"}},
		"an experiment":     {environment: map[string]string{"GOEXPERIMENT": "fieldtrack"}},
		"for this machine":  {environment: map[string]string{"GOOS": "darwin", "GOARCH": "riscv64", "CGO_ENABLED": "1"}},
		"cryptography":      {environment: map[string]string{"GOFIPS140": "latest"}},
		"of go env -w":      {files: map[string]string{"go/env": "GOFLAGS=-gcflags=-N\n"}},
		"a workspace":       {files: map[string]string{"go.work": "go 1.26\nuse .\ngodebug http2client=0\n"}},
		"another time":      {environment: map[string]string{"SOURCE_DATE_EPOCH": "1700000001"}, wantOther: true},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.environment {
				t.Setenv(variable, value)
			}
			for name, archive := range readArchives(t, copyHello(t, test.files)) {
				assert.Equal(t, !test.wantOther, bytes.Equal(first[name], archive), name)
			}
		})
	}
}

// TestBuilderSettingsReachTheBuild covers what a builder needs to download modules.
func TestBuilderSettingsReachTheBuild(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "settings")
	require.NoError(t, os.WriteFile(settings, []byte("GOPROXY=https://modules.example\nGOFLAGS=-mod=mod\nGOAMD64=v2\n"), 0o600))
	for name, value := range map[string]string{
		"GOENV": settings, "GOPRIVATE": "git.example", "GOCACHE": "/cache", "GOEXPERIMENT": "fieldtrack", "CGO_CFLAGS": "-O3",
		"HTTPS_PROXY": "http://proxy.example", "GOOGLE_APPLICATION_CREDENTIALS": "/key",
	} {
		t.Setenv(name, value)
	}
	all, err := buildEnvironment(t.Context())
	require.NoError(t, err)
	for _, variable := range []string{
		"GOPROXY=https://modules.example", "GONOPROXY=git.example", "GONOSUMDB=git.example", "GOCACHE=/cache",
		"HTTPS_PROXY=http://proxy.example", "GOOGLE_APPLICATION_CREDENTIALS=/key", "PATH=" + os.Getenv("PATH"),
	} {
		assert.Contains(t, all, variable)
	}
	for _, variable := range all {
		name, _, _ := strings.Cut(variable, "=")
		assert.NotContains(t, []string{"GOFLAGS", "GOAMD64", "GOEXPERIMENT", "CGO_CFLAGS"}, name)
	}
}

func TestImageHoldsOneBinary(t *testing.T) {
	// Either would make the binary need the system's loader.
	t.Setenv("GOFLAGS", "-buildmode=pie")
	t.Setenv("CGO_ENABLED", "1")
	directory := buildTestImages(t, helloProgram, "amd64", "arm64")
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(architecture, func(t *testing.T) { requireOneBinary(t, directory, architecture, machine) })
	}
}

func requireOneBinary(t *testing.T, directory, architecture string, machine elf.Machine) {
	text, err := os.ReadFile(filepath.Join(directory, "hello-"+architecture+".tar"))
	require.NoError(t, err)
	content := readArchive(t, text)
	for name, data := range content {
		if digest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			sum := sha256.Sum256(data)
			assert.Equal(t, digest, hex.EncodeToString(sum[:]))
		}
	}
	top := decodeJSON[v1.IndexManifest](t, content["index.json"])
	require.Len(t, top.Manifests, 1)
	assert.Equal(t, "registry.example/ot/hello:v1.2.3", top.Manifests[0].Annotations["io.containerd.image.name"])
	blobOf := func(d v1.Descriptor) []byte {
		data, ok := content[blobPath(d.Digest)]
		require.True(t, ok, d.Digest)
		require.Len(t, data, int(d.Size))
		return data
	}
	m := decodeJSON[v1.Manifest](t, blobOf(top.Manifests[0]))
	c := decodeJSON[v1.ConfigFile](t, blobOf(m.Config))
	assert.Equal(t, "65532:65532", c.Config.User)
	assert.Equal(t, []string{"/hello"}, c.Config.Entrypoint)
	assert.Equal(t, "linux/"+architecture, c.Platform().String())
	assert.Equal(t, "v1.2.3", c.Config.Labels["org.opencontainers.image.version"])

	// `docker load` reads manifest.json.
	saved := decodeJSON[[]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}](t, content["manifest.json"])
	require.Len(t, saved, 1)
	assert.Equal(t, []string{"registry.example/ot/hello:v1.2.3"}, saved[0].RepoTags)
	assert.Contains(t, content, saved[0].Config)
	assert.Equal(t, []string{blobPath(m.Layers[0].Digest)}, saved[0].Layers)

	zipped, err := gzip.NewReader(bytes.NewReader(blobOf(m.Layers[0])))
	require.NoError(t, err)
	layer, err := io.ReadAll(zipped)
	require.NoError(t, err)
	sum := sha256.Sum256(layer)
	assert.Equal(t, []v1.Hash{{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}, c.RootFS.DiffIDs)
	inside := readArchive(t, layer)
	assert.Len(t, inside, 1)
	binary := inside["hello"]
	require.NotEmpty(t, binary)
	assert.Contains(t, string(binary), "v1.2.3")

	program, err := elf.NewFile(bytes.NewReader(binary))
	require.NoError(t, err)
	assert.Equal(t, machine, program.Machine)
	for _, segment := range program.Progs {
		assert.NotEqual(t, elf.PT_INTERP, segment.Type, "the binary needs a loader, which the image lacks")
	}
	needed, err := program.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, needed, "the binary needs libraries, which the image lacks")
}

// TestArchiveOfAllPlatforms wants the image's name to refer to an index of all platforms.
func TestArchiveOfAllPlatforms(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(buildTestImages(t, helloProgram, "amd64", "arm64"), "hello.tar"))
	require.NoError(t, err)
	content := readArchive(t, text)
	assert.NotContains(t, content, "manifest.json", "`docker load` cannot read several platforms")
	top := decodeJSON[v1.IndexManifest](t, content["index.json"])
	require.Len(t, top.Manifests, 1)
	assert.Equal(t, types.OCIImageIndex, top.Manifests[0].MediaType)
	nested := decodeJSON[v1.IndexManifest](t, content[blobPath(top.Manifests[0].Digest)])
	var platforms []string
	for _, d := range nested.Manifests {
		platforms = append(platforms, d.Platform.String())
		assert.Contains(t, content, blobPath(d.Digest))
	}
	assert.Equal(t, []string{"linux/amd64", "linux/arm64"}, platforms)
}

func TestInvalidSourceDateEpoch(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	require.ErrorContains(t, buildAll(t.Context(), options{directory: t.TempDir()}, nil, program{}), "SOURCE_DATE_EPOCH")
}
