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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
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

// The elected replica is paused with its members until another one is elected and has
// them. When it wakes it ends, before it plans anything beside the other.
func TestElectedReplicaPausedPastItsLease(t *testing.T) {
	before := shared.settled(t, names...)
	r, others := shared.elected(t), shared.others(t)
	require.NoError(t, r.hub.Pause(t.Context()))
	after := shared.settled(t, others[0].name, others[1].name)
	assert.ElementsMatch(t, of(before, r.name), moved(before, after))
	shared.plan(t, "3")
	challenge := shared.links(t)["light-0"].Spec.Challenge
	require.NoError(t, r.hub.Resume())
	require.True(t, scene.Await(t, func() bool {
		select {
		case <-r.hub.Done():
			return true
		default:
			return false
		}
	}), "two are elected")
	log, err := os.ReadFile(r.hub.LogFile())
	require.NoError(t, err)
	assert.Contains(t, string(log), "another replica was elected", "it is not client-go that has told it, much later")
	assert.Equal(t, challenge, shared.links(t)["light-0"].Spec.Challenge, "it has not taken the members back")
	shared.plan(t, "8")
	require.NoError(t, shared.start(t.Context(), r))
	shared.settled(t, names...)
	shared.judge.clean(t)
}

// Two replicas are paused until their members have moved. One finds by its own clock
// that its time is over when it wakes. The other is told by no clock, as a virtual
// machine that was frozen: it goes on with what it knows, while another carries for the
// same members. Nothing goes back in either.
func TestReplicasPausedPastTheirLease(t *testing.T) {
	timeless := shared.others(t)[1]
	shared.restart(t, timeless, "--leader-elect-lease-duration=1h", "--leader-elect-renew-deadline=50m")
	before := shared.settled(t, names...)
	paused := map[string]bool{}
	for _, r := range shared.others(t) {
		assert.NotEmpty(t, of(before, r.name))
		require.NoError(t, r.hub.Pause(t.Context()))
		paused[r.name] = true
	}
	require.True(t, scene.Await(t, func() bool {
		for _, link := range shared.links(t) {
			if paused[link.Spec.Replica] || paused[link.Status.Carrier] {
				return false
			}
		}
		return true
	}), "the members of %v do not move", &paused)
	shared.plan(t, "4")
	shared.carried(t)
	for name := range paused {
		require.NoError(t, shared.replicas[name].hub.Resume())
	}
	shared.plan(t, "5")
	shared.carried(t)
	shared.settled(t, names...)
	shared.restart(t, timeless)
	shared.settled(t, names...)
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

// A replica that reaches none of its members, which others do, loses them all, and gets
// no others in exchange. Another process of its name is another replica.
func TestReplicaCutOffFromItsMembers(t *testing.T) {
	before := shared.settled(t, names...)
	r := shared.others(t)[0]
	for member := range before {
		shared.block(t, member, r.name)
	}
	var left []string
	for _, name := range names {
		if name != r.name {
			left = append(left, name)
		}
	}
	after := shared.settled(t, left...)
	// The watchdog may have been sooner with one, in exchange for another.
	assert.Subset(t, moved(before, after), of(before, r.name))
	shared.carried(t)
	for member := range before {
		r.road.block(member, false)
	}
	assert.Equal(t, after, shared.settled(t, left...), "it gets none for a while")
	shared.restart(t, r)
	shared.settled(t, names...)
	shared.judge.clean(t)
}

// A member joins whose replica does not reach it: nothing has ever come from it, and it
// is found, and moved to one that does.
func TestFirstReportIsNotCarried(t *testing.T) {
	before := shared.settled(t, names...)
	lights, err := light.Start(t.Context(), shared.plane, "late", 1)
	require.NoError(t, err)
	t.Cleanup(lights.Stop)
	late := lights.List[0]
	shared.block(t, late.Name, names...)
	require.NoError(t, shared.join(t.Context(), late))
	tried := func() (by string) {
		link := shared.links(t)[late.Name]
		if link.Status.Known && link.Status.Carrier == link.Spec.Replica {
			by = link.Spec.Replica
		}
		return by
	}
	require.True(t, scene.Await(t, func() bool { return tried() != "" }), "nobody is to carry for it")
	if elected := shared.elected(t); tried() == elected.name {
		to := shared.others(t)[0].name
		if other := shared.others(t)[1].name; len(of(before, other)) < len(of(before, to)) {
			to = other
		}
		shared.move(t, late.Name, to)
		require.True(t, scene.Await(t, func() bool { return tried() == to }), "%s does not try", to)
	}
	missed := tried()
	for _, name := range names {
		if name != missed {
			shared.replicas[name].road.block(late.Name, false)
		}
	}
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: late.Name, Name: v1alpha1.MailboxName}, root))
	shared.hasReport(t, late.Name, root.Sequence)
	assert.NotEqual(t, missed, shared.links(t)[late.Name].Spec.Replica)

	require.NoError(t, shared.Delete(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: late.Name}}))
	require.True(t, scene.Await(t, func() bool {
		return apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Name: late.Name}, &v1alpha1.MemberCluster{}))
	}), "it is not let go of")
	// No controller of namespaces runs here.
	link := shared.links(t)[late.Name]
	require.NoError(t, client.IgnoreNotFound(shared.Delete(t.Context(), &link)))
	shared.settled(t, names...)
	shared.judge.clean(t)
}

// Members that are moved to and fro leave old owners with requests on their way.
func TestMembersMovedToAndFro(t *testing.T) {
	shared.settled(t, names...)
	before := shared.goroutines(t)
	for i := range 12 {
		shared.move(t, "light-0", names[i%len(names)])
		shared.move(t, "light-1", names[(i+1)%len(names)])
		for _, m := range shared.light.List[:2] {
			require.NoError(t, m.SetImages(t.Context(), "page-0", nil))
		}
	}
	shared.plan(t, "6")
	shared.carried(t)
	shared.settled(t, names...)
	// Each is connected to once, as before. What else goes on varies by a few.
	const slack = 20
	require.True(t, scene.Await(t, func() bool { return shared.goroutines(t) <= before+slack }), "what was moved away leaves goroutines behind: %d before", before)
	shared.judge.clean(t)
}

func TestAPIServerOfTheHubRestarted(t *testing.T) {
	before := shared.settled(t, names...)
	lease := func() (holder string, renewed time.Time) {
		l := &coordinationv1.Lease{}
		err := shared.Get(t.Context(), client.ObjectKey{Namespace: hub.Namespace, Name: "ot-hub"}, l)
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil {
			return "", time.Time{}
		}
		return *l.Spec.HolderIdentity, l.Spec.RenewTime.Time
	}
	elected := shared.elected(t)
	process := elected.hub
	held, _ := lease()
	shared.plane.KillAPIServer()
	require.NoError(t, shared.plane.StartAPIServer(context.Background()))
	started := time.Now()
	require.True(t, scene.Await(t, func() bool {
		shared.revive(t)
		holder, renewed := lease()
		// An elected replica that has lost its Lease ends, which takes it a while: until it
		// was started again, its members may look as if it carried for them.
		return holder != "" && renewed.After(started) && (holder == held || elected.hub != process)
	}), "no replica is elected, or one that is not goes on; logs are in %s", shared.plane.Dir())
	shared.settledWith(t, func() { shared.revive(t) }, names...)
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
