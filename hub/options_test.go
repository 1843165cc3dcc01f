package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/startup"
)

// A hub that installs no agents starts without the permissions for that, for instance
// those of an older chart.
func TestInstallRightsAreNeededOnlyWithInstalls(t *testing.T) {
	looks := func(verb string) health.Permission {
		return health.Permission{Namespace: "ot-hub", Resource: "configmaps", Verb: verb}
	}
	o := options{Options: startup.Options{Namespace: "ot-hub", Policy: types.NamespacedName{Namespace: "sync-operator", Name: "policy"}}}
	off, err := o.requiredPermissions()
	require.NoError(t, err)
	o.installAgents = true
	on, err := o.requiredPermissions()
	require.NoError(t, err)
	for _, verb := range []string{"list", "watch"} {
		assert.NotContains(t, off, looks(verb))
		assert.Contains(t, on, looks(verb))
	}
	assert.Contains(t, off, looks("get"), "the policy in force is kept there")
	assert.Len(t, on, len(off)+2, "and nothing else")
	policy := looks("watch")
	policy.Namespace = "sync-operator"
	assert.Contains(t, off, policy)

	o = options{Options: startup.Options{Namespace: "ot-hub", Policy: types.NamespacedName{Namespace: "ot-hub", Name: "policy"}}}
	off, err = o.requiredPermissions()
	require.NoError(t, err)
	assert.Contains(t, off, looks("watch"), "the policy is watched in the hub's own namespace")
}
