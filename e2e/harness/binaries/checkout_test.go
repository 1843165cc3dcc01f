package binaries

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPrebuiltProgramsAreOfTheRunThatSetsTheVariable(t *testing.T) {
	t.Setenv(ProgramsVariable, "")
	path, err := AgentProgram.FindPrebuilt()
	require.NoError(t, err)
	assert.Empty(t, path, "a plain go test builds it")

	directory := t.TempDir()
	t.Setenv(ProgramsVariable, directory)
	_, err = AgentProgram.FindPrebuilt()
	require.ErrorContains(t, err, ProgramsVariable, "the run has ended, and has removed its programs")

	want := filepath.Join(directory, "ot-agent", "ot-agent")
	require.NoError(t, os.Mkdir(filepath.Dir(want), 0o700))
	require.NoError(t, os.WriteFile(want, nil, 0o700))
	path, err = AgentProgram.FindPrebuilt()
	require.NoError(t, err)
	assert.Equal(t, want, path)
}

func TestStampedProgramsSayTheirVersion(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	module := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(content), 0o600))
	}
	write("go.mod", "module hello\n\ngo 1.26\n")
	source := "package main\n\nvar version = \"dev\"\n\nfunc main() { print(version, \"/\", version) }\n"
	write("main.go", source)
	hello := CheckoutProgram{Name: "hello", Package: "."}
	for _, flags := range []string{"-trimpath", ""} {
		t.Setenv("GOFLAGS", flags)
		for version, want := range map[string]string{"v1.2.3": "v1.2.3/v1.2.3", "v1.10.0": "v1.10.0/v1.10.0"} {
			path := filepath.Join(t.TempDir(), hello.Name)
			require.NoError(t, hello.Build(t.Context(), module, version, path))
			said, err := exec.CommandContext(t.Context(), path).CombinedOutput()
			require.NoError(t, err)
			assert.Equal(t, want, string(said))
			info, err := buildinfo.ReadFile(path)
			require.NoError(t, err)
			assert.NotContains(t, info.String(), versionPlaceholder)
		}
	}
	write("main.go", source+"\nfunc init() { print(`"+versionPlaceholder+"`) }\n")
	require.ErrorContains(t, hello.Build(t.Context(), module, "v1.2.3", filepath.Join(t.TempDir(), hello.Name)), "the placeholder 4 times instead of 3")
}
