package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// copyModules copies the program into a module that needs the one above it, as the plugin's does,
// and returns the folder of both.
func copyModules(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "hello", "main.go"))
	require.NoError(t, err)
	directory := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module top.example\n\ngo 1.26\n", "words/words.go": "package words\n\n// Word is one.\nconst Word = `hello`\n",
		"cli/go.mod":  "module top.example/cli\n\ngo 1.26\n\nreplace top.example => ../\n\nrequire top.example v0.0.0\n",
		"cli/main.go": string(source), "cli/more.go": "package main\n\nimport _ `top.example/words`\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
	}
	return directory
}

func buildTestPlugin(t *testing.T, top, version string, platforms ...string) string {
	t.Helper()
	directory := t.TempDir()
	p := program{name: "kubectl-hello", pkg: ".", module: filepath.Join(top, "cli")}
	require.NoError(t, buildAll(t.Context(), options{directory: directory, version: version, pluginPlatforms: platforms}, nil, p))
	return directory
}

// TestPluginForEveryPlatform builds in two folders: binaries and sums are the same to the last
// byte, and nothing is linked dynamically where that can be told.
func TestPluginForEveryPlatform(t *testing.T) {
	platforms := []string{"linux/amd64", "linux/arm64", "darwin/arm64", "windows/amd64"}
	first := buildTestPlugin(t, copyModules(t), "v1.2.3", platforms...)
	t.Setenv("GOFLAGS", "-gcflags=-N")
	t.Setenv("GOOS", "plan9")
	second := buildTestPlugin(t, copyModules(t), "v1.2.3", platforms...)
	other := buildTestPlugin(t, copyModules(t), "v1.2.4", platforms...)

	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	require.NoError(t, err)
	var want strings.Builder
	for _, name := range []string{"kubectl-hello-darwin-arm64", "kubectl-hello-linux-amd64", "kubectl-hello-linux-arm64", "kubectl-hello-windows-amd64.exe"} {
		binary, err := os.ReadFile(filepath.Join(first, name))
		require.NoError(t, err)
		assert.Contains(t, string(binary), "v1.2.3", name)
		sum := sha256.Sum256(binary)
		fmt.Fprintf(&want, "%s  %s\n", hex.EncodeToString(sum[:]), name)
		info, err := os.Stat(filepath.Join(first, name))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o755), info.Mode().Perm(), name)
		again, err := os.ReadFile(filepath.Join(second, name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(binary, again), "%s differs between folders", name)
		differs, err := os.ReadFile(filepath.Join(other, name))
		require.NoError(t, err)
		assert.False(t, bytes.Equal(binary, differs), "%s has no version", name)
	}
	assert.Equal(t, want.String(), string(sums))

	binary, err := elf.Open(filepath.Join(first, "kubectl-hello-linux-arm64"))
	require.NoError(t, err)
	assert.Equal(t, elf.EM_AARCH64, binary.Machine)
	needed, err := binary.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, needed)
	require.ErrorContains(t, buildAll(t.Context(), options{directory: t.TempDir(), pluginPlatforms: []string{"amd64"}}, nil, plugin), `"amd64" is none`)
}

// TestSumsCoverImages wants the sums of what was built, and of nothing that was there before.
func TestSumsCoverImages(t *testing.T) {
	directory := buildTestImages(t, helloProgram, "amd64")
	sums, err := os.ReadFile(filepath.Join(directory, "SHA256SUMS"))
	require.NoError(t, err)
	var names []string
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		content, err := os.ReadFile(filepath.Join(directory, name))
		require.NoError(t, err)
		actual := sha256.Sum256(content)
		assert.Equal(t, hex.EncodeToString(actual[:]), sum)
		names = append(names, name)
	}
	assert.Equal(t, []string{"hello-amd64.tar", "hello.tar"}, names)
}

// TestPluginOfThisCheckout builds the plugin itself here and in a copy of the repository.
func TestPluginOfThisCheckout(t *testing.T) {
	top, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "go.mod", "go.sum", "api", "agent", "hub", "cli", "ui", "charts")
	list.Dir = top
	names, err := list.Output()
	require.NoError(t, err)
	elsewhere := filepath.Join(t.TempDir(), "another", "folder")
	for _, name := range strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(elsewhere, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(elsewhere, name), content, 0o600))
	}
	var built [][]byte
	for _, folder := range []string{top, elsewhere} {
		p := plugin
		p.module = filepath.Join(folder, "cli")
		directory := t.TempDir()
		require.NoError(t, buildAll(t.Context(), options{directory: directory, version: "v1.2.3", pluginPlatforms: []string{"linux/amd64"}}, nil, p))
		path := filepath.Join(directory, "kubectl-ot-linux-amd64")
		info, err := buildinfo.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "github.com/pelotech/ot-fleet/cli", info.Main.Path)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		built = append(built, content)
	}
	assert.True(t, bytes.Equal(built[0], built[1]), "the plugin depends on the folder that it is built in")
	assert.NotContains(t, string(built[0]), top)
}
