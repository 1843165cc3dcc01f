package grant

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestWithoutABudgetGrantsAreUnlimited(t *testing.T) {
	s := newTestHub(t, "a")
	s.applyPolicy(map[string]string{"concurrency": "4"})
	s.reconcile()
	assert.Equal(t, v1alpha1.TransferGrantSpec{ClusterUID: "uid-a", Sequence: 1, Unlimited: true}, s.getGrant("a"))
	s.reconcile()
	assert.Equal(t, int64(1), s.getGrant("a").Sequence, "it is written once")
	assert.Nil(t, s.Shares.ForMember("a"))

	link := &v1alpha1.MemberLink{}
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}, link))
	link.Status.AheadGrant = 7
	require.NoError(t, s.live.Update(t.Context(), link))
	s.reconcile()
	assert.Equal(t, int64(8), s.getGrant("a").Sequence, "it rises above what the member has")
}

func TestBudgetIsShared(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("a", 0, 9)
	s.reconcile()
	first := s.getGrant("a")
	require.NotNil(t, first.Limits)
	assert.Equal(t, int32(4), first.Limits.Slots)
	assert.Equal(t, s.reports["a"].Report.Transfers.Nonce, first.Limits.Nonce)
	assert.Equal(t, int32(300), first.Limits.DurationSeconds)
	assert.Equal(t, v1alpha1.TransfersWaiting, s.Shares.ForMember("a").Reason)

	s.acknowledgePlan("a", 4)
	s.reportDemand("b", 0, 9)
	s.reconcile()
	assert.Equal(t, int32(2), s.getGrant("a").Limits.Slots, "what the other wants is taken back")
	assert.Zero(t, s.getGrant("b").Limits.Slots, "and not given before it is free")
	assert.Equal(t, int32(4), s.Shares.ForMember("a").Held)

	s.acknowledgePlan("a", 3)
	s.reconcile()
	assert.Equal(t, int32(1), s.getGrant("b").Limits.Slots)
	s.acknowledgePlan("a", 1)
	s.reconcile()
	assert.Equal(t, int32(2), s.getGrant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersWaiting, s.Shares.ForMember("b").Reason)
}

func TestNothingIsRaisedBeforeReportsAreRead(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("a", 0, 9)
	s.reconcile()
	require.Equal(t, int32(4), s.getGrant("a").Limits.Slots)
	s.reportDemand("a", 0, 0)
	s.acknowledgePlan("a", 0)
	s.reports["a"].Report.Transfers.Slots = 0

	// The next process reads in b that it has more than the hub's copy shows.
	s.elect("second")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("b", 0, 3)
	s.confirm("b", "second")
	assert.Equal(t, time.Second, s.reconcile().RequeueAfter)
	assert.Zero(t, s.getGrant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersLearning, s.Shares.ForMember("b").Reason)
	s.confirm("a", "second")
	s.reconcile()
	assert.Equal(t, int32(3), s.getGrant("b").Limits.Slots)
}

func TestGrantOfDeposedProcessIsRefused(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reconcile()
	deposed := s.Reconciler
	late := deposed.grantObject("a")
	late.Spec.Limits = &v1alpha1.TransferLimits{Slots: 4, Nonce: "boot/9", DurationSeconds: 300}
	late.Spec.Sequence++

	s.elect("second")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.confirm("a", "second")
	s.confirm("b", "second")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	require.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
	deposed.writeGrants(t.Context(), []*v1alpha1.TransferGrant{late})
	assert.Zero(t, s.getGrant("a").Limits.Slots)
	assert.Contains(t, deposed.unknownGrants, "a", "it is read again")
}

// refuseWrites makes writes fail in one namespace.
func (s *testHub) refuseWrites(namespace string) {
	refuse := func(o client.Object) error {
		if o.GetNamespace() == namespace {
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

// A member whose grant cannot be written blocks the others for a while, and then only
// counts with what it could have been given.
func TestFailingGrantWriteDoesNotBlockOthers(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.refuseWrites("ot-member-b")
	s.applyPolicy(map[string]string{"concurrency": "3", "fleetConcurrency": "5"})
	s.reportDemand("a", 0, 3)
	s.reconcile()
	assert.Zero(t, s.getGrant("a").Limits.Slots)
	s.startedAt = time.Now().Add(-learningTimeout)
	s.reconcile()
	assert.Equal(t, int32(2), s.getGrant("a").Limits.Slots, "b could have three")
	assert.Equal(t, int32(3), s.Shares.ForMember("b").Held)

	s.Live, s.unknownGrants = s.live, map[string]time.Time{"b": {}}
	s.reconcile()
	assert.Zero(t, s.Shares.ForMember("b").Held)
	s.reportDemand("a", 0, 3)
	s.reconcile()
	assert.Equal(t, int32(3), s.getGrant("a").Limits.Slots)
}

// A failed write does not forget what departed members may be running.
func TestFailedWriteKeepsAccounts(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("a", 0, 4)
	s.reconcile()
	s.acknowledgePlan("a", 4)
	s.reconcile()
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}}))
	s.refuseWrites("ot-member-b")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	s.Live = s.live
	for range 2 {
		for member := range s.unknownGrants {
			s.unknownGrants[member] = time.Time{}
		}
		s.reportDemand("b", 0, 4)
		s.reconcile()
	}
	assert.Zero(t, s.getGrant("b").Limits.Slots)
}

func TestDeletedGrantIsRecreated(t *testing.T) {
	s := newTestHub(t, "a")
	s.applyPolicy(map[string]string{"concurrency": "4"})
	s.reconcile()
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}}))
	s.deletedGrants = []string{"a"}
	s.reconcile()
	assert.Equal(t, int64(2), s.getGrant("a").Sequence)
}

func TestStoredGrantIsLearnedUnchanged(t *testing.T) {
	s := newTestHub(t, "a")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4", "fleetSources": "[{name: eu, hosts: [x], concurrency: 2}]"})
	s.reportDemand("a", 0, 3)
	s.reports["a"].Report.Transfers.Sources = []v1alpha1.SourceDemand{{Name: "eu", Wanted: 3}}
	s.reconcile()
	g := s.getGrant("a")
	assert.Equal(t, int32(2), g.Limits.Slots)
	assert.Equal(t, []v1alpha1.SourceGrant{{Name: "eu", Slots: 2}}, g.Limits.Sources)
	object := s.storedGrants["a"]
	stored := parseStoredGrant(object)
	assert.Equal(t, int32(2), stored.MaxPossible.Slots)
	assert.Equal(t, map[string]int32{"eu": 2}, stored.MaxPossible.Sources)
	assert.Equal(t, map[string]int32{"eu": 2}, stored.Sources)
	assert.Equal(t, 5*time.Minute, stored.Duration)
	assert.GreaterOrEqual(t, stored.PossibleFor, 5*time.Minute)
}

// The cost of one change among a thousand members, without the API's writes.
func BenchmarkOneChangeAmongThousandMembers(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("m%d", i)
	}
	s := newTestHub(b, names...)
	data := map[string]string{"concurrency": "9", "fleetConcurrency": "2000"}
	s.applyPolicy(data)
	for _, name := range names {
		s.reportDemand(name, 0, 5)
	}
	s.reconcile()
	all, err := s.gatherMembers(b.Context())
	require.NoError(b, err)
	state := s.Policy.Current()
	for i := 0; b.Loop(); i++ {
		one := &all[i%len(all)]
		s.reportDemand(one.member.Name, int32(i%3), int32(3+i%4))
		one.root = s.reports[one.member.Name]
		s.shareBudget(b.Context(), state.Policy, all)
	}
}

// If there are fewer slots than members with work, members take turns, which end with
// what they began.
func TestMembersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a", "b", "c"}
		s := newTestHub(t, names...)
		s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "1"})
		s.reconcile()
		running, turns := map[string]int32{}, map[string]int{}
		for range 60 {
			for _, name := range names {
				limits := s.getGrant(name).Limits
				switch {
				case running[name] > 0 && limits.Slots == 0:
					running[name] = 0 // what was begun runs to its end
				case running[name] == 0 && limits.Slots > 0:
					running[name]++
					turns[name]++
				}
				require.NoError(t, trigger.Sleep(t.Context(), time.Second))
				s.acknowledgePlan(name, running[name])
				s.reportDemand(name, running[name], 5)
				s.reconcile()
			}
			require.LessOrEqual(t, running["a"]+running["b"]+running["c"], int32(1))
		}
		for _, name := range names {
			assert.GreaterOrEqual(t, turns[name], 5, "%v", turns)
		}
	})
}

// What is known of a member's grant beside its content goes with it; a member of the same name that
// is created later gets no mark twice.
func TestMissingMembersAreForgotten(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(policyOfFour)
	s.reconcile()
	s.refuseWrites("ot-member-a")
	s.reportDemand("a", 0, 1)
	s.reconcile()
	s.unknownGrants["a"] = time.Time{}
	s.nextPlanMark["a"] = time.Now()
	s.reconcile()
	require.Contains(t, s.retryDelays, "a")
	require.Contains(t, s.readNumbers, "a")
	before := s.plannerMark("a")

	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	s.unknownGrants = map[string]time.Time{}
	s.reconcile()
	assert.Contains(t, s.readNumbers, "a", "its grant is stored")
	assert.NotContains(t, s.retryDelays, "a")
	assert.NotContains(t, s.nextPlanMark, "a")
	require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}}))
	s.deletedGrants = []string{"a"}
	s.reconcile()
	assert.NotContains(t, s.readNumbers, "a")

	s.unknownGrants["a"] = time.Time{}
	s.rereadUnknownGrants(t.Context())
	assert.NotEqual(t, before, s.plannerMark("a"))
}
