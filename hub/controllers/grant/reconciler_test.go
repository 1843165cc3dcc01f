package grant

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

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

// refusing has writes fail in one namespace.
func (s *stage) refusing(namespace string) {
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

// A member whose grant cannot be written holds up the others for a while, and then no
// more than it could be given.
func TestAGrantThatCannotBeWrittenHoldsUpNobodyForEver(t *testing.T) {
	s := newStage(t, "a", "b")
	s.refusing("ot-member-b")
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
	s.refusing("ot-member-b")
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

// Where there are fewer slots than members with work, each has its turn, which ends
// with what it has begun.
func TestMembersTakeTurns(t *testing.T) {
	names := []string{"a", "b", "c"}
	s := newStage(t, names...)
	s.in(map[string]string{"concurrency": "9", "fleetConcurrency": "1"})
	s.look()
	running, turns := map[string]int32{}, map[string]int{}
	for range 60 {
		for _, name := range names {
			limits := s.grant(name).Limits
			switch {
			case running[name] > 0 && limits.Slots == 0:
				running[name] = 0 // what was begun ends when it does
			case running[name] == 0 && limits.Slots > 0:
				running[name]++
				turns[name]++
			}
			s.acknowledges(name, running[name])
			s.asks(name, running[name], 5)
			s.look()
		}
		require.LessOrEqual(t, running["a"]+running["b"]+running["c"], int32(1))
	}
	for _, name := range names {
		assert.GreaterOrEqual(t, turns[name], 5, "%v", turns)
	}
}
