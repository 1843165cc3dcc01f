package registration

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const cluster = types.UID("11111111-1111-1111-1111-111111111111")

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func agentKey(t require.TestingT) (public, fingerprint string) {
	key, err := registration.NewKeyPair(rand.Reader)
	require.NoError(t, err)
	fingerprint, err = registration.Fingerprint(key.PublicKey())
	require.NoError(t, err)
	return key.PublicKey(), fingerprint
}

func boundAccount(uid, of types.UID) accountState {
	return accountState{uid: uid, clusterJoinUID: of, bindingExists: true}
}

// waitingSnapshot is a member with an unused join token.
func waitingSnapshot() snapshot {
	return snapshot{
		now: noon, hubNamespace: "ot-hub", namespaceReady: true,
		member: &v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 1, Finalizers: []string{finalizer, v1alpha1.FinalizerMember}},
			Spec:       v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent", Connection: v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}},
		},
		joinAccount: boundAccount("joiner", ""),
		joinSecret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ot-hub", Name: "ot-member-frankfurt-join", Labels: map[string]string{managedByLabel: managedByHub},
			Annotations: map[string]string{annotationAccount: "joiner", annotationExpires: noon.Add(time.Hour).Format(time.RFC3339)},
		}},
	}
}

// askingSnapshot is a member with a ClusterJoin that is not accepted yet.
func askingSnapshot(t require.TestingT) (s snapshot, fingerprint string) {
	s = waitingSnapshot()
	public, fingerprint := agentKey(t)
	s.clusterJoin = &v1alpha1.ClusterJoin{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-frankfurt", Name: "default", UID: "join"},
		Spec:       v1alpha1.ClusterJoinSpec{ClusterUID: cluster, PublicKey: public, Account: "joiner"},
	}
	return s, fingerprint
}

// servedSnapshot is a member whose agent uses its credential.
func servedSnapshot() snapshot {
	s := waitingSnapshot()
	s.joinAccount, s.joinSecret = accountState{}, nil
	s.agentAccount, s.leaseExists, s.leaseHolder = boundAccount("agent", "join"), true, "boot/agent"
	return s
}

func TestRegistrationSteps(t *testing.T) {
	s := waitingSnapshot()
	s.member.Finalizers, s.namespaceReady, s.joinAccount, s.joinSecret = []string{v1alpha1.FinalizerMember}, false, accountState{}, nil
	asked, fingerprint := askingSnapshot(t)
	expect := func(want step, reason string, status metav1.ConditionStatus) decision {
		t.Helper()
		d := decideNextStep(s)
		require.Equal(t, want, d.step, "%+v", s)
		require.NotNil(t, d.condition)
		assert.Equal(t, reason, d.condition.Reason)
		assert.Equal(t, status, d.condition.Status)
		return d
	}
	no, yes := metav1.ConditionFalse, metav1.ConditionTrue

	expect(addFinalizer, v1alpha1.ReasonAwaitingAgent, no)
	s.member.Finalizers = append(s.member.Finalizers, finalizer)
	d := expect(noStep, v1alpha1.ReasonAwaitingAgent, no)
	assert.Contains(t, d.condition.Message, "namespace ot-member-frankfurt")
	s.namespaceReady, s.quotaMissing = true, true
	expect(createQuota, v1alpha1.ReasonAwaitingAgent, no)
	s.quotaMissing = false
	expect(createJoinAccount, v1alpha1.ReasonAwaitingAgent, no)
	s.joinAccount.uid = "joiner"
	expect(bindJoinAccount, v1alpha1.ReasonAwaitingAgent, no)
	s.joinAccount.bindingExists = true
	expect(issueJoinToken, v1alpha1.ReasonAwaitingAgent, no)
	s.joinSecret = asked.joinSecret
	d = expect(noStep, v1alpha1.ReasonAwaitingAgent, no)
	assert.Contains(t, d.condition.Message, "Secret ot-hub/ot-member-frankfurt-join: put its key kubeconfig into Secret ot-agent/ot-hub-join")
	assert.Equal(t, time.Hour+time.Second, d.requeueAfter)

	s.clusterJoin = asked.clusterJoin
	d = expect(answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, no)
	assert.True(t, d.awaitsAcceptance)
	assert.Equal(t, v1alpha1.JoinPending, d.joinStatus.Phase)
	assert.Equal(t, fingerprint, d.joinStatus.Fingerprint)
	assert.Contains(t, d.joinStatus.Message, `"acceptedKey":"`+fingerprint+`"`)
	s.clusterJoin.Status = d.joinStatus
	d = expect(noStep, v1alpha1.ReasonAwaitingAcceptance, no)
	assert.True(t, d.awaitsAcceptance)

	s.member.Spec.Connection.Pull.AcceptedKey = fingerprint
	expect(createAgentAccount, v1alpha1.ReasonAwaitingContact, no)
	s.agentAccount = accountState{uid: "agent", clusterJoinUID: "join"}
	expect(bindAgentAccount, v1alpha1.ReasonAwaitingAgent, no)
	s.agentAccount.bindingExists = true
	expect(createLease, v1alpha1.ReasonAwaitingAgent, no)
	s.leaseExists = true
	d = expect(issueCredential, v1alpha1.ReasonAwaitingContact, no)
	s.clusterJoin.Status = d.joinStatus
	d = expect(noStep, v1alpha1.ReasonAwaitingContact, no)
	assert.Equal(t, contactPollInterval, d.requeueAfter)
	late := s
	late.now = s.now.Add(time.Hour)
	d = decideNextStep(late)
	assert.Equal(t, v1alpha1.ReasonAwaitingContact, d.condition.Reason, "it may have fetched the credential before")
	assert.Contains(t, d.condition.Message, "the agent could fetch it with its join token until")
	assert.Equal(t, idlePollInterval, d.requeueAfter, "it may be gone for good")
	late.joinSecret = nil
	d = decideNextStep(late)
	assert.Equal(t, idlePollInterval, d.requeueAfter, "somebody deleted the Secret")
	assert.NotContains(t, d.condition.Message, "0001")

	s.leaseHolder = "boot/agent"
	expect(unbindJoinAccount, v1alpha1.ReasonJoined, yes)
	s.joinAccount.bindingExists = false
	expect(deleteJoinAccount, v1alpha1.ReasonJoined, yes)
	s.joinAccount = accountState{}
	expect(deleteClusterJoin, v1alpha1.ReasonJoined, yes)
	s.clusterJoin = nil
	expect(deleteJoinSecret, v1alpha1.ReasonJoined, yes)
	s.joinSecret = nil
	expect(noStep, v1alpha1.ReasonJoined, yes)
}

func TestUnacceptedKeysWait(t *testing.T) {
	_, other := agentKey(t)
	for name, tt := range map[string]struct {
		change     func(s *snapshot, fingerprint string)
		wantStep   step
		wantReason string
		wantText   string
	}{
		"not accepted": {func(*snapshot, string) {}, answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, "accept it: kubectl patch"},
		"another key was accepted": {func(s *snapshot, _ string) { s.member.Spec.Connection.Pull.AcceptedKey = other },
			answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, "acceptedKey is " + other},
		"another key was accepted, and autoAccept": {func(s *snapshot, _ string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Spec.Connection.Pull.AutoAccept = other, true
		}, answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, "acceptedKey is " + other},
		"autoAccept, but it is another cluster": {func(s *snapshot, _ string) {
			s.member.Spec.Connection.Pull.AutoAccept, s.member.Status.ClusterUID = true, "known"
		}, answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, "the member is cluster known"},
		"the join token has expired": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.now = fingerprint, noon.Add(time.Hour)
		}, noStep, v1alpha1.ReasonJoinTokenExpired, "kubectl annotate --overwrite membercluster frankfurt pelotech.ot/join-token"},
		"not the newest join token": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.clusterJoin.Spec.Account = fingerprint, "older"
		}, deleteClusterJoin, v1alpha1.ReasonAwaitingAgent, "being prepared"},
		"a new join token was requested": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Annotations = fingerprint, map[string]string{v1alpha1.AnnotationJoinToken: "2"}
		}, unbindJoinAccount, v1alpha1.ReasonAwaitingAgent, "being prepared"},
		"an invalid key": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AutoAccept = true
			s.clusterJoin.Spec.PublicKey = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="
		}, answerClusterJoin, v1alpha1.ReasonAwaitingAcceptance, "is invalid"},
		"revoked": {func(s *snapshot, fingerprint string) {
			s.member.Spec.Connection.Pull.AcceptedKey, s.member.Spec.Connection.Pull.Revoked = fingerprint, true
		}, unbindJoinAccount, v1alpha1.ReasonRevoking, "may still be valid"},
	} {
		t.Run(name, func(t *testing.T) {
			s, fingerprint := askingSnapshot(t)
			tt.change(&s, fingerprint)
			d := decideNextStep(s)
			assert.Equal(t, tt.wantStep, d.step)
			assert.Equal(t, tt.wantReason, d.condition.Reason)
			assert.Contains(t, d.condition.Message, tt.wantText)
		})
	}
}

func TestAutoAcceptAdmitsFirstAgent(t *testing.T) {
	for name, change := range map[string]func(*snapshot){
		"the member is unknown": func(*snapshot) {},
		"the known cluster":     func(s *snapshot) { s.member.Status.ClusterUID = cluster },
		"it is the cluster that is accepted": func(s *snapshot) {
			s.member.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: string(cluster)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := askingSnapshot(t)
			s.member.Spec.Connection.Pull.AutoAccept = true
			change(&s)
			assert.Equal(t, createAgentAccount, decideNextStep(s).step)
		})
	}
}

// Of two registered agents the later one wins: the credential of the first is
// invalidated with its ServiceAccount.
func TestNewRegistrationReplacesOldCredential(t *testing.T) {
	s, fingerprint := askingSnapshot(t)
	s.agentAccount, s.leaseExists, s.leaseHolder = boundAccount("agent", "a join before"), true, "boot/agent"
	d := decideNextStep(s)
	assert.Equal(t, answerClusterJoin, d.step)
	assert.Equal(t, metav1.ConditionTrue, d.condition.Status, "its credential stays valid until then")
	assert.Contains(t, d.condition.Message, "in addition, an agent of cluster")

	s.member.Spec.Connection.Pull.AcceptedKey = fingerprint
	assert.Equal(t, deleteAgentAccount, decideNextStep(s).step)
	s.agentAccount = boundAccount("new agent", "join")
	d = decideNextStep(s)
	assert.Equal(t, issueCredential, d.step)
	s.clusterJoin.Status = d.joinStatus
	d = decideNextStep(s)
	assert.Equal(t, noStep, d.step, "the Lease was renewed with the credential before")
	assert.Equal(t, v1alpha1.ReasonAwaitingContact, d.condition.Reason)
}

func TestRegisteredAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*snapshot)
		wantStep step
		// "" for no condition
		wantReason string
	}{
		"nothing is wrong":            {func(*snapshot) {}, noStep, v1alpha1.ReasonJoined},
		"a join token is requested":   {func(s *snapshot) { s.member.Annotations = map[string]string{v1alpha1.AnnotationJoinToken: "2"} }, createJoinAccount, v1alpha1.ReasonJoined},
		"its account was deleted":     {func(s *snapshot) { s.agentAccount = accountState{bindingExists: true} }, createJoinAccount, v1alpha1.ReasonAwaitingAgent},
		"its RoleBinding was deleted": {func(s *snapshot) { s.agentAccount.bindingExists = false }, bindAgentAccount, v1alpha1.ReasonJoined},
		"its RoleBinding was changed": {func(s *snapshot) { s.agentAccount.bindingForeign = true }, unbindAgentAccount, v1alpha1.ReasonJoined},
		"its quota was deleted":       {func(s *snapshot) { s.quotaMissing = true }, createQuota, v1alpha1.ReasonJoined},
		"its Lease was deleted":       {func(s *snapshot) { s.leaseExists, s.leaseHolder = false, "" }, createLease, v1alpha1.ReasonAwaitingAgent},
		"revoked":                     {func(s *snapshot) { s.member.Spec.Connection.Pull.Revoked = true }, unbindAgentAccount, v1alpha1.ReasonRevoking},
		"in quarantine":               {func(s *snapshot) { s.member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"} }, unbindAgentAccount, v1alpha1.ReasonRevoking},
		"it left pull mode": {func(s *snapshot) {
			s.member.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "frankfurt"}}
		}, unbindAgentAccount, v1alpha1.ReasonRevoking},
		"the member is being deleted": {func(s *snapshot) { s.member.DeletionTimestamp = &metav1.Time{Time: noon} }, noStep, ""},
		"the member is cleaned up": {func(s *snapshot) {
			s.member.DeletionTimestamp, s.member.Finalizers = &metav1.Time{Time: noon}, []string{finalizer}
		}, unbindAgentAccount, v1alpha1.ReasonRevoking},
		"the member's namespace is being deleted": {func(s *snapshot) { s.namespaceReady = false }, noStep, v1alpha1.ReasonAwaitingAgent},
		"revoked while the member is being deleted": {func(s *snapshot) {
			s.member.DeletionTimestamp, s.member.Spec.Connection.Pull.Revoked = &metav1.Time{Time: noon}, true
		}, unbindAgentAccount, v1alpha1.ReasonRevoking},
	} {
		t.Run(name, func(t *testing.T) {
			s := servedSnapshot()
			tt.change(&s)
			d := decideNextStep(s)
			assert.Equal(t, tt.wantStep, d.step)
			assert.Equal(t, tt.wantReason != "", d.condition != nil)
			if d.condition != nil {
				assert.Equal(t, tt.wantReason, d.condition.Reason)
			}
		})
	}
}

// Users may unset revoked when condition Joined has reason Revoked. So that reason is
// published once nothing is left, and replaced before anything is issued again.
func TestRevokedIsReportedOnceNothingIsLeft(t *testing.T) {
	s := servedSnapshot()
	s.member.Spec.Connection.Pull.Revoked = true
	for range maxSteps {
		d := decideNextStep(s)
		if d.step == noStep {
			assert.Equal(t, v1alpha1.ReasonRevoked, d.condition.Reason)
			assert.Equal(t, accountState{}, s.agentAccount)
			assert.Equal(t, accountState{}, s.joinAccount)
			s.member.Status.Conditions = []metav1.Condition{*d.condition}
			break
		}
		require.Equal(t, v1alpha1.ReasonRevoking, d.condition.Reason, "before %s", d.step)
		applyStep(&s, d)
	}
	require.True(t, s.reportsRevoked())
	s.member.Spec.Connection.Pull.Revoked = false
	d := decideNextStep(s)
	assert.Equal(t, noStep, d.step)
	assert.Equal(t, v1alpha1.ReasonAwaitingAgent, d.condition.Reason)
	s.member.Status.Conditions = []metav1.Condition{*d.condition}
	assert.Equal(t, createJoinAccount, decideNextStep(s).step)
}

// Remove permissions first: the API server may cache for some seconds that a token is
// valid, but not what it may do.
func TestRevocationOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*snapshot)
		wantSteps []step
	}{
		"revoked": {func(s *snapshot) { s.member.Spec.Connection.Pull.Revoked = true },
			[]step{unbindAgentAccount, unbindJoinAccount, deleteAgentAccount, deleteJoinAccount, deleteClusterJoin, deleteJoinSecret, noStep}},
		"mode Push": {func(s *snapshot) { s.member.Spec.Connection.Pull = nil },
			[]step{unbindAgentAccount, unbindJoinAccount, deleteAgentAccount, deleteJoinAccount, deleteClusterJoin, deleteJoinSecret, removeFinalizer, noStep}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := askingSnapshot(t)
			s.agentAccount = boundAccount("agent", "join")
			tt.change(&s)
			for _, want := range tt.wantSteps {
				d := decideNextStep(s)
				require.Equal(t, want, d.step)
				applyStep(&s, d)
			}
		})
	}
}

func TestForeignSecretIsLeftAlone(t *testing.T) {
	s := waitingSnapshot()
	s.joinSecret.Labels = nil
	d := decideNextStep(s)
	assert.Equal(t, noStep, d.step)
	assert.Contains(t, d.condition.Message, "was not created by the hub")
	s.member.Spec.Connection.Pull = nil
	s.joinAccount = accountState{}
	assert.Equal(t, removeFinalizer, decideNextStep(s).step, "the Secret is left alone")
}
