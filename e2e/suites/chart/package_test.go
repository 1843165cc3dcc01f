//go:build linux

package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

// `make charts` takes each form of a version that `git describe` has: where it is no
// number that Helm takes, the charts keep their own, and images are named by it all the
// same.
func TestChartsArePackaged(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	own := chartVersion(t, chartPath(t, agentChart)).String()
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabcdef0-dirty": "1.2.3-4-gabcdef0-dirty",
		"abcdef0": own, "1234567-dirty": own, "unknown": own,
	} {
		t.Run(version, func(t *testing.T) {
			directory := t.TempDir()
			output, err := exec.CommandContext(t.Context(), "make", "-C", chartPath(t, "."), "charts", "VERSION="+version, "DIST="+directory, "HELM="+programs[binaries.Helm]).CombinedOutput()
			require.NoError(t, err, "%s", output)
			made, err := os.ReadDir(directory)
			require.NoError(t, err)
			require.Len(t, made, 2)
			for _, name := range []string{"ot-agent", "ot-hub"} {
				about, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "show", "chart", filepath.Join(directory, name+"-"+want+".tgz")).CombinedOutput()
				require.NoError(t, err, "%s", about)
				assert.Regexp(t, `(?m)^version: `+want+`$`, string(about))
				assert.Regexp(t, `(?m)^appVersion: `+version+`$`, string(about))
			}
		})
	}
}
