package scripts_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestScriptsParse has bash parse its scripts, most of which need a Docker engine to run.
func TestScriptsParse(t *testing.T) {
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	parsed := 0
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		text, err := os.ReadFile(entry.Name())
		require.NoError(t, err)
		if !strings.HasPrefix(string(text), "#!/usr/bin/env bash\n") {
			continue
		}
		said, err := exec.CommandContext(t.Context(), "bash", "-n", entry.Name()).CombinedOutput()
		require.NoError(t, err, "%s: %s", entry.Name(), said)
		parsed++
	}
	assert.Positive(t, parsed)
}
