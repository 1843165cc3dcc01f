//go:build linux

package registration_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestRegistrationSurvivesKilledAgent kills the agent before and after each write of a
// registration. The next agent completes it with the same join token.
func TestRegistrationSurvivesKilledAgent(t *testing.T) {
	s := shared
	here, err := faults.StartProxy(s.member.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = here.Close() })
	there, err := faults.StartTLSProxy(s.Plane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = there.Close() })
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})

	var mu sync.Mutex
	var running *program.Agent
	kill := func(matches func(faults.Write) bool) (faults.Hook, func() bool) {
		killed := false
		return func(w faults.Write) error {
				mu.Lock()
				defer mu.Unlock()
				if killed || running == nil || !matches(w) {
					return nil
				}
				killed = true
				running.Kill()
				return faults.DropConnection()
			}, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return killed
			}
	}
	start := func() {
		mu.Lock() // of its writes none comes before it is known
		defer mu.Unlock()
		running = s.startAgent(t, here)
	}
	key := faults.MatchWrite("POST", "secrets", false)
	credential := faults.MatchWrite("PUT", "secrets", false)
	asked := faults.MatchWrite("POST", "clusterjoins", false)
	told := faults.MatchWrite("PUT", "memberlinks", true)
	deaths := []struct {
		name   string
		proxy  *faults.Proxy
		set    func(*faults.Proxy, faults.Hook)
		writes func(faults.Write) bool
	}{
		{"before the key is stored", here, (*faults.Proxy).SetBeforeHook, key},
		{"after the key is stored", here, (*faults.Proxy).SetAfterHook, key},
		{"before it asks", there, (*faults.Proxy).SetBeforeHook, asked},
		{"after it has asked", there, (*faults.Proxy).SetAfterHook, asked},
		{"before the credential is stored", here, (*faults.Proxy).SetBeforeHook, credential},
		{"after the credential is stored", here, (*faults.Proxy).SetAfterHook, credential},
		{"before it tells that it carries", there, (*faults.Proxy).SetBeforeHook, told},
		{"after it has told", there, (*faults.Proxy).SetAfterHook, told},
	}
	for i, at := range deaths {
		if !t.Run(at.name, func(t *testing.T) {
			s.deleteMemberState(t)
			s.putJoinToken(t, there)
			hook, killed := kill(at.writes)
			at.set(at.proxy, hook)
			defer at.set(at.proxy, nil)
			start()
			require.True(t, testenv.Await(t, killed), "the agent never came so far")
			<-running.Done()
			start()
			s.awaitJoined(t)
			s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
			s.awaitMemberReady(t)
			if i == len(deaths)-1 {
				return // it is to say farewell
			}
			running.Kill()
			<-running.Done()
			s.requestJoinToken(t)
		}) {
			return
		}
	}
}
