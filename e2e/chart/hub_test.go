package chart_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/e2e/chart"
)

const hubChart = "charts/ot-hub"

func renderHub(t *testing.T, namespace string, values map[string]any) manifest {
	t.Helper()
	return renderChart(t, hubChart, "hub", namespace, values)
}

func TestHubChartIsLintClean(t *testing.T) {
	require.NoError(t, chart.Lint(t.Context(), hubChart))
}

func TestHubChartRendersEveryTemplate(t *testing.T) {
	assert.ElementsMatch(t, []string{
		"CustomResourceDefinition memberclusters.pelotech.ot",
		"CustomResourceDefinition fleetdiskimages.pelotech.ot",
		"CustomResourceDefinition prunereports.pelotech.ot",
		"CustomResourceDefinition prunereportpages.pelotech.ot",
		"CustomResourceDefinition imageprunes.pelotech.ot",
		"CustomResourceDefinition clusterplans.pelotech.ot",
		"CustomResourceDefinition clusterreports.pelotech.ot",
		"CustomResourceDefinition transfergrants.pelotech.ot",
		"ServiceAccount ot-system/ot-hub",
		"ClusterRole ot-hub",
		"ClusterRoleBinding ot-hub",
		"ClusterRole ot-hub-reader",
		"ClusterRole ot-fleet-viewer",
		"ClusterRole ot-fleet-author",
		"ClusterRole ot-fleet-approver",
		"ClusterRole ot-fleet-pruner",
		"Role ot-system/ot-hub",
		"RoleBinding ot-system/ot-hub",
		"Role sync-operator/ot-hub-policy",
		"RoleBinding sync-operator/ot-hub-policy",
		"Deployment ot-system/ot-hub",
		"Service ot-system/ot-hub",
		"Namespace sync-operator",
		"ConfigMap sync-operator/sync-operator-policy",
		"ValidatingAdmissionPolicy ot-hub-approvals",
		"ValidatingAdmissionPolicyBinding ot-hub-approvals",
		"ValidatingAdmissionPolicy ot-hub-prunes",
		"ValidatingAdmissionPolicyBinding ot-hub-prunes",
		"ValidatingAdmissionPolicy ot-hub-prune-pages",
		"ValidatingAdmissionPolicyBinding ot-hub-prune-pages",
	}, renderHub(t, "ot-system", nil).keys())
}

func TestHubChartLeavesOutWhatIsSwitchedOff(t *testing.T) {
	keys := renderHub(t, "ot-system", map[string]any{
		"crds":      map[string]any{"mailbox": false},
		"policy":    map[string]any{"create": false, "createNamespace": false},
		"approvals": map[string]any{"enforced": false},
	}).keys()
	assert.Contains(t, keys, "CustomResourceDefinition memberclusters.pelotech.ot")
	assert.Contains(t, keys, "CustomResourceDefinition fleetdiskimages.pelotech.ot")
	for _, key := range keys {
		assert.NotContains(t, key, "clusterplans")
		assert.NotContains(t, key, "ConfigMap")
		assert.NotContains(t, key, "Namespace ")
		assert.NotContains(t, key, "ot-hub-approvals")
		assert.NotContains(t, key, "ot-hub-prunes")
	}
	assert.Contains(t, keys, "ValidatingAdmissionPolicy ot-hub-prune-pages", "whoever approves, the hub alone writes reports")
}

func TestHubChartKeepsWhatHoldsData(t *testing.T) {
	kept := 0
	for key, object := range renderHub(t, "ot-system", nil) {
		if object.GetKind() == "CustomResourceDefinition" || object.GetKind() == "Namespace" {
			assert.Equal(t, "keep", object.GetAnnotations()["helm.sh/resource-policy"], key)
			kept++
		}
	}
	assert.Equal(t, 9, kept)
}

func TestHubChartNamespacesFollowTheRelease(t *testing.T) {
	rendered := renderHub(t, "elsewhere", map[string]any{"policy": map[string]any{"namespace": "rules", "name": "limits"}})
	for key, object := range rendered {
		text, err := object.MarshalJSON()
		require.NoError(t, err)
		for _, stranger := range []string{"hub-namespace", "policy-namespace", "sync-operator"} {
			if object.GetKind() != "CustomResourceDefinition" {
				assert.NotContains(t, strings.ReplaceAll(string(text), "--policy-namespace", ""), stranger, key)
			}
		}
		if strings.HasSuffix(object.GetKind(), "RoleBinding") {
			subjects, _, err := unstructured.NestedSlice(object.Object, "subjects")
			require.NoError(t, err)
			assert.Equal(t, []any{map[string]any{"kind": "ServiceAccount", "name": "ot-hub", "namespace": "elsewhere"}}, subjects, key)
		}
	}
	assert.Contains(t, rendered, "Role rules/ot-hub-policy")
	args := agentArgs(t, rendered["Deployment elsewhere/ot-hub"])
	assert.Contains(t, args, "--policy-namespace=rules")
	assert.Contains(t, args, "--policy-name=limits")
	assert.Contains(t, args, "--metrics-secure=true")
}

// Only a hub that is to find members through Cluster API may read Secrets
// outside its own namespace.
func TestHubReadsSecretsOfOthersForClusterAPIOnly(t *testing.T) {
	resources := func(values map[string]any) (all []any) {
		rules, _, err := unstructured.NestedSlice(renderHub(t, "ot-system", values)["ClusterRole ot-hub"].Object, "rules")
		require.NoError(t, err)
		for _, rule := range rules {
			all = append(all, rule.(map[string]any)["resources"].([]any)...)
		}
		return all
	}
	without := resources(nil)
	assert.NotContains(t, without, "secrets")
	assert.NotContains(t, without, "clusters")
	assert.Contains(t, without, "memberclusters")
	values := map[string]any{"clusterAPI": map[string]any{"enabled": true, "selector": "fleet in (a,b)"}}
	with := resources(values)
	assert.Contains(t, with, "secrets")
	assert.Contains(t, with, "clusters")
	assert.Contains(t, agentArgs(t, renderHub(t, "ot-system", values)["Deployment ot-system/ot-hub"]), "--cluster-api-selector=fleet in (a,b)")
	for _, arg := range agentArgs(t, renderHub(t, "ot-system", nil)["Deployment ot-system/ot-hub"]) {
		assert.NotContains(t, arg, "cluster-api")
	}
}

func TestHubRulesAreLeast(t *testing.T) {
	for key, object := range renderHub(t, "ot-system", map[string]any{"clusterAPI": map[string]any{"enabled": true}}) {
		if object.GetKind() != "Role" && object.GetKind() != "ClusterRole" {
			continue
		}
		rules, _, err := unstructured.NestedSlice(object.Object, "rules")
		require.NoError(t, err)
		require.NotEmpty(t, rules, key)
		for _, entry := range rules {
			rule := entry.(map[string]any)
			if rule["nonResourceURLs"] != nil {
				assert.Equal(t, []any{"get"}, rule["verbs"], key)
				continue
			}
			for _, list := range []string{"apiGroups", "resources", "verbs"} {
				assert.NotContains(t, rule[list], "*", "%s: %v", key, rule)
			}
			if object.GetKind() != "ClusterRole" {
				continue
			}
			for _, own := range []string{"leases", "configmaps", "serviceaccounts", "roles"} {
				assert.NotContains(t, rule["resources"], own, "%v", rule)
			}
			for _, verb := range rule["verbs"].([]any) {
				if verb != "get" {
					assert.NotContains(t, rule["resources"], "secrets", "%v", rule)
				}
			}
		}
	}
}

// What is written on the hub reaches every cluster: nobody gets that by being an
// editor of the hub's own.
func TestRolesOfTheFleet(t *testing.T) {
	approves := map[string]string{"ot-fleet-approver": "fleetdiskimages", "ot-fleet-pruner": "imageprunes"}
	for name, test := range map[string]struct {
		aggregate bool
		viewer    map[string]string
	}{
		"by default": {true, map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		"by name":    {false, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			rendered := renderHub(t, "ot-system", map[string]any{"roles": map[string]any{"aggregate": test.aggregate}})
			for role, want := range map[string]map[string]string{"ot-fleet-viewer": test.viewer, "ot-fleet-author": {}, "ot-fleet-approver": {}, "ot-fleet-pruner": {}} {
				object := rendered["ClusterRole "+role]
				got := map[string]string{}
				for label, value := range object.GetLabels() {
					if strings.HasPrefix(label, "rbac.authorization.k8s.io/") {
						got[label] = value
					}
				}
				assert.Equal(t, want, got, role)
				rules, _, err := unstructured.NestedSlice(object.Object, "rules")
				require.NoError(t, err)
				for _, entry := range rules {
					rule := entry.(map[string]any)
					for _, resource := range rule["resources"].([]any) {
						assert.NotContains(t, resource, "/", "%s writes no status", role)
						if resource == "memberclusters" || resource == "prunereportpages" {
							assert.Equal(t, []any{"get", "list", "watch"}, rule["verbs"], "%s: labels of clusters decide on their wave, pages are the hub's", role)
						}
						if approves[role] != resource {
							assert.NotContains(t, rule["verbs"], "approve", "%s: %s", role, resource)
						}
					}
				}
			}
		})
	}
}

func TestHubPodIsRestricted(t *testing.T) {
	deployment := renderHub(t, "ot-system", nil)["Deployment ot-system/ot-hub"]
	nonRoot, _, err := unstructured.NestedBool(deployment.Object, "spec", "template", "spec", "securityContext", "runAsNonRoot")
	require.NoError(t, err)
	assert.True(t, nonRoot)
	security, _, err := unstructured.NestedMap(container(t, deployment), "securityContext")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"allowPrivilegeEscalation": false,
		"readOnlyRootFilesystem":   true,
		"capabilities":             map[string]any{"drop": []any{"ALL"}},
	}, security)
}

func TestHubChartRefusesValues(t *testing.T) {
	for name, test := range map[string]struct {
		values map[string]any
		says   string
	}{
		"a number in the policy":       {map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": 3}}}, "/policy/data/concurrency"},
		"overrides that are no text":   {map[string]any{"policy": map[string]any{"data": map[string]any{"overrides": []any{}}}}, "/policy/data/overrides"},
		"a misspelt key":               {map[string]any{"polcy": map[string]any{}}, "polcy"},
		"approvals that are no switch": {map[string]any{"approvals": map[string]any{"enforced": "no"}}, "/approvals/enforced"},
		"roles of another chart":       {map[string]any{"roles": map[string]any{"imagesToEdit": true}}, "imagesToEdit"},
		"Cluster API without a label":  {map[string]any{"clusterAPI": map[string]any{"enabled": true, "selector": ""}}, "/clusterAPI/selector"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := chart.Render(t.Context(), hubChart, "hub", "ot-system", test.values)
			require.ErrorContains(t, err, test.says)
		})
	}
}
