//go:build linux

package pull_test

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

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestJoinTokenThatTwoPresent has somebody else use the join token, before the agent
// is accepted and after it is in.
func TestJoinTokenThatTwoPresent(t *testing.T) {
	t.Parallel()
	joinMember(t, "presented", v1alpha1.MemberPull{})
	says(t, "presented", v1alpha1.ReasonAwaitingAgent)
	agent, key, thiefKey := invited(t, "presented"), newKey(t), newKey(t)
	thief := visit(t, agent.Access)
	for _, said := range []types.UID{"", "x: accept SHA256:0", types.UID(strings.Repeat("1", 65))} {
		eventually(t, func() bool { return apierrors.IsInvalid(thief.askAs(t.Context(), said, thiefKey)) }, "people are shown it, and go by it: %q", said)
	}
	agent.asks(t, key)
	asked := says(t, "presented", v1alpha1.ReasonAwaitingAcceptance)
	assert.Contains(t, asked.Message, fingerprint(t, key))

	require.True(t, apierrors.IsAlreadyExists(thief.ask(t.Context(), thiefKey)), "who comes first has used it up")
	changed, err := thief.answer(t.Context())
	require.NoError(t, err)
	changed.Spec.PublicKey = thiefKey.Public()
	require.True(t, apierrors.IsForbidden(thief.Update(t.Context(), changed)))
	require.True(t, apierrors.IsForbidden(thief.Status().Update(t.Context(), changed)))
	require.True(t, apierrors.IsForbidden(thief.Delete(t.Context(), changed)))
	require.True(t, apierrors.IsInvalid(shared.Update(t.Context(), changed)), "nor does it change for anybody else")

	accept(t, "presented", thiefKey) // as a person does who has compared nothing
	eventually(t, func() bool {
		asked, err := agent.answer(t.Context())
		return err == nil && asked.Status.Phase == v1alpha1.JoinPending && asked.Status.Message != "" &&
			assert.ObjectsAreEqual(fingerprint(t, key), asked.Status.Fingerprint) && asked.Status.Credential == nil &&
			says(t, "presented", v1alpha1.ReasonAwaitingAcceptance).Message == asked.Status.Message
	}, "nothing tells of the key that is not there")
	account := &corev1.ServiceAccount{}
	require.True(t, apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: join.AgentAccount}, account)),
		"nobody that could be let in has an account")

	accept(t, "presented", key)
	joined := agent.credential(t, key)
	seen, err := thief.answer(t.Context())
	require.NoError(t, err)
	_, err = thiefKey.Open(seen.Status.Credential)
	require.ErrorContains(t, err, "not sealed for this key")
	assert.NotContains(t, string(seen.Status.Credential), joined.Token)

	says(t, "presented", v1alpha1.ReasonAwaitingContact)
	joined.dialsIn(t)
	says(t, "presented", v1alpha1.ReasonJoined)
	_, err = joinSecret(t.Context(), "presented")
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	eventually(t, func() bool { return refused(thief.ask(t.Context(), thiefKey)) }, "replayed")
	eventually(t, func() bool { return apierrors.IsUnauthorized(thief.ask(t.Context(), thiefKey)) }, "the join token is known for ever")
	require.True(t, apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKeyFromObject(seen), seen)))
}

// TestJoinTokenThatIsNotTheLast is worth nothing, however soon it is presented.
func TestJoinTokenThatIsNotTheLast(t *testing.T) {
	t.Parallel()
	joinMember(t, "later", v1alpha1.MemberPull{AutoAccept: true})
	former := invited(t, "later")
	askForToken(t, "later", "2")
	last := invited(t, "later", former)
	// As within the seconds in which an API server still knows the former one: who has
	// that does not know the account of the last one.
	thief := visit(t, last.Access)
	thief.account = former.account
	thief.asks(t, newKey(t))
	key := newKey(t)
	eventually(t, func() bool { return last.ask(t.Context(), key) == nil }, "the former one's ClusterJoin is in the way")
	last.credential(t, key).dialsIn(t)
	says(t, "later", v1alpha1.ReasonJoined)
	eventually(t, func() bool { return apierrors.IsUnauthorized(former.ask(t.Context(), key)) }, "the former one is known for ever")
}

// TestJoinTokenThatExpires before it is presented, or before its key is accepted.
func TestJoinTokenThatExpires(t *testing.T) {
	t.Parallel()
	joinMember(t, "late", v1alpha1.MemberPull{})
	agent, key := invited(t, "late"), newKey(t)
	expired := visit(t, agent.Access)
	expired.cfg.BearerToken = resigned(t, agent.Token, -time.Minute)
	c, err := client.New(expired.cfg, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
	require.NoError(t, err)
	expired.Client = c
	require.True(t, apierrors.IsUnauthorized(expired.ask(t.Context(), key)))

	past := `{"metadata":{"annotations":{"pelotech.ot/expires":"2026-01-01T00:00:00Z"}}}`
	expire := func() {
		secret, err := joinSecret(t.Context(), "late")
		require.NoError(t, err)
		require.NoError(t, shared.Patch(t.Context(), secret, mergePatch("%s", past)))
		c := says(t, "late", v1alpha1.ReasonJoinTokenExpired)
		assert.Contains(t, c.Message, "kubectl annotate --overwrite membercluster late "+v1alpha1.AnnotationJoinToken)
	}
	expire()
	askForToken(t, "late", "2")
	second := invited(t, "late", agent)
	says(t, "late", v1alpha1.ReasonAwaitingAgent)
	second.asks(t, key)
	says(t, "late", v1alpha1.ReasonAwaitingAcceptance)
	expire()
	accept(t, "late", key)
	askForToken(t, "late", "3")
	third := invited(t, "late", agent, second)
	eventually(t, func() bool { return third.ask(t.Context(), key) == nil }, "the former ClusterJoin stays")
	third.credential(t, key).dialsIn(t)
	says(t, "late", v1alpha1.ReasonJoined)
}

// TestWhoeverComesFirst is let in where people say so, unless it is another cluster
// than they know.
func TestWhoeverComesFirst(t *testing.T) {
	t.Parallel()
	joinMember(t, "known", v1alpha1.MemberPull{AutoAccept: true})
	change(t, "known", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationAcceptCluster+`":"22222222-2222-2222-2222-222222222222"}}}`)
	key, agent := newKey(t), invited(t, "known")
	eventually(t, func() bool { return memberOf(t, "known").Status.ClusterUID != "" }, "the cluster is not known")
	agent.asks(t, key)
	c := says(t, "known", v1alpha1.ReasonAwaitingAcceptance)
	assert.Contains(t, c.Message, "the member is cluster 22222222-2222-2222-2222-222222222222")
	change(t, "known", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationAcceptCluster+`":"`+string(cluster)+`"}}}`)
	agent.credential(t, key).dialsIn(t)
	c = says(t, "known", v1alpha1.ReasonJoined)
	assert.Equal(t, metav1.ConditionTrue, c.Status)
}

// TestAgentThatWasOfflineForLong joins anew with the key that it has: nobody need
// accept that again.
func TestAgentThatWasOfflineForLong(t *testing.T) {
	t.Parallel()
	joinMember(t, "offline", v1alpha1.MemberPull{})
	first, key := invited(t, "offline"), newKey(t)
	first.asks(t, key)
	accept(t, "offline", key)
	agent := first.credential(t, key)
	agent.dialsIn(t)
	says(t, "offline", v1alpha1.ReasonJoined)

	access := agent.Access
	access.Token = resigned(t, agent.Token, time.Minute)
	require.NoError(t, visit(t, access).plans(t.Context()), "as the API server signs them")
	access.Token = resigned(t, agent.Token, -time.Minute)
	require.True(t, apierrors.IsUnauthorized(visit(t, access).plans(t.Context())))

	askForToken(t, "offline", "2")
	again := invited(t, "offline", first)
	eventually(t, func() bool { return strings.Contains(says(t, "offline", v1alpha1.ReasonJoined).Message, "beside it") }, "nothing tells of the join token")
	require.NoError(t, agent.plans(t.Context()))
	again.asks(t, key)
	anew := again.credential(t, key)
	says(t, "offline", v1alpha1.ReasonAwaitingContact)
	eventually(t, func() bool { return refused(agent.plans(t.Context())) }, "of two credentials the former is good, too")
	anew.dialsIn(t)
	says(t, "offline", v1alpha1.ReasonJoined)
	require.NoError(t, anew.plans(t.Context()))
}
