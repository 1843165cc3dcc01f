package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

var helmCommandPattern = regexp.MustCompile(`(?m)^\s*(?:\$ )?helm ((?:--kube-context \S+ )?(?:install|upgrade)) ([^#` + "`" + `\n]*)`)

// What the pages tell people to install and upgrade by renders with the charts as they
// are: each command, with the files that it names.
func TestHelmCommandsInDocs(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	directory := t.TempDir()
	top, err := filepath.Abs(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(top, "charts"), filepath.Join(directory, "charts")))
	for name, text := range map[string]string{
		"join.kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: hub, cluster: {server: https://hub.example}}]\n",
		"hub-ca.crt":      "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
	}
	for page, atLeast := range map[string]int{
		"README.md": 1, "docs/operate/install.md": 2, "docs/operate/upgrade.md": 2, "docs/operate/members.md": 2,
		"charts/ot-agent/README.md": 3, "charts/ot-hub/README.md": 1,
	} {
		text, err := os.ReadFile(filepath.Join(top, page))
		require.NoError(t, err)
		commands := helmCommandPattern.FindAllStringSubmatch(string(text), -1)
		assert.GreaterOrEqual(t, len(commands), atLeast, page)
		for _, command := range commands {
			// There is no release to take values from, and no cluster to ask.
			args := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(command[2], "<version>", "v1.2.3"), "--reset-then-reuse-values", ""))
			cmd := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", "--kube-version", chart.KubeVersion}, args...)...)
			cmd.Dir = directory
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: helm %s %s\n%.2000s", page, command[1], command[2], output)
			assert.Contains(t, string(output), "kind: Deployment")
		}
	}
}
