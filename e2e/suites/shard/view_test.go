//go:build linux

package shard_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// requireReadAPI waits until a replica's read API serves the reports of all members.
func (f *testFleet) requireReadAPI(t *testing.T, r *replica, images int) {
	t.Helper()
	var last any
	require.True(t, testenv.AwaitCondition(t, func() bool {
		all, err := r.ListMembers(t.Context())
		if last = err; err != nil {
			return false
		}
		last = all
		for _, m := range all {
			if m.Unknown != "" || m.Images != images {
				return false
			}
		}
		return len(all) == fakeCount
	}), "replica %s does not serve all members: %+v; logs are in %s", r.name, &last, f.Plane.Dir())
}

// TestReadAPIOfEveryReplica shows that every replica answers authorized readers with the
// elected replica's view of the fleet. The others have no view and no series of it; the
// next elected replica computes the same view.
func TestReadAPIOfEveryReplica(t *testing.T) {
	shared.awaitBalanced(t, replicaNames...)
	images := []v1alpha1.ReportedImage{{
		Namespace: "farm", Name: "ubuntu", UID: "uid", Source: "http https://images.example.com/ubuntu.qcow2", Phase: v1alpha1.PhaseSucceeded,
	}}
	for _, m := range shared.Fakes.List {
		require.NoError(t, m.SetImages(t.Context(), "page-0", images))
	}
	nobody, err := shared.Plane.ServiceAccountConfig(t.Context(), "fake-0", "ot-hub")
	require.NoError(t, err)
	elected := shared.electedReplica(t)
	for _, name := range replicaNames {
		r := shared.replicas[name]
		shared.requireReadAPI(t, r, len(images))
		for token, want := range map[string]int{"": http.StatusUnauthorized, nobody.BearerToken: http.StatusForbidden} {
			status, err := r.GetStatus(t.Context(), "/fleet/v1/members", token)
			require.NoError(t, err)
			assert.Equal(t, want, status, name)
		}
		text, err := r.ReadMetrics(t.Context())
		require.NoError(t, err)
		assert.Equal(t, r == elected, strings.Contains(text, "\not_hub_members{"), name)
		assert.Equal(t, r == elected, strings.Contains(text, "\not_hub_index_entries "), name)
	}

	others := shared.otherReplicas(t)
	elected.Kill()
	for _, r := range others {
		// Meanwhile the dead replica holds the Lease, nobody does, or the next one still reads.
		shared.requireReadAPI(t, r, len(images))
	}
	require.NoError(t, shared.startReplica(t.Context(), elected))
	shared.awaitBalanced(t, replicaNames...)
	shared.requireReadAPI(t, elected, len(images))
	shared.judge.requireNoFaults(t)
}
