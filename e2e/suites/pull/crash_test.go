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

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// killSweep kills the hub after each write that it makes for the joining of one member,
// once.
type killSweep struct {
	member string

	mu   sync.Mutex
	died []string
}

// describeWrite names a write; empty for one that is no part of the joining.
func (d *killSweep) describeWrite(w faults.Write) string {
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
	for _, part := range []string{registration.AgentAccount, registration.JoinAccount, string(v1alpha1.JoinPending), string(v1alpha1.JoinIssued), "/token", `"finalizers":null`} {
		if strings.Contains(w.Path, part) || bytes.Contains(w.Body, []byte(part)) {
			name += " " + part
		}
	}
	return name
}

func (d *killSweep) killAfterWrite(w faults.Write) error {
	name := d.describeWrite(w)
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" || w.Status >= http.StatusBadRequest || slices.Contains(d.died, name) {
		return nil
	}
	d.died = append(d.died, name)
	shared.Hub.Kill()
	return faults.DropConnection()
}

// restartHub starts the next hub where one was killed.
func (s *testHub) restartHub(t *testing.T) {
	t.Helper()
	select {
	case <-s.Hub.Done():
	default:
		return
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "ot-hub"}}
	require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), lease)))
	require.NoError(t, s.StartHub(context.Background()))
}

// TestRegistrationSurvivesHubKilledAfterEachWrite kills the hub after each write of a
// registration, and of a revocation. The next hub reaches the same result.
func TestRegistrationSurvivesHubKilledAfterEachWrite(t *testing.T) {
	d := &killSweep{member: "mortal"}
	shared.Proxy.SetAfterHook(d.killAfterWrite)
	t.Cleanup(func() { shared.Proxy.SetAfterHook(nil); shared.restartHub(t) })
	createPullMember(t, "mortal", v1alpha1.MemberPull{})
	key := newKey(t)
	var token, agent *fakeAgent
	// The agent and its people go on whenever they can.
	play := func() {
		if secret, err := getJoinSecret(t.Context(), "mortal"); err == nil && token == nil {
			access, err := registration.ParseHubAccess(secret.Data[registration.KubeconfigKey])
			require.NoError(t, err)
			token = newFakeAgent(t, access)
		}
		if token == nil {
			return
		}
		asked, err := token.getClusterJoin(t.Context())
		switch {
		case err != nil:
			_ = token.requestCredential(t.Context(), key)
		case asked.Status.Phase == v1alpha1.JoinPending:
			acceptKey(t, "mortal", key)
		case asked.Status.Phase == v1alpha1.JoinIssued && agent == nil:
			agent = token.awaitCredential(t, key)
		}
		if agent != nil {
			_ = agent.renewLease(t.Context())
		}
	}
	until := func(reason string) {
		t.Helper()
		awaitCondition(t, func() bool {
			shared.restartHub(t)
			play()
			c := meta.FindStatusCondition(getMember(t, "mortal").Status.Conditions, v1alpha1.ConditionJoined)
			return c != nil && c.Reason == reason
		}, "it does not come to %s", reason)
	}
	until(v1alpha1.ReasonJoined)
	require.NoError(t, agent.listPlans(t.Context()))
	require.True(t, isRefused(token.requestCredential(t.Context(), newKey(t))))
	in := len(d.died)

	// Who takes it back before a hub has seen it would believe it to be done.
	shared.Hub.Kill()
	<-shared.Hub.Done()
	patchPull(t, "mortal", `{"revoked":true}`)
	for _, back := range []string{`{"pull":{"revoked":false}}`, `{"pull":{"revoked":null}}`, `{"pull":null,"kubeconfigSecretRef":{"name":"mortal"}}`} {
		err := shared.Patch(t.Context(), getMember(t, "mortal"), newMergePatch(`{"spec":{"connection":%s}}`, back))
		require.True(t, apierrors.IsInvalid(err), "%s: %v", back, err)
		require.ErrorContains(t, err, "only after condition Joined has reason Revoked")
	}
	require.NoError(t, agent.listPlans(t.Context()), "nothing is revoked yet, and nobody was told that it is")
	until(v1alpha1.ReasonRevoked)
	awaitMemberGone(t, "mortal")
	awaitCondition(t, func() bool { return isRefused(agent.listPlans(t.Context())) }, "what was revoked is let in")
	t.Logf("the hub was killed %d times while the agent was let in, and %d times while it was shut out: after %q", in, len(d.died)-in, d.died)
	assert.GreaterOrEqual(t, in, 13)
	assert.GreaterOrEqual(t, len(d.died)-in, 2)
}
