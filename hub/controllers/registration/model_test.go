package registration

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

var uidCounter int

func newUID(of string) types.UID {
	uidCounter++
	return types.UID(fmt.Sprintf("%s-%d", of, uidCounter))
}

// applyStep applies the effect of a step to a snapshot, as the API server would.
func applyStep(s *snapshot, d decision) {
	without := func(name string) {
		s.member.Finalizers = removeString(s.member.Finalizers, name)
	}
	asked := s.member.Annotations[v1alpha1.AnnotationJoinToken]
	switch d.step {
	case addFinalizer:
		s.member.Finalizers = append(s.member.Finalizers, finalizer)
	case removeFinalizer:
		without(finalizer)
	case createJoinAccount:
		s.joinAccount.uid, s.joinAccount.joinTokenRequest = newUID("joiner"), asked
	case bindJoinAccount:
		s.joinAccount.bindingExists, s.joinAccount.bindingForeign = true, false
	case issueJoinToken:
		s.joinSecret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{managedByLabel: managedByHub}, Annotations: map[string]string{
			annotationAccount: string(s.joinAccount.uid), annotationExpires: s.now.Add(time.Hour).Format(time.RFC3339),
		}}}
	case unbindJoinAccount:
		s.joinAccount.bindingExists, s.joinAccount.bindingForeign = false, false
	case deleteJoinAccount:
		s.joinAccount = accountState{bindingExists: s.joinAccount.bindingExists, bindingForeign: s.joinAccount.bindingForeign}
	case deleteJoinSecret:
		s.joinSecret = nil
	case deleteClusterJoin:
		s.clusterJoin = nil
	case answerClusterJoin, issueCredential:
		s.clusterJoin = s.clusterJoin.DeepCopy()
		s.clusterJoin.Status = d.joinStatus
	case createAgentAccount:
		s.agentAccount.uid, s.agentAccount.joinTokenRequest, s.agentAccount.clusterJoinUID = newUID("agent"), asked, s.clusterJoin.UID
	case bindAgentAccount:
		s.agentAccount.bindingExists, s.agentAccount.bindingForeign = true, false
	case createLease:
		s.leaseExists = true
	case unbindAgentAccount:
		s.agentAccount.bindingExists, s.agentAccount.bindingForeign = false, false
	case deleteAgentAccount:
		s.agentAccount = accountState{bindingExists: s.agentAccount.bindingExists, bindingForeign: s.agentAccount.bindingForeign}
	}
}

// world is one member with users, agents and thieves that act at any time between two
// writes of the hub.
type world struct {
	s snapshot
	// accepted are all fingerprints that users have ever accepted.
	accepted map[string]bool
	// stolen are ServiceAccounts of join tokens that a thief holds.
	stolen []types.UID
	// revocable are ServiceAccounts that existed when a user set revoked: none may be
	// left once revoked is unset.
	revocable map[types.UID]bool
	value     int
	// lastCondition is the last decided condition, which may be written to the status.
	lastCondition *metav1.Condition
}

// writeStatus writes the last decided condition to the status.
func (w *world) writeStatus() {
	w.s.member.Status.Conditions = nil
	if w.lastCondition != nil {
		w.s.member.Status.Conditions = []metav1.Condition{*w.lastCondition}
	}
}

// setRevoked does what the MemberCluster's validation rule permits.
func (w *world) setRevoked(t *rapid.T, p *v1alpha1.MemberPull, revoked bool) {
	switch {
	case revoked:
		for _, a := range []accountState{w.s.agentAccount, w.s.joinAccount} {
			if a.exists() {
				w.revocable[a.uid] = true
			}
		}
	case p.Revoked && joinedReason(w.s.member) != v1alpha1.ReasonRevoked:
		return // the API server refuses it
	case p.Revoked:
		require.False(t, w.revocable[w.s.agentAccount.uid] || w.revocable[w.s.joinAccount.uid], "it was taken back, and is good")
	}
	p.Revoked = revoked
}

func (w *world) presentJoinToken(t *rapid.T, account types.UID) {
	if w.s.clusterJoin != nil || account == "" || !w.s.joinAccount.bindingExists {
		return
	}
	public, _ := agentKey(t)
	w.s.clusterJoin = &v1alpha1.ClusterJoin{
		ObjectMeta: metav1.ObjectMeta{UID: newUID("join")},
		Spec:       v1alpha1.ClusterJoinSpec{ClusterUID: cluster, PublicKey: public, Account: account},
	}
}

func (w *world) runHubStep(t *rapid.T) decision {
	before := w.s
	d := decideNextStep(w.s)
	if d.step == noStep {
		w.lastCondition = d.condition
	}
	switch d.step {
	case issueCredential, createAgentAccount:
		require.NotNil(t, before.clusterJoin)
		require.Equal(t, before.joinAccount.uid, before.clusterJoin.Spec.Account, "what is issued is issued for the last join token")
		require.False(t, before.member.Spec.Connection.Pull.Revoked)
		pull := before.member.Spec.Connection.Pull
		require.True(t, pull.AutoAccept && pull.AcceptedKey == "" || w.accepted[pull.AcceptedKey])
		if d.step == issueCredential {
			require.True(t, pull.AcceptedKey == "" || pull.AcceptedKey == d.joinStatus.Fingerprint, "only the key that people have named")
			require.Equal(t, before.clusterJoin.UID, before.agentAccount.clusterJoinUID)
		}
	case deleteAgentAccount:
		pull := before.member.Spec.Connection.Pull
		require.True(t, pull == nil || pull.Revoked || before.clusterJoin != nil && before.clusterJoin.UID != before.agentAccount.clusterJoinUID ||
			!before.member.DeletionTimestamp.IsZero(), "what an agent works with goes for a reason")
	case deleteJoinAccount:
		require.False(t, before.joinAccount.bindingExists, "what it may goes first")
	}
	applyStep(&w.s, d)
	return d
}

// settleHub runs the hub until it waits. Invariant: however it was interrupted, it ends
// in the same state.
func (w *world) settleHub(t *rapid.T) {
	var steps []step
	for range maxSteps {
		d := w.runHubStep(t)
		if d.step == noStep && w.s.reportsRevoked() && (d.condition == nil || d.condition.Reason != v1alpha1.ReasonRevoked) {
			w.writeStatus() // triggers the next reconcile
			continue
		} else if d.step == noStep {
			w.checkSettled(t)
			return
		}
		steps = append(steps, d.step)
	}
	t.Fatalf("the hub comes to no end: %q", steps)
}

func (w *world) checkSettled(t *rapid.T) {
	s, pull := w.s, w.s.member.Spec.Connection.Pull
	switch {
	case pull == nil || pull.Revoked:
		assert.Equal(t, accountState{}, s.agentAccount)
		assert.Equal(t, accountState{}, s.joinAccount)
		assert.Nil(t, s.clusterJoin)
		assert.Nil(t, s.joinSecret)
	case s.credentialInUse() && s.agentAccount.joinTokenRequest == s.member.Annotations[v1alpha1.AnnotationJoinToken] && s.clusterJoin == nil && s.joinSecret == nil:
		assert.Equal(t, accountState{}, s.joinAccount, "a used join token is invalidated")
	default:
		assert.True(t, s.joinAccount.exists() || s.agentAccount.exists())
	}
	if s.agentAccount.exists() {
		assert.True(t, s.agentAccount.bindingExists)
	}
}

func TestInvariantsUnderInterleavedChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: waitingSnapshot(), accepted: map[string]bool{}, revocable: map[types.UID]bool{}}
		w.s.joinAccount, w.s.joinSecret = accountState{}, nil
		w.s.member.Finalizers = []string{v1alpha1.FinalizerMember}
		pull := func(do func(p *v1alpha1.MemberPull)) {
			if w.s.member.Spec.Connection.Pull != nil {
				do(w.s.member.Spec.Connection.Pull)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"the hub takes a step": func(t *rapid.T) { w.runHubStep(t) },
			"the hub settles":      w.settleHub,
			"an agent presents the join token": func(t *rapid.T) {
				if w.s.joinAccount.exists() {
					w.stolen = append(w.stolen, w.s.joinAccount.uid)
				}
				w.presentJoinToken(t, w.s.joinAccount.uid)
			},
			"somebody presents an older one": func(t *rapid.T) {
				if len(w.stolen) > 0 {
					w.presentJoinToken(t, rapid.SampledFrom(w.stolen).Draw(t, "stolen"))
				}
			},
			"people accept the key that asks": func(t *rapid.T) {
				if w.s.clusterJoin != nil && w.s.clusterJoin.Status.Fingerprint != "" {
					w.accepted[w.s.clusterJoin.Status.Fingerprint] = true
					pull(func(p *v1alpha1.MemberPull) { p.AcceptedKey = w.s.clusterJoin.Status.Fingerprint })
				}
			},
			"people forget the key": func(*rapid.T) { pull(func(p *v1alpha1.MemberPull) { p.AcceptedKey = "" }) },
			"people set autoAccept": func(t *rapid.T) {
				pull(func(p *v1alpha1.MemberPull) { p.AutoAccept = rapid.Bool().Draw(t, "auto") })
			},
			"the status is written": func(*rapid.T) { w.writeStatus() },
			"people set or unset revoked": func(t *rapid.T) {
				pull(func(p *v1alpha1.MemberPull) { w.setRevoked(t, p, rapid.Bool().Draw(t, "revoked")) })
			},
			"people request a join token": func(*rapid.T) { w.value++; w.askForJoinToken() },
			"people delete the Secret":    func(*rapid.T) { w.s.joinSecret = nil },
			"people delete the join":      func(*rapid.T) { w.s.clusterJoin = nil },
			"people delete the account":   func(*rapid.T) { w.s.agentAccount = accountState{bindingExists: w.s.agentAccount.bindingExists} },
			"people change a binding": func(*rapid.T) {
				w.s.agentAccount.bindingForeign = w.s.agentAccount.bindingExists
				w.s.joinAccount.bindingForeign = w.s.joinAccount.bindingExists
			},
			"an hour passes": func(*rapid.T) { w.s.now = w.s.now.Add(time.Hour) },
			"the mode changes": func(*rapid.T) {
				c := &w.s.member.Spec.Connection
				switch {
				case c.Pull == nil:
					c.Pull = &v1alpha1.MemberPull{}
				case c.Pull.Revoked && joinedReason(w.s.member) != v1alpha1.ReasonRevoked:
					// The API server also refuses this.
				default:
					c.Pull = nil
				}
			},
			"the agent renews its Lease": func(*rapid.T) {
				if w.s.leaseExists && w.s.agentAccount.exists() && w.s.agentAccount.bindingExists {
					w.s.leaseHolder = "boot/" + string(w.s.agentAccount.uid)
				}
			},
		})
		w.settleHub(t)
	})
}

func (w *world) askForJoinToken() {
	w.s.member.Annotations = map[string]string{v1alpha1.AnnotationJoinToken: fmt.Sprint(w.value)}
}
