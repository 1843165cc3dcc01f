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

var policyOfFour = map[string]string{"concurrency": "9", "fleetConcurrency": "4"}

var rulesOfFour = budget.Rules{Total: 4, Duration: 5 * time.Minute}

func manyDepartures(n int) []budget.Departure {
	all := make([]budget.Departure, n)
	for i := range all {
		all[i] = budget.Departure{Member: fmt.Sprintf("m%d", i), Slots: 2, Remaining: time.Duration(i) * time.Second}
	}
	return all
}

// holdAll has a member run everything that the fleet may.
func (s *testHub) holdAll(member string) {
	s.t.Helper()
	s.applyPolicy(policyOfFour)
	s.reportDemand(member, 0, 4)
	s.reconcile()
	require.Equal(s.t, int32(4), s.getGrant(member).Limits.Slots)
	s.acknowledgePlan(member, 4)
	s.reconcile()
}

// electNext elects another process, which reads all members except some.
func (s *testHub) electNext(challenge string, confirmed ...string) {
	s.t.Helper()
	s.elect(challenge)
	s.applyPolicy(policyOfFour)
	for _, name := range confirmed {
		s.confirm(name, challenge)
	}
}

func (s *testHub) getMember(name string) *v1alpha1.MemberCluster {
	s.t.Helper()
	m := &v1alpha1.MemberCluster{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Name: name}, m))
	return m
}

// deleteMember deletes everything of a member on the hub.
func (s *testHub) deleteMember(name string) {
	s.t.Helper()
	m := s.getMember(name)
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

func TestDeparturesOutliveTheProcess(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	leaves := s.getMember("a")
	leaves.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, s.live.Update(t.Context(), leaves))
	require.NoError(t, s.live.Delete(t.Context(), leaves))
	assert.False(t, s.Shares.MayRemove(leaves), "it is not stored yet what it holds")
	s.reconcile()
	require.True(t, s.Shares.MayRemove(leaves))
	s.deleteMember("a")

	s.electNext("second", "b")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Zero(t, s.getGrant("b").Limits.Slots)
	assert.Equal(t, int64(4), s.accountant.Allocate(rulesOfFour, time.Now()).Held)
	kept := &corev1.ConfigMap{}
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: DepartedConfigMap}, kept))
	assert.Contains(t, kept.Data[departedKey], `"member":"a","cluster":"uid-a","slots":4`)

	// It is stored for as long as it may run.
	kept.Data[departedKey] = `[{"member":"a","cluster":"uid-a","slots":4,"seconds":0}]`
	require.NoError(t, s.live.Update(t.Context(), kept))
	s.electNext("third", "b")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: DepartedConfigMap}, kept))
	assert.Equal(t, `[]`, kept.Data[departedKey])
}

// A member is not removed before what it holds is stored.
func TestMemberStaysUntilItsShareIsStored(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	s.refuseWrites("ot-hub")
	leaves := s.getMember("a")
	leaves.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, s.live.Update(t.Context(), leaves))
	require.NoError(t, s.live.Delete(t.Context(), leaves))
	assert.LessOrEqual(t, s.reconcile().RequeueAfter, time.Second)
	assert.False(t, s.Shares.MayRemove(leaves))
	s.Live = s.live
	s.departures.retryAt = time.Time{}
	s.reconcile()
	assert.True(t, s.Shares.MayRemove(leaves))
	s.Shares.publish(false, nil)
	assert.True(t, s.Shares.MayRemove(s.getMember("b")), "without a budget no member holds anything")
}

// A rebuilt cluster has nothing of what the former one holds, and takes nothing away from
// it.
func TestRebuiltClusterStartsWithoutGrants(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	rebuilt := s.getMember("a")
	rebuilt.Status.ClusterUID = "uid-new"
	require.NoError(t, s.live.Update(t.Context(), rebuilt))
	root := s.reports["a"]
	root.ClusterUID, root.Report = "uid-new", root.Report.DeepCopy()
	root.Report.BootID, root.Report.Slots, root.Report.Transfers = "reboot", 0, &v1alpha1.ReportedTransfers{Limited: true}
	s.reports["a"] = root

	for _, process := range []string{"second", "third"} {
		s.electNext(process, "a", "b")
		for range 3 {
			s.reportDemand("b", 0, 4)
			s.reconcile()
		}
		assert.Zero(t, s.getGrant("b").Limits.Slots, process)
		assert.Zero(t, s.Shares.ForMember("a").Held, process)
		assert.Equal(t, types.UID("uid-new"), s.getGrant("a").ClusterUID, process)
	}
}

// A member that was deleted and recreated unobserved is another one.
func TestRecreatedMember(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	recreated := s.getMember("a")
	require.NoError(t, s.live.Delete(t.Context(), recreated))
	recreated = &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "recreated"}, Status: recreated.Status}
	require.NoError(t, s.live.Create(t.Context(), recreated))
	s.reportDemand("a", 0, 0)
	s.reports["a"].Report.Transfers.Grant, s.reports["a"].Report.Transfers.Slots = 99, 0
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Zero(t, s.getGrant("b").Limits.Slots)
}

// A missing report of a planned member says nothing about what it runs.
func TestMissingReportReservesPlannedShare(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	s.electNext("second", "b")
	delete(s.reports, "a")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Zero(t, s.getGrant("b").Limits.Slots)
	assert.Equal(t, v1alpha1.TransfersLearning, s.Shares.ForMember("b").Reason)
	s.startedAt = time.Now().Add(-learningTimeout)
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(9), s.Shares.ForMember("a").Held, "as much as its plan allows")
	assert.Zero(t, s.getGrant("b").Limits.Slots)
}

func TestDeparturesAreBounded(t *testing.T) {
	all := manyDepartures(maxDepartures + 50)
	list := encodeDepartures(all)
	assert.Len(t, list, maxDepartures)
	sum := int32(0)
	for _, d := range list {
		sum += d.Slots
	}
	assert.Equal(t, int32(2*len(all)), sum)
	assert.Equal(t, int64(len(all)), list[maxDepartures-1].Seconds)
}
