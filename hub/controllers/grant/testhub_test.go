package grant

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// fakeReports are reports that have been read.
type fakeReports map[string]report.Root

func (r fakeReports) Root(member string) report.Root { return r[member] }
func (r fakeReports) HasSynced() bool                { return true }
func (r fakeReports) OnChange(func(string))          {}
func (r fakeReports) OnSynced(func())                {}

// fakePolicy is a policy in force.
type fakePolicy struct{ policy *policy.Policy }

func (p *fakePolicy) Current() policycontroller.State {
	return policycontroller.State{Known: true, Policy: p.policy}
}
func (p *fakePolicy) OnChange(func()) {}

// testHub is a hub with members that have reported and are confirmed.
type testHub struct {
	t       testing.TB
	live    client.Client
	reports fakeReports
	policy  *fakePolicy
	*Reconciler
}

func newTestHub(t testing.TB, members ...string) *testHub {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	build := fake.NewClientBuilder().WithScheme(scheme)
	build.WithIndex(&v1alpha1.MemberCluster{}, "claim", func(o client.Object) []string {
		return []string{string(memberstatus.ClaimedCluster(o.(*v1alpha1.MemberCluster)))}
	})
	s := &testHub{t: t, reports: fakeReports{}, policy: &fakePolicy{}}
	for _, name := range members {
		namespace := v1alpha1.MemberNamespacePrefix + name
		build.WithObjects(
			&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("member-" + name)}, Status: v1alpha1.MemberClusterStatus{ClusterUID: types.UID("uid-" + name)}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.LabelMember: name}}},
			&v1alpha1.MemberLink{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName},
				Status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Challenge: "first", Confirmed: 1}},
			&v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}, Spec: v1alpha1.ClusterPlanSpec{ClusterUID: types.UID("uid-" + name)}},
		)
		s.reportDemand(name, 0, 0)
	}
	s.live = build.Build()
	s.elect("first")
	return s
}

// elect starts a new process.
func (s *testHub) elect(challenge string) {
	s.Reconciler = &Reconciler{
		Client: s.live, Live: s.live, Metrics: metrics.NewGrants(prometheus.NewRegistry()), Reports: s.reports, Policy: s.policy,
		Namespace: "ot-hub", Challenge: challenge, Shares: &Shares{}, Raises: &plan.Raises{},
	}
}

// applyPolicy takes a policy into force, which this process plans and all members
// acknowledge.
func (s *testHub) applyPolicy(data map[string]string) {
	s.t.Helper()
	p, _, errs := policy.ParsePolicy(data)
	require.Empty(s.t, errs)
	s.policy.policy = p
	for name, root := range s.reports {
		if root.Report == nil {
			continue
		}
		root.Report.Policy, _, errs = p.ForMember(name, nil)
		require.Empty(s.t, errs)
		_, limited := root.Report.Policy["safeConcurrency"]
		root.Report.Transfers.Limited = limited
		root.Sequence++
		plan := s.getPlan(name)
		plan.Spec.Policy, plan.Spec.Sequence = root.Report.Policy, plan.Spec.Sequence+1
		metav1.SetMetaDataAnnotation(&plan.ObjectMeta, annotationPlanner, s.Challenge)
		require.NoError(s.t, s.live.Update(s.t.Context(), plan))
		root.Report.Plan = &plan.Spec.PlanVersion
		s.reports[name] = root
	}
}

// reportDemand has a member report what it runs and wants.
func (s *testHub) reportDemand(member string, running, wanted int32) {
	root := s.reports[member]
	if root.Report == nil {
		root = report.Root{ClusterUID: types.UID("uid-" + member), Report: &v1alpha1.ReportRoot{BootID: "boot", HeartbeatSeconds: 20, Transfers: &v1alpha1.ReportedTransfers{}}}
	}
	now := time.Now()
	r := root.Report.DeepCopy()
	root.Sequence++
	root.Report, root.ReceivedAt = r, &now
	r.Slots, r.Transfers.Wanted = running, wanted
	if wanted > 0 {
		r.Transfers.Nonce = fmt.Sprintf("boot/%d", root.Sequence)
	}
	s.reports[member] = root
}

// acknowledgePlan has a member report its newest grant.
func (s *testHub) acknowledgePlan(member string, running int32) {
	g := s.getGrant(member)
	s.reportDemand(member, running, s.reports[member].Report.Transfers.Wanted)
	t := s.reports[member].Report.Transfers
	t.Grant, t.Slots = g.Sequence, g.Limits.Slots
}

func (s *testHub) reconcile() ctrl.Result {
	s.t.Helper()
	s.lastReconciled = time.Time{}
	result, err := s.Reconcile(s.t.Context(), fleetRequest)
	require.NoError(s.t, err)
	return result
}

func (s *testHub) getGrant(member string) v1alpha1.TransferGrantSpec {
	s.t.Helper()
	g := &v1alpha1.TransferGrant{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, g))
	return g.Spec
}

func (s *testHub) getPlan(member string) *v1alpha1.ClusterPlan {
	s.t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, plan))
	return plan
}

func (s *testHub) confirm(member, challenge string) {
	s.t.Helper()
	link := &v1alpha1.MemberLink{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link))
	link.Status.Challenge, link.Status.Confirmed = challenge, s.reports[member].Sequence
	require.NoError(s.t, s.live.Update(s.t.Context(), link))
}
