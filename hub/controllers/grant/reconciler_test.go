package grant

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// roots are reports as they were read.
type roots map[string]report.Root

func (r roots) Root(member string) report.Root { return r[member] }
func (r roots) Filled() bool                   { return true }
func (r roots) OnChange(func(string))          {}
func (r roots) OnFilled(func())                {}

// stage is a hub with members that have reported and been confirmed.
type stage struct {
	t       testing.TB
	live    client.Client
	reports roots
	*Reconciler
}

func newStage(t testing.TB, members ...string) *stage {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	build := fake.NewClientBuilder().WithScheme(scheme)
	build.WithIndex(&v1alpha1.MemberCluster{}, "claim", func(o client.Object) []string {
		return []string{string(fleet.Claim(o.(*v1alpha1.MemberCluster)))}
	})
	s := &stage{t: t, reports: roots{}}
	for _, name := range members {
		namespace := v1alpha1.MemberNamespacePrefix + name
		build.WithObjects(
			&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.MemberClusterStatus{ClusterUID: types.UID("uid-" + name)}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.LabelMember: name}}},
			&v1alpha1.MemberLink{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName},
				Status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Challenge: "first", Confirmed: 1}},
		)
		s.asks(name, 0, 0)
	}
	s.live = build.Build()
	s.elect("first")
	return s
}

// elect begins a process anew.
func (s *stage) elect(challenge string) {
	s.Reconciler = &Reconciler{
		Client: s.live, Live: s.live, Metrics: metrics.NewGrants(prometheus.NewRegistry()), Reports: s.reports, Policy: s.policy(),
		Challenge: challenge, Shares: &Shares{},
	}
}

func (s *stage) policy() *policy.InForce {
	if s.Reconciler != nil {
		return s.Policy
	}
	return &policy.InForce{}
}

// in takes a policy into force, and has it acknowledged by all.
func (s *stage) in(data map[string]string) {
	s.t.Helper()
	p, _, errs := fleet.ParsePolicy(data)
	require.Empty(s.t, errs)
	s.Policy = policy.InForceOf(p)
	for name, root := range s.reports {
		root.Report.Policy, _, errs = p.For(name, nil)
		require.Empty(s.t, errs)
		_, limited := root.Report.Policy["safeConcurrency"]
		root.Report.Transfers.Limited = limited
		root.Sequence++
		s.reports[name] = root
	}
}

// asks has a member report that it runs some and wants some.
func (s *stage) asks(member string, running, wanted int32) {
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

// acknowledges has a member report that it goes by its newest grant.
func (s *stage) acknowledges(member string, running int32) {
	g := s.grant(member)
	s.asks(member, running, s.reports[member].Report.Transfers.Wanted)
	t := s.reports[member].Report.Transfers
	t.Grant, t.Slots = g.Sequence, g.Limits.Slots
}

func (s *stage) look() ctrl.Result {
	s.t.Helper()
	s.last = time.Time{}
	result, err := s.Reconcile(s.t.Context(), everything)
	require.NoError(s.t, err)
	return result
}

func (s *stage) grant(member string) v1alpha1.TransferGrantSpec {
	s.t.Helper()
	g := &v1alpha1.TransferGrant{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, g))
	return g.Spec
}

func (s *stage) confirm(member, challenge string) {
	s.t.Helper()
	link := &v1alpha1.MemberLink{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link))
	link.Status.Challenge, link.Status.Confirmed = challenge, s.reports[member].Sequence
	require.NoError(s.t, s.live.Update(s.t.Context(), link))
}

func TestWithoutABudgetGrantsAreUnlimited(t *testing.T) {
	s := newStage(t, "a")
	s.in(map[string]string{"concurrency": "4"})
	s.look()
	assert.Equal(t, v1alpha1.TransferGrantSpec{ClusterUID: "uid-a", Sequence: 1, Unlimited: true}, s.grant("a"))
	s.look()
	assert.Equal(t, int64(1), s.grant("a").Sequence, "it is written once")
	assert.Nil(t, s.Shares.Of("a"))

	link := &v1alpha1.MemberLink{}
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}, link))
	link.Status.AheadGrant = 7
	require.NoError(t, s.live.Update(t.Context(), link))
	s.look()
	assert.Equal(t, int64(8), s.grant("a").Sequence, "it rises above what the member has")
}

func TestABudgetIsSharedOut(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.asks("a", 0, 9)
	s.look()
	first := s.grant("a")
	require.NotNil(t, first.Limits)
	assert.Equal(t, int32(4), first.Limits.Slots)
	assert.Equal(t, s.reports["a"].Report.Transfers.Nonce, first.Limits.Nonce)
	assert.Equal(t, int32(300), first.Limits.DurationSeconds)
	assert.Equal(t, v1alpha1.TransfersWaiting, s.Shares.Of("a").Reason)

	s.acknowledges("a", 4)
	s.asks("b", 0, 9)
	s.look()
	assert.Equal(t, int32(2), s.grant("a").Limits.Slots, "what the other wants is taken back")
	assert.Zero(t, s.grant("b").Limits.Slots, "and not given before it is free")
	assert.Equal(t, int32(4), s.Shares.Of("a").Held)

	s.acknowledges("a", 3)
	s.look()
	assert.Equal(t, int32(1), s.grant("b").Limits.Slots)
	s.acknowledges("a", 1)
	s.look()
	assert.Equal(t, int32(2), s.grant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersWaiting, s.Shares.Of("b").Reason)
}

func TestNobodyGetsMoreBeforeAllIsRead(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.asks("a", 0, 9)
	s.look()
	require.Equal(t, int32(4), s.grant("a").Limits.Slots)
	s.asks("a", 0, 0)
	s.acknowledges("a", 0)
	s.reports["a"].Report.Transfers.Slots = 0

	// The next process reads in b that it has more than the hub's copy tells.
	s.elect("second")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.asks("b", 0, 3)
	s.confirm("b", "second")
	assert.Equal(t, time.Second, s.look().RequeueAfter)
	assert.Zero(t, s.grant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersLearning, s.Shares.Of("b").Reason)
	s.confirm("a", "second")
	s.look()
	assert.Equal(t, int32(3), s.grant("b").Limits.Slots)
}

func TestADeposedProcessIsRefused(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.look()
	deposed := s.Reconciler
	late := deposed.object("a")
	late.Spec.Limits = &v1alpha1.TransferLimits{Slots: 4, Nonce: "boot/9", DurationSeconds: 300}
	late.Spec.Sequence++

	s.elect("second")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.confirm("a", "second")
	s.confirm("b", "second")
	s.asks("b", 0, 4)
	s.look()
	require.Equal(t, int32(4), s.grant("b").Limits.Slots)
	deposed.write(t.Context(), []*v1alpha1.TransferGrant{late})
	assert.Zero(t, s.grant("a").Limits.Slots)
	assert.Contains(t, deposed.lost, "a", "it is read anew")
}

// refusing has writes of one member's grant fail.
func (s *stage) refusing(member string) {
	refuse := func(o client.Object) error {
		if o.GetNamespace() == v1alpha1.MemberNamespacePrefix+member {
			return errQuota
		}
		return nil
	}
	s.Live = interceptor.NewClient(s.live.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := refuse(o); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if err := refuse(o); err != nil {
				return err
			}
			return c.Update(ctx, o, options...)
		},
	})
}

var errQuota = errors.New("exceeded quota")

// A member whose grant cannot be written holds up the others for a while, and then no
// more than it could be given.
func TestAGrantThatCannotBeWrittenHoldsUpNobodyForEver(t *testing.T) {
	s := newStage(t, "a", "b")
	s.refusing("b")
	s.in(map[string]string{"concurrency": "3", "fleetConcurrency": "5"})
	s.asks("a", 0, 3)
	s.look()
	assert.Zero(t, s.grant("a").Limits.Slots)
	s.began = time.Now().Add(-learning)
	s.look()
	assert.Equal(t, int32(2), s.grant("a").Limits.Slots, "b could have three")
	assert.Equal(t, int32(3), s.Shares.Of("b").Held)

	s.Live, s.lost = s.live, map[string]time.Time{"b": {}}
	s.look()
	assert.Zero(t, s.Shares.Of("b").Held)
	s.asks("a", 0, 3)
	s.look()
	assert.Equal(t, int32(3), s.grant("a").Limits.Slots)
}

// That a write fails is no reason to forget what members may be running that are no
// members any more.
func TestAWriteThatFailsLeavesTheBookAsItIs(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.asks("a", 0, 4)
	s.look()
	s.acknowledges("a", 4)
	s.look()
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}}))
	s.refusing("b")
	s.asks("b", 0, 4)
	s.look()
	s.Live = s.live
	for range 2 {
		for member := range s.lost {
			s.lost[member] = time.Time{}
		}
		s.asks("b", 0, 4)
		s.look()
	}
	assert.Zero(t, s.grant("b").Limits.Slots)
}

func TestAGrantThatWasDeletedIsMadeAnew(t *testing.T) {
	s := newStage(t, "a")
	s.in(map[string]string{"concurrency": "4"})
	s.look()
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}}))
	s.deleted = []string{"a"}
	s.look()
	assert.Equal(t, int64(2), s.grant("a").Sequence)
}

func TestWhatIsStoredIsLearntAsItWasGiven(t *testing.T) {
	s := newStage(t, "a")
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "4", "fleetSources": "[{name: eu, hosts: [x], concurrency: 2}]"})
	s.asks("a", 0, 3)
	s.reports["a"].Report.Transfers.Sources = []v1alpha1.SourceDemand{{Name: "eu", Wanted: 3}}
	s.look()
	g := s.grant("a")
	assert.Equal(t, int32(2), g.Limits.Slots)
	assert.Equal(t, []v1alpha1.SourceGrant{{Name: "eu", Slots: 2}}, g.Limits.Sources)
	object := s.stored["a"]
	stored := storedIn(object)
	assert.Equal(t, int32(2), stored.Possible.Slots)
	assert.Equal(t, map[string]int32{"eu": 2}, stored.Possible.Sources)
	assert.Equal(t, map[string]int32{"eu": 2}, stored.Sources)
	assert.Equal(t, 5*time.Minute, stored.Duration)
	assert.GreaterOrEqual(t, stored.Left, 5*time.Minute)
}

// What one change costs among a thousand members, the API's writes apart.
func BenchmarkOneChangeOfAThousand(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("m%d", i)
	}
	s := newStage(b, names...)
	data := map[string]string{"concurrency": "9", "fleetConcurrency": "2000"}
	s.in(data)
	for _, name := range names {
		s.asks(name, 0, 5)
	}
	s.look()
	all, err := s.gather(b.Context())
	require.NoError(b, err)
	state := s.Policy.Current()
	for i := 0; b.Loop(); i++ {
		one := &all[i%len(all)]
		s.asks(one.member.Name, int32(i%3), int32(3+i%4))
		one.root = s.reports[one.member.Name]
		s.share(b.Context(), state.Policy, all)
	}
}
