package chart

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rendering is what came of a chart with values.
type rendering struct {
	sync.Mutex
	done bool
	renderedObjects
}

// renderedObjects are the objects that an installation creates, and those of templates/tests.
// Invariant: they are never changed, and callers get copies.
type renderedObjects struct{ objects, tests []*unstructured.Unstructured }

// renderings has a rendering for each key of keyOf. Suites render a chart with the same values many
// times, and for each of their control planes.
var renderings sync.Map

func render(ctx context.Context, path, releaseName, namespace string, values map[string]any, c capabilities) (renderedObjects, error) {
	directory, err := findChart(path)
	if err != nil {
		return renderedObjects{}, err
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		return renderedObjects{}, fmt.Errorf("encoding the values of chart %s: %w", path, err)
	}
	key, err := keyOf(directory, releaseName, namespace, encoded, c)
	if err != nil {
		return renderedObjects{}, fmt.Errorf("reading chart %s: %w", path, err)
	}
	entry, _ := renderings.LoadOrStore(key, &rendering{})
	r := entry.(*rendering)
	r.Lock()
	defer r.Unlock()
	if r.done {
		return r.renderedObjects, nil
	}
	made, err := renderRelease(ctx, path, directory, releaseName, namespace, encoded, c)
	if err != nil {
		return renderedObjects{}, err
	}
	if r.renderedObjects, err = parseRelease(made); err != nil {
		return renderedObjects{}, err
	}
	r.done = true
	return r.renderedObjects, nil
}

// keyOf returns a hash of all that a rendering depends on, the content of the chart's files included:
// tests change copies of a chart.
func keyOf(directory, releaseName, namespace string, values []byte, c capabilities) ([sha256.Size]byte, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %q %q %q %q\n", directory, releaseName, namespace, values, c.kubeVersion, c.apiVersions)
	files := os.DirFS(directory)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		fmt.Fprintf(hash, "%q %d\n", name, len(content))
		hash.Write(content)
		return err
	})
	return [sha256.Size]byte(hash.Sum(nil)), err
}

func parseRelease(made *release.Release) (parsed renderedObjects, err error) {
	installed, tests := []string{made.Manifest}, []string{}
	for _, hook := range made.Hooks {
		if !slices.Contains(hook.Events, release.HookTest) {
			installed = append(installed, hook.Manifest)
		}
		if strings.HasSuffix(path.Dir(hook.Path), "/templates/tests") {
			tests = append(tests, hook.Manifest)
		}
	}
	if parsed.objects, err = parseShared([]byte(strings.Join(installed, manifestSeparator))); err != nil {
		return renderedObjects{}, err
	}
	parsed.tests, err = parseShared([]byte(strings.Join(tests, manifestSeparator)))
	return parsed, err
}
