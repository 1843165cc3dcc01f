//go:build linux

package chart_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// previousReleaseDir has the charts of the release before this one, as people got them,
// and what they may have had of it.
const previousReleaseDir = "testdata/previous"

// unpackPreviousChart is a previous chart from its archive. Its kind does not know a field yet: a
// release may leave all kinds as they are, and what programs and an upgrade make of
// older ones is to be seen nevertheless.
func unpackPreviousChart(t *testing.T, name, crd, without string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(previousReleaseDir, name+"-*.tgz"))
	require.NoError(t, err)
	require.Len(t, found, 1, "the archive of the release before this one, and of no other")
	file, err := os.Open(found[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	directory := t.TempDir()
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		path := filepath.Join(directory, header.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, text, 0o600))
	}
	path := filepath.Join(directory, name)
	kind := filepath.Join(path, "files", "crds", crd)
	text, err := os.ReadFile(kind)
	require.NoError(t, err)
	field := "\n              " + without + ":\n"
	require.Equal(t, 1, strings.Count(string(text), field), "%s in %s", field, crd)
	require.NoError(t, os.WriteFile(kind, []byte(strings.Replace(string(text), field, "\n              formerly"+without+":\n", 1)), 0o600))

	previous, current := chartVersion(t, path), chartVersion(t, chartPath(t, filepath.Join("charts", name)))
	assert.True(t, previous.LessThan(current), "%s %s is no upgrade of %s: give the chart a new version", name, current, previous)
	return path
}

// chartVersion is the version of a chart.
func chartVersion(t *testing.T, path string) *version.Version {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path, "Chart.yaml"))
	require.NoError(t, err)
	var about struct{ Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal(text, &about))
	assert.Equal(t, about.Version, strings.TrimPrefix(about.AppVersion, "v"), path)
	return version.MustParseSemantic(about.Version)
}

// installPreviousRelease installs a chart of the previous release, by someone who has said all
// that could be said of it: each value stands in the release, with its default or with
// another one.
func (s *helmCluster) installPreviousRelease(t *testing.T, name, crd, without string, beside ...string) {
	t.Helper()
	path := unpackPreviousChart(t, name, crd, without)
	s.requireHelm(t, append([]string{"install", name, path, "--namespace", name, "--create-namespace",
		"--values", filepath.Join(path, "values.yaml"), "--values", filepath.Join(previousReleaseDir, "values.yaml")}, beside...)...)
}

// releaseState is what a cluster has of one.
type releaseState struct {
	values     map[string]any
	uids       map[string]types.UID
	deployment appsv1.Deployment
}

func (s *helmCluster) readRelease(t *testing.T, name string) releaseState {
	t.Helper()
	r := releaseState{uids: map[string]types.UID{}}
	require.NoError(t, yaml.Unmarshal(s.queryHelm(t, "get", "values", name, "--namespace", name, "--output", "yaml"), &r.values))
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name}, &r.deployment))
	objects, err := chart.ParseManifest(s.queryHelm(t, "get", "manifest", name, "--namespace", name))
	require.NoError(t, err)
	for _, object := range objects {
		require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		r.uids[object.GetKind()+" "+client.ObjectKeyFromObject(object).String()] = object.GetUID()
	}
	return r
}

// queryHelm has helm read something.
func (s *helmCluster) queryHelm(t *testing.T, args ...string) []byte {
	t.Helper()
	output, err := s.runHelm(t, args...)
	require.NoError(t, err, "%s", output)
	return []byte(output)
}

// storePreviousObjects puts what the previous release left into its kinds, all of them. It returns it
// as it is stored.
func (s *helmCluster) storePreviousObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	for _, name := range []string{"images", "again"} {
		require.NoError(t, s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	text, err := os.ReadFile(filepath.Join(previousReleaseDir, "objects.yaml"))
	require.NoError(t, err)
	objects, err := chart.ParseManifest(text)
	require.NoError(t, err)
	writer := s.privilegedClient(t)
	without := s.servedKinds(t)
	for _, object := range objects {
		storeObject(t, writer, object)
		delete(without, object.GetKind())
	}
	assert.Empty(t, without, "kinds of which %s/objects.yaml has nothing", previousReleaseDir)
	return objects
}

// servedKinds of ours that the cluster serves.
func (s *helmCluster) servedKinds(t *testing.T) map[string]bool {
	t.Helper()
	definitions := &unstructured.UnstructuredList{}
	definitions.SetAPIVersion("apiextensions.k8s.io/v1")
	definitions.SetKind("CustomResourceDefinitionList")
	require.NoError(t, s.List(t.Context(), definitions))
	all := map[string]bool{}
	for _, definition := range definitions.Items {
		if strings.HasSuffix(definition.GetName(), ".pelotech.ot") {
			all[valueAt(t, &definition, "spec", "names", "kind").(string)] = true
		}
	}
	return all
}

// privilegedClient may do everything, and what the hub alone may do too.
func (s *helmCluster) privilegedClient(t *testing.T) client.Client {
	t.Helper()
	return clientAsUserOf(t, s.plane.Config(), "system:serviceaccount:"+hubNamespace+":ot-hub")
}

// storeObject writes an object with its status, of which its kind has to know every field.
// What is stored is read into it.
func storeObject(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	of := object.GetKind() + " " + client.ObjectKeyFromObject(object).String()
	strict := client.WithFieldValidation(c, "Strict")
	status, ok := object.Object["status"]
	require.NoError(t, strict.Create(t.Context(), object), of)
	if ok {
		object.Object["status"] = status
		require.NoError(t, strict.Status().Update(t.Context(), object), of)
	}
}

// requireKept has every object be what it was, and its kind take all of it once more: the
// API server lets pass what it would refuse, as long as nobody changes it.
func (s *helmCluster) requireKept(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	writer := s.privilegedClient(t)
	for _, object := range objects {
		of := object.GetKind() + " " + client.ObjectKeyFromObject(object).String()
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(object.GroupVersionKind())
		require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(object), now), of)
		assert.Equal(t, object.Object, now.Object, of)

		again := &unstructured.Unstructured{Object: map[string]any{}}
		for key, value := range now.Object {
			if key != "metadata" {
				again.Object[key] = value
			}
		}
		again.SetName(now.GetName() + "-again")
		if now.GetNamespace() != "" {
			again.SetName(now.GetName())
			again.SetNamespace("again")
		}
		storeObject(t, writer, again)
		deleteStored(t, writer, again)
		deleteStored(t, writer, now)
	}
}

// deleteStored deletes an object. A ledger that has slots cannot be.
func deleteStored(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	if object.GetKind() == "SyncLedger" {
		unstructured.RemoveNestedField(object.Object, "status", "slots")
		require.NoError(t, c.Status().Update(t.Context(), object))
	}
	require.NoError(t, c.Delete(t.Context(), object))
}

// upgradeAsDocumented runs the commands of the README's Upgrade, as they stand there, and
// has nothing be lost by them that the previous release has brought or been told.
func (s *helmCluster) upgradeAsDocumented(t *testing.T) {
	t.Helper()
	tag := "v" + chartVersion(t, chartPath(t, agentChart)).String()
	text, err := os.ReadFile(chartPath(t, filepath.Join("docs", "operate", "upgrade.md")))
	require.NoError(t, err)
	var upgraded []string
	for _, command := range helmCommandPattern.FindAllStringSubmatch(string(text), -1) {
		if command[1] != "upgrade" {
			continue
		}
		args := strings.Fields(strings.ReplaceAll(command[2], "<version>", tag))
		name := args[0]
		require.Equal(t, "charts/"+name, args[1])
		args[1] = chartPath(t, args[1])
		before := s.readRelease(t, name)
		s.requireHelm(t, append([]string{"upgrade"}, args...)...)
		after := s.readRelease(t, name)
		upgraded = append(upgraded, name)

		for object, uid := range before.uids {
			assert.Equal(t, uid, after.uids[object], "%s: %s is the one that it was", name, object)
		}
		before.values["image"].(map[string]any)["tag"] = tag
		assert.Equal(t, before.values, after.values, "what people have set of "+name)
		oldSpec, newSpec := before.deployment.Spec, after.deployment.Spec
		assert.Equal(t, oldSpec.Selector, newSpec.Selector)
		assert.Equal(t, int32(3), *newSpec.Replicas)
		assert.Equal(t, "vital", newSpec.Template.Spec.PriorityClassName)
		assert.Contains(t, newSpec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "A", Value: "b"})
		assert.Equal(t, "ghcr.io/pelotech/"+name+":"+tag, newSpec.Template.Spec.Containers[0].Image)
	}
	assert.Equal(t, []string{"ot-hub", "ot-agent"}, upgraded, "the hub first")
	s.requireCurrentCRDs(t)
}

// requireCurrentCRDs has the cluster serve the kinds of these charts.
func (s *helmCluster) requireCurrentCRDs(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(chartPath(t, "charts/*/files/*/pelotech.ot_*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		want := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal(text, &want.Object))
		serves := &unstructured.Unstructured{}
		serves.SetGroupVersionKind(want.GroupVersionKind())
		require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(want), serves))
		assert.JSONEq(t, crdSchema(t, want), crdSchema(t, serves), want.GetName())
	}
}

func crdSchema(t *testing.T, kind *unstructured.Unstructured) string {
	t.Helper()
	text, err := json.Marshal(valueAt(t, kind, "spec", "versions", "0", "schema"))
	require.NoError(t, err)
	return string(text)
}
