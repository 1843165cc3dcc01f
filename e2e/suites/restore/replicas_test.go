//go:build linux

package restore_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// longMemberTimeout has a hub wait for a write that a test holds.
const longMemberTimeout = "--member-timeout=10m"

// Names of the two replicas, from the beginning.
const (
	ofLeader   = "first"
	ofFollower = "second"
)

// getMemberLinks are the MemberLinks by the name of the member. One of a member that has left
// stays: its namespace is being deleted, and no namespace controller runs here.
func (f *testFleet) getMemberLinks(t *testing.T) map[string]*v1alpha1.MemberLink {
	t.Helper()
	var list v1alpha1.MemberLinkList
	require.NoError(t, f.List(t.Context(), &list))
	links := map[string]*v1alpha1.MemberLink{}
	for i := range list.Items {
		if name := strings.TrimPrefix(list.Items[i].Namespace, v1alpha1.MemberNamespacePrefix); slices.Contains(f.memberNames, name) {
			links[name] = &list.Items[i]
		}
	}
	return links
}

// assignReplica has a member carried by a replica. The hub keeps the replicas' shares even,
// and may take back what was moved: then another member goes the other way first.
func (f *testFleet) assignReplica(t *testing.T, member, to string) {
	t.Helper()
	other := map[string]string{ofLeader: ofFollower, ofFollower: ofLeader}[to]
	has := map[string][]string{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		clear(has)
		links := f.getMemberLinks(t)
		for name, link := range links {
			has[link.Spec.Replica] = append(has[link.Spec.Replica], name)
		}
		return len(links) == len(f.memberNames) && len(has[ofLeader])+len(has[ofFollower]) == len(links) && min(len(has[ofLeader]), len(has[ofFollower])) >= len(links)/2
	}), "members are not divided: %v", has)
	moves := 0
	require.True(t, testenv.AwaitCondition(t, func() bool {
		links := f.getMemberLinks(t)
		link := links[member]
		if link.Spec.Replica == to {
			n := 0
			for _, l := range links {
				if l.Spec.Replica == to {
					n++
				}
			}
			even := n == len(links)/2 || n == (len(links)+1)/2 // else one is about to move
			return even && link.Status.Carrier == to && link.Status.Reachable
		}
		if moves++; moves%2 == 1 {
			f.awaitReassigned(t, member, to)
			return false
		}
		for name, link := range links {
			if link.Spec.Replica == to {
				f.awaitReassigned(t, name, other)
				break
			}
		}
		return false
	}), "%s does not carry for %s", to, member)
}

func (f *testFleet) awaitReassigned(t *testing.T, member, to string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		link := f.getMemberLinks(t)[member]
		link.Spec.Replica = to
		return f.Update(t.Context(), link)
	}))
}

// startTwoHubs starts a leader, its way to its API server being the proxy where there
// is one, and a second replica.
func (f *testFleet) startTwoHubs(t *testing.T, through *faults.Proxy, args ...string) (leader, follower *program.Hub) {
	t.Helper()
	first := append([]string{"--replica-name=" + ofLeader}, args...)
	if through == nil {
		leader = f.startHub(t, nil, first...)
	} else {
		leader = f.startHub(t, through.Redirect, first...)
	}
	f.awaitLeader(t, leader)
	follower = f.startHub(t, nil, append([]string{"--replica-name=" + ofFollower}, args...)...)
	_, err := follower.ReadMetrics(t.Context())
	require.NoError(t, err)
	return leader, follower
}

// requirePlanned waits until the hub has planned a budget for a member.
func (f *testFleet) requirePlanned(t *testing.T, name string, want map[string]string) {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + name, Name: v1alpha1.MailboxName}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return f.Get(t.Context(), key, plan) == nil && plan.Spec.Policy["concurrency"] == want["concurrency"]
	}), "plan of %s: %+v", name, &plan.Spec)
}

func TestLeaderKilledDuringChanges(t *testing.T) {
	leader, follower := shared.startTwoHubs(t, nil)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	onlyRose := shared.startJudges(t)
	for range 5 {
		shared.requirePlanned(t, plainFake, newPolicyData(shared.setNewBudget(t)))
	}
	shared.setNewBudget(t)
	leader.Kill()
	var newest int32
	for range 5 {
		newest = shared.setNewBudget(t)
	}
	shared.awaitLeader(t, follower)
	shared.awaitAcknowledged(t, newest)
	for range 3 {
		newest = shared.setNewBudget(t)
	}
	shared.awaitAcknowledged(t, newest)
	onlyRose(t)
}

// TestDelayedPlanIsRejected delays a relay's write of a newer plan until the member has a
// still newer one.
func TestDelayedPlanIsRejected(t *testing.T) {
	leader, _ := shared.startTwoHubs(t, nil, append(longLease, longMemberTimeout)...)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	onlyRose := shared.startJudges(t)
	late := holdWrites(t, shared.fakeProxy, mailboxPath(proxiedFake, "clusterplans", v1alpha1.MailboxName))[0]
	first := shared.setNewBudget(t)
	require.True(t, testenv.AwaitCondition(t, late.isHolding), "no plan is carried")
	// The other replica carries it.
	shared.assignReplica(t, proxiedFake, map[string]string{ofLeader: ofFollower, ofFollower: ofLeader}[shared.getMemberLinks(t)[proxiedFake].Spec.Replica])
	shared.awaitAcknowledged(t, first)
	var newest int32
	for range 2 {
		newest = shared.setNewBudget(t)
		shared.awaitAcknowledged(t, newest)
	}
	assert.Equal(t, http.StatusConflict, late.awaitStatus(t))
	shared.setFakeImages(t, proxiedFake, 7)
	shared.awaitImageCount(t, proxiedFake, 7)
	shared.awaitAcknowledged(t, newest)
	onlyRose(t)
	assert.False(t, leader.HasEnded())
}

// TestPausedLeaderWritesNothingStale pauses a leader, with a plan and a report in flight,
// until another replica leads. The woken leader's writes have no effect.
func TestPausedLeaderWritesNothingStale(t *testing.T) {
	way, err := faults.StartProxy(shared.HubMember.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	leader, follower := shared.startTwoHubs(t, way, longMemberTimeout)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	shared.assignReplica(t, otherFake, ofLeader)
	onlyRose := shared.startJudges(t)

	gates := holdWrites(t, way,
		mailboxPath(v1alpha1.MemberNamespacePrefix+plainFake, "clusterplans", v1alpha1.MailboxName),
		mailboxPath(v1alpha1.MemberNamespacePrefix+otherFake, "clusterreports", v1alpha1.MailboxName))
	shared.setFakeImages(t, otherFake, 5)
	require.True(t, testenv.AwaitCondition(t, gates[1].isHolding), "the leader carries no report")
	budget := shared.setNewBudget(t)
	require.True(t, testenv.AwaitCondition(t, gates[0].isHolding), "the leader writes no plan")
	require.NoError(t, leader.Pause(t.Context()))

	shared.awaitLeader(t, follower)
	shared.awaitAcknowledged(t, budget)
	budget = shared.setNewBudget(t)
	shared.awaitAcknowledged(t, budget)
	shared.setFakeImages(t, otherFake, 60)
	shared.awaitImageCount(t, otherFake, 60)

	for _, g := range gates {
		assert.Equal(t, http.StatusConflict, g.awaitStatus(t), g.write)
	}
	require.NoError(t, leader.Resume())
	require.True(t, testenv.AwaitCondition(t, func() bool { return leader.HasEnded() }), "a leader that lost its Lease goes on")
	shared.setFakeImages(t, otherFake, 61)
	shared.awaitImageCount(t, otherFake, 61)
	shared.awaitAcknowledged(t, budget)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	onlyRose(t)
}

// TestPausedFollowerWritesNothingStale pauses a replica that only syncs while plans
// change. It wakes with a stale cache.
func TestPausedFollowerWritesNothingStale(t *testing.T) {
	_, follower := shared.startTwoHubs(t, nil)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	onlyRose := shared.startJudges(t)
	shared.setNewBudget(t)
	require.NoError(t, follower.Pause(t.Context()))
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	shared.setFakeImages(t, plainFake, 8)
	shared.awaitImageCount(t, plainFake, 8)
	budget := shared.setNewBudget(t)
	require.NoError(t, follower.Resume())
	shared.awaitAcknowledged(t, budget)
	shared.setFakeImages(t, plainFake, 9)
	shared.awaitImageCount(t, plainFake, 9)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	onlyRose(t)
	assert.False(t, follower.HasEnded())
}
