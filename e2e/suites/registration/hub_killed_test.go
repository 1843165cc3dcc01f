//go:build linux

package registration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// registrationWrites are the hub's writes that register a member and revoke it again; see
// describeWrite.
var registrationWrites = []string{
	"PATCH finalizers",
	"POST serviceaccounts ot-member-join",
	"POST rolebindings ot-member-join",
	"POST serviceaccounts ot-member-join /token",
	"POST secrets",
	"PUT clusterjoins Pending",
	"POST serviceaccounts ot-member-agent",
	"POST rolebindings ot-member-agent",
	"POST serviceaccounts ot-member-agent /token",
	"PUT clusterjoins Issued",
	"DELETE rolebindings ot-member-join",
	"DELETE serviceaccounts ot-member-join",
	"DELETE clusterjoins",
	"DELETE secrets",
	"DELETE rolebindings ot-member-agent",
	"DELETE serviceaccounts ot-member-agent",
}

// describeWrite names a write for a member; empty for one that is not part of a registration.
func describeWrite(w faults.Write, member string) string {
	if !strings.Contains(w.Path, member) && !bytes.Contains(w.Body, []byte(member)) {
		return ""
	}
	resource, _, _ := w.Target()
	if resource == member && w.Method == http.MethodPatch {
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

// startProxiedHub replaces the fleet's hub by one behind a proxy until the test ends, and
// returns a killer of it.
func startProxiedHub(t *testing.T, writes []faults.FatalWrite) *faults.WriteKiller {
	t.Helper()
	proxy, err := faults.StartProxy(shared.Plane.Config())
	require.NoError(t, err)
	start := func(ctx context.Context) (err error) {
		if err := program.DeleteHubLease(ctx, shared); err != nil {
			return err
		}
		shared.Hub, err = shared.RunHub(ctx, program.Options{ConfigureClient: proxy.Redirect})
		return err
	}
	require.NoError(t, shared.Hub.Stop(testenv.Patience))
	t.Cleanup(func() {
		require.NoError(t, shared.Hub.Stop(testenv.Patience))
		require.NoError(t, shared.StartHub(context.Background()))
		require.NoError(t, proxy.Close())
	})
	require.NoError(t, start(t.Context()))
	killer := faults.NewWriteKiller(func() *process.Process { return shared.Hub.Process }, start, writes)
	killer.Watch(t, proxy)
	return killer
}

// A hub that is killed after any of its writes of a registration or a revocation is replaced by
// one that gets to the same end.
func TestRegistrationSurvivesHubKilledAfterEachWrite(t *testing.T) {
	const member = "mortal"
	var writes []faults.FatalWrite
	for _, name := range registrationWrites {
		writes = append(writes, faults.FatalWrite{
			Write: name, Stored: true, Matches: func(w faults.Write) bool { return describeWrite(w, member) == name },
		})
	}
	killer := startProxiedHub(t, testenv.SweepShare(writes))
	createPullMember(t, member, v1alpha1.MemberPull{})
	key := newKey(t)
	var token, agent *fakeAgent
	// actForAgent does what the agent and its administrator can do next.
	actForAgent := func() {
		if secret, err := getJoinSecret(t.Context(), member); err == nil && token == nil {
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
			acceptKey(t, member, key)
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
			killer.KeepAlive(t)
			actForAgent()
			c := meta.FindStatusCondition(getMember(t, member).Status.Conditions, v1alpha1.ConditionJoined)
			return c != nil && c.Reason == reason
		}, "condition Joined does not get reason %s", reason)
	}
	until(v1alpha1.ReasonJoined)
	require.NoError(t, agent.listPlans(t.Context()))
	awaitCondition(t, func() bool { return isRefused(token.requestCredential(t.Context(), newKey(t))) }, "the join token still works")

	// A revocation cannot be taken back before a hub has carried it out.
	shared.Hub.Kill()
	<-shared.Hub.Done()
	requireNoWayBack := func(spec, why string) {
		t.Helper()
		err := shared.Patch(t.Context(), getMember(t, member), newMergePatch(`{"spec":%s}`, spec))
		require.True(t, apierrors.IsInvalid(err), "%s: %v", spec, err)
		require.ErrorContains(t, err, why)
	}
	const (
		inQuarantine = "a member in quarantine can leave quarantine or pull mode only after condition Joined has reason Revoked"
		afterSwitch  = "a member that has left pull mode can leave quarantine only after the hub has removed condition Joined"
	)
	const byKubeconfig = `{"connection":{"pull":null,"kubeconfigSecretRef":{"name":"mortal"}}}`
	patchSpec := func(spec string, o ...client.PatchOption) {
		t.Helper()
		require.NoError(t, shared.Patch(t.Context(), getMember(t, member), newMergePatch(`{"spec":%s}`, spec), o...))
	}
	pull, err := json.Marshal(getMember(t, member).Spec.Connection.Pull)
	require.NoError(t, err)
	patchSpec(`{"quarantine":{"reason":"stolen"},"connection":{"pull":null,"kubeconfigSecretRef":{"name":"mortal"}}}`)
	requireNoWayBack(`{"quarantine":null}`, afterSwitch)
	requireNoWayBack(`{"quarantine":null,"connection":{"pull":{},"kubeconfigSecretRef":null}}`, afterSwitch)
	patchSpec(fmt.Sprintf(`{"connection":{"pull":%s,"kubeconfigSecretRef":null}}`, pull))
	requireNoWayBack(`{"quarantine":null}`, inQuarantine)
	requireNoWayBack(byKubeconfig, inQuarantine)
	patchPull(t, member, `{"revoked":true}`)
	for _, back := range []string{`{"connection":{"pull":{"revoked":false}}}`, `{"connection":{"pull":{"revoked":null}}}`, byKubeconfig} {
		requireNoWayBack(back, "spec.connection.pull.revoked can be unset only after condition Joined has reason Revoked")
	}
	require.NoError(t, agent.listPlans(t.Context()), "nothing is revoked without a hub")
	until(v1alpha1.ReasonRevoked)
	patchSpec(byKubeconfig, client.DryRunAll)
	patchSpec(`{"quarantine":null}`)
	awaitMemberGone(t, member)
	awaitCondition(t, func() bool { return isRefused(agent.listPlans(t.Context())) }, "a revoked credential is accepted")
	assert.Empty(t, killer.Remaining(), "writes that were never made")
	t.Logf("killed %q", killer.Killed())
}
