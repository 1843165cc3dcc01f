//go:build linux

package faults

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// TestAgentRightsAreSufficientAndMinimal holds what the agent's ServiceAccount may do, as the API server
// answers it, against what it must and must not.
func TestAgentRightsAreSufficientAndMinimal(t *testing.T) {
	cfg, err := testScene.ControlPlane.ServiceAccountConfig(t.Context(), program.AgentNamespace, "ot-agent")
	require.NoError(t, err)
	c, err := client.New(cfg, client.Options{Scheme: testScene.Client().Scheme()})
	require.NoError(t, err)
	for _, tt := range []struct {
		why                                           string
		may                                           bool
		group, resource, subresource, namespace, name string
		verbs                                         []string
	}{
		{"it follows images", true, "pelotech.ot", "vmdiskimages", "", "anywhere", "", []string{"get", "list", "watch", "patch"}},
		{"it makes what the plan names", true, "pelotech.ot", "vmdiskimages", "", "anywhere", "", []string{"create"}},
		{"it reads the plan", true, "pelotech.ot", "clusterplans", "", program.AgentNamespace, "", []string{"get", "list", "watch"}},
		{"it knows which cluster this is", true, "", "namespaces", "", "", "kube-system", []string{"get"}},
		{"it makes imports", true, "cdi.kubevirt.io", "datavolumes", "", "anywhere", "", []string{"get", "list", "watch", "create", "delete"}},
		{"it lets go of images that nobody references", true, "pelotech.ot", "vmdiskimages", "", "anywhere", "", []string{"delete"}},
		{"it follows machines", true, "pelotech.ot", "virtualmachines", "", "anywhere", "", []string{"get", "list", "watch"}},
		{"it tells of machines", true, "pelotech.ot", "virtualmachines", "status", "anywhere", "", []string{"update"}},
		{"it makes machines", true, "kubevirt.io", "virtualmachines", "", "anywhere", "", []string{"get", "list", "watch", "create", "patch"}},
		{"it clones root disks from other namespaces", true, "cdi.kubevirt.io", "datavolumes", "source", "anywhere", "", []string{"create"}},
		{"it keeps what a guest is told", true, "", "secrets", "", "anywhere", "", []string{"get", "create", "patch"}},
		{"it looks for room for images", true, "storage.k8s.io", "csistoragecapacities", "", "", "", []string{"list"}},
		{"it looks for room for images", true, "", "resourcequotas", "", "", "", []string{"list"}},
		{"it knows where scratch space is made", true, "cdi.kubevirt.io", "cdiconfigs", "", "", "config", []string{"get"}},
		{"it looks for the namespace of an image", true, "", "namespaces", "", "", "anywhere", []string{"get"}},
		{"it keeps the ledger", true, "pelotech.ot", "syncledgers", "status", program.AgentNamespace, "", []string{"update"}},
		{"it knows which CDI is there", true, "cdi.kubevirt.io", "cdis", "", "", "", []string{"list"}},
		{"it looks whether an attempt costs one download", true, "admissionregistration.k8s.io", "mutatingadmissionpolicies", "", "", "ot-agent-importers", []string{"get"}},
		{"it looks whether an attempt costs one download", true, "admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "", "", "ot-agent-failed-imports", []string{"get"}},
		{"it asks who reads its metrics", true, "authentication.k8s.io", "tokenreviews", "", "", "", []string{"create"}},
		{"and whether he may", true, "authorization.k8s.io", "subjectaccessreviews", "", "", "", []string{"create"}},

		{"images are people's", false, "pelotech.ot", "vmdiskimages", "", "anywhere", "", []string{"update", "deletecollection"}},
		{"machines are people's", false, "pelotech.ot", "virtualmachines", "", "anywhere", "", []string{"create", "update", "patch", "delete", "deletecollection"}},
		{"machines outlive it", false, "kubevirt.io", "virtualmachines", "", "anywhere", "", []string{"update", "delete", "deletecollection"}},
		{"what runs is KubeVirt's", false, "kubevirt.io", "virtualmachineinstances", "", "anywhere", "", []string{"get", "list", "watch", "create", "update", "patch", "delete"}},
		{"the ledger outlives it", false, "pelotech.ot", "syncledgers", "", program.AgentNamespace, "default", []string{"update", "patch", "delete", "deletecollection"}},
		{"one ledger", false, "pelotech.ot", "syncledgers", "", "anywhere", "", []string{"get", "list", "watch", "create", "update", "delete"}},
		{"one ledger", false, "pelotech.ot", "syncledgers", "status", "anywhere", "", []string{"update", "patch"}},
		{"the policy is people's", false, "", "configmaps", "", program.PolicyNamespace, program.PolicyName, []string{"create", "update", "patch", "delete"}},
		{"dialling in, it brings the hub's plan", true, "pelotech.ot", "clusterplans", "", program.AgentNamespace, "default", []string{"create", "update", "delete"}},
		{"and the grant", true, "pelotech.ot", "transfergrants", "", program.AgentNamespace, "default", []string{"create", "update", "delete"}},
		{"whole, and no more of it", false, "pelotech.ot", "clusterplans", "", program.AgentNamespace, "default", []string{"patch", "deletecollection"}},
		{"its way to the hub", true, "", "secrets", "", program.AgentNamespace, "ot-hub-credential", []string{"get", "update"}},
		{"no other Secret beside it", false, "", "secrets", "", program.AgentNamespace, "another", []string{"update", "delete", "list", "watch"}},
		{"plans of others", false, "pelotech.ot", "clusterplans", "", "anywhere", "", []string{"get", "list", "watch"}},
		{"namespaces are people's", false, "", "namespaces", "", "", "anywhere", []string{"list", "watch", "create", "update", "patch", "delete"}},
		{"nobody's secrets in bulk", false, "", "secrets", "", "anywhere", "", []string{"list", "watch", "update", "delete", "deletecollection"}},
		{"nobody's settings in bulk", false, "", "configmaps", "", "anywhere", "", []string{"list", "watch", "create", "update", "patch", "delete"}},
		{"Pods are CDI's", false, "", "pods", "", "anywhere", "", []string{"create", "update", "patch", "delete", "deletecollection"}},
		{"Pods are CDI's", false, "", "pods", "exec", "anywhere", "", []string{"create", "get"}},
		{"Pods are CDI's", false, "", "pods", "log", "anywhere", "", []string{"get"}},
		{"claims are CDI's", false, "", "persistentvolumeclaims", "", "anywhere", "", []string{"create", "update", "patch", "deletecollection"}},
		{"imports are never changed", false, "cdi.kubevirt.io", "datavolumes", "", "anywhere", "", []string{"update", "patch", "deletecollection"}},
		{"CDI's settings", false, "cdi.kubevirt.io", "cdiconfigs", "", "", "config", []string{"list", "watch", "update", "patch"}},
		{"quotas are the administrator's", false, "", "resourcequotas", "", "anywhere", "", []string{"get", "watch", "create", "update", "patch", "delete"}},
		{"capacities are the driver's", false, "storage.k8s.io", "csistoragecapacities", "", "anywhere", "", []string{"get", "watch", "create", "update", "patch", "delete"}},
		{"CDI's settings", false, "cdi.kubevirt.io", "storageprofiles", "", "", "", []string{"get", "list", "update", "patch"}},
		{"snapshots are never changed", false, "snapshot.storage.k8s.io", "volumesnapshots", "", "anywhere", "", []string{"update", "patch", "deletecollection"}},
		{"classes are the administrator's", false, "storage.k8s.io", "storageclasses", "", "", "", []string{"create", "update", "patch", "delete"}},
		{"volumes are the cluster's", false, "", "persistentvolumes", "", "", "", []string{"get", "list", "delete"}},
		{"admission is the administrator's", false, "admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "", "", []string{"get", "create", "update", "patch", "delete"}},
		{"nor those that it looks for", false, "admissionregistration.k8s.io", "mutatingadmissionpolicies", "", "", "ot-agent-importers", []string{"list", "watch", "create", "update", "patch", "delete"}},
		{"nor any other", false, "admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "", "", "another", []string{"get", "list", "create", "update", "patch", "delete"}},
		{"CDI is its operator's", false, "cdi.kubevirt.io", "cdis", "", "", "cdi", []string{"get", "watch", "create", "update", "patch", "delete"}},
		{"no way up", false, "rbac.authorization.k8s.io", "clusterroles", "", "", "", []string{"create", "update", "patch", "bind", "escalate"}},
		{"no way up", false, "", "serviceaccounts", "token", "anywhere", "", []string{"create"}},
		{"no way up", false, "", "users", "", "", "", []string{"impersonate"}},
		{"leases of others", false, "coordination.k8s.io", "leases", "", "kube-system", "", []string{"get", "create", "update", "delete"}},
		{"nodes", false, "", "nodes", "", "", "", []string{"get", "list"}},
	} {
		for _, verb := range tt.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: tt.namespace, Verb: verb, Group: tt.group, Resource: tt.resource, Subresource: tt.subresource, Name: tt.name,
			}}}
			require.NoError(t, c.Create(t.Context(), review))
			assert.Equal(t, tt.may, review.Status.Allowed, "%s: %s %s/%s %s in %q", tt.why, verb, tt.group, tt.resource, tt.subresource, tt.namespace)
		}
	}
}

// TestAgentRightsHaveNoWildcards wants no wildcard among them.
func TestAgentRightsHaveNoWildcards(t *testing.T) {
	cfg, err := testScene.ControlPlane.ServiceAccountConfig(t.Context(), program.AgentNamespace, "ot-agent")
	require.NoError(t, err)
	c, err := client.New(cfg, client.Options{Scheme: testScene.Client().Scheme()})
	require.NoError(t, err)
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: program.AgentNamespace}}
	require.NoError(t, c.Create(t.Context(), review))
	require.NotEmpty(t, review.Status.ResourceRules)
	for _, rule := range review.Status.ResourceRules {
		assert.NotContains(t, rule.Verbs, "*")
		assert.NotContains(t, rule.Resources, "*")
		assert.NotContains(t, rule.APIGroups, "*")
	}
}
