//go:build linux

package pull_test

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/proxy"
)

// deaths kills the hub after each write that it makes for the joining of one member,
// once.
type deaths struct {
	member string

	mu   sync.Mutex
	died []string
}

// of names a write; empty for one that is no part of the joining.
func (d *deaths) of(w proxy.Write) string {
	if !strings.Contains(w.Path, d.member) && !bytes.Contains(w.Body, []byte(d.member)) {
		return ""
	}
	resource, _, _ := w.Target()
	if resource == d.member && w.Method == http.MethodPatch {
		resource = "finalizers"
	} else if !slices.Contains([]string{"serviceaccounts", "rolebindings", "clusterjoins", "secrets"}, resource) {
		return ""
	}
	name := w.Method + " " + resource
	for _, part := range []string{join.AgentAccount, join.JoinAccount, string(v1alpha1.JoinPending), string(v1alpha1.JoinIssued), "/token", `"finalizers":null`} {
		if strings.Contains(w.Path, part) || bytes.Contains(w.Body, []byte(part)) {
			name += " " + part
		}
	}
	return name
}

func (d *deaths) after(w proxy.Write) error {
	name := d.of(w)
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" || w.Status >= http.StatusBadRequest || slices.Contains(d.died, name) {
		return nil
	}
	d.died = append(d.died, name)
	shared.hub.Kill()
	return proxy.Lose()
}

// revive starts the next hub where one was killed.
func (s *stage) revive(t *testing.T) {
	t.Helper()
	select {
	case <-s.hub.Done():
	default:
		return
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: "ot-hub"}}
	require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), lease)))
	require.NoError(t, s.startHub(context.Background()))
}

// TestHubIsKilledBetweenAnyTwoWrites of a join, and of a revocation: the next one
// comes to the same end.
func TestHubIsKilledBetweenAnyTwoWrites(t *testing.T) {
	d := &deaths{member: "mortal"}
	shared.proxy.After(d.after)
	t.Cleanup(func() { shared.proxy.After(nil); shared.revive(t) })
	joinMember(t, "mortal", v1alpha1.MemberPull{})
	key := newKey(t)
	var token, agent *visitor
	// The agent and its people go on whenever they can.
	play := func() {
		if secret, err := joinSecret(t.Context(), "mortal"); err == nil && token == nil {
			access, err := join.ParseAccess(secret.Data[join.KubeconfigKey])
			require.NoError(t, err)
			token = visit(t, access)
		}
		if token == nil {
			return
		}
		asked, err := token.answer(t.Context())
		switch {
		case err != nil:
			_ = token.ask(t.Context(), key)
		case asked.Status.Phase == v1alpha1.JoinPending:
			accept(t, "mortal", key)
		case asked.Status.Phase == v1alpha1.JoinIssued && agent == nil:
			agent = token.credential(t, key)
		}
		if agent != nil {
			_ = agent.dialIn(t.Context())
		}
	}
	until := func(reason string) {
		t.Helper()
		eventually(t, func() bool {
			shared.revive(t)
			play()
			c := meta.FindStatusCondition(memberOf(t, "mortal").Status.Conditions, v1alpha1.ConditionJoined)
			return c != nil && c.Reason == reason
		}, "it does not come to %s", reason)
	}
	until(v1alpha1.ReasonJoined)
	require.NoError(t, agent.plans(t.Context()))
	require.True(t, refused(token.ask(t.Context(), newKey(t))))
	in := len(d.died)

	// Who takes it back before a hub has seen it would believe it to be done.
	shared.hub.Kill()
	<-shared.hub.Done()
	changePull(t, "mortal", `{"revoked":true}`)
	for _, back := range []string{`{"pull":{"revoked":false}}`, `{"pull":{"revoked":null}}`, `{"pull":null,"kubeconfigSecretRef":{"name":"mortal"}}`} {
		err := shared.Patch(t.Context(), memberOf(t, "mortal"), mergePatch(`{"spec":{"connection":%s}}`, back))
		require.True(t, apierrors.IsInvalid(err), "%s: %v", back, err)
		require.ErrorContains(t, err, "once condition Joined says Revoked")
	}
	require.NoError(t, agent.plans(t.Context()), "nothing is revoked yet, and nobody was told that it is")
	until(v1alpha1.ReasonRevoked)
	gone(t, "mortal")
	eventually(t, func() bool { return refused(agent.plans(t.Context())) }, "what was revoked is let in")
	t.Logf("the hub was killed %d times while the agent was let in, and %d times while it was shut out: after %q", in, len(d.died)-in, d.died)
	assert.GreaterOrEqual(t, in, 13)
	assert.GreaterOrEqual(t, len(d.died)-in, 2)
}
