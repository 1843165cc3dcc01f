package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/readapi"
)

const duration = 15 * time.Second

// newLease returns the Lease of a replica whose clock is hours behind.
func newLease(name, resourceVersion string) coordinationv1.Lease {
	renewed := metav1.NewMicroTime(time.Now().Add(-5 * time.Hour))
	return coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: readapi.LeasePrefix + name, UID: types.UID(name), ResourceVersion: resourceVersion},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
}

func leaseList(all ...coordinationv1.Lease) []coordinationv1.Lease { return all }

// Only observed changes count; what a Lease says is ignored.
func TestPeersAreClassifiedByLeaseChanges(t *testing.T) {
	begun := time.Now()
	at := begun.Add
	judge := func(s leaseObservations, after time.Duration) []Peer {
		return s.classify("self", "", PeerAlive, duration, at(after))
	}

	var seen leaseObservations
	seen = seen.observe(leaseList(newLease("a", "1"), newLease("b", "1"), newLease("self", "1")), at(0))
	assert.Equal(t, []Peer{{Name: "a", State: PeerUnknown}, {Name: "b", State: PeerUnknown}, {Name: "self", State: PeerAlive}}, judge(seen, 0), "they may have died before")

	seen = seen.observe(leaseList(newLease("a", "2"), newLease("b", "1"), newLease("late", "1"), newLease("self", "2")), at(2*time.Second))
	assert.Equal(t, []Peer{{Name: "a", State: PeerAlive}, {Name: "b", State: PeerUnknown}, {Name: "late", State: PeerAlive}, {Name: "self", State: PeerAlive}}, judge(seen, 2*time.Second),
		"a has renewed its Lease, and late has made one")

	seen = seen.observe(leaseList(newLease("a", "2"), newLease("b", "1"), newLease("late", "2"), newLease("self", "2")), at(16*time.Second))
	assert.Equal(t, []Peer{{Name: "a", State: PeerAlive}, {Name: "b", State: PeerDead}, {Name: "late", State: PeerAlive}, {Name: "self", State: PeerAlive}}, judge(seen, 16*time.Second))
	assert.Equal(t, PeerDead, judge(seen, 17*time.Second)[0].State, "a was seen to change 15 s before")
	assert.Equal(t, PeerAlive, judge(seen, time.Hour)[3].State, "of itself it needs no proof")
	assert.Equal(t, []Peer{{Name: "a", State: PeerAlive}, {Name: "b", State: PeerDead}, {Name: "late", State: PeerAlive}, {Name: "self", State: PeerDead}}, seen.classify("self", "", PeerDead, duration, at(16*time.Second)),
		"whatever it has written once")
	assert.Equal(t, []Peer{{Name: "self", State: PeerUnknown}}, leaseObservations{}.classify("self", "", PeerUnknown, duration, begun), "it may not have been able to write any")

	seen = seen.observe(leaseList(newLease("a", "3"), newLease("b", "1"), newLease("self", "3")), at(18*time.Second))
	assert.Equal(t, []Peer{{Name: "a", State: PeerAlive}, {Name: "b", State: PeerDead}, {Name: "self", State: PeerAlive}}, judge(seen, 18*time.Second), "a lives again, late has ended")

	assert.Empty(t, seen.expired(duration, at(59*time.Second)))
	old := seen.expired(duration, at(61*time.Second))
	if assert.Len(t, old, 1) {
		assert.Equal(t, readapi.LeasePrefix+"b", old[0].Name)
	}
}
