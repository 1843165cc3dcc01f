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
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// patient has a hub wait for a write that a test holds.
const patient = "--member-timeout=10m"

// Names of the two replicas, from the beginning.
const (
	ofLeader   = "first"
	ofFollower = "second"
)

// links are the MemberLinks by the name of the member. One of a member that has left
// stays: its namespace is being deleted, and no namespace controller runs here.
func (f *fleet) links(t *testing.T) map[string]*v1alpha1.MemberLink {
	t.Helper()
	var list v1alpha1.MemberLinkList
	require.NoError(t, f.List(t.Context(), &list))
	links := map[string]*v1alpha1.MemberLink{}
	for i := range list.Items {
		if name := strings.TrimPrefix(list.Items[i].Namespace, v1alpha1.MemberNamespacePrefix); slices.Contains(f.names, name) {
			links[name] = &list.Items[i]
		}
	}
	return links
}

// assign has a member carried by a replica. The hub keeps the replicas' shares even,
// and may take back what was moved: then another member goes the other way first.
func (f *fleet) assign(t *testing.T, member, to string) {
	t.Helper()
	other := map[string]string{ofLeader: ofFollower, ofFollower: ofLeader}[to]
	has := map[string][]string{}
	require.True(t, scene.Await(t, func() bool {
		clear(has)
		links := f.links(t)
		for name, link := range links {
			has[link.Spec.Replica] = append(has[link.Spec.Replica], name)
		}
		return len(links) == len(f.names) && len(has[ofLeader])+len(has[ofFollower]) == len(links) && min(len(has[ofLeader]), len(has[ofFollower])) >= len(links)/2
	}), "members are not divided: %v", has)
	moves := 0
	require.True(t, scene.Await(t, func() bool {
		links := f.links(t)
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
			f.reassign(t, member, to)
			return false
		}
		for name, link := range links {
			if link.Spec.Replica == to {
				f.reassign(t, name, other)
				break
			}
		}
		return false
	}), "%s does not carry for %s", to, member)
}

func (f *fleet) reassign(t *testing.T, member, to string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		link := f.links(t)[member]
		link.Spec.Replica = to
		return f.Update(t.Context(), link)
	}))
}

// twoHubs starts a leader, its way to its API server being the proxy where there
// is one, and a second replica.
func (f *fleet) twoHubs(t *testing.T, through *proxy.Proxy, args ...string) (leader, follower *hub.Hub) {
	t.Helper()
	first := append([]string{"--replica-name=" + ofLeader}, args...)
	if through == nil {
		leader = f.startHub(t, nil, first...)
	} else {
		leader = f.startHub(t, through.Through, first...)
	}
	f.leads(t, leader)
	follower = f.startHub(t, nil, append([]string{"--replica-name=" + ofFollower}, args...)...)
	_, err := follower.Metrics(t.Context())
	require.NoError(t, err)
	return leader, follower
}

// plannedFor waits until the hub has planned a budget for a member.
func (f *fleet) plannedFor(t *testing.T, name string, want map[string]string) {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + name, Name: v1alpha1.MailboxName}
	require.True(t, scene.Await(t, func() bool {
		return f.Get(t.Context(), key, plan) == nil && plan.Spec.Policy["concurrency"] == want["concurrency"]
	}), "plan of %s: %+v", name, &plan.Spec)
}

func TestLeaderKilledUnderChanges(t *testing.T) {
	leader, follower := shared.twoHubs(t, nil)
	shared.acknowledged(t, shared.change(t))
	onlyRose := shared.judgeAll(t)
	for range 5 {
		shared.plannedFor(t, plain, policyData(shared.change(t)))
	}
	shared.change(t)
	leader.Kill()
	var newest int32
	for range 5 {
		newest = shared.change(t)
	}
	shared.leads(t, follower)
	shared.acknowledged(t, newest)
	for range 3 {
		newest = shared.change(t)
	}
	shared.acknowledged(t, newest)
	onlyRose(t)
}

// A relay that found the plan to be newer, and whose write of it reaches the
// member only when that has newer ones.
func TestPlanInFlightComesLate(t *testing.T) {
	leader, _ := shared.twoHubs(t, nil, patient)
	shared.acknowledged(t, shared.change(t))
	onlyRose := shared.judgeAll(t)
	late := hold(t, shared.proxy, mailbox(proxied, "clusterplans", v1alpha1.MailboxName))[0]
	first := shared.change(t)
	require.True(t, scene.Await(t, late.has), "no plan is carried")
	// The other replica carries it.
	shared.assign(t, proxied, map[string]string{ofLeader: ofFollower, ofFollower: ofLeader}[shared.links(t)[proxied].Spec.Replica])
	shared.acknowledged(t, first)
	var newest int32
	for range 2 {
		newest = shared.change(t)
		shared.acknowledged(t, newest)
	}
	assert.Equal(t, http.StatusConflict, late.status(t))
	shared.report(t, proxied, 7)
	shared.reported(t, proxied, 7)
	shared.acknowledged(t, newest)
	onlyRose(t)
	assert.False(t, ended(leader.Process))
}

// A leader that is paused, with a plan and a report in flight, until another one
// has led on. What it does when it wakes is of no account.
func TestLeaderPausedAndWokenLate(t *testing.T) {
	way, err := proxy.Start(shared.home.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	leader, follower := shared.twoHubs(t, way, patient)
	shared.acknowledged(t, shared.change(t))
	shared.assign(t, another, ofLeader)
	onlyRose := shared.judgeAll(t)

	gates := hold(t, way,
		mailbox(v1alpha1.MemberNamespacePrefix+plain, "clusterplans", v1alpha1.MailboxName),
		mailbox(v1alpha1.MemberNamespacePrefix+another, "clusterreports", v1alpha1.MailboxName))
	shared.report(t, another, 5)
	require.True(t, scene.Await(t, gates[1].has), "the leader carries no report")
	budget := shared.change(t)
	require.True(t, scene.Await(t, gates[0].has), "the leader writes no plan")
	require.NoError(t, leader.Pause(t.Context()))

	shared.leads(t, follower)
	shared.acknowledged(t, budget)
	budget = shared.change(t)
	shared.acknowledged(t, budget)
	shared.report(t, another, 60)
	shared.reported(t, another, 60)

	for _, g := range gates {
		assert.Equal(t, http.StatusConflict, g.status(t), g.write)
	}
	require.NoError(t, leader.Resume())
	require.True(t, scene.Await(t, func() bool { return ended(leader.Process) }), "a leader that lost its Lease goes on")
	shared.report(t, another, 61)
	shared.reported(t, another, 61)
	shared.acknowledged(t, budget)
	shared.acknowledged(t, shared.change(t))
	onlyRose(t)
}

// A replica that only carries, paused at any time while plans change, wakes with
// a cache of then.
func TestFollowerPausedAndWokenLate(t *testing.T) {
	_, follower := shared.twoHubs(t, nil)
	shared.acknowledged(t, shared.change(t))
	onlyRose := shared.judgeAll(t)
	shared.change(t)
	require.NoError(t, follower.Pause(t.Context()))
	shared.acknowledged(t, shared.change(t))
	shared.report(t, plain, 8)
	shared.reported(t, plain, 8)
	budget := shared.change(t)
	require.NoError(t, follower.Resume())
	shared.acknowledged(t, budget)
	shared.report(t, plain, 9)
	shared.reported(t, plain, 9)
	shared.acknowledged(t, shared.change(t))
	onlyRose(t)
	assert.False(t, ended(follower.Process))
}
