package binaries

import (
	"os"
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
