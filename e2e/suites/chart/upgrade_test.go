//go:build linux

package chart_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes/scheme"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	agentguard "github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	hubguard "github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

// previousReleaseDir has the packaged charts of the previous release and objects of its kinds.
const previousReleaseDir = "testdata/previous"

// unpackPreviousChart unpacks a previous chart and removes a field from one of its CRDs: not
// every release changes CRDs, and the test needs older ones.
func unpackPreviousChart(t *testing.T, name, crd, without string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(previousReleaseDir, name+"-*.tgz"))
	require.NoError(t, err)
	require.Len(t, found, 1, "want only the archive of the previous release")
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
	assert.True(t, previous.LessThan(current), "%s %s is no upgrade of %s: raise the chart's version", name, current, previous)
	return path
}

// chartVersion reads the version of a chart.
func chartVersion(t *testing.T, path string) *version.Version {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path, "Chart.yaml"))
	require.NoError(t, err)
	var about struct{ Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal(text, &about))
	assert.Equal(t, about.Version, strings.TrimPrefix(about.AppVersion, "v"), path)
	return version.MustParseSemantic(about.Version)
}

// installPreviousRelease installs a chart of the previous release with every value set, to its
// default or to another one.
func (s *helmCluster) installPreviousRelease(t *testing.T, name, crd, without string, beside ...string) {
	t.Helper()
	path := unpackPreviousChart(t, name, crd, without)
	s.requireHelm(t, append([]string{"install", name, path, "--namespace", name, "--create-namespace",
		"--values", filepath.Join(path, "values.yaml"), "--values", filepath.Join(previousReleaseDir, "values.yaml")}, beside...)...)
}

// releaseState is what a cluster has of a release.
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

// queryHelm runs a helm command that reads.
func (s *helmCluster) queryHelm(t *testing.T, args ...string) []byte {
	t.Helper()
	output, err := s.runHelm(t, args...)
	require.NoError(t, err, "%s", output)
	return []byte(output)
}

// storePreviousObjects creates objects of all kinds of the previous release and returns them as
// stored.
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
	assert.Empty(t, without, "kinds without an object in %s/objects.yaml", previousReleaseDir)
	return objects
}

// servedKinds returns which of our kinds the cluster serves.
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

// privilegedClient returns a client that may also write what only the hub may.
func (s *helmCluster) privilegedClient(t *testing.T) client.Client {
	t.Helper()
	return clientAsUserOf(t, s.plane.Config(), s.Client, "system:serviceaccount:"+hubNamespace+":ot-hub")
}

// storeObject creates an object with its status and reads it back. Unknown fields are errors.
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

// requireKept checks that every object is unchanged and can be written again: the API server
// keeps stored objects that its validation would reject.
func (s *helmCluster) requireKept(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		writer := client.Client(s)
		if object.GetNamespace() == "" {
			writer = s.privilegedClient(t)
		}
		of := object.GetKind() + " " + client.ObjectKeyFromObject(object).String()
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(object.GroupVersionKind())
		require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(object), now), of)
		if spec, ok := object.Object["spec"].(map[string]any); ok && object.GetKind() == "FleetDiskImage" && spec["approvals"] == nil {
			spec["approvals"] = []any{} // the default since
		}
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

// deleteStored deletes an object; a ledger loses its slots first.
func deleteStored(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	if object.GetKind() == "SyncLedger" {
		unstructured.RemoveNestedField(object.Object, "status", "slots")
		require.NoError(t, c.Status().Update(t.Context(), object))
	}
	require.NoError(t, c.Delete(t.Context(), object))
}

// upgradeAsDocumented runs the documented upgrade commands and checks that they lose nothing of
// the previous release.
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
			assert.Equal(t, uid, after.uids[object], "%s: %s was recreated", name, object)
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
	assert.Equal(t, []string{"ot-hub", "ot-agent"}, upgraded, "the order of upgrades")
	s.requireCurrentCRDs(t)
}

// requireCurrentCRDs checks that the cluster has the CRDs of the current charts.
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

func TestMissingPrerequisitesFailTheRender(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"it is too old":            {[]string{"--kube-version", "1.29.3"}, "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29.3"},
		"it serves no such policy": {[]string{"--kube-version", chart.KubeVersion, "--api-versions", "v1/Pod"}, "this cluster does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1"},
		"it serves what is needed": {[]string{"--kube-version", chart.KubeVersion, "--api-versions", "v1/Pod,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, ""},
		"unknown API versions":     {[]string{"--kube-version", chart.KubeVersion}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for chart, path := range chartPaths {
				output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", chart, chartPath(t, path)}, test.args...)...).CombinedOutput()
				if test.want == "" {
					require.NoError(t, err, "%s", output)
					continue
				}
				require.Error(t, err, chart)
				assert.Contains(t, string(output), test.want, chart)
			}
		})
	}
}

// TestHelmTestPod wants an own ServiceAccount and the program's image for `helm test`.
func TestHelmTestPod(t *testing.T) {
	for name, path := range chartPaths {
		tests, err := chart.RenderTests(t.Context(), path, name, "ot-system", map[string]any{"image": map[string]any{"tag": "v9"}})
		require.NoError(t, err)
		rendered := renderedChart{}
		for _, object := range tests {
			rendered[object.GetKind()] = object
			assert.Equal(t, "test", object.GetAnnotations()["helm.sh/hook"])
			assert.NotEmpty(t, object.GetAnnotations()["helm.sh/hook-delete-policy"])
		}
		assert.Equal(t, parseYAML(t, `[{kind: ServiceAccount, name: `+name+`-test, namespace: ot-system}]`), valueAt(t, rendered["ClusterRoleBinding"], "subjects"))
		assert.Equal(t, name+"-reader", valueAt(t, rendered["ClusterRoleBinding"], "roleRef", "name"))
		assert.Equal(t, name+"-test", valueAt(t, rendered["Pod"], "spec", "serviceAccountName"))
		assert.Equal(t, "ghcr.io/pelotech/"+name+":v9", valueAt(t, rendered["Pod"], "spec", "containers", "0", "image"))
		assert.Equal(t, []any{"--check-url=https://" + name + ".ot-system.svc/metrics"}, valueAt(t, rendered["Pod"], "spec", "containers", "0", "args"))
		_, deployment := renderWorkload(t, name, `{}`)
		selector := deployment("spec", "selector", "matchLabels").(map[string]any)
		assert.NotEqual(t, selector["app.kubernetes.io/name"], rendered["Pod"].GetLabels()["app.kubernetes.io/name"], "a Service selects the test Pod")
	}
}

// TestAPIServerWithoutAdmissionPolicies wants helm to fail before it installs anything, and agent
// and hub to report it.
func TestAPIServerWithoutAdmissionPolicies(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "nopolicies",
		APIServerArgs: []string{"--runtime-config=admissionregistration.k8s.io/v1/validatingadmissionpolicies=false", "--disable-admission-plugins=ValidatingAdmissionPolicy"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	for name, path := range chartPaths {
		output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "install", name, chartPath(t, path),
			"--namespace", name, "--create-namespace", "--kubeconfig", plane.Kubeconfig()).CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(output), "this cluster does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1", name)
	}

	known := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(known))
	require.NoError(t, cdiv1.AddToScheme(known))
	c, err := client.New(plane.Config(), client.Options{Scheme: known})
	require.NoError(t, err)
	conditions := map[string]metav1.Condition{"agent": agentAPICondition(t, c)}
	for _, p := range []hubguard.Policy{hubguard.WavesPolicy, hubguard.PrunesPolicy} {
		conditions["hub, "+p.Name], err = (&hubguard.ApprovalCheck{Live: c, Enforced: true}).CheckPolicy(t.Context(), p)
		require.NoError(t, err)
	}
	for name, got := range conditions {
		assert.Equal(t, metav1.ConditionFalse, got.Status, name)
		assert.Equal(t, v1alpha1.ReasonPoliciesNotServed, got.Reason, name)
		assert.Contains(t, got.Message, "does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1", name)
	}
}

// agentAPICondition returns the ledger's condition about the API server, with CDI installed.
func agentAPICondition(t *testing.T, c client.Client) metav1.Condition {
	t.Helper()
	require.NoError(t, c.Create(t.Context(), newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")))
	ctx, cancel := context.WithCancel(t.Context())
	g := agentguard.NewBudgetGuardPoller(c, metav1.NamespaceDefault, func() {})
	ended := make(chan error, 1)
	go func() { ended <- g.Start(ctx) }()
	require.True(t, testenv.AwaitCondition(t, func() bool { return g.Condition().Status != metav1.ConditionUnknown }))
	cancel()
	require.NoError(t, <-ended)
	return g.Condition()
}
