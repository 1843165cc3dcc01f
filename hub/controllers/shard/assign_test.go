package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// fleetOf is a snapshot of members, each of which is carried for by the replica that it
// is assigned to; empty: it has no MemberLink yet.
func fleetOf(assigned ...string) snapshot {
	s := snapshot{
		challenge: "now", links: map[string]*v1alpha1.MemberLink{}, ready: map[string]bool{}, avoid: map[string]string{}, shunned: map[string]bool{},
		peers: []Peer{{Name: "one", State: PeerAlive}, {Name: "two", State: PeerAlive}},
	}
	for i, replica := range assigned {
		name := fmt.Sprintf("m%d", i)
		s.members = append(s.members, v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.FinalizerMember}}})
		namespace := v1alpha1.MemberNamespacePrefix + name
		s.ready[namespace] = true
		if replica != "" {
			s.links[namespace] = &v1alpha1.MemberLink{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName, ResourceVersion: "1"},
				Spec:       v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: replica, Challenge: "now"},
				Status:     v1alpha1.MemberLinkStatus{Carrier: replica, Known: true, Reachable: true},
			}
		}
	}
	return s
}

func (s snapshot) link(i int) *v1alpha1.MemberLink {
	return s.links[fmt.Sprintf("%sm%d", v1alpha1.MemberNamespacePrefix, i)]
}

// missed by the replicas that they are assigned to.
func (s snapshot) missed(members ...int) {
	for _, i := range members {
		status := &s.link(i).Status
		status.Reachable, status.Reason = false, v1alpha1.ReasonUnreachable
	}
}

func TestDecide(t *testing.T) {
	deleted := metav1.NewTime(time.Now())
	for name, tt := range map[string]struct {
		fleet  snapshot
		change func(*snapshot)
		// want is what is written, by member; a new MemberLink has a + before it.
		want      map[string]string
		wantBlind []string
	}{
		"what is even stays": {fleet: fleetOf("one", "two", "one")},
		"new members": {
			fleet: fleetOf("one", "", ""),
			want:  map[string]string{"m1": "+one", "m2": "+two"},
		},
		"without a namespace there is nothing to write into": {
			fleet:  fleetOf("one", "two", ""),
			change: func(s *snapshot) { s.ready["ot-member-m2"] = false },
		},
		"members of a dead replica": {
			fleet:  fleetOf("one", "two", "two"),
			change: func(s *snapshot) { s.peers[1].State = PeerDead },
			want:   map[string]string{"m1": "one", "m2": "one"},
		},
		"a replica that nobody knows of keeps its members, and gets none": {
			fleet:  fleetOf("one", "two", ""),
			change: func(s *snapshot) { s.peers[1].State = PeerUnknown },
			want:   map[string]string{"m2": "+one"},
		},
		"a replica that nobody knows of loses a member that it does not carry for": {
			fleet: fleetOf("one", "two", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerUnknown
				s.avoid["m2"] = "two"
			},
			want: map[string]string{"m2": "one"},
		},
		"the elected replica cannot write its own Lease": {
			fleet:  fleetOf("one", "one", "two"),
			change: func(s *snapshot) { s.peers[0].State = PeerDead },
			want:   map[string]string{"m0": "two", "m1": "two"},
		},
		"nobody lives": {
			fleet:  fleetOf("one", "two"),
			change: func(s *snapshot) { s.peers = []Peer{{Name: "one", State: PeerDead}} },
		},
		"a member that is to be moved is exchanged for another": {
			fleet:  fleetOf("one", "two", "one", "two"),
			change: func(s *snapshot) { s.avoid["m0"] = "one" },
			want:   map[string]string{"m0": "two", "m1": "one"},
		},
		"another process is elected": {
			fleet:  fleetOf("one", "two"),
			change: func(s *snapshot) { s.challenge = "next" },
			want:   map[string]string{"m0": "one", "m1": "two"},
		},
		"an agent dials in": {
			fleet:  fleetOf("one", "two"),
			change: func(s *snapshot) { s.members[1].Spec.Connection.Pull = &v1alpha1.MemberPull{} },
			want:   map[string]string{"m1": ""},
		},
		"a member that leaves is carried for until it has left": {
			fleet: fleetOf("one", "two", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerDead
				s.members[1].DeletionTimestamp, s.members[2].DeletionTimestamp = &deleted, &deleted
				s.members[2].Finalizers = nil
			},
			want: map[string]string{"m1": "one"},
		},
		"a MemberLink that is being deleted is left": {
			fleet: fleetOf("one", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerDead
				s.link(1).DeletionTimestamp = &deleted
			},
		},
		"a replica that reaches none of its members seems to be blind": {
			fleet:     fleetOf("one", "two", "one", "two"),
			change:    func(s *snapshot) { s.missed(1, 3) },
			wantBlind: []string{"two"},
		},
		"one that was so for long loses them, and gets no others": {
			fleet: fleetOf("one", "two", "", "two"),
			change: func(s *snapshot) {
				s.missed(1, 3)
				s.shunned["two"] = true
			},
			want: map[string]string{"m1": "one", "m2": "+one", "m3": "one"},
		},
		"one member proves nothing": {
			fleet:  fleetOf("one", "two", "one"),
			change: func(s *snapshot) { s.missed(1) },
		},
		"a replica that reaches one of its members is not blind": {
			fleet:  fleetOf("one", "two", "one", "two", "one", "two"),
			change: func(s *snapshot) { s.missed(1, 3) },
		},
		"a replica that has not tried all of its members may not be blind": {
			fleet: fleetOf("one", "two", "one", "two", "one", "two"),
			change: func(s *snapshot) {
				s.missed(1, 3)
				s.link(5).Status.Carrier = "one"
			},
		},
		"what has a bad credential proves nothing": {
			fleet: fleetOf("one", "two", "one", "two"),
			change: func(s *snapshot) {
				s.missed(1, 3)
				s.link(3).Status.Reason = v1alpha1.ReasonCredentials
			},
		},
		"where nobody reaches any, it is not the replicas": {
			fleet:  fleetOf("one", "two", "one", "two"),
			change: func(s *snapshot) { s.missed(0, 1, 2, 3) },
		},
		"a replica that was blind is better than none": {
			fleet: fleetOf("one", "one", "one", "one"),
			change: func(s *snapshot) {
				s.shunned["two"] = true
				s.peers[0].State = PeerDead
			},
			want: map[string]string{"m0": "two", "m1": "two", "m2": "two", "m3": "two"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(&tt.fleet)
			}
			d := decide(tt.fleet)
			got := map[string]string{}
			for _, c := range d.links {
				member := c.link.Namespace[len(v1alpha1.MemberNamespacePrefix):]
				got[member] = c.link.Spec.Replica
				if c.link.ResourceVersion == "" {
					got[member] = "+" + c.link.Spec.Replica
				}
				assert.Equal(t, tt.fleet.challenge, c.link.Spec.Challenge)
			}
			if tt.want == nil {
				tt.want = map[string]string{}
			}
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.wantBlind, d.blind)
		})
	}
}

func TestDecideCounts(t *testing.T) {
	s := fleetOf("one", "two", "one")
	s.peers = append(s.peers, Peer{Name: "three", State: PeerAlive}, Peer{Name: "four", State: PeerDead}, Peer{Name: "five", State: PeerUnknown})
	s.members[0].Spec.Connection.Pull = &v1alpha1.MemberPull{}
	d := decide(s)
	assert.Equal(t, map[string]int{Agent: 1, "one": 1, "two": 1, "three": 0}, d.members)
	assert.Equal(t, map[string]int{metrics.ReplicaAlive: 3, metrics.ReplicaDead: 1, metrics.ReplicaUnknown: 1}, d.replicas)
}

// What was decided is settled: to decide again changes nothing.
func TestDecideIsSettled(t *testing.T) {
	s := fleetOf("one", "one", "", "gone", "two", "")
	for _, c := range decide(s).links {
		c.link.ResourceVersion = "2"
		s.links[c.link.Namespace] = c.link
	}
	assert.Empty(t, decide(s).links)
}

// A replica that is blind still is left alone for longer each time, and one that came
// back is not reproached with what was before.
func TestShunnedForLonger(t *testing.T) {
	a, now := &Assigner{}, time.Now()
	peers := []Peer{{Name: "one", Process: "1"}, {Name: "two", Process: "2"}}
	look := func(at time.Time, blind ...string) time.Duration {
		return a.shun(t.Context(), blind, peers, duration, at)
	}
	shun := func(replica string, at time.Time) time.Duration {
		look(at.Add(-duration), replica)
		look(at, replica)
		return a.shunned[replica].until.Sub(at)
	}
	assert.Zero(t, look(now))
	assert.Equal(t, duration, look(now, "two"), "it may have been paused")
	assert.Equal(t, time.Second, look(now.Add(duration-time.Second), "two"))
	assert.Zero(t, look(now.Add(duration-time.Millisecond)), "and is back")
	assert.Equal(t, duration, look(now.Add(duration), "two"))
	assert.Empty(t, a.shunned)
	assert.Equal(t, soon, look(now.Add(2*duration), "two"), "then its members are moved")
	assert.Equal(t, shunFirst, look(now.Add(2*duration)), "and it is tried again")
	a, now = &Assigner{}, now.Add(time.Hour)

	for _, want := range []time.Duration{shunFirst, 2 * shunFirst, 4 * shunFirst, 8 * shunFirst, shunLast, shunLast} {
		assert.Equal(t, want, shun("two", now))
		now = now.Add(want)
	}
	assert.Equal(t, shunFirst, shun("one", now), "each by itself")

	shun("two", now)
	now = now.Add(time.Second)
	assert.Equal(t, map[string]bool{"one": true, "two": true}, a.shunnedOf(alive("1", "2"), now))
	assert.Equal(t, map[string]bool{"one": true}, a.shunnedOf(alive("1", "another"), now), "another process is another replica")
	assert.Empty(t, a.shunnedOf(alive("1", "another")[1:], now), "one that ends may come back in another place")
	assert.Empty(t, a.shunned)

	assert.Equal(t, shunFirst, shun("one", now))
	now = now.Add(shunFirst)
	assert.Empty(t, a.shunnedOf(alive("1", "2"), now), "it is tried again")
	assert.Equal(t, 2*shunFirst, shun("one", now), "and was no better")
	now = now.Add(4*shunFirst + 1)
	assert.Empty(t, a.shunnedOf(alive("1", "2"), now))
	assert.Equal(t, shunFirst, shun("one", now), "it was better for as long as it was left alone")
}

// alive replicas, by their processes.
func alive(one, two string) []Peer {
	return []Peer{{Name: "one", State: PeerAlive, Process: one}, {Name: "two", State: PeerAlive, Process: two}}
}
