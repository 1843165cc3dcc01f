//go:build linux

package chart_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const cdiAccount = "system:serviceaccount:cdi:cdi-sa"

var mutatingPolicyVersions = regexp.MustCompile(`apiVersion: admissionregistration.k8s.io/(\w+)\nkind: MutatingAdmissionPolicy`)

func TestOneDownloadPoliciesNeedMutatingAdmission(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	const (
		old    = "--api-versions=v1/Pod,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
		served = old + ",admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
		beta   = ",admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"
		alpha  = ",admissionregistration.k8s.io/v1alpha1/MutatingAdmissionPolicy"
	)
	for name, test := range map[string]struct {
		args      []string
		want      string // version of the policies; empty: there are none
		wantError string
	}{
		"asked, and served":                   {[]string{"--kube-version=1.36.0", served}, "v1", ""},
		"asked, and served in all versions":   {[]string{"--kube-version=1.36.0", served + beta + alpha}, "v1", ""},
		"asked, and served as beta":           {[]string{"--kube-version=1.34.0", old + beta + alpha}, "v1beta1", ""},
		"asked, and served as alpha":          {[]string{"--kube-version=1.32.0", old + alpha}, "v1alpha1", ""},
		"asked, and not":                      {[]string{"--kube-version=1.36.0", old}, "", ""},
		"not asked, of a version that has it": {[]string{"--kube-version=1.36.0"}, "v1", ""},
		"not asked, of one that has not":      {[]string{"--kube-version=1.35.9"}, "", ""},
		"not wanted":                          {[]string{"--kube-version=1.36.0", served, "--set=oneDownload.policies=Never"}, "", ""},
		"wanted, and served as beta":          {[]string{"--kube-version=1.34.0", old + beta, "--set=oneDownload.policies=Required"}, "v1beta1", ""},
		"wanted, and not served":              {[]string{"--kube-version=1.36.0", old, "--set=oneDownload.policies=Required"}, "", "oneDownload.policies is Required, and this cluster serves no version of MutatingAdmissionPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", "agent", chartPath(t, agentChart)}, test.args...)...).CombinedOutput()
			if test.wantError != "" {
				require.Error(t, err)
				assert.Contains(t, string(output), test.wantError)
				return
			}
			require.NoError(t, err, "%s", output)
			versions := mutatingPolicyVersions.FindAllStringSubmatch(string(output), -1)
			if test.want == "" {
				assert.Empty(t, versions)
				return
			}
			assert.Contains(t, string(output), "name: "+admissionpolicy.OneDownloadPolicy+"\n")
			assert.Len(t, versions, 4, "two policies and their bindings")
			for _, v := range versions {
				assert.Equal(t, test.want, v[1])
			}
		})
	}
}

func TestOneDownloadUsesTheConfiguredCDIAccount(t *testing.T) {
	objects, err := chart.Render(t.Context(), agentChart, "agent", agentNamespace, map[string]any{
		// Value cdiVersions is that of an earlier version of the chart.
		"cdi": map[string]any{"serviceAccount": "system:serviceaccount:openshift-cnv:cdi-sa"}, "oneDownload": map[string]any{"cdiVersions": []any{"1.65"}},
	})
	require.NoError(t, err)
	found := 0
	for _, object := range objects {
		if object.GetKind() == "MutatingAdmissionPolicy" {
			found++
			assert.Equal(t, "request.userInfo.username == 'system:serviceaccount:openshift-cnv:cdi-sa'", valueAt(t, object, "spec", "matchConditions", "0", "expression"))
			assert.Equal(t, "Ignore", valueAt(t, object, "spec", "failurePolicy"), "the policies must never reject an import")
		}
	}
	assert.Equal(t, 2, found)
}

// TestOneDownloadPolicy creates importer Pods as CDI does, against the installed policy.
func TestOneDownloadPolicy(t *testing.T) {
	testenv.RequireMutatingAdmission(t, serverConfig)
	requireOneDownloadPolicy(t, adminClient, clientAsUser(t, cdiAccount), clientAsUser(t, "system:serviceaccount:others:cdi-sa"))
}

// TestOneDownloadPolicyInEarlierVersions installs the chart's policies in the versions of
// MutatingAdmissionPolicy before v1, as far as the API server serves them on request.
func TestOneDownloadPolicyInEarlierVersions(t *testing.T) {
	testenv.RunInTurn(t, 3)
	served := func(version string) bool {
		plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "maps" + version, APIServerArgs: []string{"--runtime-config=admissionregistration.k8s.io/" + version + "=true", "--feature-gates=MutatingAdmissionPolicy=true"}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
		admin, err := client.New(plane.Config(), client.Options{Scheme: adminClient.Scheme()})
		require.NoError(t, err)
		_, err = admin.RESTMapper().RESTMapping(schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingAdmissionPolicy"}, version)
		if meta.IsNoMatchError(err) {
			return false
		}
		require.NoError(t, err)
		for _, object := range templateObjects(t, "--kube-version=1.34.0", "--api-versions=v1/Pod,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy,admissionregistration.k8s.io/"+version+"/MutatingAdmissionPolicy") {
			if strings.HasPrefix(object.GetKind(), "MutatingAdmissionPolicy") {
				assert.Equal(t, "admissionregistration.k8s.io/"+version, object.GetAPIVersion())
				require.NoError(t, admin.Create(t.Context(), object))
			}
		}
		requireOneDownloadPolicy(t, admin, clientAsUserOf(t, plane.Config(), admin, cdiAccount), clientAsUserOf(t, plane.Config(), admin, "system:serviceaccount:others:cdi-sa"))
		return true
	}
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		t.Run(version, func(t *testing.T) {
			if !served(version) {
				t.Skip("this API server does not serve MutatingAdmissionPolicy of " + version)
			}
		})
	}
}

// requireOneDownloadPolicy wants importers of images that CDI creates to start once, and all
// other Pods as they are sent.
func requireOneDownloadPolicy(t *testing.T, admin, cdi, other client.Client) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "imports-"}}
	require.NoError(t, admin.Create(t.Context(), ns))
	require.NoError(t, admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "default"}}))
	create := func(t require.TestingT, as client.Client, labels map[string]string, changes ...func(*corev1.PodSpec)) corev1.PodSpec {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "importer", Labels: labels},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyOnFailure,
				Containers:    []corev1.Container{{Name: "importer", Image: "cdi-importer", Env: []corev1.EnvVar{{Name: "TWICE"}, {Name: "TWICE"}, {Name: "CACHE_MODE"}}}},
			},
		}
		for _, change := range changes {
			change(&pod.Spec)
		}
		require.NoError(t, as.Create(context.Background(), pod, client.DryRunAll))
		return pod.Spec
	}
	ours := map[string]string{"cdi.kubevirt.io": "importer", v1alpha1.LabelImageUID: "uid-1"}
	afterOutOfMemory := func(s *corev1.PodSpec) {
		s.Containers[0].Env = append(s.Containers[0].Env[:2], corev1.EnvVar{Name: "CACHE_MODE", Value: "TRYNONE"})
	}
	pulledByNode := func(s *corev1.PodSpec) {
		s.Containers[0].Env = append(s.Containers[0].Env, corev1.EnvVar{Name: "IMPORTER_READY_FILE", Value: "/shared/ready"})
		s.Containers = append(s.Containers, corev1.Container{Name: "server", Image: "r.example.com/disks/a:1"})
	}
	noReadyFile := func(s *corev1.PodSpec) {
		s.Containers[0].Env = append(s.Containers[0].Env, corev1.EnvVar{Name: "IMPORTER_READY_FILE"})
	}
	gatedByOthers := func(s *corev1.PodSpec) { s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}} }
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, corev1.RestartPolicyNever, create(c, cdi, ours).RestartPolicy)
	}, policyPropagationTimeout, 20*time.Millisecond) // long at first: the API server discovers new kinds every 10 s

	gate, quota := corev1.PodSchedulingGate{Name: v1alpha1.GateOneDownload}, corev1.PodSchedulingGate{Name: "example.com/quota"}
	for name, test := range map[string]struct {
		changes []func(*corev1.PodSpec)
		want    []corev1.PodSchedulingGate
		// restarts: one that waited too long for the kubelet's pull of the disk goes on after it.
		restarts bool
	}{
		"the first":                        {},
		"without variables":                {[]func(*corev1.PodSpec){func(s *corev1.PodSpec) { s.Containers[0].Env = nil }}, nil, false},
		"gated by others":                  {[]func(*corev1.PodSpec){gatedByOthers}, []corev1.PodSchedulingGate{quota}, false},
		"after one ran out of memory":      {[]func(*corev1.PodSpec){afterOutOfMemory}, []corev1.PodSchedulingGate{gate}, false},
		"such a one, gated by others":      {[]func(*corev1.PodSpec){afterOutOfMemory, gatedByOthers}, []corev1.PodSchedulingGate{quota, gate}, false},
		"such a one, on a node of its own": {[]func(*corev1.PodSpec){afterOutOfMemory, func(s *corev1.PodSpec) { s.NodeName = "node" }}, nil, false},
		"which waits for nothing":          {[]func(*corev1.PodSpec){noReadyFile}, nil, false},
		"whose disk the kubelet pulls":     {[]func(*corev1.PodSpec){pulledByNode}, nil, true},
		"such a one, after out of memory":  {[]func(*corev1.PodSpec){afterOutOfMemory, pulledByNode}, []corev1.PodSchedulingGate{gate}, true},
	} {
		got := create(t, cdi, ours, test.changes...)
		want := corev1.RestartPolicyNever
		if test.restarts {
			want = corev1.RestartPolicyOnFailure
		}
		assert.Equal(t, want, got.RestartPolicy, name)
		assert.Equal(t, test.want, got.SchedulingGates, name)
	}
	for name, test := range map[string]struct {
		as     client.Client
		labels map[string]string
	}{
		"of another account":          {other, ours},
		"of an administrator":         {admin, ours},
		"of an import of others":      {cdi, map[string]string{"cdi.kubevirt.io": "importer"}},
		"of CDI, that import nothing": {cdi, map[string]string{"cdi.kubevirt.io": "cdi-clone-source", v1alpha1.LabelImageUID: "uid-1"}},
		"of nothing of the kind":      {cdi, nil},
	} {
		got := create(t, test.as, test.labels, afterOutOfMemory)
		assert.Equal(t, corev1.RestartPolicyOnFailure, got.RestartPolicy, name)
		assert.Empty(t, got.SchedulingGates, name)
	}
}

// templateObjects returns what helm template makes of the agent's chart.
func templateObjects(t *testing.T, arguments ...string) (objects []*unstructured.Unstructured) {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", "agent", chartPath(t, agentChart)}, arguments...)...).Output()
	require.NoError(t, err)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(output), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			require.NoError(t, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
