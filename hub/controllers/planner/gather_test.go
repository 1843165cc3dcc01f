package planner

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/grant"
	"github.com/pelotech/ot-fleet/hub/controllers/install"
	"github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/registration"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// newerReport is a report that the hub does not have.
type newerReport struct{}

func (newerReport) Root(context.Context, *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error) {
	return &v1alpha1.ClusterReport{Sequence: 7, Root: &v1alpha1.ReportRoot{}}, nil
}

// The watchdog's finding is the only thing that tells a replica that hangs from an agent that does.
func TestStalledSyncIsInTheStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}
	link := &v1alpha1.MemberLink{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + "edge", Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: "two"},
		Status:     v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Carrier: "two"},
	}
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member, link).Build()
		links, replica, reports := &shard.Links{Cached: c}, shard.NewReplica(c, shard.Options{Name: "one"}), report.NewStore()
		watchdog := &shard.Watchdog{
			Probe: newerReport{}, Reports: reports, Links: links, Events: events.NewFakeRecorder(10),
			Assigner: &shard.Assigner{Replica: replica, Peers: shard.NewPeers(c, replica, nil, nil)}, Metrics: metrics.NewShards(prometheus.NewRegistry()),
		}
		r := &Reconciler{
			Raises: &plan.Raises{},
			Client: c, Live: c, Reports: reports, Links: links, Replica: replica, Watchdog: watchdog,
			CredentialProblems: &connection.CredentialProblems{}, Rotations: &connection.Rotations{}, Registrations: &registration.Conditions{},
			Installs: &install.Conditions{}, Policy: &policy.InForce{}, Index: inventory.NewIndex(), Images: rollout.NewFleetState(reports.HasSynced), Requests: prunetracker.New(), Shares: &grant.Shares{},
		}
		watchdog.ProbeMember(t.Context(), member, "two")
		known, err := r.gather(t.Context(), member)
		require.NoError(t, err)
		assert.Contains(t, known.SyncStalled, "replica two of the hub does not sync its report")
		known.reportsSynced = true // nothing is said before
		reachable := meta.FindStatusCondition(decide(known).status.Conditions, v1alpha1.ConditionReachable)
		require.NotNil(t, reachable)
		assert.Equal(t, v1alpha1.ReasonReportNotCarried, reachable.Reason)
		assert.Equal(t, known.SyncStalled, reachable.Message)
	})
}
