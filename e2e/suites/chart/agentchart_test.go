//go:build linux

package chart_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

const agentChart = "charts/ot-agent"

type renderedChart map[string]*unstructured.Unstructured

func renderChart(t *testing.T, namespace string, values map[string]any) renderedChart {
	t.Helper()
	return renderIndexed(t, agentChart, "agent", namespace, values)
}

// renderIndexed renders a chart and indexes the objects by "Kind namespace/name".
func renderIndexed(t *testing.T, path, release, namespace string, values map[string]any) renderedChart {
	t.Helper()
	objects, err := chart.Render(t.Context(), path, release, namespace, values)
	require.NoError(t, err)
	all := renderedChart{}
	for _, object := range objects {
		key := object.GetKind() + " " + object.GetName()
		if object.GetNamespace() != "" {
			key = object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		}
		require.NotContains(t, all, key, "two objects have the same name")
		all[key] = object
	}
	return all
}

func (m renderedChart) sortedKeys() []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

func TestAgentChartIsLintClean(t *testing.T) {
	require.NoError(t, chart.Lint(agentChart))
}

func TestAgentChartRendersEveryTemplate(t *testing.T) {
	assert.ElementsMatch(t, []string{
		"CustomResourceDefinition syncledgers.pelotech.ot",
		"CustomResourceDefinition virtualmachines.pelotech.ot",
		"CustomResourceDefinition vmdiskimages.pelotech.ot",
		"CustomResourceDefinition clusterplans.pelotech.ot",
		"CustomResourceDefinition clusterreports.pelotech.ot",
		"CustomResourceDefinition transfergrants.pelotech.ot",
		"ServiceAccount ot-system/ot-agent",
		"ClusterRole ot-agent",
		"ClusterRole ot-viewer",
		"ClusterRole ot-image-viewer",
		"ClusterRole ot-image-cloner",
		"ClusterRole ot-vm-author",
		"ClusterRole ot-image-author",
		"ClusterRole ot-agent-secrets",
		"ClusterRoleBinding ot-agent",
		"Role ot-system/ot-agent",
		"RoleBinding ot-system/ot-agent",
		"Role sync-operator/ot-agent-policy",
		"RoleBinding sync-operator/ot-agent-policy",
		"ClusterRole ot-agent-reader",
		"Deployment ot-system/ot-agent",
		"Service ot-system/ot-agent",
		"PodDisruptionBudget ot-system/ot-agent",
		"NetworkPolicy ot-system/ot-agent",
		"Namespace sync-operator",
		"ConfigMap sync-operator/sync-operator-policy",
		"ValidatingAdmissionPolicy ot-agent-datavolumes",
		"ValidatingAdmissionPolicyBinding ot-agent-datavolumes",
		"ValidatingAdmissionPolicy ot-agent-datavolume-label",
		"ValidatingAdmissionPolicyBinding ot-agent-datavolume-label",
		"ValidatingAdmissionPolicy ot-agent-ledger",
		"ValidatingAdmissionPolicyBinding ot-agent-ledger",
		"ValidatingAdmissionPolicy ot-agent-policy-values",
		"ValidatingAdmissionPolicyBinding ot-agent-policy-values",
		"ValidatingAdmissionPolicy ot-agent-policy-keys",
		"ValidatingAdmissionPolicyBinding ot-agent-policy-keys",
		"ValidatingAdmissionPolicy ot-agent-hub-tokens",
		"ValidatingAdmissionPolicyBinding ot-agent-hub-tokens",
		"ValidatingAdmissionPolicy ot-agent-virtualmachines",
		"ValidatingAdmissionPolicyBinding ot-agent-virtualmachines",
		"ValidatingAdmissionPolicy ot-agent-disks",
		"ValidatingAdmissionPolicyBinding ot-agent-disks",
		"ValidatingAdmissionPolicy ot-agent-adoptions",
		"ValidatingAdmissionPolicyBinding ot-agent-adoptions",
		"ValidatingAdmissionPolicy ot-agent-snapshots",
		"ValidatingAdmissionPolicyBinding ot-agent-snapshots",
		"ValidatingAdmissionPolicy ot-agent-data-sources",
		"ValidatingAdmissionPolicyBinding ot-agent-data-sources",
		"ValidatingAdmissionPolicy ot-agent-image-sources",
		"ValidatingAdmissionPolicyBinding ot-agent-image-sources",
		"ValidatingAdmissionPolicy ot-agent-image-secrets",
		"ValidatingAdmissionPolicyBinding ot-agent-image-secrets",
		"ValidatingAdmissionPolicy ot-agent-images",
		"ValidatingAdmissionPolicyBinding ot-agent-images",
		"ValidatingAdmissionPolicy ot-agent-events",
		"ValidatingAdmissionPolicyBinding ot-agent-events",
		"ValidatingAdmissionPolicy ot-agent-protected-namespaces",
		"ValidatingAdmissionPolicyBinding ot-agent-protected-namespaces",
		"ValidatingAdmissionPolicy ot-agent-virtualmachine-clones",
		"ValidatingAdmissionPolicyBinding ot-agent-virtualmachine-clones",
		"ValidatingAdmissionPolicy ot-agent-virtualmachine-disks",
		"ValidatingAdmissionPolicyBinding ot-agent-virtualmachine-disks",
		"ValidatingAdmissionPolicy ot-agent-virtualmachine-pins",
		"ValidatingAdmissionPolicyBinding ot-agent-virtualmachine-pins",
		"ValidatingAdmissionPolicy ot-agent-virtualmachine-passwords",
		"ValidatingAdmissionPolicyBinding ot-agent-virtualmachine-passwords",
		"ValidatingAdmissionPolicy ot-agent-own",
		"ValidatingAdmissionPolicyBinding ot-agent-own",
		"ValidatingAdmissionPolicy ot-agent-deletions",
		"ValidatingAdmissionPolicyBinding ot-agent-deletions",
		"MutatingAdmissionPolicy ot-agent-importers",
		"MutatingAdmissionPolicyBinding ot-agent-importers",
		"MutatingAdmissionPolicy ot-agent-pending-imports",
		"MutatingAdmissionPolicyBinding ot-agent-pending-imports",
	}, renderChart(t, "ot-system", nil).sortedKeys())
}

func TestAgentChartOmitsWhatIsSwitchedOff(t *testing.T) {
	keys := renderChart(t, "ot-system", map[string]any{
		"crds":   map[string]any{"enabled": false},
		"policy": map[string]any{"create": false, "createNamespace": false},
	}).sortedKeys()
	for _, key := range keys {
		assert.NotContains(t, key, "CustomResourceDefinition")
		assert.NotContains(t, key, "ConfigMap")
		assert.NotContains(t, key, "Namespace ")
	}
	assert.Contains(t, keys, "Role sync-operator/ot-agent-policy", "the agent reads the policy wherever it is")
}

func TestAgentChartLeavesMailboxCRDsToTheHub(t *testing.T) {
	keys := renderChart(t, "ot-system", map[string]any{"crds": map[string]any{"mailbox": false}}).sortedKeys()
	assert.Contains(t, keys, "CustomResourceDefinition vmdiskimages.pelotech.ot")
	for _, mailbox := range []string{"clusterplans", "clusterreports", "transfergrants"} {
		assert.NotContains(t, keys, "CustomResourceDefinition "+mailbox+".pelotech.ot")
	}
}

func TestAgentChartCreatesTheHubAccount(t *testing.T) {
	rendered := renderChart(t, "ot-system", map[string]any{"hub": map[string]any{"serviceAccount": map[string]any{"create": true}}})
	require.Contains(t, rendered, "ServiceAccount ot-system/ot-hub")
	require.Contains(t, rendered, "Secret ot-system/ot-hub-access")
	assert.NotContains(t, rendered["Secret ot-system/ot-hub-access"].Object, "data")
	subjects, _, err := unstructured.NestedSlice(rendered["RoleBinding ot-system/ot-hub"].Object, "subjects")
	require.NoError(t, err)
	assert.Equal(t, []any{map[string]any{"kind": "ServiceAccount", "name": "ot-hub", "namespace": "ot-system"}}, subjects)
	rules, _, err := unstructured.NestedSlice(rendered["Role ot-system/ot-hub"].Object, "rules")
	require.NoError(t, err)
	assert.Equal(t, []any{
		map[string]any{"apiGroups": []any{"pelotech.ot"}, "resources": []any{"clusterplans", "transfergrants"}, "verbs": []any{"get", "list", "watch", "create", "update", "delete"}},
		map[string]any{"apiGroups": []any{"pelotech.ot"}, "resources": []any{"clusterreports"}, "verbs": []any{"get", "list", "watch"}},
		map[string]any{"apiGroups": []any{""}, "resources": []any{"serviceaccounts/token"}, "resourceNames": []any{"ot-hub"}, "verbs": []any{"create"}},
	}, rules, "the mailbox, its own token, and nothing else")
}

func TestAgentChartKeepsDataOnUninstall(t *testing.T) {
	requireDataKept(t, renderChart(t, "ot-system", nil), 8)
}

// holdsData reports whether people fill an object of the chart.
func holdsData(o *unstructured.Unstructured) bool {
	return o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "Namespace" || o.GetKind() == "ConfigMap" && o.GetName() == "sync-operator-policy"
}

// requireDataKept checks that helm keeps count objects that people fill.
func requireDataKept(t *testing.T, rendered renderedChart, count int) {
	t.Helper()
	kept := 0
	for key, object := range rendered {
		if holdsData(object) {
			assert.Equal(t, "keep", object.GetAnnotations()["helm.sh/resource-policy"], key)
			kept++
		}
	}
	assert.Equal(t, count, kept)
}

// requireNamespacesOfRelease checks that a chart in namespace elsewhere, with the policy in
// another one, names no other namespace.
func requireNamespacesOfRelease(t *testing.T, rendered renderedChart, program string) {
	t.Helper()
	for key, object := range rendered {
		text, err := object.MarshalJSON()
		require.NoError(t, err)
		for _, stranger := range []string{program + "-namespace", "policy-namespace", "sync-operator"} {
			if object.GetKind() != "CustomResourceDefinition" {
				assert.NotContains(t, strings.ReplaceAll(string(text), "--policy-namespace", ""), stranger, key)
			}
		}
		if strings.HasSuffix(object.GetKind(), "RoleBinding") {
			subjects, _, err := unstructured.NestedSlice(object.Object, "subjects")
			require.NoError(t, err)
			assert.Equal(t, []any{map[string]any{"kind": "ServiceAccount", "name": "ot-" + program, "namespace": "elsewhere"}}, subjects, key)
		}
	}
}

// forEachRule calls a function for each rule of all roles, none of which may have wildcards.
func forEachRule(t *testing.T, rendered renderedChart, check func(role *unstructured.Unstructured, rule map[string]any)) {
	t.Helper()
	for key, object := range rendered {
		if object.GetKind() != "Role" && object.GetKind() != "ClusterRole" {
			continue
		}
		rules, _, err := unstructured.NestedSlice(object.Object, "rules")
		require.NoError(t, err)
		require.NotEmpty(t, rules, key)
		for _, entry := range rules {
			rule := entry.(map[string]any)
			for _, list := range []string{"apiGroups", "resources", "verbs"} {
				if names, ok := rule[list]; ok { // rules for paths have no groups and resources
					assert.NotContains(t, names, "*", "%s: %v", key, rule)
				}
			}
			if rule["nonResourceURLs"] != nil {
				assert.Equal(t, []any{"get"}, rule["verbs"], key)
			}
			check(object, rule)
		}
	}
}

// invalidValues are values of a chart and what the error has to contain.
type invalidValues struct {
	values map[string]any
	says   string
}

func requireRejected(t *testing.T, path string, cases map[string]invalidValues) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := chart.Render(t.Context(), path, "release", "ot-system", test.values)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestAgentChartNamespacesFollowTheRelease(t *testing.T) {
	rendered := renderChart(t, "elsewhere", map[string]any{"policy": map[string]any{"namespace": "rules", "name": "limits"}})
	requireNamespacesOfRelease(t, rendered, "agent")
	assert.Contains(t, rendered, "Role elsewhere/ot-agent")
	assert.Contains(t, rendered, "Role rules/ot-agent-policy")
	assert.Contains(t, rendered, "ConfigMap rules/limits")

	binding := rendered["ValidatingAdmissionPolicyBinding ot-agent-datavolumes"]
	param, _, err := unstructured.NestedStringMap(binding.Object, "spec", "paramRef")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"name": "default", "namespace": "elsewhere", "parameterNotFoundAction": "Deny"}, param)

	args := containerArgs(t, rendered["Deployment elsewhere/ot-agent"])
	assert.Contains(t, args, "--policy-namespace=rules")
	assert.Contains(t, args, "--policy-name=limits")
}

func TestAgentChartInThePolicyNamespace(t *testing.T) {
	rendered := renderChart(t, "sync-operator", nil)
	assert.NotContains(t, rendered, "Namespace sync-operator", "helm cannot create the namespace it keeps its release in")
	assert.Contains(t, rendered, "Role sync-operator/ot-agent")
	assert.Contains(t, rendered, "Role sync-operator/ot-agent-policy")
}

func TestAgentRulesAreMinimal(t *testing.T) {
	forEachRule(t, renderChart(t, "ot-system", nil), func(role *unstructured.Unstructured, rule map[string]any) {
		if rule["nonResourceURLs"] != nil {
			assert.Equal(t, []any{"/metrics"}, rule["nonResourceURLs"])
			return
		}
		if role.GetKind() != "ClusterRole" {
			return
		}
		assert.NotContains(t, rule["resources"], "leases", "a Role is enough: Leases are in the agent's namespace")
		assert.NotContains(t, rule["resources"], "syncledgers", "a Role is enough: the ledger is in the agent's namespace")
		for _, verb := range rule["verbs"].([]any) {
			if verb != "create" && verb != "update" && verb != "delete" && role.GetName() != "ot-agent-secrets" {
				assert.NotContains(t, rule["resources"], "secrets", "policy ot-agent-own bounds what is created and updated, ot-agent-deletions refuses the rest: %v", rule)
			}
			if verb != "get" && verb != "list" && verb != "watch" {
				assert.NotContains(t, rule["resources"], "configmaps", "%v", rule)
			}
		}
	})
}

func TestAgentMayClonePinnedImages(t *testing.T) {
	rules, _, err := unstructured.NestedSlice(renderChart(t, "ot-system", nil)["ClusterRole ot-agent"].Object, "rules")
	require.NoError(t, err)
	assert.Contains(t, rules, map[string]any{"apiGroups": []any{"cdi.kubevirt.io"}, "resources": []any{"datavolumes/source"}, "verbs": []any{"create"}},
		"policy ot-agent-virtualmachine-pins asks for it, and so does CDI")
}

func TestAgentChartRejectsInvalidValues(t *testing.T) {
	requireRejected(t, agentChart, map[string]invalidValues{
		"a list in the policy": {map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": []any{3}}}}, "/policy/data/concurrency"},
		"a misspelt key":       {map[string]any{"polcy": map[string]any{}}, "polcy"},
		"a unitless duration":  {map[string]any{"leaderElection": map[string]any{"leaseDuration": "15"}}, "/leaderElection/leaseDuration"},
	})
}

func firstContainer(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	require.NoError(t, err)
	require.Len(t, containers, 1)
	return containers[0].(map[string]any)
}

func containerArgs(t *testing.T, deployment *unstructured.Unstructured) []string {
	t.Helper()
	args, _, err := unstructured.NestedStringSlice(firstContainer(t, deployment), "args")
	require.NoError(t, err)
	return args
}

func TestUserRolesAggregateToClusterRoles(t *testing.T) {
	const none = ""
	for name, test := range map[string]struct {
		values                             map[string]any
		imageViewer, vmAuthor, imageAuthor string
	}{
		"by default":      {map[string]any{}, "view", "edit", none},
		"images too":      {map[string]any{"imagesToEdit": true}, "view", "edit", "edit"},
		"not at all":      {map[string]any{"aggregate": false}, none, none, none},
		"not even images": {map[string]any{"aggregate": false, "imagesToEdit": true}, none, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			rendered := renderChart(t, "ot-system", map[string]any{"roles": test.values})
			for role, want := range map[string]string{"ot-viewer": none, "ot-image-cloner": none, "ot-image-viewer": test.imageViewer, "ot-vm-author": test.vmAuthor, "ot-image-author": test.imageAuthor} {
				got := none
				for label, value := range rendered["ClusterRole "+role].GetLabels() {
					if to, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); ok && value == "true" {
						got += to
					}
				}
				assert.Equal(t, want, got, role)
			}
		})
	}
}

// TestViewRoleCannotReadVMs: VirtualMachines can contain passwords, and view reads no Secrets.
func TestViewRoleCannotReadVMs(t *testing.T) {
	for name, role := range renderChart(t, "ot-system", nil) {
		if role.GetLabels()["rbac.authorization.k8s.io/aggregate-to-view"] != "true" {
			continue
		}
		rules, _, err := unstructured.NestedSlice(role.Object, "rules")
		require.NoError(t, err)
		for _, entry := range rules {
			assert.Equal(t, []any{"vmdiskimages"}, entry.(map[string]any)["resources"], name)
		}
	}
}

func TestUserRolesWriteNoStatus(t *testing.T) {
	rendered := renderChart(t, "ot-system", nil)
	for _, role := range []string{"ot-viewer", "ot-image-viewer", "ot-image-cloner", "ot-vm-author", "ot-image-author"} {
		rules, _, err := unstructured.NestedSlice(rendered["ClusterRole "+role].Object, "rules")
		require.NoError(t, err)
		for _, entry := range rules {
			for _, resource := range entry.(map[string]any)["resources"].([]any) {
				assert.NotContains(t, resource, "/", role)
			}
		}
	}
}

func TestImageNamespacesCanBeProtected(t *testing.T) {
	for key := range renderChart(t, "ot-system", nil) {
		require.NotContains(t, key, "ot-agent-keep-images", "it is offered, not imposed")
	}
	for key, object := range renderChart(t, "ot-system", map[string]any{"keepImages": map[string]any{"enabled": true}}) {
		if strings.HasSuffix(key, " ot-agent-keep-images") {
			awaitCreated(t, object)
		}
	}
	kept := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "kept-", Labels: map[string]string{"pelotech.ot/keep-images": "true"}}}
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-", Labels: map[string]string{"pelotech.ot/keep-images": "false"}}}
	require.NoError(t, adminClient.Create(t.Context(), kept))
	require.NoError(t, adminClient.Create(t.Context(), other))

	says := "namespace " + kept.Name + " holds disk images that VirtualMachines of all namespaces may use, and its deletion would take them from under these. " +
		"If that is wanted, remove its label first: kubectl label namespace " + kept.Name + " pelotech.ot/keep-images-"
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.ErrorContains(check, adminClient.Delete(t.Context(), kept.DeepCopy(), client.DryRunAll), says)
	}, policyPropagationTimeout, 20*time.Millisecond)
	err := adminClient.Delete(t.Context(), kept.DeepCopy(), client.GracePeriodSeconds(0))
	require.ErrorContains(t, err, says)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)

	require.NoError(t, adminClient.Delete(t.Context(), other))
	require.NoError(t, adminClient.Patch(t.Context(), kept, newMergePatch(`{"metadata":{"labels":{"pelotech.ot/keep-images":null}}}`)))
	require.NoError(t, adminClient.Delete(t.Context(), kept))
}

// TestPullModeInstallation passes what the hub has created for an agent in pull mode to the
// agent's chart.
func TestPullModeInstallation(t *testing.T) {
	rendered, _ := renderWorkload(t, "ot-agent", `{}`)
	assert.NotContains(t, rendered, "Secret ot-system/"+registration.JoinSecret)

	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: hub, cluster: {server: https://hub.example}}]\n"
	objects, err := chart.Render(t.Context(), agentChart, "agent", "ot-system", map[string]any{"hub": map[string]any{"join": map[string]any{"kubeconfig": kubeconfig}}})
	require.NoError(t, err)
	given := ""
	for _, object := range objects {
		if object.GetKind() == "Secret" && object.GetName() == registration.JoinSecret {
			given = valueAt(t, object, "data", registration.KubeconfigKey).(string)
		}
	}
	text, err := base64.StdEncoding.DecodeString(given)
	require.NoError(t, err)
	assert.Equal(t, kubeconfig, string(text))

	_, err = chart.Render(t.Context(), agentChart, "agent", "ot-system", map[string]any{"hub": map[string]any{"join": map[string]any{"kubeconfig": "join.kubeconfig"}}})
	require.ErrorContains(t, err, "hub.join.kubeconfig is no kubeconfig: give the file that the hub has made by --set-file")
}
