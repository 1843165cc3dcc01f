//go:build linux

package restore_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestHubClusterAsMember makes the hub's own cluster a member: both charts are installed,
// one of them brings the mailbox's CRDs, and the agent reads the fleet's ConfigMap as its
// own cluster's.
func TestHubClusterAsMember(t *testing.T) {
	testenv.RunInTurn(t, 0)
	const itself = "itself"
	plane := shared.Plane
	require.NoError(t, program.InstallAgent(t.Context(), plane, map[string]any{
		"crds":   map[string]any{"mailbox": false},
		"policy": map[string]any{"create": false},
		"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
	}))
	shared.HubMember.InstantImporter().AllowFinishes(1 << 20)
	a, err := program.StartAgent(t.Context(), plane, program.Options{
		LeaseDuration: hubLeaseDuration, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=" + heartbeat.String()},
	})
	require.NoError(t, err)
	t.Cleanup(a.Kill)
	cfg, err := plane.ServiceAccountConfig(t.Context(), program.AgentNamespace, "ot-hub")
	require.NoError(t, err)
	shared.startHub(t, nil)
	require.NoError(t, program.CreateMemberSecret(t.Context(), shared, itself, cfg))
	t.Cleanup(func() { // before its agent ends: what other tests count is the other members'
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: itself}}
		require.NoError(t, shared.Delete(context.Background(), secret))
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return apierrors.IsNotFound(shared.Get(context.Background(), client.ObjectKey{Name: itself}, &v1alpha1.MemberCluster{}))
		}), "member %s stays", itself)
	})

	// The override sets the plan's concurrency, the default is the cluster's own.
	for _, c := range []struct{ fleet, planned, smaller int32 }{{6, 2, 2}, {3, 9, 3}, {6, 9, 6}} {
		data := newPolicyData(c.fleet)
		data["overrides"] = fmt.Sprintf("- cluster: %s\n  concurrency: \"%d\"\n", itself, c.planned)
		shared.ReplacePolicy(t, data)
		m := shared.AwaitMember(t, itself, fmt.Sprintf("the smaller one, %d", c.smaller), hasBudget(c.smaller))
		assert.Equal(t, fmt.Sprint(c.planned), m.Status.Policy.Data["concurrency"])
		assert.Equal(t, m.Status.Plan, m.Status.AcknowledgedPlan)
	}
	for i := range 3 {
		createImage(t, shared.HubMember.Client(), fmt.Sprintf("own-%d", i))
	}
	shared.AwaitMember(t, itself, "its images", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 3
	})

	// Afterwards only heartbeats and the hub's copies of them are written.
	const beats = 4
	var last string
	require.True(t, testenv.AwaitCondition(t, func() bool {
		before, plans := shared.getSequences(t, itself), shared.mailboxVersions(t)
		began := time.Now()
		require.True(t, testenv.AwaitCondition(t, func() bool { return shared.reportGeneration(t, program.AgentNamespace) >= before.root+beats }))
		took, after := time.Since(began), shared.getSequences(t, itself)
		last = fmt.Sprintf("%d heartbeats took %s, reports went from %+v to %+v", beats, took, before, after)
		return took >= (beats-1)*heartbeat && after.copies-before.copies <= beats+1 && after.member == before.member &&
			assert.ObjectsAreEqual(plans, shared.mailboxVersions(t))
	}), "it does not settle: %s", last)
}

// mailboxSequences are the generations of a member's report on both sides and the plan of its
// MemberCluster.
type mailboxSequences struct {
	root, copies int64
	member       v1alpha1.PlanVersion
}

func (f *testFleet) getSequences(t *testing.T, name string) mailboxSequences {
	t.Helper()
	return mailboxSequences{
		root: f.reportGeneration(t, program.AgentNamespace), copies: f.reportGeneration(t, v1alpha1.MemberNamespacePrefix+name),
		member: *f.GetMember(t, name).Status.Plan,
	}
}

// reportGeneration is the generation of a report's root, which every write raises.
func (f *testFleet) reportGeneration(t *testing.T, namespace string) int64 {
	t.Helper()
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, f.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.MailboxName}, root))
	return root.Generation
}
