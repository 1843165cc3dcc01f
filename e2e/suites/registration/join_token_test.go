//go:build linux

package registration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestJoinTokenPresentedTwice presents a stolen join token, before and after the agent is
// accepted.
func TestJoinTokenPresentedTwice(t *testing.T) {
	t.Parallel()
	createPullMember(t, "presented", v1alpha1.MemberPull{})
	awaitJoinedReason(t, "presented", v1alpha1.ReasonAwaitingAgent)
	agent, key, thiefKey := awaitInvited(t, "presented"), newKey(t), newKey(t)
	thief := newFakeAgent(t, agent.HubAccess)
	for _, said := range []types.UID{"", "x: accept SHA256:0", types.UID(strings.Repeat("1", 65))} {
		awaitCondition(t, func() bool { return apierrors.IsInvalid(thief.requestCredentialAs(t.Context(), said, thiefKey)) }, "people are shown it, and go by it: %q", said)
	}
	agent.mustRequestCredential(t, key)
	asked := awaitJoinedReason(t, "presented", v1alpha1.ReasonAwaitingAcceptance)
	assert.Contains(t, asked.Message, fingerprint(t, key))

	require.True(t, apierrors.IsAlreadyExists(thief.requestCredential(t.Context(), thiefKey)), "who comes first has used it up")
	changed, err := thief.getClusterJoin(t.Context())
	require.NoError(t, err)
	changed.Spec.PublicKey = thiefKey.PublicKey()
	require.True(t, apierrors.IsForbidden(thief.Update(t.Context(), changed)))
	require.True(t, apierrors.IsForbidden(thief.Status().Update(t.Context(), changed)))
	require.True(t, apierrors.IsForbidden(thief.Delete(t.Context(), changed)))
	require.True(t, apierrors.IsInvalid(shared.Update(t.Context(), changed)), "nor does it change for anybody else")

	acceptKey(t, "presented", thiefKey) // as a person does who has compared nothing
	awaitCondition(t, func() bool {
		asked, err := agent.getClusterJoin(t.Context())
		return err == nil && asked.Status.Phase == v1alpha1.JoinPending && asked.Status.Message != "" &&
			assert.ObjectsAreEqual(fingerprint(t, key), asked.Status.Fingerprint) && asked.Status.Credential == nil &&
			awaitJoinedReason(t, "presented", v1alpha1.ReasonAwaitingAcceptance).Message == asked.Status.Message
	}, "nothing tells of the key that is not there")
	account := &corev1.ServiceAccount{}
	require.True(t, apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: registration.AgentAccount}, account)),
		"nobody that could be let in has an account")

	acceptKey(t, "presented", key)
	joined := agent.awaitCredential(t, key)
	seen, err := thief.getClusterJoin(t.Context())
	require.NoError(t, err)
	_, err = thiefKey.OpenSealed(seen.Status.Credential)
	require.ErrorContains(t, err, "not sealed for this key")
	assert.NotContains(t, string(seen.Status.Credential), joined.Token)

	awaitJoinedReason(t, "presented", v1alpha1.ReasonAwaitingContact)
	joined.mustRenewLease(t)
	awaitJoinedReason(t, "presented", v1alpha1.ReasonJoined)
	_, err = getJoinSecret(t.Context(), "presented")
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	awaitCondition(t, func() bool { return isRefused(thief.requestCredential(t.Context(), thiefKey)) }, "replayed")
	awaitCondition(t, func() bool { return apierrors.IsUnauthorized(thief.requestCredential(t.Context(), thiefKey)) }, "the join token is still accepted")
	require.True(t, apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKeyFromObject(seen), seen)))
}

// TestSupersededJoinToken shows that a superseded join token is refused, however soon it
// is presented.
func TestSupersededJoinToken(t *testing.T) {
	testenv.RunInTurn(t, 6)
	t.Parallel()
	createPullMember(t, "later", v1alpha1.MemberPull{AutoAccept: true})
	former := awaitInvited(t, "later")
	requestJoinToken(t, "later", "2")
	last := awaitInvited(t, "later", former)
	// As within the seconds in which an API server still knows the former one: who has
	// that does not know the account of the last one.
	thief := newFakeAgent(t, last.HubAccess)
	thief.account = former.account
	thief.mustRequestCredential(t, newKey(t))
	key := newKey(t)
	awaitCondition(t, func() bool { return last.requestCredential(t.Context(), key) == nil }, "the former one's ClusterJoin is in the way")
	last.awaitCredential(t, key).mustRenewLease(t)
	awaitJoinedReason(t, "later", v1alpha1.ReasonJoined)
	awaitCondition(t, func() bool { return apierrors.IsUnauthorized(former.requestCredential(t.Context(), key)) }, "the superseded token is still accepted")
}

// TestExpiredJoinToken shows that a join token is refused if it expires before it is
// presented, or before its key is accepted.
func TestExpiredJoinToken(t *testing.T) {
	testenv.RunInTurn(t, 7)
	t.Parallel()
	createPullMember(t, "late", v1alpha1.MemberPull{})
	agent, key := awaitInvited(t, "late"), newKey(t)
	expired := newFakeAgent(t, agent.HubAccess)
	expired.cfg.BearerToken = forgeToken(t, agent.Token, -time.Minute)
	c, err := client.New(expired.cfg, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
	require.NoError(t, err)
	expired.Client = c
	require.True(t, apierrors.IsUnauthorized(expired.requestCredential(t.Context(), key)))

	past := `{"metadata":{"annotations":{"pelotech.ot/expires":"2026-01-01T00:00:00Z"}}}`
	expire := func() {
		secret, err := getJoinSecret(t.Context(), "late")
		require.NoError(t, err)
		require.NoError(t, shared.Patch(t.Context(), secret, newMergePatch("%s", past)))
		c := awaitJoinedReason(t, "late", v1alpha1.ReasonJoinTokenExpired)
		assert.Contains(t, c.Message, "kubectl annotate --overwrite membercluster late "+v1alpha1.AnnotationJoinToken)
	}
	expire()
	requestJoinToken(t, "late", "2")
	second := awaitInvited(t, "late", agent)
	awaitJoinedReason(t, "late", v1alpha1.ReasonAwaitingAgent)
	second.mustRequestCredential(t, key)
	awaitJoinedReason(t, "late", v1alpha1.ReasonAwaitingAcceptance)
	expire()
	acceptKey(t, "late", key)
	requestJoinToken(t, "late", "3")
	third := awaitInvited(t, "late", agent, second)
	awaitCondition(t, func() bool { return third.requestCredential(t.Context(), key) == nil }, "the former ClusterJoin stays")
	third.awaitCredential(t, key).mustRenewLease(t)
	awaitJoinedReason(t, "late", v1alpha1.ReasonJoined)
}

// TestAutoAcceptTakesFirstKey shows that autoAccept admits the first key, unless it comes
// from another cluster than the one that is recorded.
func TestAutoAcceptTakesFirstKey(t *testing.T) {
	t.Parallel()
	createPullMember(t, "known", v1alpha1.MemberPull{AutoAccept: true})
	patchMember(t, "known", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationAcceptCluster+`":"22222222-2222-2222-2222-222222222222"}}}`)
	key, agent := newKey(t), awaitInvited(t, "known")
	awaitCondition(t, func() bool { return getMember(t, "known").Status.ClusterUID != "" }, "the cluster is not known")
	agent.mustRequestCredential(t, key)
	c := awaitJoinedReason(t, "known", v1alpha1.ReasonAwaitingAcceptance)
	assert.Contains(t, c.Message, "the member is cluster 22222222-2222-2222-2222-222222222222")
	patchMember(t, "known", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationAcceptCluster+`":"`+string(cluster)+`"}}}`)
	agent.awaitCredential(t, key).mustRenewLease(t)
	c = awaitJoinedReason(t, "known", v1alpha1.ReasonJoined)
	assert.Equal(t, metav1.ConditionTrue, c.Status)
}

// TestAgentWithExpiredCredential shows that an agent with an expired credential registers
// again with its key, without a second acceptance.
func TestAgentWithExpiredCredential(t *testing.T) {
	testenv.RunInTurn(t, 8)
	t.Parallel()
	createPullMember(t, "offline", v1alpha1.MemberPull{})
	first, key := awaitInvited(t, "offline"), newKey(t)
	first.mustRequestCredential(t, key)
	acceptKey(t, "offline", key)
	agent := first.awaitCredential(t, key)
	agent.mustRenewLease(t)
	awaitJoinedReason(t, "offline", v1alpha1.ReasonJoined)

	access := agent.HubAccess
	access.Token = forgeToken(t, agent.Token, time.Minute)
	require.NoError(t, newFakeAgent(t, access).listPlans(t.Context()), "as the API server signs them")
	access.Token = forgeToken(t, agent.Token, -time.Minute)
	require.True(t, apierrors.IsUnauthorized(newFakeAgent(t, access).listPlans(t.Context())))

	requestJoinToken(t, "offline", "2")
	again := awaitInvited(t, "offline", first)
	awaitCondition(t, func() bool {
		return strings.Contains(awaitJoinedReason(t, "offline", v1alpha1.ReasonJoined).Message, "in addition")
	}, "nothing tells of the join token")
	require.NoError(t, agent.listPlans(t.Context()))
	again.mustRequestCredential(t, key)
	anew := again.awaitCredential(t, key)
	awaitJoinedReason(t, "offline", v1alpha1.ReasonAwaitingContact)
	awaitCondition(t, func() bool { return isRefused(agent.listPlans(t.Context())) }, "of two credentials the former is good, too")
	anew.mustRenewLease(t)
	awaitJoinedReason(t, "offline", v1alpha1.ReasonJoined)
	require.NoError(t, anew.listPlans(t.Context()))
}
