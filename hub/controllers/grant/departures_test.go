package grant

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
)

var fourForAll = map[string]string{"concurrency": "9", "fleetConcurrency": "4"}

var rulesOfFour = budget.Rules{Total: 4, Duration: 5 * time.Minute}

func many(n int) []budget.Departure {
	all := make([]budget.Departure, n)
	for i := range all {
		all[i] = budget.Departure{Member: fmt.Sprintf("m%d", i), Slots: 2, Left: time.Duration(i) * time.Second}
	}
	return all
}

// holding has a member run all that the fleet may.
func (s *stage) holding(member string) {
	s.t.Helper()
	s.in(fourForAll)
	s.asks(member, 0, 4)
	s.look()
	require.Equal(s.t, int32(4), s.grant(member).Limits.Slots)
	s.acknowledges(member, 4)
	s.look()
}

// next has another process be elected, which reads all members but some.
func (s *stage) next(challenge string, confirmed ...string) {
	s.t.Helper()
	s.elect(challenge)
	s.in(fourForAll)
	for _, name := range confirmed {
		s.confirm(name, challenge)
	}
}

func (s *stage) member(name string) *v1alpha1.MemberCluster {
	s.t.Helper()
	m := &v1alpha1.MemberCluster{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Name: name}, m))
	return m
}

// remove deletes all that the hub has of a member.
func (s *stage) remove(name string) {
	s.t.Helper()
	m := s.member(name)
	m.Finalizers = nil
	require.NoError(s.t, s.live.Update(s.t.Context(), m))
	namespace := v1alpha1.MemberNamespacePrefix + name
	for _, o := range []client.Object{&v1alpha1.TransferGrant{}, &v1alpha1.ClusterPlan{}, &v1alpha1.MemberLink{}} {
		o.SetNamespace(namespace)
		o.SetName(v1alpha1.MailboxName)
		require.NoError(s.t, s.live.Delete(s.t.Context(), o))
	}
	delete(s.reports, name)
}

func TestWhatADepartedClusterHoldsOutlivesTheProcess(t *testing.T) {
	s := newStage(t, "a", "b")
	s.holding("a")
	leaves := s.member("a")
	leaves.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, s.live.Update(t.Context(), leaves))
	require.NoError(t, s.live.Delete(t.Context(), leaves))
	assert.False(t, s.Shares.Leave(leaves), "it is not stored yet what it holds")
	s.look()
	require.True(t, s.Shares.Leave(leaves))
	s.remove("a")

	s.next("second", "b")
	s.asks("b", 0, 4)
	s.look()
	assert.Zero(t, s.grant("b").Limits.Slots)
	assert.Equal(t, int64(4), s.book.Plan(rulesOfFour, time.Now()).Held)
	kept := &corev1.ConfigMap{}
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: Departed}, kept))
	assert.Contains(t, kept.Data[keyDeparted], `"member":"a","cluster":"uid-a","slots":4`)

	// It is stored for as long as it may run, and then no more.
	kept.Data[keyDeparted] = `[{"member":"a","cluster":"uid-a","slots":4,"seconds":0}]`
	require.NoError(t, s.live.Update(t.Context(), kept))
	s.next("third", "b")
	s.asks("b", 0, 4)
	s.look()
	assert.Equal(t, int32(4), s.grant("b").Limits.Slots)
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: Departed}, kept))
	assert.Equal(t, `[]`, kept.Data[keyDeparted])
}

// A member is not let go of before it is stored what it holds.
func TestAMemberStaysUntilItIsStoredWhatItHolds(t *testing.T) {
	s := newStage(t, "a", "b")
	s.holding("a")
	s.refusing("ot-hub")
	leaves := s.member("a")
	leaves.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, s.live.Update(t.Context(), leaves))
	require.NoError(t, s.live.Delete(t.Context(), leaves))
	assert.LessOrEqual(t, s.look().RequeueAfter, time.Second)
	assert.False(t, s.Shares.Leave(leaves))
	s.Live = s.live
	s.departed.again = time.Time{}
	s.look()
	assert.True(t, s.Shares.Leave(leaves))
	s.Shares.set(false, nil)
	assert.True(t, s.Shares.Leave(s.member("b")), "without a budget nobody holds anything")
}

// A cluster that was rebuilt has none of what the former one holds, and takes nothing of
// it away.
func TestARebuiltClusterIsAnother(t *testing.T) {
	s := newStage(t, "a", "b")
	s.holding("a")
	rebuilt := s.member("a")
	rebuilt.Status.ClusterUID = "uid-new"
	require.NoError(t, s.live.Update(t.Context(), rebuilt))
	root := s.reports["a"]
	root.ClusterUID, root.Report = "uid-new", root.Report.DeepCopy()
	root.Report.BootID, root.Report.Slots, root.Report.Transfers = "reboot", 0, &v1alpha1.ReportedTransfers{Limited: true}
	s.reports["a"] = root

	for _, process := range []string{"second", "third"} {
		s.next(process, "a", "b")
		for range 3 {
			s.asks("b", 0, 4)
			s.look()
		}
		assert.Zero(t, s.grant("b").Limits.Slots, process)
		assert.Zero(t, s.Shares.Of("a").Held, process)
		assert.Equal(t, types.UID("uid-new"), s.grant("a").ClusterUID, process)
	}
}

// A member that was deleted and made anew, with nobody looking meanwhile, is another.
func TestAMemberThatIsMadeAnew(t *testing.T) {
	s := newStage(t, "a", "b")
	s.holding("a")
	anew := s.member("a")
	require.NoError(t, s.live.Delete(t.Context(), anew))
	anew = &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "anew"}, Status: anew.Status}
	require.NoError(t, s.live.Create(t.Context(), anew))
	s.asks("a", 0, 0)
	s.reports["a"].Report.Transfers.Grant, s.reports["a"].Report.Transfers.Slots = 99, 0
	s.asks("b", 0, 4)
	s.look()
	assert.Zero(t, s.grant("b").Limits.Slots)
}

// That there is no report of a member that was planned for says nothing of what it runs.
func TestAMissingReportIsNotNothing(t *testing.T) {
	s := newStage(t, "a", "b")
	s.holding("a")
	s.next("second", "b")
	delete(s.reports, "a")
	s.asks("b", 0, 4)
	s.look()
	assert.Zero(t, s.grant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersLearning, s.Shares.Of("b").Reason)
	s.began = time.Now().Add(-learning)
	s.asks("b", 0, 4)
	s.look()
	assert.Equal(t, int32(9), s.Shares.Of("a").Held, "as much as its plan allows")
	assert.Zero(t, s.grant("b").Limits.Slots)
}

func TestDeparturesAreBounded(t *testing.T) {
	all := many(mostDeparted + 50)
	list := listed(all)
	assert.Len(t, list, mostDeparted)
	sum := int32(0)
	for _, d := range list {
		sum += d.Slots
	}
	assert.Equal(t, int32(2*len(all)), sum)
	assert.Equal(t, int64(len(all)), list[mostDeparted-1].Seconds)
}
