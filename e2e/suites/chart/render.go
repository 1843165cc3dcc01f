// Package chart renders and installs the project's Helm charts, so that tests
// and the demo run with exactly the objects that users get.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

// KubeVersion is what charts are rendered for: without a server to ask, helm
// assumes one too old for them.
const KubeVersion = "1.36.0"

// Render returns the objects of a chart. The chart's path is absolute, or
// relative to the working directory or any directory above it, so that tests
// and commands name it alike. What `helm test` makes is not among them.
func Render(ctx context.Context, path, releaseName, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	return renderChart(ctx, path, releaseName, namespace, values, "--skip-tests")
}

// RenderTests returns what `helm test` makes.
func RenderTests(ctx context.Context, path, releaseName, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	return renderChart(ctx, path, releaseName, namespace, values, "--show-only", "templates/tests/*.yaml")
}

func renderChart(ctx context.Context, path, releaseName, namespace string, values map[string]any, args ...string) ([]*unstructured.Unstructured, error) {
	directory, err := findChart(path)
	if err != nil {
		return nil, err
	}
	given, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("rendering chart %s: encoding its values: %w", path, err)
	}
	manifest, err := runHelm(ctx, given, append([]string{"template", releaseName, directory,
		"--namespace", namespace, "--kube-version", KubeVersion, "--values", "-"}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("rendering chart %s: %w", path, err)
	}
	return Objects(manifest)
}

// Lint runs helm's own checks of a chart, warnings included.
func Lint(ctx context.Context, path string) error {
	directory, err := findChart(path)
	if err != nil {
		return err
	}
	if _, err := runHelm(ctx, nil, "lint", directory, "--strict", "--kube-version", KubeVersion); err != nil {
		return fmt.Errorf("linting chart %s: %w", path, err)
	}
	return nil
}

func runHelm(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	programs, err := binaries.Ensure(ctx, binaries.Helm)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, programs[binaries.Helm], args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running helm %s: %w\n%s%s", strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// Objects of a manifest: YAML documents, of which empty ones are left out.
func Objects(manifest []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading object %d of a manifest: %w", len(all)+1, err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

func findChart(path string) (string, error) {
	if filepath.IsAbs(path) {
		return path, nil
	}
	working, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for chart %s: %w", path, err)
	}
	for directory := working; ; directory = filepath.Dir(directory) {
		candidate := filepath.Join(directory, path)
		if _, err := os.Stat(filepath.Join(candidate, "Chart.yaml")); err == nil {
			return candidate, nil
		}
		if directory == filepath.Dir(directory) {
			return "", fmt.Errorf("looking for chart %s in %s and above: it is not there; run from within the checkout", path, working)
		}
	}
}
