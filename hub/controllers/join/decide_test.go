package join

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const cluster = types.UID("11111111-1111-1111-1111-111111111111")

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func agentKey(t require.TestingT) (public, fingerprint string) {
	key, err := join.NewKey(rand.Reader)
	require.NoError(t, err)
	fingerprint, err = join.Fingerprint(key.Public())
	require.NoError(t, err)
	return key.Public(), fingerprint
}

func bound(uid, of types.UID) account { return account{uid: uid, join: of, bound: true} }

// waiting is a member whose join token nobody has presented.
func waiting() snapshot {
	return snapshot{
		now: noon, hub: "ot-hub", home: true,
		member: &v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 1, Finalizers: []string{finalizer, v1alpha1.FinalizerMember}},
			Spec:       v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent", Connection: v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}},
		},
		joiner: bound("joiner", ""),
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ot-hub", Name: "ot-member-frankfurt-join", Labels: map[string]string{managedBy: manager},
			Annotations: map[string]string{annotationAccount: "joiner", annotationExpires: noon.Add(time.Hour).Format(time.RFC3339)},
		}},
	}
}

// asking is one that an agent asks to be let in to.
func asking(t require.TestingT) (s snapshot, fingerprint string) {
	s = waiting()
	public, fingerprint := agentKey(t)
	s.join = &v1alpha1.ClusterJoin{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-frankfurt", Name: "default", UID: "join"},
		Spec:       v1alpha1.ClusterJoinSpec{ClusterUID: cluster, PublicKey: public, Account: "joiner"},
	}
	return s, fingerprint
}

// served is one whose agent has dialled in.
func served() snapshot {
	s := waiting()
	s.joiner, s.secret = account{}, nil
	s.agent, s.leased, s.holder = bound("agent", "join"), true, "boot/agent"
	return s
}

func TestStepsOfAnAgentThatIsLetIn(t *testing.T) {
	s := waiting()
	s.member.Finalizers, s.home, s.joiner, s.secret = []string{v1alpha1.FinalizerMember}, false, account{}, nil
	asked, fingerprint := asking(t)
	expect := func(want step, reason string, status metav1.ConditionStatus) decision {
		t.Helper()
		d := decide(s)
		require.Equal(t, want, d.step, "%+v", s)
		require.NotNil(t, d.condition)
		assert.Equal(t, reason, d.condition.Reason)
		assert.Equal(t, status, d.condition.Status)
		return d
	}
	no, yes := metav1.ConditionFalse, metav1.ConditionTrue

	expect(hold, v1alpha1.ReasonAwaitingAgent, no)
	s.member.Finalizers = append(s.member.Finalizers, finalizer)
	d := expect(stay, v1alpha1.ReasonAwaitingAgent, no)
	assert.Contains(t, d.condition.Message, "namespace ot-member-frankfurt")
	s.home = true
	expect(makeJoiner, v1alpha1.ReasonAwaitingAgent, no)
	s.joiner.uid = "joiner"
	expect(bindJoiner, v1alpha1.ReasonAwaitingAgent, no)
	s.joiner.bound = true
	expect(issueToken, v1alpha1.ReasonAwaitingAgent, no)
	s.secret = asked.secret
	d = expect(stay, v1alpha1.ReasonAwaitingAgent, no)
	assert.Contains(t, d.condition.Message, "Secret ot-hub/ot-member-frankfurt-join: put its key kubeconfig into Secret ot-agent/ot-hub-join")
	assert.Equal(t, time.Hour+time.Second, d.after)

	s.join = asked.join
	d = expect(answerJoin, v1alpha1.ReasonAwaitingAcceptance, no)
	assert.True(t, d.pending)
	assert.Equal(t, v1alpha1.JoinPending, d.answer.Phase)
	assert.Equal(t, fingerprint, d.answer.Fingerprint)
	assert.Contains(t, d.answer.Message, `"acceptedKey":"`+fingerprint+`"`)
	s.join.Status = d.answer
	d = expect(stay, v1alpha1.ReasonAwaitingAcceptance, no)
	assert.True(t, d.pending)

	s.member.Spec.Connection.Pull.AcceptedKey = fingerprint
	expect(makeAgent, v1alpha1.ReasonAwaitingContact, no)
	s.agent = account{uid: "agent", join: "join"}
	expect(bindAgent, v1alpha1.ReasonAwaitingAgent, no)
	s.agent.bound = true
	expect(makeLease, v1alpha1.ReasonAwaitingAgent, no)
	s.leased = true
	d = expect(issueCredential, v1alpha1.ReasonAwaitingContact, no)
	s.join.Status = d.answer
	d = expect(stay, v1alpha1.ReasonAwaitingContact, no)
	assert.Equal(t, contactPoll, d.after)

	s.holder = "boot/agent"
	expect(unbindJoiner, v1alpha1.ReasonJoined, yes)
	s.joiner.bound = false
	expect(removeJoiner, v1alpha1.ReasonJoined, yes)
	s.joiner = account{}
	expect(removeJoin, v1alpha1.ReasonJoined, yes)
	s.join = nil
	expect(removeSecret, v1alpha1.ReasonJoined, yes)
	s.secret = nil
	expect(stay, v1alpha1.ReasonJoined, yes)
}

func TestWhoIsNotLetIn(t *testing.T) {
	_, other := agentKey(t)
	for name, tt := range map[string]struct {
		change     func(s *snapshot, fingerprint string)
		wantStep   step
		wantReason string
		wantText   string
	}{
		"nobody has accepted": {func(*snapshot, string) {}, answerJoin, v1alpha1.ReasonAwaitingAcceptance, "accept it: kubectl patch"},
		"another key was accepted": {func(s *snapshot, _ string) { s.member.Spec.Connection.Pull.AcceptedKey = other },
			answerJoin, v1alpha1.ReasonAwaitingAcceptance, "acceptedKey is " + other},
		"another key was accepted, and whoever comes is": {func(s *snapshot, _ string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Spec.Connection.Pull.AutoAccept = other, true
		}, answerJoin, v1alpha1.ReasonAwaitingAcceptance, "acceptedKey is " + other},
		"whoever comes is accepted, but it is another cluster": {func(s *snapshot, _ string) {
			s.member.Spec.Connection.Pull.AutoAccept, s.member.Status.ClusterUID = true, "known"
		}, answerJoin, v1alpha1.ReasonAwaitingAcceptance, "the member is cluster known"},
		"the join token has expired": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.now = fingerprint, noon.Add(time.Hour)
		}, stay, v1alpha1.ReasonJoinTokenExpired, "kubectl annotate --overwrite membercluster frankfurt pelotech.ot/join-token"},
		"a join token that is not the last one": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.join.Spec.Account = fingerprint, "older"
		}, removeJoin, v1alpha1.ReasonAwaitingAgent, "being made"},
		"a new join token was asked for": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Annotations = fingerprint, map[string]string{v1alpha1.AnnotationJoinToken: "2"}
		}, unbindJoiner, v1alpha1.ReasonAwaitingAgent, "being made"},
		"a key that is none": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AutoAccept = true
			s.join.Spec.PublicKey = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="
		}, answerJoin, v1alpha1.ReasonAwaitingAcceptance, "cannot be read"},
		"it is revoked": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Spec.Connection.Pull.Revoked = fingerprint, true
		}, unbindJoiner, v1alpha1.ReasonRevoking, "may still be good"},
	} {
		t.Run(name, func(t *testing.T) {
			s, fingerprint := asking(t)
			tt.change(&s, fingerprint)
			d := decide(s)
			assert.Equal(t, tt.wantStep, d.step)
			assert.Equal(t, tt.wantReason, d.condition.Reason)
			assert.Contains(t, d.condition.Message, tt.wantText)
		})
	}
}

func TestWhoeverComesIsLetIn(t *testing.T) {
	for name, change := range map[string]func(*snapshot){
		"the member is not known":         func(*snapshot) {},
		"it is the cluster that is known": func(s *snapshot) { s.member.Status.ClusterUID = cluster },
		"it is the cluster that is accepted": func(s *snapshot) {
			s.member.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: string(cluster)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := asking(t)
			s.member.Spec.Connection.Pull.AutoAccept = true
			change(&s)
			assert.Equal(t, makeAgent, decide(s).step)
		})
	}
}

// Of two that have joined, the later one is in: what the first has had dies with the
// account that it is of.
func TestWhoJoinsAnewTakesThePlaceOfWhoHadJoined(t *testing.T) {
	s, fingerprint := asking(t)
	s.agent, s.leased, s.holder = bound("agent", "a join before"), true, "boot/agent"
	d := decide(s)
	assert.Equal(t, answerJoin, d.step)
	assert.Equal(t, metav1.ConditionTrue, d.condition.Status, "what it has is good until then")
	assert.Contains(t, d.condition.Message, "beside it, an agent of cluster")

	s.member.Spec.Connection.Pull.AcceptedKey = fingerprint
	assert.Equal(t, removeAgent, decide(s).step)
	s.agent = bound("agent anew", "join")
	d = decide(s)
	assert.Equal(t, issueCredential, d.step)
	s.join.Status = d.answer
	d = decide(s)
	assert.Equal(t, stay, d.step, "the Lease was renewed with the credential before")
	assert.Equal(t, v1alpha1.ReasonAwaitingContact, d.condition.Reason)
}

func TestAgentThatHasJoined(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*snapshot)
		wantStep step
		// "" for no condition
		wantReason string
	}{
		"nothing is wrong":            {func(*snapshot) {}, stay, v1alpha1.ReasonJoined},
		"a join token is asked for":   {func(s *snapshot) { s.member.Annotations = map[string]string{v1alpha1.AnnotationJoinToken: "2"} }, makeJoiner, v1alpha1.ReasonJoined},
		"its account was deleted":     {func(s *snapshot) { s.agent = account{bound: true} }, makeJoiner, v1alpha1.ReasonAwaitingAgent},
		"its RoleBinding was deleted": {func(s *snapshot) { s.agent.bound = false }, bindAgent, v1alpha1.ReasonJoined},
		"its RoleBinding was changed": {func(s *snapshot) { s.agent.foreign = true }, unbindAgent, v1alpha1.ReasonJoined},
		"its Lease was deleted":       {func(s *snapshot) { s.leased, s.holder = false, "" }, makeLease, v1alpha1.ReasonAwaitingAgent},
		"it is revoked":               {func(s *snapshot) { s.member.Spec.Connection.Pull.Revoked = true }, unbindAgent, v1alpha1.ReasonRevoking},
		"it does not dial in any more": {func(s *snapshot) {
			s.member.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "frankfurt"}}
		}, unbindAgent, v1alpha1.ReasonRevoking},
		"the member takes its leave": {func(s *snapshot) { s.member.DeletionTimestamp = &metav1.Time{Time: noon} }, stay, ""},
		"the member has taken its leave": {func(s *snapshot) {
			s.member.DeletionTimestamp, s.member.Finalizers = &metav1.Time{Time: noon}, []string{finalizer}
		}, unbindAgent, v1alpha1.ReasonRevoking},
		"the member's namespace is leaving": {func(s *snapshot) { s.home = false }, stay, v1alpha1.ReasonAwaitingAgent},
		"it is revoked while the member takes its leave": {func(s *snapshot) {
			s.member.DeletionTimestamp, s.member.Spec.Connection.Pull.Revoked = &metav1.Time{Time: noon}, true
		}, unbindAgent, v1alpha1.ReasonRevoking},
	} {
		t.Run(name, func(t *testing.T) {
			s := served()
			tt.change(&s)
			d := decide(s)
			assert.Equal(t, tt.wantStep, d.step)
			if tt.wantReason == "" {
				assert.Nil(t, d.condition)
				return
			}
			require.NotNil(t, d.condition)
			assert.Equal(t, tt.wantReason, d.condition.Reason)
		})
	}
}

// People take revoked back by what condition Joined says, and the API server lets them:
// so it says Revoked when nothing is left, and not any more before something is made.
func TestRevokedIsSaidWhereNothingIsLeft(t *testing.T) {
	s := served()
	s.member.Spec.Connection.Pull.Revoked = true
	for range mostSteps {
		d := decide(s)
		if d.step == stay {
			assert.Equal(t, v1alpha1.ReasonRevoked, d.condition.Reason)
			assert.Equal(t, account{}, s.agent)
			assert.Equal(t, account{}, s.joiner)
			s.member.Status.Conditions = []metav1.Condition{*d.condition}
			break
		}
		require.Equal(t, v1alpha1.ReasonRevoking, d.condition.Reason, "before %s", d.step)
		remake(&s, d)
	}
	require.True(t, s.saysRevoked())
	s.member.Spec.Connection.Pull.Revoked = false
	d := decide(s)
	assert.Equal(t, stay, d.step)
	assert.Equal(t, v1alpha1.ReasonAwaitingAgent, d.condition.Reason)
	s.member.Status.Conditions = []metav1.Condition{*d.condition}
	assert.Equal(t, makeJoiner, decide(s).step)
}

// What an agent may goes before its account: the API server may remember for some
// seconds that a token was good, and never what it may.
func TestOrderOfRevocation(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*snapshot)
		wantSteps []step
	}{
		"revoked": {func(s *snapshot) { s.member.Spec.Connection.Pull.Revoked = true },
			[]step{unbindAgent, unbindJoiner, removeAgent, removeJoiner, removeJoin, removeSecret, stay}},
		"mode Push": {func(s *snapshot) { s.member.Spec.Connection.Pull = nil },
			[]step{unbindAgent, unbindJoiner, removeAgent, removeJoiner, removeJoin, removeSecret, release, stay}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := asking(t)
			s.agent = bound("agent", "join")
			tt.change(&s)
			for _, want := range tt.wantSteps {
				d := decide(s)
				require.Equal(t, want, d.step)
				remake(&s, d)
			}
		})
	}
}

func TestSecretThatIsNotOurs(t *testing.T) {
	s := waiting()
	s.secret.Labels = nil
	d := decide(s)
	assert.Equal(t, stay, d.step)
	assert.Contains(t, d.condition.Message, "was not made by the hub")
	s.member.Spec.Connection.Pull = nil
	s.joiner = account{}
	assert.Equal(t, release, decide(s).step, "it is let be")
}
