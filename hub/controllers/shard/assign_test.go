package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// snapshotOf returns a snapshot of members, each synced by the replica that it is
// assigned to; empty: without a MemberLink.
func snapshotOf(assigned ...string) snapshot {
	s := snapshot{
		challenge: "now", links: map[string]*v1alpha1.MemberLink{}, readyNamespaces: map[string]bool{}, avoid: map[string][]string{}, backedOff: map[string]bool{},
		peers: []Peer{{Name: "one", State: PeerAlive}, {Name: "two", State: PeerAlive}},
	}
	for i, replica := range assigned {
		name := fmt.Sprintf("m%d", i)
		s.members = append(s.members, v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.FinalizerMember}}})
		namespace := v1alpha1.MemberNamespacePrefix + name
		s.readyNamespaces[namespace] = true
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

// markUnreachable has the assigned replicas report that they do not reach the members.
func (s snapshot) markUnreachable(members ...int) {
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
		want         map[string]string
		wantSuspects map[string]int
	}{
		"an even assignment stays": {fleet: snapshotOf("one", "two", "one")},
		"new members": {
			fleet: snapshotOf("one", "", ""),
			want:  map[string]string{"m1": "+one", "m2": "+two"},
		},
		"without a namespace there is nothing to write into": {
			fleet:  snapshotOf("one", "two", ""),
			change: func(s *snapshot) { s.readyNamespaces["ot-member-m2"] = false },
		},
		"members of a dead replica": {
			fleet:  snapshotOf("one", "two", "two"),
			change: func(s *snapshot) { s.peers[1].State = PeerDead },
			want:   map[string]string{"m1": "one", "m2": "one"},
		},
		"an unknown replica keeps its members, and gets none": {
			fleet:  snapshotOf("one", "two", ""),
			change: func(s *snapshot) { s.peers[1].State = PeerUnknown },
			want:   map[string]string{"m2": "+one"},
		},
		"an unknown replica loses a member that it does not sync": {
			fleet: snapshotOf("one", "two", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerUnknown
				s.avoid["m2"] = []string{"two"}
			},
			want: map[string]string{"m2": "one"},
		},
		"the elected replica cannot write its own Lease": {
			fleet:  snapshotOf("one", "one", "two"),
			change: func(s *snapshot) { s.peers[0].State = PeerDead },
			want:   map[string]string{"m0": "two", "m1": "two"},
		},
		"no replica is alive": {
			fleet:  snapshotOf("one", "two"),
			change: func(s *snapshot) { s.peers = []Peer{{Name: "one", State: PeerDead}} },
		},
		"a member that is to be moved is exchanged for another": {
			fleet:  snapshotOf("one", "two", "one", "two"),
			change: func(s *snapshot) { s.avoid["m0"] = []string{"one"} },
			want:   map[string]string{"m0": "two", "m3": "one"},
		},
		"another process is elected": {
			fleet:  snapshotOf("one", "two"),
			change: func(s *snapshot) { s.challenge = "next" },
			want:   map[string]string{"m0": "one", "m1": "two"},
		},
		"while the next process reads the reports, only members that move get its challenge": {
			fleet: snapshotOf("one", "two", "two", "one", ""),
			change: func(s *snapshot) {
				s.challenge, s.challengeWait = "next", time.Second
				s.peers[1].State = PeerDead
				s.members[3].Spec.Connection.Pull = &v1alpha1.MemberPull{}
				s.link(0).Spec.Challenge, s.link(1).Spec.Challenge = "former", "former"
			},
			want: map[string]string{"m1": "one", "m2": "one", "m3": "", "m4": "+one"},
		},
		"an agent in pull mode": {
			fleet:  snapshotOf("one", "two"),
			change: func(s *snapshot) { s.members[1].Spec.Connection.Pull = &v1alpha1.MemberPull{} },
			want:   map[string]string{"m1": ""},
		},
		"a member is synced until its removal is finished": {
			fleet: snapshotOf("one", "two", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerDead
				s.members[1].DeletionTimestamp, s.members[2].DeletionTimestamp = &deleted, &deleted
				s.members[2].Finalizers = nil
			},
			want: map[string]string{"m1": "one"},
		},
		"a MemberLink in a namespace of no member is left": {
			fleet:  snapshotOf("one", "two"),
			change: func(s *snapshot) { s.links["x"] = s.link(0).DeepCopy() },
		},
		"a MemberLink that is being deleted is left": {
			fleet: snapshotOf("one", "two"),
			change: func(s *snapshot) {
				s.peers[1].State = PeerDead
				s.link(1).DeletionTimestamp = &deleted
			},
		},
		"a replica that reaches none of its members seems to be blind": {
			fleet:        snapshotOf("one", "two", "one", "two"),
			change:       func(s *snapshot) { s.markUnreachable(1, 3) },
			wantSuspects: map[string]int{"two": leasesToReach},
		},
		"one that was so for long loses them, and gets no others": {
			fleet: snapshotOf("one", "two", "", "two"),
			change: func(s *snapshot) {
				s.markUnreachable(1, 3)
				s.backedOff["two"] = true
			},
			want: map[string]string{"m1": "one", "m2": "+one", "m3": "one"},
		},
		"one member proves nothing": {
			fleet:  snapshotOf("one", "two", "one"),
			change: func(s *snapshot) { s.markUnreachable(1) },
		},
		"a replica that reaches one of its members is not blind": {
			fleet:  snapshotOf("one", "two", "one", "two", "one", "two"),
			change: func(s *snapshot) { s.markUnreachable(1, 3) },
		},
		"a replica that has not tried all of its members gets more time": {
			fleet: snapshotOf("one", "two", "one", "two", "one", "two"),
			change: func(s *snapshot) {
				s.markUnreachable(1, 3)
				s.link(5).Status.Carrier = "one"
			},
			wantSuspects: map[string]int{"two": leasesToTry},
		},
		"what has a bad credential proves nothing": {
			fleet: snapshotOf("one", "two", "one", "two"),
			change: func(s *snapshot) {
				s.markUnreachable(1, 3)
				s.link(3).Status.Reason = v1alpha1.ReasonCredentialsMissing
			},
		},
		"if no replica reaches any member, the cause is not the replicas": {
			fleet:  snapshotOf("one", "two", "one", "two"),
			change: func(s *snapshot) { s.markUnreachable(0, 1, 2, 3) },
		},
		"a replica that was blind, and reaches members for want of others, is as good as they": {
			fleet: snapshotOf("one", "two", "one", "two"),
			change: func(s *snapshot) {
				s.markUnreachable(0, 2)
				s.backedOff["two"] = true
			},
			wantSuspects: map[string]int{"one": leasesToReach},
		},
		"a replica that was blind is better than none": {
			fleet: snapshotOf("one", "one", "one", "one"),
			change: func(s *snapshot) {
				s.backedOff["two"] = true
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
			if tt.wantSuspects == nil {
				tt.wantSuspects = map[string]int{}
			}
			assert.Equal(t, tt.wantSuspects, d.suspects)
		})
	}
}

func TestDecideCounts(t *testing.T) {
	s := snapshotOf("one", "two", "one")
	s.peers = append(s.peers, Peer{Name: "three", State: PeerAlive}, Peer{Name: "four", State: PeerDead}, Peer{Name: "five", State: PeerUnknown})
	s.members[0].Spec.Connection.Pull = &v1alpha1.MemberPull{}
	d := decide(s)
	assert.Equal(t, map[string]int{AgentReplica: 1, "one": 1, "two": 1, "three": 0}, d.members)
	assert.Equal(t, map[string]int{metrics.ReplicaAlive: 3, metrics.ReplicaDead: 1, metrics.ReplicaUnknown: 1}, d.replicas)
}

// A repeated decision changes nothing.
func TestDecideIsStable(t *testing.T) {
	s := snapshotOf("one", "one", "", "gone", "two", "")
	for _, c := range decide(s).links {
		c.link.ResourceVersion = "2"
		s.links[c.link.Namespace] = c.link
	}
	assert.Empty(t, decide(s).links)
}

// suspicion returns a decision with these suspects, each of which has tried all of its members.
func suspicion(evidences map[string]evidence, suspects ...string) decision {
	d := decision{evidence: map[string]evidence{"one": evidences["one"], "two": evidences["two"]}, suspects: map[string]int{}}
	for _, name := range suspects {
		d.suspects[name] = leasesToReach
	}
	return d
}

// A replica that stays unreachable is backed off for longer each time; one that has
// recovered starts again.
func TestReplicaBackoffDoubles(t *testing.T) {
	a, now := &Assigner{}, time.Now()
	peers := []Peer{{Name: "one", Process: "1"}, {Name: "two", Process: "2"}}
	look := func(at time.Time, blind ...string) time.Duration {
		return a.recordEvidence(t.Context(), suspicion(a.evidence, blind...), peers, duration, at)
	}
	backOff := func(replica string, at time.Time) time.Duration {
		look(at.Add(-duration), replica)
		look(at, replica)
		return a.backoffs[replica].until.Sub(at)
	}
	assert.Zero(t, look(now))
	assert.Equal(t, duration, look(now, "two"), "it may have been paused")
	assert.Equal(t, time.Second, look(now.Add(duration-time.Second), "two"))
	assert.Zero(t, look(now.Add(duration-time.Millisecond)), "and is back")
	assert.Equal(t, duration, look(now.Add(duration), "two"))
	assert.Empty(t, a.backoffs)
	assert.Equal(t, trigger.ConflictRetryDelay, look(now.Add(2*duration), "two"), "then its members are moved")
	assert.Equal(t, minReplicaBackoff, look(now.Add(2*duration)), "and it is tried again")
	a, now = &Assigner{}, now.Add(time.Hour)

	for _, want := range []time.Duration{minReplicaBackoff, 2 * minReplicaBackoff, 4 * minReplicaBackoff, 8 * minReplicaBackoff, maxReplicaBackoff, maxReplicaBackoff} {
		assert.Equal(t, want, backOff("two", now))
		now = now.Add(want)
	}
	assert.Equal(t, minReplicaBackoff, backOff("one", now), "each by itself")

	backOff("two", now)
	now = now.Add(time.Second)
	assert.Equal(t, map[string]bool{"one": true, "two": true}, a.activeBackoffs(alivePeers("1", "2"), now))
	assert.Equal(t, map[string]bool{"one": true}, a.activeBackoffs(alivePeers("1", "another"), now), "another process is another replica")
	assert.Empty(t, a.activeBackoffs(alivePeers("1", "another")[1:], now), "one that ends may come back in another place")
	assert.Empty(t, a.backoffs)

	assert.Equal(t, minReplicaBackoff, backOff("one", now))
	now = now.Add(minReplicaBackoff)
	assert.Empty(t, a.activeBackoffs(alivePeers("1", "2"), now), "it is tried again")
	assert.Equal(t, 2*minReplicaBackoff, backOff("one", now), "and was no better")
	now = now.Add(4*minReplicaBackoff + 1)
	assert.Empty(t, a.activeBackoffs(alivePeers("1", "2"), now))
	assert.Equal(t, minReplicaBackoff, backOff("one", now), "it was better for as long as it was left alone")
}

// A backoff ends where the replica was given members for want of others, and reaches one.
func TestBackoffEndsWithReachedMember(t *testing.T) {
	now := time.Now()
	a := &Assigner{backoffs: map[string]replicaBackoff{"two": {process: "2", until: now.Add(time.Minute), wait: time.Hour}}}
	peers := alivePeers("1", "2")
	a.recordEvidence(t.Context(), suspicion(nil), peers, duration, now)
	assert.NotEmpty(t, a.activeBackoffs(peers, now))
	a.recordEvidence(t.Context(), suspicion(map[string]evidence{"two": {reaches: true}}), peers, duration, now)
	assert.Empty(t, a.activeBackoffs(peers, now))
	assert.Equal(t, time.Hour, a.backoffs["two"].wait, "the next one is as long")
}

// A replica that has not tried all of its members keeps its time, and gets more.
func TestReplicaThatTriesIsBackedOffLater(t *testing.T) {
	a, now := &Assigner{}, time.Now()
	peers := []Peer{{Name: "one"}}
	look := func(leases int, after time.Duration) time.Duration {
		d := suspicion(a.evidence, "one")
		d.suspects["one"] = leases
		return a.recordEvidence(t.Context(), d, peers, duration, now.Add(after))
	}
	assert.Equal(t, duration, look(leasesToReach, 0))
	assert.Equal(t, 3*duration, look(leasesToTry, duration), "it has got another member")
	assert.Equal(t, trigger.ConflictRetryDelay, look(leasesToReach, duration), "which it does not reach either")
	a = &Assigner{}
	assert.Equal(t, leasesToTry*duration, look(leasesToTry, 0))
	assert.Empty(t, a.backoffs)
	assert.Equal(t, trigger.ConflictRetryDelay, look(leasesToTry, leasesToTry*duration))
	assert.NotEmpty(t, a.backoffs)
}

// When a suspect reaches its members again, what was asked meanwhile does not move them.
func TestSuspectThatRecoversKeepsItsMembers(t *testing.T) {
	s := snapshotOf("one", "two", "one", "two")
	s.markUnreachable(1, 3)
	s.avoid = map[string][]string{"m0": {"one"}, "m1": {"two"}, "m2": {"two"}, "m3": {"one", "two"}}
	until := avoidance{until: time.Now().Add(time.Hour)}
	a := &Assigner{avoidances: map[string]map[string]avoidance{"m0": {"one": until}, "m1": {"two": until}, "m2": {"two": until}, "m3": {"one": until, "two": until}}}
	d := decide(s)
	require.NotEmpty(t, d.suspects)
	a.recordEvidence(t.Context(), d, s.peers, duration, time.Now())
	assert.Equal(t, map[string]map[string]avoidance{"m0": {"one": until}, "m1": {}, "m2": {"two": until}, "m3": {"one": until}}, a.avoidances)
}

// A replica that reaches one member only is given each other member once.
func TestMissedMemberDoesNotComeBack(t *testing.T) {
	s := snapshotOf("one", "two", "one", "two", "one", "two")
	missed := map[string]int{}
	for {
		for i, m := range s.members { // two reaches m1 only
			link := s.link(i)
			link.Status = v1alpha1.MemberLinkStatus{Carrier: link.Spec.Replica, Known: true, Reachable: true}
			if link.Spec.Replica == "two" && m.Name != "m1" {
				link.Status.Reachable, link.Status.Reason = false, v1alpha1.ReasonUnreachable
				s.avoid[m.Name] = []string{"two"}
				missed[m.Name]++
			}
		}
		d := decide(s)
		s.evidence = d.evidence
		if len(d.links) == 0 {
			break
		}
		for _, c := range d.links {
			s.links[c.link.Namespace] = c.link
		}
	}
	assert.Len(t, missed, 5, "each but m1")
	for name, times := range missed {
		assert.Equal(t, 1, times, name)
	}
	assert.Equal(t, "two", s.link(1).Spec.Replica)
}

// What a member avoids holds for one process, and not forever.
func TestAvoidanceEnds(t *testing.T) {
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	peers := []Peer{{Name: "one", Process: "1"}, {Name: "two", Process: "2"}}
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	objects := fake.NewClientBuilder().WithScheme(scheme)
	for _, link := range snapshotOf("one", "one", "two", "two", "one").links {
		objects.WithObjects(link)
	}
	a := &Assigner{Client: objects.Build(), Replica: &Replica{}, Reports: report.NewStore(), avoidances: map[string]map[string]avoidance{
		"m0": {"one": {"1", later}, "two": {"2", later}}, "m1": {"one": {"before", later}}, "m2": {"two": {"2", past}, "one": {"1", later}},
		"m3": {"three": {"3", later}}, "gone": {"one": {"1", later}},
	}}
	s, err := a.gather(t.Context(), peers)
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"m0": {"one", "two"}, "m2": {"one"}}, s.avoid)
	assert.Len(t, a.avoidances, 2)
	assert.LessOrEqual(t, a.recordEvidence(t.Context(), decide(s), peers, duration, time.Now()), time.Hour, "it is requeued")
}

// A member that each replica in turn does not sync is not passed round.
func TestMemberThatAvoidsAllStays(t *testing.T) {
	peers := append(alivePeers("1", "2"), Peer{Name: "three", State: PeerAlive, Process: "3"})
	a := &Assigner{Peers: &Peers{self: &Replica{}, peers: peers}}
	for _, from := range []string{"one", "two"} {
		assert.True(t, a.HasOtherReplica("m0", from), from)
		a.MoveMember("m0", from)
	}
	assert.False(t, a.HasOtherReplica("m0", "three"))
	assert.True(t, a.HasOtherReplica("m1", "three"))
	a.Peers.peers[0].Process = "another"
	assert.True(t, a.HasOtherReplica("m0", "three"))

	s := snapshotOf("one", "two")
	s.avoid["m0"] = []string{"one", "two"}
	assert.Empty(t, decide(s).links)
}

// A replica that reaches no member is given them one after another, as the watchdog finds each
// missed. It has to be noticed after the second, also where each replica has one member only,
// and whatever it says of them.
func TestReplicaDoesNotGetMembersInExchangeForever(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonUnreachable, v1alpha1.ReasonCertificateNotTrusted} {
		for name, assigned := range map[string][]string{
			"one member each": {"one", "two"},
			"two each":        {"one", "two", "one", "two"},
			"three each":      {"one", "two", "one", "two", "one", "two"},
		} {
			t.Run(reason+", "+name, func(t *testing.T) {
				s := snapshotOf(assigned...)
				for moves := 0; len(decide(s).suspects) == 0; {
					require.LessOrEqual(t, moves, 2)
					s.avoid = map[string][]string{}
					for i := range assigned { // two misses whatever it has
						if link := s.link(i); link.Spec.Replica == "two" {
							link.Status = v1alpha1.MemberLinkStatus{Carrier: "two", Known: true, Reason: reason}
							s.avoid[s.members[i].Name] = []string{"two"}
						} else {
							link.Status = v1alpha1.MemberLinkStatus{Carrier: "one", Known: true, Reachable: true}
						}
					}
					d := decide(s)
					s.evidence = d.evidence
					for _, c := range d.links {
						s.links[c.link.Namespace] = c.link
						moves++
					}
				}
				assert.Empty(t, decide(s).links, "what it has stays, until all move")
				s.backedOff["two"] = true
				for _, c := range decide(s).links {
					s.links[c.link.Namespace] = c.link
				}
				for i := range assigned {
					assert.Equal(t, "one", s.link(i).Spec.Replica)
				}
			})
		}
	}
}

// What a replica missed speaks against it until it reaches a member, or is another process, or
// the member is gone or missed by others too.
func TestEvidenceIsForgotten(t *testing.T) {
	missed := map[string]evidence{"two": {process: "a", missed: map[string]bool{"ot-member-m0": true, "ot-member-m1": true}}}
	for name, tt := range map[string]struct {
		change func(*snapshot)
		want   map[string]bool
	}{
		"nothing has changed": {func(*snapshot) {}, missed["two"].missed},
		"it reaches another":  {func(s *snapshot) { s.link(2).Status.Reachable = true }, nil},
		"another process":     {func(s *snapshot) { s.peers[1].Process = "b" }, map[string]bool{}},
		"a member is gone":    {func(s *snapshot) { delete(s.links, "ot-member-m0") }, map[string]bool{"ot-member-m1": true}},
		"in pull mode":        {func(s *snapshot) { s.link(0).Spec.Mode = v1alpha1.LinkPull }, map[string]bool{"ot-member-m1": true}},
		"missed by others":    {func(s *snapshot) { s.markUnreachable(0) }, map[string]bool{"ot-member-m1": true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf("one", "one", "two")
			s.peers[1].Process, s.evidence = "a", missed
			s.link(2).Status.Known, s.link(2).Status.Reachable = true, false
			s.link(2).Status.Reason = v1alpha1.ReasonCredentialsMissing
			tt.change(&s)
			assert.Equal(t, tt.want, decide(s).evidence["two"].missed)
		})
	}
}

// alivePeers returns live replicas by their processes.
func alivePeers(one, two string) []Peer {
	return []Peer{{Name: "one", State: PeerAlive, Process: one}, {Name: "two", State: PeerAlive, Process: two}}
}
