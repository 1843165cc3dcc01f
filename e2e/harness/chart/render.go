// Package chart renders and installs the project's Helm charts, so that tests and the demo
// run with exactly the objects that users get.
package chart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// KubeVersion is what charts are rendered for without an API server to ask: Helm assumes a
// version that is too old for them.
const KubeVersion = "1.36.0"

// capabilities are what templates see of the API server.
type capabilities struct {
	kubeVersion string
	apiVersions common.VersionSet
}

// readCapabilities asks an API server as `helm install` does.
func readCapabilities(cfg *rest.Config) (capabilities, error) {
	c, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return capabilities{}, err
	}
	version, err := c.ServerVersion()
	if err != nil {
		return capabilities{}, fmt.Errorf("asking %s for its version: %w", cfg.Host, err)
	}
	served, err := action.GetVersionSet(c)
	if err != nil {
		return capabilities{}, fmt.Errorf("asking %s for its kinds: %w", cfg.Host, err)
	}
	return capabilities{kubeVersion: version.GitVersion, apiVersions: served}, nil
}

// Render returns the objects of a chart, as `helm template --skip-tests` does. The chart's
// path is absolute, or relative to the working directory or a directory above it.
func Render(ctx context.Context, path, releaseName, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	rendered, err := render(ctx, path, releaseName, namespace, values, capabilities{kubeVersion: KubeVersion})
	return copyObjects(rendered.objects), err
}

// RenderFor returns the objects of a chart as `helm install` makes them for an API server.
func RenderFor(ctx context.Context, cfg *rest.Config, path, releaseName, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	served, err := readCapabilities(cfg)
	if err != nil {
		return nil, fmt.Errorf("rendering chart %s: %w", path, err)
	}
	rendered, err := render(ctx, path, releaseName, namespace, values, served)
	return copyObjects(rendered.objects), err
}

// RenderTests returns the objects of a chart's templates/tests, which `helm test` creates.
func RenderTests(ctx context.Context, path, releaseName, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	rendered, err := render(ctx, path, releaseName, namespace, values, capabilities{kubeVersion: KubeVersion})
	return copyObjects(rendered.tests), err
}

// renderRelease has Helm render a chart's directory. path is for messages, encoded are the values as
// JSON: Helm expects the types of decoded YAML.
func renderRelease(ctx context.Context, path, directory, releaseName, namespace string, encoded []byte, c capabilities) (*release.Release, error) {
	loaded, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("loading chart %s: %w", path, err)
	}
	given, err := common.ReadValues(encoded)
	if err != nil {
		return nil, fmt.Errorf("decoding the values of chart %s: %w", path, err)
	}
	version, err := common.ParseKubeVersion(c.kubeVersion)
	if err != nil {
		return nil, err
	}
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	install := action.NewInstall(cfg)
	install.DryRunStrategy, install.KubeVersion, install.APIVersions, install.Replace = action.DryRunClient, version, c.apiVersions, true
	install.ReleaseName, install.Namespace = releaseName, namespace
	made, err := install.RunWithContext(ctx, loaded, given)
	if err != nil {
		return nil, fmt.Errorf("rendering chart %s: %w", path, err)
	}
	rendered, ok := made.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("rendering chart %s: Helm returned a release of type %T", path, made)
	}
	return rendered, nil
}

// Lint runs `helm lint --strict`, which fails on warnings.
func Lint(path string) error {
	directory, err := findChart(path)
	if err != nil {
		return err
	}
	version, err := common.ParseKubeVersion(KubeVersion)
	if err != nil {
		return err
	}
	lint := action.NewLint()
	lint.Strict, lint.KubeVersion = true, version
	if err := errors.Join(lint.Run([]string{directory}, nil).Errors...); err != nil {
		return fmt.Errorf("linting chart %s: %w", path, err)
	}
	return nil
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
			return "", fmt.Errorf("looking for chart %s in %s and its parents: not found; run from within the checkout", path, working)
		}
	}
}
