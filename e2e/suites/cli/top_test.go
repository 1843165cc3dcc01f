//go:build linux

package cli_test

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestTop(t *testing.T) {
	testenv.RunInTurn(t, 8)
	var top struct {
		Kind, Subject string
		Totals        struct{ Budget, UnknownClusters int }
		Clusters      []struct{ Name, Unknown string }
	}
	shared.runJSON(t, 0, &top, "top", "clusters")
	assert.Equal(t, "Top", top.Kind)
	require.Len(t, top.Clusters, 2)
	assert.Zero(t, top.Totals.UnknownClusters)
	assert.Equal(t, 6, top.Totals.Budget)
	shared.runJSON(t, 0, &top, "top", "clusters", "-l", "region=south")
	require.Len(t, top.Clusters, 1)
	assert.Equal(t, kiel, top.Clusters[0].Name)
	shared.runJSON(t, 0, &top, "top", "clusters", "--live", "--context", bergen, "--hub", "nowhere")
	assert.Equal(t, 3, top.Totals.Budget)
	assert.Contains(t, shared.run(t, 0, "top", "--once").Out, "slots")
	for _, mistake := range [][]string{{"top", "machines"}, {"top", "--sort-by", "size"}, {"top", "--cluster", "nowhere"}} {
		assert.NotEmpty(t, shared.run(t, 2, mistake...).Err)
	}
}

// On a terminal it uses the alternate screen, and leaves the terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	testenv.RunInTurn(t, 4)
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("script makes a terminal, and is not installed")
	}
	for key, wantCode := range map[string]int{"q": 0, "\x03": 130} {
		plain, err := shared.Command(t.Context())
		require.NoError(t, err)
		command := exec.CommandContext(t.Context(), script, "-qefc", plain.Path+" top", "/dev/null")
		command.Env = slices.Concat(plain.Env, []string{"TERM=xterm-256color"})
		keyboard, err := command.StdinPipe()
		require.NoError(t, err)
		screen := &seenScreen{shown: make(chan struct{})}
		command.Stdout = screen
		require.NoError(t, command.Start())
		select {
		case <-screen.shown:
		case <-time.After(testenv.Patience):
			t.Fatalf("no screen: %q", screen.text.String())
		}
		_, err = io.WriteString(keyboard, key)
		require.NoError(t, err)
		err = command.Wait()
		code := 0
		if ended, ok := errors.AsType[*exec.ExitError](err); ok {
			code = ended.ExitCode()
		} else {
			require.NoError(t, err)
		}
		assert.Equal(t, wantCode, code)
		assert.Contains(t, screen.text.String(), "\x1b[?1049l", "the alternate screen is left")
		assert.Contains(t, screen.text.String(), "\x1b[?25h", "the cursor is shown again")
	}
}

// seenScreen waits for the first screen.
type seenScreen struct {
	text  bytes.Buffer
	shown chan struct{}
	done  bool
}

func (s *seenScreen) Write(p []byte) (int, error) {
	s.text.Write(p)
	if !s.done && bytes.Contains(s.text.Bytes(), []byte("\x1b[?1049h")) && bytes.Contains(s.text.Bytes(), []byte("keys")) {
		s.done = true
		close(s.shown)
	}
	return len(p), nil
}
