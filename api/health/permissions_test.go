package health

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/charts"
)

const testRoles = `---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: a}
rules:
- {apiGroups: [cdi.kubevirt.io], resources: [datavolumes, datavolumes/source], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a, namespace: agent-namespace}
rules:
- {apiGroups: [""], resources: [secrets], resourceNames: [one, two], verbs: [get]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
`

func TestParseRoles(t *testing.T) {
	all, err := ParseRoles([]byte(testRoles), map[string]string{"agent-namespace": "ot"})
	require.NoError(t, err)
	assert.Equal(t, []Permission{
		{Group: "cdi.kubevirt.io", Resource: "datavolumes", Verb: "create"},
		{Group: "cdi.kubevirt.io", Resource: "datavolumes", Subresource: "source", Verb: "create"},
		{Namespace: "ot", Resource: "secrets", Name: "one", Verb: "get"},
		{Namespace: "ot", Resource: "secrets", Name: "two", Verb: "get"},
		{Namespace: "ot", Resource: "events", Verb: "create"},
		{Namespace: "ot", Resource: "events", Verb: "patch"},
	}, all)
	_, err = ParseRoles([]byte(testRoles), nil)
	require.ErrorContains(t, err, "unknown namespace agent-namespace")
	_, err = ParseRoles([]byte("rules: 1"), nil)
	require.ErrorContains(t, err, "reading the required permissions")
}

// The programs check the permissions that their charts grant.
func TestChartRolesParse(t *testing.T) {
	for name, roles := range map[string][]byte{"agent-namespace": charts.AgentRoles, "hub-namespace": charts.HubRoles} {
		all, err := ParseRoles(roles, map[string]string{name: "ot", "policy-namespace": "policies"})
		require.NoError(t, err)
		assert.Contains(t, all, Permission{Namespace: "ot", Group: "coordination.k8s.io", Resource: "leases", Verb: "update"})
		assert.Contains(t, all, Permission{Namespace: "policies", Resource: "configmaps", Verb: "watch"})
		assert.Contains(t, all, Permission{Group: "authentication.k8s.io", Resource: "tokenreviews", Verb: "create"})
	}
}

func TestFormatMissing(t *testing.T) {
	right := func(resource, verb string) Permission {
		return Permission{Group: "g.io", Resource: resource, Verb: verb}
	}
	for name, test := range map[string]struct {
		missing []Permission
		want    string
	}{
		"none":    {nil, ""},
		"one":     {[]Permission{right("a", "list")}, "its account lacks permissions: list a.g.io. Its roles are of another version or were changed: run `helm upgrade` ot-agent with the chart of this version (with --force-conflicts if Helm 4 reports a conflict)"},
		"several": {[]Permission{right("a", "list"), {Namespace: "ns", Resource: "secrets", Name: "x", Verb: "get"}, right("a", "watch")}, "list, watch a.g.io; get secrets x in namespace ns. "},
		"a part":  {[]Permission{{Group: "g.io", Resource: "a", Subresource: "status", Verb: "update"}}, "update a.g.io/status. "},
		"a lot":   {[]Permission{right("a", "get"), right("b", "get"), right("c", "get"), right("d", "get"), right("e", "get"), right("f", "get"), right("g", "get"), right("h", "get")}, "get f.g.io; and for 2 more resources. "},
	} {
		t.Run(name, func(t *testing.T) {
			got := FormatMissing(test.missing, "ot-agent")
			if test.want == "" {
				assert.Empty(t, got)
			}
			assert.Contains(t, got, test.want)
		})
	}
}
