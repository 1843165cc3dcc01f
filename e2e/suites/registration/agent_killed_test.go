//go:build linux

package registration_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// An agent that is killed before or after a write of its registration is replaced by one that
// gets to the same end with the same join token.
func TestRegistrationSurvivesKilledAgent(t *testing.T) {
	s := shared
	toMember, err := faults.StartProxy(s.member.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = toMember.Close() })
	toHub, err := faults.StartTLSProxy(s.Plane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = toHub.Close() })
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})

	writes := testenv.SweepShare(faults.BeforeAndAfter(
		faults.FatalWrite{Write: "the key", Proxy: toMember, Matches: faults.MatchWrite(http.MethodPost, "secrets", false)},
		faults.FatalWrite{Write: "the ClusterJoin", Proxy: toHub, Matches: faults.MatchWrite(http.MethodPost, "clusterjoins", false)},
		faults.FatalWrite{Write: "the credential", Proxy: toMember, Matches: faults.MatchWrite(http.MethodPut, "secrets", false)},
		faults.FatalWrite{Write: "the carrier in the MemberLink", Proxy: toHub, Matches: faults.MatchWrite(http.MethodPut, "memberlinks", true)},
	))
	for i, write := range writes {
		if i > 0 {
			s.requestJoinToken(t)
		}
		t.Run(write.String(), func(t *testing.T) {
			s.deleteMemberState(t)
			s.putJoinToken(t, toHub)
			var agent *program.Agent
			killer := faults.NewWriteKiller(func() *process.Process { return agent.Process },
				func(context.Context) error { agent = s.startAgent(t, toMember); return nil }, []faults.FatalWrite{write})
			killer.Watch(t, toMember, toHub)
			killer.Start(t)
			killer.AwaitCondition(t, "the agent to be killed", func() bool { return len(killer.Remaining()) == 0 })
			killer.KeepAlive(t)
			s.awaitJoined(t)
			s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
			s.awaitMemberReady(t)
			if i < len(writes)-1 { // the last agent signs off
				agent.Kill()
				<-agent.Done()
			}
		})
	}
}
