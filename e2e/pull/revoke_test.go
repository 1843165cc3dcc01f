//go:build linux

package pull_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRevocation shuts an agent out, and whoever has stolen from it, at once.
func TestRevocation(t *testing.T) {
	t.Parallel()
	agent, _, key := letIn(t, "revoked")
	stolen, err := tokenOf(t.Context(), agent, agent.Namespace, "ot-member-agent", nil)
	require.NoError(t, err)
	access := agent.Access
	access.Token = stolen
	thief := visit(t, access)
	require.NoError(t, thief.plans(t.Context()), "the API server knows it from now on")

	changePull(t, "revoked", `{"revoked":true}`)
	thief.shutOut(t)
	require.True(t, refused(agent.plans(t.Context())))
	says(t, "revoked", v1alpha1.ReasonRevoked)
	gone(t, "revoked")

	changePull(t, "revoked", `{"revoked":false}`)
	token := invited(t, "revoked")
	token.asks(t, key)
	anew := token.credential(t, key)
	anew.dialsIn(t)
	says(t, "revoked", v1alpha1.ReasonJoined)
	require.NoError(t, anew.plans(t.Context()))
	require.True(t, refused(thief.plans(t.Context())), "what was revoked stays so")
}

// TestRevocationOfWhoIsNotIn: neither a join token nor a credential that nobody has
// taken yet outlives it.
func TestRevocationOfWhoIsNotIn(t *testing.T) {
	t.Parallel()
	joinMember(t, "early", v1alpha1.MemberPull{AutoAccept: true})
	token, key := invited(t, "early"), newKey(t)
	token.asks(t, key)
	agent := token.credential(t, key)
	changePull(t, "early", `{"revoked":true}`)
	says(t, "early", v1alpha1.ReasonRevoked)
	gone(t, "early")
	eventually(t, func() bool { return refused(agent.dialIn(t.Context())) }, "what was revoked is let in")
	eventually(t, func() bool { return refused(token.ask(t.Context(), key)) }, "what was revoked may ask")
}

// TestLeavingRevokes where a member is reached another way from now on, or goes.
func TestLeavingRevokes(t *testing.T) {
	t.Parallel()
	t.Run("for mode Push", func(t *testing.T) {
		t.Parallel()
		agent, _, _ := letIn(t, "pushed")
		change(t, "pushed", `{"spec":{"connection":{"pull":null,"kubeconfigSecretRef":{"name":"pushed"}}}}`)
		agent.shutOut(t)
		gone(t, "pushed")
		eventually(t, func() bool {
			member := memberOf(t, "pushed")
			return meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined) == nil && len(member.Finalizers) == 1
		}, "something is left of its joining")

		change(t, "pushed", `{"spec":{"connection":{"kubeconfigSecretRef":null,"pull":{"autoAccept":true}}}}`)
		token, key := invited(t, "pushed"), newKey(t)
		token.asks(t, key)
		token.credential(t, key).dialsIn(t)
		says(t, "pushed", v1alpha1.ReasonJoined)
		require.True(t, refused(agent.plans(t.Context())))
	})
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		agent, _, _ := letIn(t, "deleted")
		require.NoError(t, shared.Delete(t.Context(), memberOf(t, "deleted")))
		agent.shutOut(t)
		gone(t, "deleted")
		eventually(t, func() bool {
			return apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Name: "deleted"}, &v1alpha1.MemberCluster{}))
		}, "the MemberCluster stays")
	})
}

// TestWatchThatWasOpen says what revocation does not reach: the API server asks
// nobody again about a watch that it has begun. It shows the member's own mailbox.
func TestWatchThatWasOpen(t *testing.T) {
	t.Parallel()
	agent, _, _ := letIn(t, "watched")
	c, err := client.NewWithWatch(agent.cfg, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
	require.NoError(t, err)
	open, err := c.Watch(t.Context(), &v1alpha1.MemberLinkList{}, client.InNamespace(agent.Namespace))
	require.NoError(t, err)
	defer open.Stop()
	changePull(t, "watched", `{"revoked":true}`)
	agent.shutOut(t)
	link := &v1alpha1.MemberLink{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, link))
	require.NoError(t, shared.Patch(t.Context(), link, mergePatch(`{"metadata":{"annotations":{"seen":"yes"}}}`)))
	ended := false
	eventually(t, func() bool {
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
