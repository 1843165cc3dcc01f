package join

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var made int

func uid(of string) types.UID {
	made++
	return types.UID(fmt.Sprintf("%s-%d", of, made))
}

// remake does to a snapshot what a step does to the API server.
func remake(s *snapshot, d decision) {
	without := func(name string) {
		s.member.Finalizers = without(s.member.Finalizers, name)
	}
	asked := s.member.Annotations[v1alpha1.AnnotationJoinToken]
	switch d.step {
	case hold:
		s.member.Finalizers = append(s.member.Finalizers, finalizer)
	case release:
		without(finalizer)
	case makeJoiner:
		s.joiner.uid, s.joiner.asked = uid("joiner"), asked
	case bindJoiner:
		s.joiner.bound, s.joiner.foreign = true, false
	case issueToken:
		s.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{managedBy: manager}, Annotations: map[string]string{
			annotationAccount: string(s.joiner.uid), annotationExpires: s.now.Add(time.Hour).Format(time.RFC3339),
		}}}
	case unbindJoiner:
		s.joiner.bound, s.joiner.foreign = false, false
	case removeJoiner:
		s.joiner = account{bound: s.joiner.bound, foreign: s.joiner.foreign}
	case removeSecret:
		s.secret = nil
	case removeJoin:
		s.join = nil
	case answerJoin, issueCredential:
		s.join = s.join.DeepCopy()
		s.join.Status = d.answer
	case makeAgent:
		s.agent.uid, s.agent.asked, s.agent.join = uid("agent"), asked, s.join.UID
	case bindAgent:
		s.agent.bound, s.agent.foreign = true, false
	case makeLease:
		s.leased = true
	case unbindAgent:
		s.agent.bound, s.agent.foreign = false, false
	case removeAgent:
		s.agent = account{bound: s.agent.bound, foreign: s.agent.foreign}
	}
}

// world is one member with people, agents and thieves who do what they like between
// any two writes of the hub.
type world struct {
	s snapshot
	// accepted are the fingerprints that people have ever let in.
	accepted map[string]bool
	// stolen are accounts of join tokens that somebody has kept.
	stolen []types.UID
	// revocable are accounts that there were when people revoked: none may be left once
	// that was taken back.
	revocable map[types.UID]bool
	value     int
	// told is what was decided last, and may be written into the status.
	told *metav1.Condition
}

// write has the status say what was told last.
func (w *world) write() {
	w.s.member.Status.Conditions = nil
	if w.told != nil {
		w.s.member.Status.Conditions = []metav1.Condition{*w.told}
	}
}

// setRevoked does what the MemberCluster's own rule lets people do.
func (w *world) setRevoked(t *rapid.T, p *v1alpha1.MemberPull, revoked bool) {
	switch {
	case revoked:
		for _, a := range []account{w.s.agent, w.s.joiner} {
			if a.there() {
				w.revocable[a.uid] = true
			}
		}
	case p.Revoked && reasonOf(w.s.member) != v1alpha1.ReasonRevoked:
		return // the API server refuses it
	case p.Revoked:
		require.False(t, w.revocable[w.s.agent.uid] || w.revocable[w.s.joiner.uid], "it was taken back, and is good")
	}
	p.Revoked = revoked
}

func (w *world) present(t *rapid.T, account types.UID) {
	if w.s.join != nil || account == "" || !w.s.joiner.bound {
		return
	}
	public, _ := agentKey(t)
	w.s.join = &v1alpha1.ClusterJoin{
		ObjectMeta: metav1.ObjectMeta{UID: uid("join")},
		Spec:       v1alpha1.ClusterJoinSpec{ClusterUID: cluster, PublicKey: public, Account: account},
	}
}

func (w *world) hub(t *rapid.T) decision {
	before := w.s
	d := decide(w.s)
	if d.step == stay {
		w.told = d.condition
	}
	switch d.step {
	case issueCredential, makeAgent:
		require.NotNil(t, before.join)
		require.Equal(t, before.joiner.uid, before.join.Spec.Account, "what is issued is issued for the last join token")
		require.False(t, before.member.Spec.Connection.Pull.Revoked)
		pull := before.member.Spec.Connection.Pull
		require.True(t, pull.AutoAccept && pull.AcceptedKey == "" || w.accepted[pull.AcceptedKey])
		if d.step == issueCredential {
			require.True(t, pull.AcceptedKey == "" || pull.AcceptedKey == d.answer.Fingerprint, "only the key that people have named")
			require.Equal(t, before.join.UID, before.agent.join)
		}
	case removeAgent:
		pull := before.member.Spec.Connection.Pull
		require.True(t, pull == nil || pull.Revoked || before.join != nil && before.join.UID != before.agent.join ||
			!before.member.DeletionTimestamp.IsZero(), "what an agent works with goes for a reason")
	case removeJoiner:
		require.False(t, before.joiner.bound, "what it may goes first")
	}
	remake(&w.s, d)
	return d
}

// However it was interrupted, the hub comes to an end, and to the same one.
func (w *world) settle(t *rapid.T) {
	var steps []step
	for range mostSteps {
		d := w.hub(t)
		if d.step == stay && w.s.saysRevoked() && (d.condition == nil || d.condition.Reason != v1alpha1.ReasonRevoked) {
			w.write() // which brings it back
			continue
		} else if d.step == stay {
			w.settled(t)
			return
		}
		steps = append(steps, d.step)
	}
	t.Fatalf("the hub comes to no end: %q", steps)
}

func (w *world) settled(t *rapid.T) {
	s, pull := w.s, w.s.member.Spec.Connection.Pull
	switch {
	case pull == nil || pull.Revoked:
		assert.Equal(t, account{}, s.agent)
		assert.Equal(t, account{}, s.joiner)
		assert.Nil(t, s.join)
		assert.Nil(t, s.secret)
	case s.joined() && s.agent.asked == s.member.Annotations[v1alpha1.AnnotationJoinToken] && s.join == nil && s.secret == nil:
		assert.Equal(t, account{}, s.joiner, "a join token that was used is worth nothing")
	default:
		assert.True(t, s.joiner.there() || s.agent.there())
	}
	if s.agent.there() {
		assert.True(t, s.agent.bound)
	}
}

func TestWhateverHappensBetweenTwoWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: waiting(), accepted: map[string]bool{}, revocable: map[types.UID]bool{}}
		w.s.joiner, w.s.secret = account{}, nil
		w.s.member.Finalizers = []string{v1alpha1.FinalizerMember}
		pull := func(do func(p *v1alpha1.MemberPull)) {
			if w.s.member.Spec.Connection.Pull != nil {
				do(w.s.member.Spec.Connection.Pull)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"the hub takes a step": func(t *rapid.T) { w.hub(t) },
			"the hub settles":      w.settle,
			"an agent presents the join token": func(t *rapid.T) {
				if w.s.joiner.there() {
					w.stolen = append(w.stolen, w.s.joiner.uid)
				}
				w.present(t, w.s.joiner.uid)
			},
			"somebody presents an older one": func(t *rapid.T) {
				if len(w.stolen) > 0 {
					w.present(t, rapid.SampledFrom(w.stolen).Draw(t, "stolen"))
				}
			},
			"people accept the key that asks": func(t *rapid.T) {
				if w.s.join != nil && w.s.join.Status.Fingerprint != "" {
					w.accepted[w.s.join.Status.Fingerprint] = true
					pull(func(p *v1alpha1.MemberPull) { p.AcceptedKey = w.s.join.Status.Fingerprint })
				}
			},
			"people forget the key": func(*rapid.T) { pull(func(p *v1alpha1.MemberPull) { p.AcceptedKey = "" }) },
			"people accept whoever comes": func(t *rapid.T) {
				pull(func(p *v1alpha1.MemberPull) { p.AutoAccept = rapid.Bool().Draw(t, "auto") })
			},
			"the status is written": func(*rapid.T) { w.write() },
			"people revoke, or take it back": func(t *rapid.T) {
				pull(func(p *v1alpha1.MemberPull) { w.setRevoked(t, p, rapid.Bool().Draw(t, "revoked")) })
			},
			"people ask for a token":    func(*rapid.T) { w.value++; w.ask() },
			"people delete the Secret":  func(*rapid.T) { w.s.secret = nil },
			"people delete the join":    func(*rapid.T) { w.s.join = nil },
			"people delete the account": func(*rapid.T) { w.s.agent = account{bound: w.s.agent.bound} },
			"people change a binding":   func(*rapid.T) { w.s.agent.foreign = w.s.agent.bound; w.s.joiner.foreign = w.s.joiner.bound },
			"an hour passes":            func(*rapid.T) { w.s.now = w.s.now.Add(time.Hour) },
			"the mode changes": func(*rapid.T) {
				c := &w.s.member.Spec.Connection
				switch {
				case c.Pull == nil:
					c.Pull = &v1alpha1.MemberPull{}
				case c.Pull.Revoked && reasonOf(w.s.member) != v1alpha1.ReasonRevoked:
					// The API server refuses that, too.
				default:
					c.Pull = nil
				}
			},
			"the agent renews its Lease": func(*rapid.T) {
				if w.s.leased && w.s.agent.there() && w.s.agent.bound {
					w.s.holder = "boot/" + string(w.s.agent.uid)
				}
			},
		})
		w.settle(t)
	})
}

func (w *world) ask() {
	w.s.member.Annotations = map[string]string{v1alpha1.AnnotationJoinToken: fmt.Sprint(w.value)}
}
