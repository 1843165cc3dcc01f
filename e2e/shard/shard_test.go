//go:build linux

package shard_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// moved are the members that have another replica than before.
func moved(before, after map[string]string) (list []string) {
	for member, replica := range before {
		if after[member] != replica {
			list = append(list, member)
		}
	}
	return list
}

// A replica that is killed loses its members to the others; nobody else's move, and
// no member is missed.
func TestReplicaKilled(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.others(t)[0]
	r.hub.Kill()
	var left []string
	for _, name := range names {
		if name != r.name {
			left = append(left, name)
		}
	}
	after := shared.settled(t, left...)
	assert.ElementsMatch(t, of(before, r.name), moved(before, after))
	shared.carried(t)

	require.NoError(t, shared.start(t.Context(), r))
	again := shared.settled(t, names...)
	assert.LessOrEqual(t, len(moved(after, again)), (members+len(names)-1)/len(names), "no more than its part goes to the one that comes")
	for _, member := range moved(after, again) {
		assert.Equal(t, r.name, again[member])
	}
	shown := scene.EventuallyMember(t, shared, "light-0", "the replica that carries for it", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Shard == again[m.Name]
	})
	require.NotEmpty(t, shown.Status.Shard)
	shared.judge.clean(t)
}

// The elected replica is killed with its members.
func TestElectedReplicaKilled(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.elected(t)
	r.hub.Kill()
	var left []string
	for _, name := range names {
		if name != r.name {
			left = append(left, name)
		}
	}
	after := shared.settled(t, left...)
	assert.ElementsMatch(t, of(before, r.name), moved(before, after))
	shared.plan(t, "3")
	require.NoError(t, shared.start(t.Context(), r))
	shared.settled(t, names...)
	shared.judge.clean(t)
}

// A replica that was paused until its members have moved wakes up, and carries for
// those that it is assigned then.
func TestReplicaPausedPastItsLease(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.others(t)[0]
	require.NoError(t, r.hub.Pause(t.Context()))
	require.True(t, scene.Await(t, func() bool {
		for _, link := range shared.links(t) {
			if link.Spec.Replica == r.name || link.Status.Carrier == r.name {
				return false
			}
		}
		return true
	}), "the members of %s do not move", r.name)
	shared.plan(t, "4")
	shared.carried(t)
	require.NoError(t, r.hub.Resume())
	assert.NotEmpty(t, of(before, r.name))
	shared.settled(t, names...)
	shared.plan(t, "5")
	shared.carried(t)
	shared.judge.clean(t)
}

// A replica that is cut off from the hub, and not from its members, leaves them alone
// by itself; once it is back it goes on.
func TestReplicaCutOffFromTheHub(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.others(t)[0]
	mine := of(before, r.name)
	require.True(t, scene.Await(t, func() bool { return len(r.road.reaches()) == len(mine) }), "it has its members and no others: %v", r.road.reaches())
	require.NoError(t, r.toHub.Hang())
	require.True(t, scene.Await(t, func() bool { return len(r.road.reaches()) == 0 }), "it holds on to members that are others' by now")
	require.True(t, scene.Await(t, func() bool {
		for _, link := range shared.links(t) {
			if link.Status.Carrier == r.name {
				return false
			}
		}
		return true
	}), "its members do not move")
	shared.carried(t)
	require.NoError(t, r.toHub.Mend(t.Context()))
	select {
	case <-r.hub.Done():
		require.Fail(t, "it has ended")
	default:
	}
	after := shared.settled(t, names...)
	require.True(t, scene.Await(t, func() bool { return len(r.road.reaches()) == len(of(after, r.name)) }))
	shared.judge.clean(t)
}

// A replica that does not reach one of its members, which another does, loses it.
func TestReplicaCutOffFromAMember(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.others(t)[0]
	member := of(before, r.name)[0]
	r.road.block(member, true)
	t.Cleanup(func() { r.road.block(member, false) })
	var link v1alpha1.MemberLink
	require.True(t, scene.Await(t, func() bool {
		link = shared.links(t)[member]
		return !link.Status.Reachable || link.Spec.Replica != r.name
	}))
	for _, m := range shared.light.List {
		if m.Name == member {
			require.NoError(t, m.SetImages(t.Context(), "page-1", nil))
		}
	}
	require.True(t, scene.Await(t, func() bool {
		link = shared.links(t)[member]
		return link.Spec.Replica != r.name && link.Status.Carrier == link.Spec.Replica && link.Status.Reachable
	}), "it is not moved: %+v; logs are in %s", &link, shared.plane.Dir())
	shared.carried(t)
	require.True(t, scene.Await(t, func() bool {
		var events eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &events))
		for _, e := range events.Items {
			if e.Reason == v1alpha1.ReasonNotCarried && e.Regarding.Name == member {
				return true
			}
		}
		return false
	}), "nobody is told")
	text, err := shared.elected(t).hub.Metrics(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, text, "ot_hub_member_reports_not_carried_total 0")
	r.road.block(member, false)
	shared.settled(t, names...)
	shared.judge.clean(t)
}

// Members that are moved to and fro leave old owners with requests on their way.
func TestMembersMovedToAndFro(t *testing.T) {
	shared.settled(t, names...)
	move := func(member, to string) {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			link := &v1alpha1.MemberLink{}
			if err := shared.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link); err != nil {
				return err
			}
			link.Spec.Replica = to
			return shared.Update(t.Context(), link)
		}))
	}
	for i := range 12 {
		move("light-0", names[i%len(names)])
		move("light-1", names[(i+1)%len(names)])
		for _, m := range shared.light.List[:2] {
			require.NoError(t, m.SetImages(t.Context(), "page-0", nil))
		}
	}
	shared.plan(t, "6")
	shared.carried(t)
	shared.settled(t, names...)
	shared.judge.clean(t)
}

func TestAPIServerOfTheHubRestarted(t *testing.T) {
	before := shared.settled(t, names...)
	shared.plane.KillAPIServer()
	require.NoError(t, shared.plane.StartAPIServer(context.Background()))
	for _, r := range shared.replicas {
		select {
		case <-r.hub.Done(): // an elected replica that loses its Lease ends, and is started again
			require.NoError(t, shared.start(t.Context(), r))
		default:
		}
	}
	shared.settled(t, names...)
	shared.carried(t)
	assert.Len(t, before, members)
	shared.judge.clean(t)
}

func TestAllReplicasRestartedAtOnce(t *testing.T) {
	before := shared.settled(t, names...)
	for _, r := range shared.replicas {
		r.hub.Kill()
	}
	for _, r := range shared.replicas {
		require.NoError(t, shared.start(t.Context(), r))
	}
	after := shared.settled(t, names...)
	assert.Equal(t, before, after, "each goes on with its own")
	shared.plan(t, "7")
	shared.carried(t)
	shared.judge.clean(t)
}
