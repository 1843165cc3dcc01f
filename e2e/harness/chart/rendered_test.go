package chart

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestKeptRenderingsAreOfTheSameFilesAndNeverChanged(t *testing.T) {
	directory := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(directory, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	const template = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: made\ndata:\n  of: {{ .Values.of }}\n"
	write("Chart.yaml", "apiVersion: v2\nname: small\nversion: 1.0.0\n")
	write("templates/made.yaml", template)
	write("templates/tests/test.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: test\n  annotations:\n    helm.sh/hook: test\n")
	renderMade := func(value string) *unstructured.Unstructured {
		objects, err := Render(t.Context(), directory, "small", "default", map[string]any{"of": value})
		require.NoError(t, err)
		require.Len(t, objects, 1)
		return objects[0]
	}
	changed := renderMade("a")
	require.NoError(t, unstructured.SetNestedField(changed.Object, "changed", "data", "of"))
	assert.Equal(t, map[string]any{"of": "a"}, renderMade("a").Object["data"])
	assert.Equal(t, map[string]any{"of": "b"}, renderMade("b").Object["data"])

	tests, err := RenderTests(t.Context(), directory, "small", "default", map[string]any{"of": "a"})
	require.NoError(t, err)
	require.Len(t, tests, 1)
	assert.Equal(t, "Pod", tests[0].GetKind())

	write("templates/made.yaml", template+"  and: more\n")
	assert.Equal(t, map[string]any{"of": "a", "and": "more"}, renderMade("a").Object["data"])
}

func TestLargeDocumentsAreCopied(t *testing.T) {
	large := make([]byte, largeDocument)
	for i := range large {
		large[i] = 'x'
	}
	manifest := []byte("kind: A\nmetadata: {name: one}\n---\n# nothing\n---\nkind: B\nmetadata: {name: two}\ndata: " + string(large) + "\n")
	for range 2 {
		objects, err := ParseManifest(manifest)
		require.NoError(t, err)
		require.Len(t, objects, 2)
		assert.Equal(t, "one", objects[0].GetName())
		assert.Equal(t, "two", objects[1].GetName())
		assert.Len(t, objects[1].Object["data"], largeDocument)
		objects[1].SetName("changed")
	}
}
