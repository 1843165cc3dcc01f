//go:build linux

package registration_test

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPausedAgentWritesNothingStale pauses an agent while it stores its next credential;
// it wakes when another leads and overwrites nothing. The new leader is then paused while
// it is revoked, and is refused when it wakes.
func TestPausedAgentWritesNothingStale(t *testing.T) {
	testenv.RunInTurn(t, 4)
	s := shared
	here, err := faults.StartProxy(s.member.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = here.Close() })
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})
	// Its Lease is short: it holds on to it for a while when it wakes.
	first := s.startAgent(t, here, "--hub-renew-after=2s", "--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=2s")
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.awaitJoined(t)
	s.awaitMemberReady(t)
	link := &v1alpha1.MemberLink{}
	carrier := func() string {
		require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, link))
		return link.Status.Carrier
	}
	paused := carrier()

	stores := faults.MatchWrite(http.MethodPut, "secrets", false)
	reached, goOn, answered := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	var once, answer sync.Once
	here.SetBeforeHook(func(w faults.Write) error {
		if stores(w) {
			once.Do(func() { close(reached) })
			<-goOn
		}
		return nil
	})
	here.SetAfterHook(func(w faults.Write) error {
		if stores(w) {
			answer.Do(func() { answered <- w.Status })
		}
		return nil
	})
	t.Cleanup(sync.OnceFunc(func() { close(goOn) }))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		select {
		case <-reached:
			return true
		default:
			return false
		}
	}), "nothing is renewed")
	require.NoError(t, first.Pause(t.Context()))
	before := s.storedCredential(t)

	second := s.startAgent(t, nil, "--hub-renew-after=2s")
	require.True(t, testenv.AwaitCondition(t, func() bool { return s.storedCredential(t) != before && carrier() != paused }), "%s carries on", paused)
	carriers := s.recordCarriers(t)
	here.SetBeforeHook(nil)
	goOn <- struct{}{}
	require.Equal(t, http.StatusConflict, <-answered, "what it had to store is older than what is there")
	require.NoError(t, first.Resume())
	s.member.CreateImageForTest(t, "meanwhile")
	testenv.AwaitMember(t, s, s.memberName, "told of what was done meanwhile", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 1
	})
	// It is told late that it has lost its Lease, and looks before that.
	<-first.Done()
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	assert.NotContains(t, carriers(), paused, "a replica that no longer leads has synced")

	require.NoError(t, second.Pause(t.Context()))
	s.revokeCredential(t)
	require.NoError(t, second.Resume())
	require.True(t, testenv.AwaitCondition(t, func() bool {
		select {
		case <-second.Done(): // paused for too long, and started again as by its Deployment
			second = s.startAgent(t, nil)
		default:
		}
		c := s.hubConnectedCondition(t)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonUnauthorized
	}), "it does not tell that it is refused: %+v", s.hubConnectedCondition(t))
}

// recordCarriers records who has synced the member from now on. carriers waits for the latest write.
func (s *testFleet) recordCarriers(t *testing.T) (carriers func() []string) {
	t.Helper()
	var mu sync.Mutex
	byVersion := map[string]string{}
	stop, err := controlplane.WatchObjects(t.Context(), s, &v1alpha1.MemberLinkList{}, func(c controlplane.Change[*v1alpha1.MemberLink]) {
		if c.Type != watch.Deleted {
			mu.Lock()
			defer mu.Unlock()
			byVersion[c.Object.ResourceVersion] = c.Object.Status.Carrier
		}
	}, client.InNamespace(s.namespace()))
	require.NoError(t, err)
	t.Cleanup(stop)
	return func() []string {
		latest := &v1alpha1.MemberLink{}
		require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, latest))
		require.True(t, testenv.AwaitCondition(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			_, seen := byVersion[latest.ResourceVersion]
			return seen
		}), "the watch ended")
		mu.Lock()
		defer mu.Unlock()
		return slices.Collect(maps.Values(byVersion))
	}
}
