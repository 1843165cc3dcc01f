//go:build linux

package outage_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestReadyWaitsForChangedSpec has a pipeline that changes how a member is reached and waits for
// Ready. The first address does not answer, which takes the hub its timeout to notice; then
// the agent is sought in another namespace. Meanwhile the former connection works.
func TestReadyWaitsForChangedSpec(t *testing.T) {
	fake := shared.linkedFakeMembers()[0]
	before := shared.AwaitMember(t, fake.Name, "healthy", isHealthy)
	silent, err := faults.StartLink(shared.FakePlane.Config())
	require.NoError(t, err)
	t.Cleanup(silent.Close)
	require.NoError(t, silent.Stall())
	cfg, err := fake.Config(t.Context())
	require.NoError(t, err)
	silent.Redirect(cfg)
	require.NoError(t, shared.PutKubeconfig(t.Context(), fake.Name+"-moved", cfg))

	var mu sync.Mutex
	var versions []*v1alpha1.MemberCluster
	stop, err := controlplane.WatchObjects(t.Context(), shared, &v1alpha1.MemberClusterList{}, func(c controlplane.Change[*v1alpha1.MemberCluster]) {
		assert.NotEqual(t, watch.Deleted, c.Type)
		mu.Lock()
		defer mu.Unlock()
		versions = append(versions, c.Object)
	}, client.MatchingFields{"metadata.name": fake.Name})
	require.NoError(t, err)
	defer stop()
	set := func(change func(*v1alpha1.MemberClusterSpec)) (generation int64) {
		m := shared.GetMember(t, fake.Name)
		changed := m.DeepCopy()
		change(&changed.Spec)
		require.NoError(t, shared.Patch(t.Context(), changed, client.MergeFrom(m)))
		return changed.Generation
	}
	// awaitVersion returns the first version of the status that holds. None before it is Ready
	// with its generation.
	awaitVersion := func(generation int64, holds func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
		t.Helper()
		var found *v1alpha1.MemberCluster
		require.True(t, testenv.AwaitCondition(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for len(versions) > 0 {
				m := versions[0]
				versions = versions[1:]
				if m.Status.ObservedGeneration != generation {
					continue
				}
				if found = m; holds(m) {
					return true
				}
				ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
				require.NotEqual(t, metav1.ConditionTrue, ready.Status, testenv.DescribeMember(m))
			}
			return false
		}), "%s", describeLast(&found))
		return found
	}

	moved := set(func(s *v1alpha1.MemberClusterSpec) { s.Connection.KubeconfigSecretRef.Name = fake.Name + "-moved" })
	m := awaitVersion(moved, hasCondition(v1alpha1.ConditionReachable, metav1.ConditionUnknown, v1alpha1.ReasonConnectionChanged))
	assert.True(t, meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReconciling), testenv.DescribeMember(m))
	awaitVersion(moved, hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))

	elsewhere := set(func(s *v1alpha1.MemberClusterSpec) {
		s.Connection, s.AgentNamespace = before.Spec.Connection, "nobody"
	})
	awaitVersion(elsewhere, func(m *v1alpha1.MemberCluster) bool {
		reachable := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReachable)
		return reachable.Reason != v1alpha1.ReasonConnectionChanged
	})

	back := set(func(s *v1alpha1.MemberClusterSpec) { s.AgentNamespace = before.Spec.AgentNamespace })
	awaitVersion(back, isHealthy)
}

func describeLast(m **v1alpha1.MemberCluster) string {
	if *m == nil {
		return "no status has the generation"
	}
	return testenv.DescribeMember(*m)
}
