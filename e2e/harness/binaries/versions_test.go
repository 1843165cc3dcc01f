package binaries

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func findRecipe(t *testing.T, name Name) recipe {
	t.Helper()
	for _, r := range recipes {
		if r.name == name {
			return r
		}
	}
	require.Fail(t, "no recipe", "%s", name)
	return recipe{}
}

func TestDirectoriesBecomeModules(t *testing.T) {
	upstream := goModJSON{Require: []moduleVersion{
		{"k8s.io/api", "v0.0.0"}, {"k8s.io/kms", "v0.0.0"}, {"example.com/other", "v1.2.3"}, {"example.com/a", "v0.0.0"},
	}}
	for _, replaced := range [][2]moduleVersion{
		{{Path: "k8s.io/api"}, {Path: "./staging/src/k8s.io/api"}},
		{{Path: "k8s.io/dynamic-resource-allocation"}, {Path: "dynamic-resource-allocation", Version: "v0.31.5"}},
		{{Path: "example.com/a"}, {Path: "example.com/a", Version: "v1.0.0"}},
	} {
		upstream.Replace = append(upstream.Replace, struct{ Old, New moduleVersion }{replaced[0], replaced[1]})
	}
	slip := "-replace=k8s.io/dynamic-resource-allocation=k8s.io/dynamic-resource-allocation@v0.31.5"
	assert.Equal(t, []string{"-replace=k8s.io/kms=k8s.io/kms@v0.34.2", "-replace=k8s.io/api=k8s.io/api@v0.34.2", slip}, findRecipe(t, APIServer).replaceEdits("v1.34.2", upstream))
	assert.Equal(t, []string{"-replace=k8s.io/kms=k8s.io/kms@v1.64.0", "-replace=k8s.io/api=k8s.io/api@v1.64.0", slip}, findRecipe(t, CDI).replaceEdits("v1.64.0", upstream))
}

// TestAdaptationsFit applies each adaptation to our sources: one whose text has changed is found
// here, not after minutes of downloads.
func TestAdaptationsFit(t *testing.T) {
	source, err := sourceDirectory()
	require.NoError(t, err)
	for _, a := range adaptations {
		content, err := os.ReadFile(filepath.Join(source, string(a.component), a.file))
		require.NoError(t, err)
		r := recipe{directory: string(a.component)}
		changed, err := r.adapt(a.minor+".0", sourceFile{a.file, content})
		require.NoError(t, err)
		assert.Contains(t, string(changed), a.new)
		unchanged, err := r.adapt(a.minor+"9.0", sourceFile{a.file, content})
		require.NoError(t, err)
		assert.Equal(t, content, unchanged)
		_, err = r.adapt(a.minor+".0", sourceFile{a.file, nil})
		require.ErrorContains(t, err, "is not there once")
	}
}

func TestVersionIsThatOfTheVariable(t *testing.T) {
	for _, component := range Components() {
		t.Setenv(component.Variable(), "")
		pinned, err := Version(component)
		require.NoError(t, err)
		assert.Regexp(t, `^v1\.\d+\.\d+$`, pinned)
		for _, given := range []string{"1.2.3", "v1.2.3"} {
			t.Setenv(component.Variable(), given)
			version, err := Version(component)
			require.NoError(t, err)
			assert.Equal(t, "v1.2.3", version)
		}
	}
	assert.Empty(t, findRecipe(t, Helm).requestedVersion())
}

func TestLastLineNamesTheModule(t *testing.T) {
	assert.Equal(t, "example.com/m@v1.0.0: reading https://proxy: 403 Forbidden server response: not available.",
		lastLine("go: downloading example.com/other v1.0.0\ngo: example.com/m@v1.0.0: reading https://proxy: 403 Forbidden\n\tserver response: not available.\n"))
	assert.Equal(t, "example.com/m@v1.0.0: gone", lastLine("/some/where/a.go:76:2: example.com/m@v1.0.0: gone\n"))
	assert.Empty(t, lastLine(""))
}
