//go:build linux

package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

const hubChart = "charts/ot-hub"

func renderHub(t *testing.T, namespace string, values map[string]any) renderedChart {
	t.Helper()
	return renderIndexed(t, hubChart, "hub", namespace, values)
}

func TestHubChartIsLintClean(t *testing.T) {
	require.NoError(t, chart.Lint(hubChart))
}

func TestHubChartRendersEveryTemplate(t *testing.T) {
	assert.ElementsMatch(t, []string{
		"CustomResourceDefinition memberclusters.pelotech.ot",
		"CustomResourceDefinition fleetdiskimages.pelotech.ot",
		"CustomResourceDefinition prunereports.pelotech.ot",
		"CustomResourceDefinition prunereportpages.pelotech.ot",
		"CustomResourceDefinition imageprunes.pelotech.ot",
		"CustomResourceDefinition memberlinks.pelotech.ot",
		"CustomResourceDefinition clusterjoins.pelotech.ot",
		"CustomResourceDefinition clusterplans.pelotech.ot",
		"CustomResourceDefinition clusterreports.pelotech.ot",
		"CustomResourceDefinition transfergrants.pelotech.ot",
		"ServiceAccount ot-system/ot-hub",
		"ClusterRole ot-hub",
		"ClusterRoleBinding ot-hub",
		"ClusterRole ot-hub-reader",
		"ClusterRole ot-hub-member-agent",
		"ClusterRole ot-hub-member-join",
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
		"PodDisruptionBudget ot-system/ot-hub",
		"NetworkPolicy ot-system/ot-hub",
		"ValidatingAdmissionPolicy ot-hub-account",
		"ValidatingAdmissionPolicyBinding ot-hub-account",
		"ValidatingAdmissionPolicy ot-hub-fleetdiskimages",
		"ValidatingAdmissionPolicyBinding ot-hub-fleetdiskimages",
		"ValidatingAdmissionPolicy ot-hub-member-deletions",
		"ValidatingAdmissionPolicyBinding ot-hub-member-deletions",
		"ValidatingAdmissionPolicy ot-hub-events",
		"ValidatingAdmissionPolicyBinding ot-hub-events",
		"Namespace sync-operator",
		"ConfigMap sync-operator/sync-operator-policy",
		"ValidatingAdmissionPolicy ot-hub-policy-values",
		"ValidatingAdmissionPolicyBinding ot-hub-policy-values",
		"ValidatingAdmissionPolicy ot-hub-policy-keys",
		"ValidatingAdmissionPolicyBinding ot-hub-policy-keys",
		"ValidatingAdmissionPolicy ot-hub-approvals",
		"ValidatingAdmissionPolicyBinding ot-hub-approvals",
		"ValidatingAdmissionPolicy ot-hub-prunes",
		"ValidatingAdmissionPolicyBinding ot-hub-prunes",
		"ValidatingAdmissionPolicy ot-hub-prune-pages",
		"ValidatingAdmissionPolicyBinding ot-hub-prune-pages",
		"ValidatingAdmissionPolicy ot-hub-writeoffs",
		"ValidatingAdmissionPolicyBinding ot-hub-writeoffs",
		"ValidatingAdmissionPolicy ot-hub-member-tokens",
		"ValidatingAdmissionPolicyBinding ot-hub-member-tokens",
		"ValidatingAdmissionPolicy ot-hub-member-objects",
		"ValidatingAdmissionPolicyBinding ot-hub-member-objects",
		"PriorityLevelConfiguration ot-hub",
		"FlowSchema ot-hub",
		"PriorityLevelConfiguration ot-hub-members",
		"FlowSchema ot-hub-members",
	}, renderHub(t, "ot-system", nil).sortedKeys())
}

func TestHubChartOmitsWhatIsSwitchedOff(t *testing.T) {
	keys := renderHub(t, "ot-system", map[string]any{
		"crds":      map[string]any{"mailbox": false},
		"policy":    map[string]any{"create": false, "createNamespace": false},
		"approvals": map[string]any{"enforced": false},
	}).sortedKeys()
	assert.Contains(t, keys, "CustomResourceDefinition memberclusters.pelotech.ot")
	assert.Contains(t, keys, "CustomResourceDefinition fleetdiskimages.pelotech.ot")
	for _, key := range keys {
		assert.NotContains(t, key, "clusterplans")
		assert.NotContains(t, key, "ConfigMap")
		assert.NotContains(t, key, "Namespace ")
		assert.NotContains(t, key, "ot-hub-approvals")
		assert.NotContains(t, key, "ot-hub-prunes")
	}
	assert.Contains(t, keys, "ValidatingAdmissionPolicy ot-hub-prune-pages", "only the hub writes reports, with or without enforced approvals")
}

func TestHubChartKeepsDataOnUninstall(t *testing.T) {
	requireDataKept(t, renderHub(t, "ot-system", nil), 12)
}

func TestHubChartNamespacesFollowTheRelease(t *testing.T) {
	rendered := renderHub(t, "elsewhere", map[string]any{"policy": map[string]any{"namespace": "rules", "name": "limits"}})
	requireNamespacesOfRelease(t, rendered, "hub")
	assert.Contains(t, rendered, "Role rules/ot-hub-policy")
	args := containerArgs(t, rendered["Deployment elsewhere/ot-hub"])
	assert.Contains(t, args, "--policy-namespace=rules")
	assert.Contains(t, args, "--policy-name=limits")
	assert.Contains(t, args, "--metrics-secure=true")
}

func TestHubReadsForeignSecretsOnlyForClusterAPI(t *testing.T) {
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
	assert.Contains(t, containerArgs(t, renderHub(t, "ot-system", values)["Deployment ot-system/ot-hub"]), "--cluster-api-selector=fleet in (a,b)")
	for _, arg := range containerArgs(t, renderHub(t, "ot-system", nil)["Deployment ot-system/ot-hub"]) {
		assert.NotContains(t, arg, "cluster-api")
	}
}

func TestHubInstallsAgentsOnlyOnRequest(t *testing.T) {
	watches := func(all renderedChart) bool {
		rules, _, err := unstructured.NestedSlice(all["Role ot-system/ot-hub"].Object, "rules")
		require.NoError(t, err)
		for _, entry := range rules {
			rule := entry.(map[string]any)
			if assert.ObjectsAreEqual([]any{"configmaps"}, rule["resources"]) {
				assert.Contains(t, rule["verbs"], "get")
				return assert.ObjectsAreEqual([]any{"create", "get", "list", "update", "watch"}, rule["verbs"])
			}
		}
		return false
	}
	settings := map[string]any{"values": map[string]any{"replicas": 3}, "memberValues": map[string]any{"edge": map[string]any{"replicas": 1}}}
	off := renderHub(t, "ot-system", map[string]any{"installAgents": settings})
	assert.NotContains(t, containerArgs(t, off["Deployment ot-system/ot-hub"]), "--install-agents")
	assert.NotContains(t, off.sortedKeys(), "ConfigMap ot-system/ot-agent-values")
	assert.False(t, watches(off))

	settings["enabled"] = true
	on := renderHub(t, "ot-system", map[string]any{"installAgents": settings})
	assert.Contains(t, containerArgs(t, on["Deployment ot-system/ot-hub"]), "--install-agents")
	assert.True(t, watches(on))
	for name, want := range map[string]string{"ot-agent-values": "replicas: 3", "ot-agent-values-edge": "replicas: 1"} {
		require.Contains(t, on.sortedKeys(), "ConfigMap ot-system/"+name)
		text, _, err := unstructured.NestedString(on["ConfigMap ot-system/"+name].Object, "data", "values.yaml")
		require.NoError(t, err)
		assert.YAMLEq(t, want, text)
	}
}

func TestHubRulesAreMinimal(t *testing.T) {
	rendered := renderHub(t, "ot-system", map[string]any{"clusterAPI": map[string]any{"enabled": true}})
	forEachRule(t, rendered, func(role *unstructured.Unstructured, rule map[string]any) {
		if rule["nonResourceURLs"] != nil || role.GetKind() != "ClusterRole" {
			return
		}
		for _, resource := range rule["resources"].([]any) {
			requireLimitedToPullAgents(t, role.GetName(), resource.(string), rule)
		}
		if slices.Contains(rule["apiGroups"].([]any), "admissionregistration.k8s.io") {
			assert.Equal(t, []any{admissionpolicy.AccountPolicy.Name, admissionpolicy.WavesPolicy.Name, admissionpolicy.PrunesPolicy.Name}, rule["resourceNames"], "%v", rule)
			assert.Equal(t, []any{"get"}, rule["verbs"], "%v", rule)
		}
		for _, verb := range rule["verbs"].([]any) {
			if verb != "get" {
				assert.NotContains(t, rule["resources"], "secrets", "%v", rule)
			}
		}
	})
}

// requireLimitedToPullAgents checks that a rule for all namespaces is limited to what the hub
// creates for agents in pull mode, by name where RBAC supports it for the verb.
func requireLimitedToPullAgents(t *testing.T, role, resource string, rule map[string]any) {
	t.Helper()
	accounts := []any{registration.AgentAccount, registration.JoinAccount}
	bounded := map[string][]any{
		"serviceaccounts": accounts, "serviceaccounts/token": accounts, "rolebindings": accounts,
		"clusterroles": {registration.AgentRole, registration.JoinRole}, "leases": {registration.LeaseName},
		"resourcequotas": {"ot-member"},
	}
	if role == registration.AgentRole {
		bounded["serviceaccounts/token"] = []any{registration.AgentAccount}
	}
	for _, own := range []string{"configmaps", "roles", "clusterrolebindings", "pods"} {
		assert.NotEqual(t, own, resource, "%s: %v", role, rule)
	}
	if names, ok := bounded[resource]; ok && !assert.ObjectsAreEqual(rule["verbs"], []any{"create"}) || resource == "serviceaccounts/token" {
		assert.Equal(t, names, rule["resourceNames"], "%s: %v", role, rule)
	}
	for _, verb := range []string{"escalate", "impersonate"} {
		assert.NotContains(t, rule["verbs"], verb, "%s: %v", role, rule)
	}
	if resource != "clusterroles" {
		assert.NotContains(t, rule["verbs"], "bind", "%s: %v", role, rule)
	}
}

// TestPullModeAgentRoles: an agent reads and writes its own mailbox, and a join token can only
// request a credential.
func TestPullModeAgentRoles(t *testing.T) {
	rendered := renderHub(t, "ot-system", nil)
	rule := func(group, resource string, names []any, verbs ...any) any {
		r := map[string]any{"apiGroups": []any{group}, "resources": []any{resource}, "verbs": verbs}
		if names != nil {
			r["resourceNames"] = names
		}
		return r
	}
	for role, want := range map[string][]any{
		registration.AgentRole: {
			map[string]any{"apiGroups": []any{"pelotech.ot"}, "resources": []any{"clusterplans", "transfergrants", "memberlinks"}, "verbs": []any{"get", "list", "watch"}},
			rule("pelotech.ot", "memberlinks/status", nil, "update"),
			rule("pelotech.ot", "clusterreports", nil, "get", "list", "watch", "create", "update", "delete"),
			rule("coordination.k8s.io", "leases", []any{registration.LeaseName}, "get", "update"),
			rule("", "serviceaccounts/token", []any{registration.AgentAccount}, "create"),
		},
		registration.JoinRole: {
			rule("pelotech.ot", "clusterjoins", nil, "create"),
			rule("pelotech.ot", "clusterjoins", []any{v1alpha1.MailboxName}, "get"),
		},
	} {
		rules, _, err := unstructured.NestedSlice(rendered["ClusterRole "+role].Object, "rules")
		require.NoError(t, err)
		assert.Equal(t, want, rules, role)
	}
	for key, object := range rendered {
		if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
			continue
		}
		ref, _, err := unstructured.NestedStringMap(object.Object, "roleRef")
		require.NoError(t, err)
		assert.NotContains(t, []string{registration.AgentRole, registration.JoinRole}, ref["name"], "%s: the hub binds the role in the namespaces of members", key)
	}
}

func TestHubIsGivenItsPublicURL(t *testing.T) {
	deployment := "Deployment ot-system/ot-hub"
	for _, arg := range containerArgs(t, renderHub(t, "ot-system", nil)[deployment]) {
		assert.NotContains(t, arg, "--hub-api")
	}
	rendered := renderHub(t, "ot-system", map[string]any{"pull": map[string]any{
		"apiURL": "https://hub.example:6443", "apiCA": "-----BEGIN CERTIFICATE-----\nabc\n", "agentTokenLife": "24h", "joinTokenLife": "15m",
	}})
	args := containerArgs(t, rendered[deployment])
	assert.Contains(t, args, "--hub-api-url=https://hub.example:6443")
	assert.Contains(t, args, "--hub-api-ca-file=/etc/ot-hub/api-ca/ca.crt")
	assert.Contains(t, args, "--agent-token-life=24h")
	assert.Contains(t, args, "--join-token-life=15m")
	ca, _, err := unstructured.NestedString(rendered["ConfigMap ot-system/ot-hub-api-ca"].Object, "data", "ca.crt")
	require.NoError(t, err)
	assert.Equal(t, "-----BEGIN CERTIFICATE-----\nabc\n", ca)
	variables, _, err := unstructured.NestedSlice(rendered["ValidatingAdmissionPolicy ot-hub-member-tokens"].Object, "spec", "variables")
	require.NoError(t, err)
	require.Len(t, variables, 1)
	assert.Equal(t, "request.name == 'ot-member-join' ? duration('15m').getSeconds() : duration('24h').getSeconds()",
		variables[0].(map[string]any)["expression"], "what agents can ask for is what they are given")
}

// TestFleetRoles: writes on the hub reach every cluster, so the aggregated role edit must not
// include them.
func TestFleetRoles(t *testing.T) {
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
						if slices.Contains([]any{"memberclusters", "memberlinks", "clusterjoins", "prunereportpages"}, resource) {
							assert.Equal(t, []any{"get", "list", "watch"}, rule["verbs"], "%s: labels of members decide on their wave, and only the hub writes pages", role)
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

func TestHubChartRejectsInvalidValues(t *testing.T) {
	requireRejected(t, hubChart, map[string]invalidValues{
		"a list in the policy":         {map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": []any{3}}}}, "/policy/data/concurrency"},
		"overrides that are no text":   {map[string]any{"policy": map[string]any{"data": map[string]any{"overrides": []any{}}}}, "/policy/data/overrides"},
		"a misspelt key":               {map[string]any{"polcy": map[string]any{}}, "polcy"},
		"approvals that are no switch": {map[string]any{"approvals": map[string]any{"enforced": "no"}}, "/approvals/enforced"},
		"roles of another chart":       {map[string]any{"roles": map[string]any{"imagesToEdit": true}}, "imagesToEdit"},
		"a hub in plain text":          {map[string]any{"pull": map[string]any{"apiURL": "http://hub.example"}}, "/pull/apiURL"},
		"certificates that are none":   {map[string]any{"pull": map[string]any{"apiCA": "abc"}}, "/pull/apiCA"},
		"a life without a unit":        {map[string]any{"pull": map[string]any{"agentTokenLife": "168"}}, "/pull/agentTokenLife"},
		"Cluster API without a label":  {map[string]any{"clusterAPI": map[string]any{"enabled": true, "selector": ""}}, "/clusterAPI/selector"},
	})
}

// TestChartsArePackaged runs `make charts` with every form of version that `git describe` has.
// One that is no semantic version leaves the chart's version and is used for images only.
func TestChartsArePackaged(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	own := chartVersion(t, chartPath(t, agentChart)).String()
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabcdef0-dirty": "1.2.3-4-gabcdef0-dirty",
		"abcdef0": own, "1234567-dirty": own, "unknown": own,
	} {
		t.Run(version, func(t *testing.T) {
			directory := t.TempDir()
			output, err := exec.CommandContext(t.Context(), "make", "-C", chartPath(t, "."), "charts", "VERSION="+version, "DIST="+directory, "HELM="+programs[binaries.Helm]).CombinedOutput()
			require.NoError(t, err, "%s", output)
			made, err := os.ReadDir(directory)
			require.NoError(t, err)
			require.Len(t, made, 2)
			for _, name := range []string{"ot-agent", "ot-hub"} {
				about, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "show", "chart", filepath.Join(directory, name+"-"+want+".tgz")).CombinedOutput()
				require.NoError(t, err, "%s", about)
				assert.Regexp(t, `(?m)^version: `+want+`$`, string(about))
				assert.Regexp(t, `(?m)^appVersion: `+version+`$`, string(about))
			}
		})
	}
}
