//go:build linux

package registration_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestRevocation shows that revoking an agent refuses its credentials at once, stolen
// ones included.
func TestRevocation(t *testing.T) {
	t.Parallel()
	agent, _, key := registerFakeAgent(t, "revoked")
	stolen, err := requestToken(t.Context(), agent, agent.Namespace, "ot-member-agent", nil)
	require.NoError(t, err)
	access := agent.HubAccess
	access.Token = stolen
	thief := newFakeAgent(t, access)
	require.NoError(t, thief.listPlans(t.Context()), "the API server knows it from now on")

	patchPull(t, "revoked", `{"revoked":true}`)
	thief.requireRevoked(t)
	require.True(t, isRefused(agent.listPlans(t.Context())))
	awaitJoinedReason(t, "revoked", v1alpha1.ReasonRevoked)
	awaitMemberGone(t, "revoked")

	patchPull(t, "revoked", `{"revoked":false}`)
	token := awaitInvited(t, "revoked")
	token.mustRequestCredential(t, key)
	anew := token.awaitCredential(t, key)
	anew.mustRenewLease(t)
	awaitJoinedReason(t, "revoked", v1alpha1.ReasonJoined)
	require.NoError(t, anew.listPlans(t.Context()))
	require.True(t, isRefused(thief.listPlans(t.Context())), "what was revoked stays so")
}

// TestRevocationBeforeRegistration shows that a revocation also invalidates a join token,
// or a credential, that no agent has used yet.
func TestRevocationBeforeRegistration(t *testing.T) {
	testenv.RunInTurn(t, 10)
	t.Parallel()
	createPullMember(t, "early", v1alpha1.MemberPull{AutoAccept: true})
	token, key := awaitInvited(t, "early"), newKey(t)
	token.mustRequestCredential(t, key)
	agent := token.awaitCredential(t, key)
	patchPull(t, "early", `{"revoked":true}`)
	awaitJoinedReason(t, "early", v1alpha1.ReasonRevoked)
	awaitMemberGone(t, "early")
	awaitCondition(t, func() bool { return isRefused(agent.renewLease(t.Context())) }, "what was revoked is let in")
	awaitCondition(t, func() bool { return isRefused(token.requestCredential(t.Context(), key)) }, "what was revoked may ask")
}

// TestRemovedMemberIsRevoked shows that an agent is revoked when its member changes to
// push mode or is deleted.
func TestRemovedMemberIsRevoked(t *testing.T) {
	testenv.RunInTurn(t, 11)
	t.Parallel()
	t.Run("for mode Push", func(t *testing.T) {
		t.Parallel()
		agent, _, _ := registerFakeAgent(t, "pushed")
		patchMember(t, "pushed", `{"spec":{"connection":{"pull":null,"kubeconfigSecretRef":{"name":"pushed"}}}}`)
		agent.requireRevoked(t)
		awaitMemberGone(t, "pushed")
		awaitCondition(t, func() bool {
			member := getMember(t, "pushed")
			return meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined) == nil && len(member.Finalizers) == 1
		}, "something is left of its joining")

		patchMember(t, "pushed", `{"spec":{"connection":{"kubeconfigSecretRef":null,"pull":{"autoAccept":true}}}}`)
		token, key := awaitInvited(t, "pushed"), newKey(t)
		token.mustRequestCredential(t, key)
		token.awaitCredential(t, key).mustRenewLease(t)
		awaitJoinedReason(t, "pushed", v1alpha1.ReasonJoined)
		require.True(t, isRefused(agent.listPlans(t.Context())))
	})
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		agent, _, _ := registerFakeAgent(t, "deleted")
		require.NoError(t, shared.Delete(t.Context(), getMember(t, "deleted")))
		agent.requireRevoked(t)
		awaitMemberGone(t, "deleted")
		awaitCondition(t, func() bool {
			return apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Name: "deleted"}, &v1alpha1.MemberCluster{}))
		}, "the MemberCluster stays")
	})
}

// TestRevocationEndsOpenWatch shows the limit of a revocation: the API server does not
// authorize a running watch again. That watch shows only the member's own mailbox.
func TestRevocationEndsOpenWatch(t *testing.T) {
	testenv.RunInTurn(t, 12)
	t.Parallel()
	agent, _, _ := registerFakeAgent(t, "watched")
	c, err := client.NewWithWatch(agent.cfg, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
	require.NoError(t, err)
	open, err := c.Watch(t.Context(), &v1alpha1.MemberLinkList{}, client.InNamespace(agent.Namespace))
	require.NoError(t, err)
	defer open.Stop()
	patchPull(t, "watched", `{"revoked":true}`)
	agent.requireRevoked(t)
	link := &v1alpha1.MemberLink{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, link))
	require.NoError(t, shared.Patch(t.Context(), link, newMergePatch(`{"metadata":{"annotations":{"seen":"yes"}}}`)))
	ended := false
	awaitCondition(t, func() bool {
		select {
		case e, more := <-open.ResultChan():
			ended = !more
			return ended || e.Type == watch.Modified && e.Object.(*v1alpha1.MemberLink).Annotations["seen"] == "yes"
		default:
			return false
		}
	}, "the watch neither ends nor goes on")
	t.Logf("a watch that was open when it was revoked has ended: %t", ended)
}
