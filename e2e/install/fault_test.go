//go:build linux

package install_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/hub/install"
)

const tick = 50 * time.Millisecond

// isRelease tells a write of the Secret that a new release is kept in.
func isRelease(w proxy.Write) bool {
	return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/secrets")
}

func isDeployment(w proxy.Write) bool { return strings.Contains(w.Path, "/deployments/") }

// A member that takes no Deployment is tried a bounded number of times.
func TestAttemptsAreBounded(t *testing.T) {
	s := shared
	var tried atomic.Int32
	s.way.Before(func(w proxy.Write) error {
		if isRelease(w) {
			tried.Add(1)
		}
		if isDeployment(w) {
			return proxy.Lose()
		}
		return nil
	})
	s.optIn(t)
	m := s.eventually(t, metav1.ConditionFalse, v1alpha1.ReasonInstallFailed, "6 attempts at agent dev have failed", "annotate membercluster edge pelotech.ot/install-attempts-")
	assert.Equal(t, install.MostAttempts, install.ParseAttempts(m.Annotations[v1alpha1.AnnotationInstallAttempts]).Count)
	assert.Equal(t, int32(install.MostAttempts), tried.Load())

	// Another look, by this hub or by the next one, is no reason to try again.
	s.annotate(t, "example.com/look", t.Name())
	require.NoError(t, s.hub.Stop(time.Minute))
	var err error
	s.hub, err = s.startHub(context.Background(), "")
	require.NoError(t, err)
	s.values(t, "unrelated", "x: y")
	s.settled(t)
	assert.Equal(t, int32(install.MostAttempts), tried.Load())

	s.way.Before(nil)
	s.annotate(t, v1alpha1.AnnotationInstallAttempts, "")
	s.installed(t)
	require.NotNil(t, s.deployment(t))
	text, err := s.hub.Metrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, text, `ot_hub_agent_install_attempts_total{result="succeeded"} 1`)
	require.Eventually(t, func() bool {
		text, err := s.hub.Metrics(t.Context())
		return err == nil && strings.Contains(text, `ot_hub_member_agent_installed{member="edge"} 1`)
	}, scene.Patience, tick)
}

// settled waits until the hub that runs has looked at edge: it says so of values that are
// wrong, and then of those that are not.
func (s *stage) settled(t *testing.T) {
	t.Helper()
	s.values(t, valuesOfEdge, "replicaz: 1")
	s.eventually(t, metav1.ConditionFalse, v1alpha1.ReasonValuesInvalid)
	require.NoError(t, s.home.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: valuesOfEdge}}))
	s.eventually(t, metav1.ConditionFalse, v1alpha1.ReasonInstallFailed)
}

// held has writes of the Deployment wait until the test ends, and tells of the first.
func (s *stage) held(t *testing.T) <-chan struct{} {
	t.Helper()
	reached, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.way.Before(func(w proxy.Write) error {
		if !isDeployment(w) {
			return nil
		}
		once.Do(func() { close(reached) })
		<-end
		return proxy.Lose()
	})
	t.Cleanup(func() { close(end) })
	return reached
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(scene.Patience):
		require.Fail(t, what)
	}
}

// The hub is killed in the middle of an install. The next one ends what is pending.
func TestKilledHubLeavesAReleaseThatTheNextOneRecovers(t *testing.T) {
	s := shared
	reached := s.held(t)
	s.optIn(t)
	wait(t, reached, "the Deployment is not written")
	s.hub.Kill()
	require.Equal(t, map[string]string{"1": "pending-install"}, releases(t, s.edge))
	require.Nil(t, s.deployment(t))
	s.way.Before(nil)

	lease := &coordinationv1.Lease{}
	require.NoError(t, s.edge.Get(t.Context(), client.ObjectKey{Namespace: agents, Name: install.LeaseName}, lease))
	dead := *lease.Spec.HolderIdentity
	require.NotEmpty(t, dead)
	var err error
	s.hub, err = s.startHub(context.Background(), "")
	require.NoError(t, err)
	s.eventually(t, metav1.ConditionUnknown, v1alpha1.ReasonInstalling, dead)
	require.Equal(t, map[string]string{"1": "pending-install"}, releases(t, s.edge), "nothing is touched before its Lease has expired")
	s.installed(t)
	require.NotNil(t, s.deployment(t))
	after := releases(t, s.edge)
	assert.Equal(t, "deployed", after["2"])
	assert.NotEqual(t, "pending-install", after["1"])
}

// kubeconfig of edge that the hub is given from now on.
func (s *stage) kubeconfig(t *testing.T, cfg *rest.Config) {
	t.Helper()
	text, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	s.change(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: edge + "-kubeconfig"}}, func(o client.Object) {
		o.(*corev1.Secret).Data["value"] = text
	})
}

// A hub that was paused in the middle of an install, and finds that another one has taken
// its place, writes nothing more.
func TestPausedHubIsFenced(t *testing.T) {
	s := shared
	ctx := context.Background()
	reached := make(chan struct{})
	var once sync.Once
	var deposed atomic.Bool
	var late atomic.Int32
	old := s.hub
	s.way.Before(func(w proxy.Write) error {
		if deposed.Load() {
			late.Add(1)
			return nil
		}
		if !isDeployment(w) {
			return nil
		}
		once.Do(func() {
			if err := old.Pause(ctx); err != nil {
				t.Error(err)
			}
			close(reached)
		})
		return proxy.Lose()
	})
	s.optIn(t)
	wait(t, reached, "the Deployment is not written")
	t.Cleanup(old.Kill)

	// The other one has a way of its own.
	s.kubeconfig(t, s.edge.Config())
	t.Cleanup(func() { s.kubeconfig(t, s.throughProxy()) })
	s.values(t, valuesOfEdge, "replicas: 9")
	var err error
	s.hub, err = s.startHub(ctx, "")
	require.NoError(t, err)
	s.installed(t)
	require.Equal(t, int32(9), *s.deployment(t).Spec.Replicas)
	before := releases(t, s.edge)

	deposed.Store(true)
	require.NoError(t, old.Resume())
	wait(t, old.Done(), "the one that was deposed does not end")
	assert.Zero(t, late.Load(), "it has written: %v", s.way.Writes())
	assert.Equal(t, before, releases(t, s.edge))
	assert.Equal(t, int32(9), *s.deployment(t).Spec.Replicas)
}

// A member that people joined by a kubeconfig with the rights to carry plans has none to
// install anything.
func TestKubeconfigOfTooFewRights(t *testing.T) {
	s := shared
	const name = "small"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: name}}
	require.NoError(t, s.quiet.Create(t.Context(), account))
	cfg, err := s.quiet.ServiceAccountConfig(t.Context(), tenants, name)
	require.NoError(t, err)
	s.join(t, name, cfg)
	m := s.eventuallyOf(t, name, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized, "has to be an administrator's")
	assert.NotContains(t, m.Annotations, v1alpha1.AnnotationInstallAttempts, "looking is no attempt")
	assert.Empty(t, releases(t, s.quiet))
}

// Who takes the label off while the hub is at work has it do no more.
func TestOptedOutWhileInstalling(t *testing.T) {
	s := shared
	var made atomic.Int32
	reached, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.way.Before(func(w proxy.Write) error {
		switch {
		case isRelease(w):
			made.Add(1)
		case isDeployment(w):
			once.Do(func() { close(reached) })
			<-end
			return proxy.Lose()
		}
		return nil
	})
	s.optIn(t)
	wait(t, reached, "the Deployment is not written")
	s.label(t, "")
	scene.EventuallyMember(t, s.home, edge, "its label has gone", func(m *v1alpha1.MemberCluster) bool { return m.Labels[v1alpha1.LabelInstallAgent] == "" })
	close(end)
	lease := &coordinationv1.Lease{}
	require.Eventually(t, func() bool {
		return s.edge.Get(t.Context(), client.ObjectKey{Namespace: agents, Name: install.LeaseName}, lease) == nil && ptr.Deref(lease.Spec.HolderIdentity, "") == ""
	}, scene.Patience, tick, "the Lease is held; the hub's log is %s", s.hub.LogFile())
	m := scene.EventuallyMember(t, s.home, edge, "nothing is said of it", func(m *v1alpha1.MemberCluster) bool {
		return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentInstalled) == nil
	})
	noted := install.ParseAttempts(m.Annotations[v1alpha1.AnnotationInstallAttempts])
	assert.Equal(t, 1, noted.Count)
	assert.Empty(t, noted.Error, "nothing more is written of it")
	assert.Equal(t, int32(1), made.Load())
	assert.Nil(t, s.deployment(t))
}

// Helm is silent where it cannot store that a release is deployed.
func TestReleaseThatIsNotRecorded(t *testing.T) {
	s := shared
	var lost atomic.Bool
	s.way.Before(func(w proxy.Write) error {
		if w.Method == http.MethodPut && strings.Contains(w.Path, "/secrets/sh.helm.release.") && lost.CompareAndSwap(false, true) {
			return proxy.Lose()
		}
		return nil
	})
	s.optIn(t)
	s.told(t, "AgentNotInstalled", "could not be stored that it is deployed")
	s.installed(t)
	require.True(t, lost.Load())
	number, _ := s.newest(t)
	assert.Equal(t, 2, number, "what is pending is ended, and made again")
}
