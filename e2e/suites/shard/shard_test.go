//go:build linux

package shard_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// movedMembers lists the members that changed their replica.
func movedMembers(before, after map[string]string) (list []string) {
	for member, replica := range before {
		if after[member] != replica {
			list = append(list, member)
		}
	}
	return list
}

// TestReplicaKilled shows that only the members of a killed replica move, and that all of
// them are served again.
func TestReplicaKilled(t *testing.T) {
	testenv.RunInTurn(t, 0)
	before := shared.awaitBalanced(t, replicaNames...)
	r := shared.otherReplicas(t)[0]
	r.Kill()
	var left []string
	for _, name := range replicaNames {
		if name != r.name {
			left = append(left, name)
		}
	}
	after := shared.awaitBalanced(t, left...)
	assert.ElementsMatch(t, membersOf(before, r.name), movedMembers(before, after))
	shared.awaitNewReports(t)

	require.NoError(t, shared.startReplica(t.Context(), r))
	again := shared.awaitBalanced(t, replicaNames...)
	assert.LessOrEqual(t, len(movedMembers(after, again)), (fakeCount+len(replicaNames)-1)/len(replicaNames), "more than its share moves to the new replica")
	for _, member := range movedMembers(after, again) {
		assert.Equal(t, r.name, again[member])
	}
	shown := testenv.AwaitMember(t, shared, "fake-0", "the replica that syncs it", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Shard == again[m.Name]
	})
	require.NotEmpty(t, shown.Status.Shard)
	shared.judge.requireNoFaults(t)
}

// TestElectedReplicaPausedPastLease pauses the elected replica until another one is
// elected and has its members. It exits when it wakes, before it plans anything beside
// the other.
func TestElectedReplicaPausedPastLease(t *testing.T) {
	testenv.RunInTurn(t, 1)
	before := shared.awaitBalanced(t, replicaNames...)
	r, others := shared.electedReplica(t), shared.otherReplicas(t)
	challenge := shared.getMemberLinks(t)["fake-0"].Spec.Challenge
	former := challenge
	require.NoError(t, r.Pause(t.Context()))
	after := shared.awaitBalanced(t, others[0].name, others[1].name)
	assert.ElementsMatch(t, membersOf(before, r.name), movedMembers(before, after))
	shared.changePolicy(t, "3")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		challenge = shared.getMemberLinks(t)["fake-0"].Spec.Challenge
		return challenge != former
	}), "the next elected replica gives no challenge to a member that may not have moved")
	require.NoError(t, r.Resume())
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return r.HasEnded()
	}), "two replicas are elected")
	log, err := os.ReadFile(r.LogFile())
	require.NoError(t, err)
	assert.Contains(t, string(log), "another replica was elected", "it did not notice before client-go, which is much later")
	assert.Equal(t, challenge, shared.getMemberLinks(t)["fake-0"].Spec.Challenge, "it took the members back")
	shared.changePolicy(t, "8")
	require.NoError(t, shared.startReplica(t.Context(), r))
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}

// Two replicas are paused until their members have moved. When they resume, one finds its Lease
// expired by its own clock. The other, like a frozen virtual machine, does not: it continues to
// sync members that another replica syncs. No version falls.
func TestReplicasPausedPastLease(t *testing.T) {
	testenv.RunInTurn(t, 2)
	longLease := shared.otherReplicas(t)[1]
	shared.replaceReplica(t, longLease, "--leader-elect-lease-duration=1h", "--leader-elect-renew-deadline=50m")
	before := shared.awaitBalanced(t, replicaNames...)
	paused := map[string]bool{}
	for _, r := range shared.otherReplicas(t) {
		assert.NotEmpty(t, membersOf(before, r.name))
		require.NoError(t, r.Pause(t.Context()))
		paused[r.name] = true
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for _, link := range shared.getMemberLinks(t) {
			if paused[link.Spec.Replica] || paused[link.Status.Carrier] {
				return false
			}
		}
		return true
	}), "the members of %v do not move", &paused)
	shared.changePolicy(t, "4")
	shared.awaitNewReports(t)
	for name := range paused {
		require.NoError(t, shared.replicas[name].Hub.Resume())
	}
	shared.changePolicy(t, "5")
	shared.awaitNewReports(t)
	shared.awaitBalanced(t, replicaNames...)
	shared.replaceReplica(t, longLease)
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}

// TestReplicaWithoutHubAPI shows that a replica cut off from the hub's API server, but
// not from its members, stops syncing them by itself and resumes once it is back.
func TestReplicaWithoutHubAPI(t *testing.T) {
	testenv.RunInTurn(t, 3)
	before := shared.awaitBalanced(t, replicaNames...)
	r := shared.otherReplicas(t)[0]
	mine := membersOf(before, r.name)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(r.memberLinks.reachedMembers()) == len(mine) }), "it is connected to others than its members: %v", r.memberLinks.reachedMembers())
	require.NoError(t, r.hubLink.Stall())
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(r.memberLinks.reachedMembers()) == 0 }), "it stays connected to members that have moved")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for _, link := range shared.getMemberLinks(t) {
			if link.Status.Carrier == r.name {
				return false
			}
		}
		return true
	}), "its members do not move")
	shared.awaitNewReports(t)
	require.NoError(t, r.hubLink.Repair(t.Context()))
	require.False(t, r.HasEnded(), "it exited")
	after := shared.awaitBalanced(t, replicaNames...)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(r.memberLinks.reachedMembers()) == len(membersOf(after, r.name)) }))
	shared.judge.requireNoFaults(t)
}

// TestReplicaWithoutOneMember shows that a member moves to a replica that reaches it.
func TestReplicaWithoutOneMember(t *testing.T) {
	testenv.RunInTurn(t, 4)
	before := shared.awaitBalanced(t, replicaNames...)
	r := shared.otherReplicas(t)[0]
	member := membersOf(before, r.name)[0]
	r.memberLinks.setBlocked(member, true)
	t.Cleanup(func() { r.memberLinks.setBlocked(member, false) })
	var link v1alpha1.MemberLink
	require.True(t, testenv.AwaitCondition(t, func() bool {
		link = shared.getMemberLinks(t)[member]
		return !link.Status.Reachable || link.Spec.Replica != r.name
	}))
	for _, m := range shared.Fakes.List {
		if m.Name == member {
			require.NoError(t, m.SetImages(t.Context(), "page-1", nil))
		}
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		link = shared.getMemberLinks(t)[member]
		return link.Spec.Replica != r.name && link.Status.Carrier == link.Spec.Replica && link.Status.Reachable
	}), "the member does not move: %+v; logs are in %s", &link, shared.Plane.Dir())
	shared.awaitNewReports(t)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var events eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &events))
		for _, e := range events.Items {
			if e.Reason == v1alpha1.ReasonReportNotCarried && e.Regarding.Name == member {
				return true
			}
		}
		return false
	}), "there is no event")
	text, err := shared.electedReplica(t).Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, text, "ot_hub_member_reports_not_carried_total 0")
	r.memberLinks.setBlocked(member, false)
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}

// TestReplicaWithoutItsMembers shows that a replica that reaches none of its members,
// while others do, loses them all and gets no others. A new process with its name counts
// as another replica.
func TestReplicaWithoutItsMembers(t *testing.T) {
	testenv.RunInTurn(t, 5)
	before := shared.awaitBalanced(t, replicaNames...)
	r := shared.otherReplicas(t)[0]
	for member := range before {
		shared.blockMember(t, member, r.name)
	}
	var left []string
	for _, name := range replicaNames {
		if name != r.name {
			left = append(left, name)
		}
	}
	after := shared.awaitBalanced(t, left...)
	// The watchdog may have swapped one member before.
	assert.Subset(t, movedMembers(before, after), membersOf(before, r.name))
	shared.awaitNewReports(t)
	for member := range before {
		r.memberLinks.setBlocked(member, false)
	}
	assert.Equal(t, after, shared.awaitBalanced(t, left...), "it gets no members for a while")
	shared.replaceReplica(t, r)
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}

// TestFirstReportCannotBeSynced joins a member that its replica does not reach. Although
// no report of it has ever arrived, it moves to a replica that does.
func TestFirstReportCannotBeSynced(t *testing.T) {
	before := shared.awaitBalanced(t, replicaNames...)
	fakes, err := fakemember.Start(t.Context(), shared.Plane, "late", 1)
	require.NoError(t, err)
	t.Cleanup(fakes.Stop)
	late := fakes.List[0]
	shared.blockMember(t, late.Name, replicaNames...)
	require.NoError(t, shared.registerFake(t.Context(), late))
	syncedBy := func() (replica string) {
		link := shared.getMemberLinks(t)[late.Name]
		if link.Status.Known && link.Status.Carrier == link.Spec.Replica {
			replica = link.Spec.Replica
		}
		return replica
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return syncedBy() != "" }), "no replica gets it")
	if elected := shared.electedReplica(t); syncedBy() == elected.name {
		to := shared.otherReplicas(t)[0].name
		if other := shared.otherReplicas(t)[1].name; len(membersOf(before, other)) < len(membersOf(before, to)) {
			to = other
		}
		shared.assignMember(t, late.Name, to)
		require.True(t, testenv.AwaitCondition(t, func() bool { return syncedBy() == to }), "%s does not sync it", to)
	}
	missed := syncedBy()
	for _, name := range replicaNames {
		if name != missed {
			shared.replicas[name].memberLinks.setBlocked(late.Name, false)
		}
	}
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: late.Name, Name: v1alpha1.MailboxName}, root))
	shared.awaitReport(t, late.Name, root.Sequence)
	assert.NotEqual(t, missed, shared.getMemberLinks(t)[late.Name].Spec.Replica)

	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: late.Name}}
	require.NoError(t, shared.Delete(t.Context(), member))
	shared.AwaitGone(t, member)
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}

// TestMembersMovedBetweenReplicas moves members back and forth while former owners still
// have requests in flight.
func TestMembersMovedBetweenReplicas(t *testing.T) {
	shared.awaitBalanced(t, replicaNames...)
	before := shared.countGoroutines(t)
	for i := range 12 {
		shared.assignMember(t, "fake-0", replicaNames[i%len(replicaNames)])
		shared.assignMember(t, "fake-1", replicaNames[(i+1)%len(replicaNames)])
		for _, m := range shared.Fakes.List[:2] {
			require.NoError(t, m.SetImages(t.Context(), "page-0", nil))
		}
	}
	shared.changePolicy(t, "6")
	shared.awaitNewReports(t)
	shared.awaitBalanced(t, replicaNames...)
	// Each member has one connection, as before; other goroutines vary.
	const slack = 20
	require.True(t, testenv.AwaitCondition(t, func() bool { return shared.countGoroutines(t) <= before+slack }), "moves leak goroutines: %d before", before)
	shared.judge.requireNoFaults(t)
}

func TestHubAPIServerRestart(t *testing.T) {
	before := shared.awaitBalanced(t, replicaNames...)
	lease := func() (holder string, renewed time.Time) {
		l := &coordinationv1.Lease{}
		err := shared.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: "ot-hub"}, l)
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil {
			return "", time.Time{}
		}
		return *l.Spec.HolderIdentity, l.Spec.RenewTime.Time
	}
	elected := shared.electedReplica(t)
	process := elected.Hub
	held, _ := lease()
	shared.Plane.KillAPIServer()
	require.NoError(t, shared.Plane.StartAPIServer(context.Background()))
	started := time.Now()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		shared.restartEnded(t)
		holder, renewed := lease()
		// An elected replica that lost its Lease takes a while to exit. Until it is restarted,
		// its members look as if it synced them.
		return holder != "" && renewed.After(started) && (holder == held || elected.Hub != process)
	}), "no replica is elected, or a deposed one still runs; logs are in %s", shared.Plane.Dir())
	shared.awaitBalancedDoing(t, func() { shared.restartEnded(t) }, replicaNames...)
	shared.awaitNewReports(t)
	assert.Len(t, before, fakeCount)
	shared.judge.requireNoFaults(t)
}

func TestAllReplicasRestart(t *testing.T) {
	testenv.RunInTurn(t, 6)
	before := shared.awaitBalanced(t, replicaNames...)
	for _, r := range shared.replicas {
		r.Kill()
	}
	for _, r := range shared.replicas {
		require.NoError(t, shared.startReplica(t.Context(), r))
	}
	after := shared.awaitBalanced(t, replicaNames...)
	assert.Equal(t, before, after, "a member moved")
	shared.changePolicy(t, "7")
	shared.awaitNewReports(t)
	shared.judge.requireNoFaults(t)
}
