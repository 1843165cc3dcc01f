//go:build linux

package shard_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// restartEnded restarts replicas that have exited, as a kubelet does.
func (f *testFleet) restartEnded(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		if r.HasEnded() {
			require.NoError(t, f.startReplica(t.Context(), r))
		}
	}
}

// replaceReplica kills a replica and starts another process in its place.
func (f *testFleet) replaceReplica(t *testing.T, r *replica, args ...string) {
	t.Helper()
	r.Kill()
	require.NoError(t, f.startReplica(t.Context(), r, args...))
}

// blockMember cuts replicas off from a member until the test ends at the latest.
func (f *testFleet) blockMember(t *testing.T, member string, among ...string) {
	t.Helper()
	for _, name := range among {
		r := f.replicas[name]
		r.memberLinks.setBlocked(member, true)
		t.Cleanup(func() { r.memberLinks.setBlocked(member, false) })
	}
}

// assignMember assigns a member to a replica.
func (f *testFleet) assignMember(t *testing.T, member, to string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		link := &v1alpha1.MemberLink{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link); err != nil {
			return err
		}
		link.Spec.Replica = to
		return f.Update(t.Context(), link)
	}))
}

// getMemberLinks returns the MemberLinks by member.
func (f *testFleet) getMemberLinks(t *testing.T) map[string]v1alpha1.MemberLink {
	t.Helper()
	var list v1alpha1.MemberLinkList
	require.NoError(t, f.List(t.Context(), &list))
	links := map[string]v1alpha1.MemberLink{}
	for _, link := range list.Items {
		links[link.Namespace[len(v1alpha1.MemberNamespacePrefix):]] = link
	}
	return links
}

// awaitBalanced waits until replicas share the members evenly and each syncs its own. It returns
// the replica of each member.
func (f *testFleet) awaitBalanced(t *testing.T, among ...string) map[string]string {
	t.Helper()
	return f.awaitBalancedDoing(t, func() {}, among...)
}

// awaitBalancedDoing is awaitBalanced with a call before each poll.
func (f *testFleet) awaitBalancedDoing(t *testing.T, do func(), among ...string) map[string]string {
	t.Helper()
	var assigned map[string]string
	var state string
	balanced := testenv.AwaitCondition(t, func() bool {
		do()
		assigned = map[string]string{}
		counts := map[string]int{}
		state = ""
		for member, link := range f.getMemberLinks(t) {
			assigned[member] = link.Spec.Replica
			counts[link.Spec.Replica]++
			state += fmt.Sprintf("%s: %s, synced by %s (%v %s)\n", member, link.Spec.Replica, link.Status.Carrier, link.Status.Reachable, link.Status.Message)
			if link.Status.Carrier != link.Spec.Replica || !link.Status.Reachable || link.Status.ObservedGeneration != link.Generation {
				return false
			}
		}
		for _, name := range among {
			if counts[name] < fakeCount/len(among) || counts[name] > (fakeCount+len(among)-1)/len(among) {
				return false
			}
		}
		return len(assigned) == fakeCount
	})
	require.True(t, balanced, "the members are not balanced among %v; logs are in %s:\n%s", among, f.Plane.Dir(), state)
	return assigned
}

// membersOf lists the members of a replica.
func membersOf(assigned map[string]string, replica string) (list []string) {
	for member, name := range assigned {
		if name == replica {
			list = append(list, member)
		}
	}
	return list
}

// electedReplica returns the leader, which assigns members.
func (f *testFleet) electedReplica(t *testing.T) *replica {
	t.Helper()
	var found *replica
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for _, r := range f.replicas {
			if elected, err := r.IsElected(t.Context()); err == nil && elected {
				found = r
			}
		}
		return found != nil
	}), "no replica is elected")
	return found
}

// otherReplicas returns the replicas that are not elected.
func (f *testFleet) otherReplicas(t *testing.T) (list []*replica) {
	t.Helper()
	elected := f.electedReplica(t)
	for _, name := range replicaNames {
		if r := f.replicas[name]; r != elected {
			list = append(list, r)
		}
	}
	return list
}

// awaitNewReports makes every member write a new report and waits until the hub has it.
func (f *testFleet) awaitNewReports(t *testing.T) {
	t.Helper()
	wanted := map[string]int64{}
	for _, m := range f.Fakes.List {
		require.NoError(t, retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error { return m.SetImages(t.Context(), "page-0", nil) }))
		root := &v1alpha1.ClusterReport{}
		require.NoError(t, f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, root))
		wanted[m.Name] = root.Sequence
	}
	for member, sequence := range wanted {
		f.awaitReport(t, member, sequence)
	}
}

func (f *testFleet) awaitReport(t *testing.T, member string, sequence int64) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return testenv.GetReceivedRoot(t, f, member).Sequence >= sequence
	}), "report %d of %s is not synced; logs are in %s", sequence, member, f.Plane.Dir())
}

// changePolicy changes the policy and waits until all members have it in their plans.
func (f *testFleet) changePolicy(t *testing.T, concurrency string) {
	t.Helper()
	f.SetPolicy(t, map[string]string{"concurrency": concurrency})
	for _, m := range f.Fakes.List {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			plan := &v1alpha1.ClusterPlan{}
			err := f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, plan)
			return err == nil && plan.Spec.Policy["concurrency"] == concurrency
		}), "%s has no plan of concurrency %s; logs are in %s", m.Name, concurrency, f.Plane.Dir())
	}
}
