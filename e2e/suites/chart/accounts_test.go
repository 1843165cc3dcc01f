//go:build linux

package chart_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/rbaccheck"
)

// policyNamespace is that of the charts' values.
const policyNamespace = "sync-operator"

// allowedRule lets verbs, with spaces between them, on resources of a group: in one
// namespace, where there is one, and by one name.
type allowedRule struct{ group, resources, verbs, namespace, object string }

type allowedRules []allowedRule

func (all allowedRules) allows(r rbaccheck.Request) bool {
	return slices.ContainsFunc(all, func(a allowedRule) bool {
		return a.group == r.Group && slices.Contains(strings.Fields(a.resources), r.Resource) && slices.Contains(strings.Fields(a.verbs), r.Verb) &&
			(a.namespace == "" || a.namespace == r.Namespace) && (a.object == "" || a.object == r.Object)
	})
}

// What the charts' accounts may do is written out once more here, on purpose: a right
// that is new is to be put down in two places.
var (
	agentRules = allowedRules{
		{"", "configmaps namespaces", "get", "", ""},
		{"", "persistentvolumeclaims", "get list watch delete", "", ""},
		{"", "pods", "list watch", "", ""},
		{"", "resourcequotas", "list", "", ""},
		{"", "secrets", "get create patch", "", ""},
		{"admissionregistration.k8s.io", "mutatingadmissionpolicies mutatingadmissionpolicybindings", "get", "", "ot-agent-importers"},
		{"admissionregistration.k8s.io", "mutatingadmissionpolicies mutatingadmissionpolicybindings", "get", "", "ot-agent-failed-imports"},
		{"authentication.k8s.io", "tokenreviews", "create", "", ""},
		{"authorization.k8s.io", "subjectaccessreviews", "create", "", ""},
		{"cdi.kubevirt.io", "cdiconfigs", "get", "", ""},
		{"cdi.kubevirt.io", "cdis", "list", "", ""},
		{"cdi.kubevirt.io", "datavolumes", "get list watch create delete", "", ""},
		{"cdi.kubevirt.io", "datavolumes/source", "create", "", ""},
		{"events.k8s.io", "events", "create patch", "", ""},
		{"k8s.cni.cncf.io", "network-attachment-definitions", "get", "", ""},
		{"kubevirt.io", "virtualmachines", "get list watch create patch", "", ""},
		{"pelotech.ot", "virtualmachines", "get list watch", "", ""},
		{"pelotech.ot", "virtualmachines/status vmdiskimages/status", "update", "", ""},
		{"pelotech.ot", "vmdiskimages", "get list watch create patch delete", "", ""},
		{"snapshot.storage.k8s.io", "volumesnapshotclasses", "get", "", ""},
		{"snapshot.storage.k8s.io", "volumesnapshots", "get list watch create delete", "", ""},
		{"storage.k8s.io", "csistoragecapacities", "list", "", ""},
		{"storage.k8s.io", "storageclasses", "get list watch", "", ""},

		{"", "events", "create patch", agentNamespace, ""},
		{"", "secrets", "list watch update", agentNamespace, "ot-hub-credential"},
		{"", "secrets", "list watch", agentNamespace, "ot-hub-join"},
		{"coordination.k8s.io", "leases", "get create update", agentNamespace, ""},
		{"pelotech.ot", "clusterplans clusterreports transfergrants", "get list watch create update delete", agentNamespace, ""},
		{"pelotech.ot", "syncledgers", "get list watch create", agentNamespace, ""},
		{"pelotech.ot", "syncledgers/status", "update", agentNamespace, ""},
		{"", "configmaps", "list watch", policyNamespace, ""},
	}

	hubRules = allowedRules{
		{"", "namespaces", "get list watch create delete", "", ""},
		{"", "serviceaccounts", "create", "", ""},
		{"", "serviceaccounts", "get delete", "", "ot-member-agent"},
		{"", "serviceaccounts", "get delete", "", "ot-member-join"},
		{"", "serviceaccounts/token", "create", "", "ot-member-agent"},
		{"", "serviceaccounts/token", "create", "", "ot-member-join"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get", "", "ot-hub-approvals"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get", "", "ot-hub-prunes"},
		{"authentication.k8s.io", "tokenreviews", "create", "", ""},
		{"authorization.k8s.io", "subjectaccessreviews", "create", "", ""},
		{"coordination.k8s.io", "leases", "create", "", ""},
		{"coordination.k8s.io", "leases", "get", "", "ot-agent"},
		{"events.k8s.io", "events", "create patch", "", ""},
		{"pelotech.ot", "clusterjoins", "get list watch delete", "", ""},
		{"pelotech.ot", "clusterjoins/status fleetdiskimages/status imageprunes/status memberclusters/status memberlinks/status prunereports/status", "update", "", ""},
		{"pelotech.ot", "clusterplans clusterreports transfergrants", "get list watch create update delete", "", ""},
		{"pelotech.ot", "fleetdiskimages", "get list watch patch", "", ""},
		{"pelotech.ot", "imageprunes", "get list watch", "", ""},
		{"pelotech.ot", "memberclusters", "get list watch create update patch delete", "", ""},
		{"pelotech.ot", "memberlinks", "get list watch create update", "", ""},
		{"pelotech.ot", "prunereportpages", "get list create delete", "", ""},
		{"pelotech.ot", "prunereports", "get list watch create delete", "", ""},
		{"rbac.authorization.k8s.io", "clusterroles", "bind", "", "ot-hub-member-agent"},
		{"rbac.authorization.k8s.io", "clusterroles", "bind", "", "ot-hub-member-join"},
		{"rbac.authorization.k8s.io", "rolebindings", "create", "", ""},
		{"rbac.authorization.k8s.io", "rolebindings", "get delete", "", "ot-member-agent"},
		{"rbac.authorization.k8s.io", "rolebindings", "get delete", "", "ot-member-join"},

		{"", "configmaps", "get create update", hubNamespace, ""},
		{"", "events", "create patch", hubNamespace, ""},
		{"", "secrets", "get list watch create update delete", hubNamespace, ""},
		{"coordination.k8s.io", "leases", "get list create update delete", hubNamespace, ""},
		{"", "configmaps", "get list watch patch", policyNamespace, ""},
	}

	// clusterAPIRules and installerRules come with values of the hub's chart.
	clusterAPIRules = allowedRules{
		{"", "secrets", "get", "", ""},
		{"cluster.x-k8s.io", "clusters", "get list watch", "", ""},
	}
	installerRules = allowedRules{{"", "configmaps", "list watch", hubNamespace, ""}}
)

// unservedResources are resources that are allowed and that an API server does not serve.
func (all allowedRules) unservedResources(served []rbaccheck.Resource) (unserved []rbaccheck.Resource) {
	for _, a := range all {
		for _, name := range strings.Fields(a.resources) {
			if !slices.ContainsFunc(served, func(r rbaccheck.Resource) bool { return r.GroupVersion.Group == a.group && r.Name == name }) {
				r := rbaccheck.Resource{APIResource: metav1.APIResource{Name: name}}
				r.GroupVersion.Group = a.group
				unserved = append(unserved, r)
			}
		}
	}
	return unserved
}

// TestServiceAccountRightsAreExactlyAsListed tries the accounts that the charts give to their
// programs on everything that there is: as the API server says that it would answer,
// and as it does.
func TestServiceAccountRightsAreExactlyAsListed(t *testing.T) {
	served, err := rbaccheck.ServedResources(serverConfig)
	require.NoError(t, err)
	require.Greater(t, len(served), 100)
	installHub := func(ctx context.Context, values map[string]any) error {
		given := maps.Clone(hubValuesBesideAgent)
		maps.Copy(given, values)
		return chart.Install(ctx, serverConfig, hubChart, "hub", hubNamespace, given)
	}
	t.Cleanup(func() {
		assert.NoError(t, installHub(context.Background(), nil), "other tests have a hub of default values")
	})

	enabled := map[string]any{"enabled": true}
	for _, test := range []struct {
		name, account, namespace string
		hub                      map[string]any
		want                     allowedRules
	}{
		{"agent", "ot-agent", agentNamespace, nil, agentRules},
		{"hub", "ot-hub", hubNamespace, nil, hubRules},
		{"hub with Cluster API that installs agents", "ot-hub", hubNamespace, map[string]any{"clusterAPI": enabled, "installAgents": enabled},
			slices.Concat(hubRules, clusterAPIRules, installerRules)},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, installHub(t.Context(), test.hub))
			cfg, may := configFor(t, test.account), test.want.allows
			namespaces := []string{test.namespace, policyNamespace, "kube-system"}
			tell := func(some []rbaccheck.Resource) (*rbaccheck.Result, error) {
				return rbaccheck.CheckByReview(t.Context(), cfg, some, append([]string{""}, namespaces...), []string{""}, may)
			}
			// What the values of the hub's chart change, the API server may not know at once.
			changed := slices.DeleteFunc(slices.Clone(served), func(r rbaccheck.Resource) bool { return r.Name != "secrets" && r.Name != "configmaps" })
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				told, err := tell(changed)
				require.NoError(c, err)
				assert.Empty(c, told.Unexpected)
			}, policyPropagationTimeout, 20*time.Millisecond)

			told, err := tell(append(slices.Clone(served), test.want.unservedResources(served)...))
			require.NoError(t, err)
			assert.Empty(t, told.Unexpected)
			ruled, err := rbaccheck.CheckRules(t.Context(), cfg, namespaces, may)
			require.NoError(t, err)
			assert.Empty(t, ruled.Unexpected)
			answered, err := rbaccheck.CheckByRequest(t.Context(), cfg, served, namespaces, may)
			require.NoError(t, err)
			assert.Empty(t, answered.Unexpected)
			t.Logf("of %d questions about %d resources and their parts, %d were answered with no; of %d requests, %d were refused",
				told.Attempts+ruled.Attempts, len(served), told.Refusals+ruled.Refusals, answered.Attempts, answered.Refusals)
		})
	}
}
