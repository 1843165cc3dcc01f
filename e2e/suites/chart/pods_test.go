//go:build linux

package chart_test

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// renderWorkload renders a chart and returns its workload's fields by path.
func renderWorkload(t *testing.T, name, values string) (renderedChart, func(path ...string) any) {
	t.Helper()
	given := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(values), &given))
	rendered := renderIndexed(t, chartPaths[name], name, "ot-system", given)
	return rendered, func(path ...string) any {
		t.Helper()
		return valueAt(t, rendered["Deployment ot-system/"+name], path...)
	}
}

// valueAt returns the value at a path, in which "0" is the first item of a list; nil for none.
func valueAt(t *testing.T, object *unstructured.Unstructured, path ...string) any {
	t.Helper()
	require.NotNil(t, object)
	var found any = object.Object
	for _, step := range path {
		switch in := found.(type) {
		case map[string]any:
			found = in[step]
		case []any:
			require.Equal(t, "0", step)
			require.NotEmpty(t, in)
			found = in[0]
		default:
			return nil
		}
	}
	return found
}

// parseYAML decodes YAML as a manifest is decoded.
func parseYAML(t *testing.T, text string) any {
	t.Helper()
	object := &unstructured.Unstructured{}
	wrapped := "apiVersion: v1\nkind: List\nvalue:\n  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
	require.NoError(t, yaml.Unmarshal([]byte(wrapped), &object.Object))
	return object.Object["value"]
}

func TestPodValuesReachThePods(t *testing.T) {
	container := []string{"spec", "template", "spec", "containers", "0"}
	pod := []string{"spec", "template", "spec"}
	for _, test := range []struct {
		why, values string
		path        []string
		want        string
	}{
		{"priority", `{priorityClassName: vital}`, append(pod, "priorityClassName"), `vital`},
		{"nodes", `{nodeSelector: {zone: a}}`, append(pod, "nodeSelector"), `{zone: a}`},
		{"tolerations", `{tolerations: [{operator: Exists}]}`, append(pod, "tolerations"), `[{operator: Exists}]`},
		{"affinity", `{affinity: {nodeAffinity: {a: b}}}`, append(pod, "affinity"), `{nodeAffinity: {a: b}}`},
		{"resources", `{resources: {limits: {memory: 3Gi}, requests: null}}`, append(container, "resources"), `{limits: {memory: 3Gi}}`},
		{"annotations", `{podAnnotations: {a: b}}`, []string{"spec", "template", "metadata", "annotations"}, `{a: b}`},
		{"labels", `{podLabels: {a: b}}`, []string{"spec", "template", "metadata", "labels", "a"}, `b`},
		{"volumes", `{extraVolumes: [{name: a, emptyDir: {}}]}`, append(pod, "volumes"), `[{name: a, emptyDir: {}}]`},
		{"mounts", `{extraVolumeMounts: [{name: a, mountPath: /a}]}`, append(container, "volumeMounts"), `[{name: a, mountPath: /a}]`},
		{"replicas", `{replicas: 3}`, []string{"spec", "replicas"}, `3`},
		{"pull secrets", `{imagePullSecrets: [{name: a}], global: {imagePullSecrets: [{name: b}, {name: a}]}}`, append(pod, "imagePullSecrets"), `[{name: a}, {name: b}]`},
		{"a pull policy", `{image: {pullPolicy: Never}}`, append(container, "imagePullPolicy"), `Never`},
		{"a tag", `{image: {repository: r.example/x/y, tag: v2}}`, append(container, "image"), `"r.example/x/y:v2"`},
		{"a digest", `{image: {repository: r.example/x/y, tag: v2, digest: "sha256:` + strings.Repeat("a", 64) + `"}}`, append(container, "image"), `"r.example/x/y@sha256:` + strings.Repeat("a", 64) + `"`},
		{"a mirror", `{image: {repository: r.example/x/y, tag: v2}, global: {imageRegistry: "mirror.example:5000"}}`, append(container, "image"), `"mirror.example:5000/x/y:v2"`},
		{"a mirror below a path", `{image: {repository: r.example/x/y, tag: v2}, global: {imageRegistry: mirror.example/cache/}}`, append(container, "image"), `"mirror.example/cache/x/y:v2"`},
		{"no spread", `{topologySpreadConstraints: []}`, append(pod, "topologySpreadConstraints"), `null`},
		{"a spread of its own", `{topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]}`, append(pod, "topologySpreadConstraints"),
			`[{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]`},
	} {
		t.Run(test.why, func(t *testing.T) {
			for name := range chartPaths {
				_, deployment := renderWorkload(t, name, test.values)
				assert.Equal(t, parseYAML(t, test.want), deployment(test.path...), name)
			}
		})
	}
}

func TestExtraArgsAndEnvAreAdded(t *testing.T) {
	for name := range chartPaths {
		_, deployment := renderWorkload(t, name, `{extraArgs: [--zap-log-level=2], extraEnv: [{name: HTTPS_PROXY, value: "http://proxy"}]}`)
		args := deployment("spec", "template", "spec", "containers", "0", "args").([]any)
		assert.Equal(t, "--zap-log-level=2", args[len(args)-1], name)
		assert.Contains(t, args, "--namespace=$(POD_NAMESPACE)")
		env := deployment("spec", "template", "spec", "containers", "0", "env").([]any)
		assert.Equal(t, map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy"}, env[len(env)-1], name)
		assert.Equal(t, "POD_NAMESPACE", env[0].(map[string]any)["name"], name)
	}
}

func TestPodsMeetRestrictedPodSecurity(t *testing.T) {
	for name := range chartPaths {
		_, deployment := renderWorkload(t, name, `{}`)
		assert.Equal(t, parseYAML(t, `
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}`), deployment("spec", "template", "spec", "securityContext"), name)
		assert.Equal(t, parseYAML(t, `
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}`), deployment("spec", "template", "spec", "containers", "0", "securityContext"), name)
		for _, shared := range []string{"hostNetwork", "hostPID", "hostIPC", "volumes"} {
			assert.Nil(t, deployment("spec", "template", "spec", shared), "%s: %s", name, shared)
		}
	}
}

func TestReplicasSpreadAndDisruptionBudget(t *testing.T) {
	for name := range chartPaths {
		rendered, deployment := renderWorkload(t, name, `{}`)
		selector := deployment("spec", "selector", "matchLabels")
		constraints := deployment("spec", "template", "spec", "topologySpreadConstraints").([]any)
		require.Len(t, constraints, 2, name)
		for i, key := range []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"} {
			assert.Equal(t, map[string]any{
				"maxSkew": float64(1), "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
				"labelSelector": map[string]any{"matchLabels": selector}, "matchLabelKeys": []any{"pod-template-hash"},
			}, constraints[i], name)
		}
		budget := rendered["PodDisruptionBudget ot-system/"+name]
		assert.Equal(t, selector, valueAt(t, budget, "spec", "selector", "matchLabels"), name)
		assert.Equal(t, parseYAML(t, `1`), valueAt(t, budget, "spec", "maxUnavailable"), name)
		rendered, _ = renderWorkload(t, name, `{podDisruptionBudget: {maxUnavailable: "50%"}}`)
		assert.Equal(t, "50%", valueAt(t, rendered["PodDisruptionBudget ot-system/"+name], "spec", "maxUnavailable"), name)
		rendered, _ = renderWorkload(t, name, `{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}}`)
		assert.NotContains(t, rendered, "PodDisruptionBudget ot-system/"+name)
		assert.NotContains(t, rendered, "NetworkPolicy ot-system/"+name)
	}
}

// TestNetworkPolicy wants only metrics, probes and the hub's replicas to be let in.
func TestNetworkPolicy(t *testing.T) {
	for name := range chartPaths {
		rendered, deployment := renderWorkload(t, name, `{}`)
		policy := rendered["NetworkPolicy ot-system/"+name]
		assert.Equal(t, deployment("spec", "selector", "matchLabels"), valueAt(t, policy, "spec", "podSelector", "matchLabels"), name)
		assert.Equal(t, parseYAML(t, `[Ingress]`), valueAt(t, policy, "spec", "policyTypes"), name)
		assert.Equal(t, parseYAML(t, `[{ports: [{port: probes}]}, {ports: [{port: metrics}]}]`), valueAt(t, policy, "spec", "ingress"), name)
		assert.Nil(t, valueAt(t, policy, "spec", "egress"), name)

		rendered, deployment = renderWorkload(t, name, `
networkPolicy:
  metricsFrom: [{namespaceSelector: {matchLabels: {a: b}}}]
  extraIngress: [{ports: [{port: 6060}]}]
  egress: {enabled: true, ports: [443], extra: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}`)
		policy = rendered["NetworkPolicy ot-system/"+name]
		assert.Equal(t, parseYAML(t, `[Ingress, Egress]`), valueAt(t, policy, "spec", "policyTypes"), name)
		ingress := valueAt(t, policy, "spec", "ingress").([]any)
		require.Len(t, ingress, 3, name)
		from := ingress[1].(map[string]any)["from"].([]any)
		assert.Equal(t, parseYAML(t, `{namespaceSelector: {matchLabels: {a: b}}}`), from[0], name)
		if name == "ot-hub" {
			assert.Equal(t, map[string]any{"podSelector": map[string]any{"matchLabels": deployment("spec", "selector", "matchLabels")}}, from[1],
				"a replica passes on to the elected one what it is asked")
		}
		assert.Equal(t, parseYAML(t, `{podSelector: {matchLabels: {app.kubernetes.io/name: `+name+`-test}}}`), from[len(from)-1], name)
		assert.Equal(t, parseYAML(t, `{ports: [{port: 6060}]}`), ingress[2], name)
		egress := valueAt(t, policy, "spec", "egress").([]any)
		if name == "ot-hub" {
			require.Len(t, egress, 4)
			elected := map[string]any{"podSelector": map[string]any{"matchLabels": deployment("spec", "selector", "matchLabels")}}
			assert.Equal(t, map[string]any{"ports": parseYAML(t, `[{port: metrics}]`), "to": []any{elected}}, egress[2], "egress to the elected replica")
			egress = slices.Delete(egress, 2, 3)
		}
		assert.Equal(t, parseYAML(t, `
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports: [{port: 443}]
- to: [{ipBlock: {cidr: 10.0.0.0/8}}]`), any(egress), name)
	}
}

func TestExtraObjects(t *testing.T) {
	for name := range chartPaths {
		rendered, _ := renderWorkload(t, name, `
extraObjects:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-a"}, data: {a: b}}
- |
  apiVersion: v1
  kind: ConfigMap
  metadata: {name: {{ .Release.Name }}-b}`)
		assert.Equal(t, "b", valueAt(t, rendered["ConfigMap "+name+"-a"], "data", "a"), name)
		assert.Contains(t, rendered, "ConfigMap "+name+"-b")
	}
}

// TestAPICertificateChangeRestartsTheHub: the hub reads the certificate when it starts.
func TestAPICertificateChangeRestartsTheHub(t *testing.T) {
	annotations := func(ca string) any {
		_, deployment := renderWorkload(t, "ot-hub", `{podAnnotations: {a: b}, pull: {apiCA: "`+ca+`"}}`)
		return deployment("spec", "template", "metadata", "annotations")
	}
	one := annotations(`-----BEGIN CERTIFICATE-----\nabc\n`)
	assert.NotEqual(t, one, annotations(`-----BEGIN CERTIFICATE-----\nabd\n`))
	assert.Equal(t, map[string]any{"a": "b"}, annotations(``))
}

// renderPods returns the Pods of a chart, including that of `helm test`.
func renderPods(t *testing.T, name string, values map[string]any) []*corev1.Pod {
	t.Helper()
	rendered, err := chart.Render(t.Context(), chartPaths[name], name, "ot-system", values)
	require.NoError(t, err)
	tests, err := chart.RenderTests(t.Context(), chartPaths[name], name, "ot-system", values)
	require.NoError(t, err)
	var pods []*corev1.Pod
	for _, object := range append(rendered, tests...) {
		content, templated, err := unstructured.NestedMap(object.Object, "spec", "template")
		require.NoError(t, err)
		if object.GetKind() == "Pod" {
			content = object.Object
		} else if !templated {
			continue
		}
		pod := &corev1.Pod{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(content, pod))
		pod.Name = object.GetName()
		pods = append(pods, pod)
	}
	require.Len(t, pods, 2, "want the Pods of the Deployment and of helm test")
	return pods
}

func TestAPIServerAcceptsPodsUnderRestrictedPodSecurity(t *testing.T) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "vital"}, Value: 1}
	require.NoError(t, adminClient.Create(t.Context(), class))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), class)) })
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	require.NoError(t, adminClient.Create(t.Context(), namespace))

	for name := range chartPaths {
		for variant, values := range map[string]map[string]any{"as it comes": nil, "with everything": loadAllValues(t, name)} {
			for _, pod := range renderPods(t, name, values) {
				pod.Namespace = namespace.Name
				require.NoError(t, adminClient.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), "%s: %s", pod.Name, variant)

				for why, test := range map[string]struct {
					change func(*corev1.PodSpec, *corev1.SecurityContext)
					want   string
				}{
					"privileged": {func(_ *corev1.PodSpec, c *corev1.SecurityContext) {
						c.Privileged, c.AllowPrivilegeEscalation = ptr.To(true), nil
					}, "privileged"},
					"with more than it has": {func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = nil }, "allowPrivilegeEscalation != false"},
					"with capabilities":     {func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.Capabilities = nil }, "unrestricted capabilities"},
					"as root":               {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.SecurityContext.RunAsNonRoot = nil }, "runAsNonRoot != true"},
					"with all system calls": {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.SecurityContext.SeccompProfile = nil }, "seccompProfile"},
					"in the node's network": {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostNetwork = true }, "host namespaces"},
				} {
					changed := pod.DeepCopy()
					test.change(&changed.Spec, changed.Spec.Containers[0].SecurityContext)
					err := adminClient.Create(t.Context(), changed, client.DryRunAll)
					require.ErrorContains(t, err, `violates PodSecurity "restricted:latest"`, "%s %s", pod.Name, why)
					require.ErrorContains(t, err, test.want, "%s %s", pod.Name, why)
				}
			}
		}
	}
}

// writeCertificate writes a certificate where a program reads it, and returns it.
func writeCertificate(t *testing.T, directory string) string {
	t.Helper()
	shown, key, err := cert.GenerateSelfSignedCertKey("ot-agent.ot-agent.svc", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(directory, "tls.key"), key, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(directory, "tls.crt"), shown, 0o600))
	parsed, err := cert.ParseCertsPEM(shown)
	require.NoError(t, err)
	return parsed[0].SerialNumber.String()
}

// servedCertificate returns the certificate that a URL serves; none without a server.
func servedCertificate(t *testing.T, url string) string {
	t.Helper()
	connection, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/metrics"))
	if err != nil {
		return ""
	}
	defer func() { _ = connection.Close() }()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// TestMetricsCertificate wants a certificate's Secret in the arguments and the volumes of the Pod.
func TestMetricsCertificate(t *testing.T) {
	for name := range chartPaths {
		_, deployment := renderWorkload(t, name, `{}`)
		for _, arg := range deployment("spec", "template", "spec", "containers", "0", "args").([]any) {
			assert.NotContains(t, arg, "--metrics-cert-dir")
		}
		_, deployment = renderWorkload(t, name, `{metrics: {certificate: {secretName: ot-metrics}}, extraVolumes: [{name: tmp, emptyDir: {}}], extraVolumeMounts: [{name: tmp, mountPath: /tmp}]}`)
		assert.Contains(t, deployment("spec", "template", "spec", "containers", "0", "args"), "--metrics-cert-dir=/etc/"+name+"/metrics-certificate")
		assert.Equal(t, parseYAML(t, `[{name: metrics-certificate, mountPath: /etc/`+name+`/metrics-certificate, readOnly: true}, {name: tmp, mountPath: /tmp}]`), deployment("spec", "template", "spec", "containers", "0", "volumeMounts"))
		assert.Equal(t, parseYAML(t, `[{name: metrics-certificate, secret: {secretName: ot-metrics}}, {name: tmp, emptyDir: {}}]`), deployment("spec", "template", "spec", "volumes"))
	}
}
