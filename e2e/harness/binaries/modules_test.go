package binaries

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/version"
)

// TestModulesShareVersions wants programs and tools to require what go.mod requires, or newer. Go
// compiles a package once for each set of versions below it: with versions of their own, a third
// of a cold build compiled the same packages again.
func TestModulesShareVersions(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	ours := readRequired(t, root)
	modules := []string{"cli"}
	for _, name := range []string{"helm", "kubernetes", "kwok", "snapshotcontroller"} {
		modules = append(modules, filepath.Join("e2e", "harness", "binaries", name))
	}
	tools, err := filepath.Glob(filepath.Join(root, "scripts", "tools", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, tools)
	for _, tool := range tools {
		modules = append(modules, filepath.Join("scripts", "tools", filepath.Base(tool)))
	}
	for _, module := range modules {
		var older []string
		for path, theirs := range readRequired(t, filepath.Join(root, module)) {
			if want, shared := ours[path]; shared && parseVersion(t, theirs).LessThan(parseVersion(t, want)) {
				older = append(older, path+"@"+want)
			}
		}
		assert.Empty(t, older, "%s: go -C %s get %s && go -C %s mod tidy", module, module, strings.Join(older, " "), module)
	}
}

func readRequired(t *testing.T, directory string) map[string]string {
	t.Helper()
	text, err := runGo(t.Context(), directory, "mod", "edit", "-json")
	require.NoError(t, err, directory)
	var file goModJSON
	require.NoError(t, json.Unmarshal(text, &file))
	required := map[string]string{}
	for _, module := range file.Require {
		required[module.Path] = module.Version
	}
	for _, replaced := range file.Replace {
		delete(required, replaced.Old.Path)
	}
	return required
}

func parseVersion(t *testing.T, text string) *version.Version {
	t.Helper()
	parsed, err := version.ParseSemantic(strings.TrimSuffix(text, "+incompatible"))
	require.NoError(t, err, text)
	return parsed
}
