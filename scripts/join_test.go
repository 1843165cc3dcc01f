package scripts_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newerBash matches what bash 3.2, which macOS has, lacks: associative arrays, mapfile, and
// arrays without elements under set -u.
var newerBash = regexp.MustCompile(`(local|declare) -\w*A|mapfile|readarray|\$\{\w+(,|\^)|(^|[^+])"\$\{labels\[@\]\}"`)

func TestJoinRunsInOldBash(t *testing.T) {
	for _, line := range []string{"local -A all=()", `for label in "${labels[@]}"; do`, `lower=${mode,,}`} {
		require.Regexp(t, newerBash, line)
	}
	script, err := os.ReadFile("join")
	require.NoError(t, err)
	for i, line := range strings.Split(string(script), "\n") {
		if strings.Contains(line, "((${#labels[@]} == 0)) ||") {
			continue // guarded
		}
		assert.NotRegexp(t, newerBash, line, "line %d", i+1)
	}
}

// The last value of a label counts.
func TestJoinWritesLabels(t *testing.T) {
	script, err := os.ReadFile("join")
	require.NoError(t, err)
	function := regexp.MustCompile(`(?ms)^yaml_labels\(\) \{\n.*?^\}$`).Find(script)
	require.NotNil(t, function)
	for given, want := range map[string]string{
		"": "{}", "\n": "{}", "edge=\n": `{"edge": ""}`, "edge=true\n\nedge=false\n": `{"edge": "false"}`, "fleet.example/ring=1\n": `{"fleet.example/ring": "1"}`,
	} {
		command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", string(function)+"\nyaml_labels")
		command.Stdin = strings.NewReader(given)
		said, err := command.CombinedOutput()
		require.NoError(t, err, "%s", said)
		assert.Equal(t, want, string(said))
	}
}
