//go:build linux

package install_test

import (
	"bytes"
	"context"
	"fmt"
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
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/install"
)

const tick = 50 * time.Millisecond

// isRelease matches the write of a new release's Secret. The chart has others.
func isRelease(w faults.Write) bool {
	return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/secrets") && bytes.Contains(w.Body, []byte("helm.sh/release.v1"))
}

func isDeployment(w faults.Write) bool { return strings.Contains(w.Path, "/deployments/") }

// TestInstallAttemptsAreBounded shows that the hub bounds its attempts to install into a
// member that rejects the Deployment.
func TestInstallAttemptsAreBounded(t *testing.T) {
	testenv.RunInTurn(t, 0)
	s := shared
	var tried atomic.Int32
	s.edgeProxy.SetBeforeHook(func(w faults.Write) error {
		if isRelease(w) {
			tried.Add(1)
		}
		if isDeployment(w) {
			return faults.DropConnection()
		}
		return nil
	})
	s.optIn(t)
	m := s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonInstallAttemptsExhausted, "6 attempts to install agent dev have failed", "annotate membercluster edge pelotech.ot/install-attempts-")
	assert.Equal(t, install.MaxAttempts, install.ParseAttempts(m.Annotations[v1alpha1.AnnotationInstallAttempts]).Count)
	text, err := s.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, text, fmt.Sprintf(`ot_hub_agent_install_attempts_total{result="failed"} %d`+"\n", install.MaxAttempts))
	// No test of this hub comes before. An attempt whose requests the member does not answer in time may
	// end before its release.
	releases := tried.Load()
	assert.Positive(t, releases)
	assert.LessOrEqual(t, releases, int32(install.MaxAttempts))

	// Neither a change of the MemberCluster nor a restarted hub is a reason for another attempt.
	s.setAnnotation(t, "example.com/touch", t.Name())
	require.NoError(t, s.Hub.Stop(testenv.Patience))
	s.Hub, err = s.StartHub(context.Background(), "")
	require.NoError(t, err)
	s.setValues(t, "unrelated", "x: y")
	s.awaitSettled(t)
	assert.Equal(t, releases, tried.Load())

	s.edgeProxy.SetBeforeHook(nil)
	s.setAnnotation(t, v1alpha1.AnnotationInstallAttempts, "")
	s.awaitInstalled(t)
	require.NotNil(t, s.getDeployment(t))
	text, err = s.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, text, `ot_hub_agent_install_attempts_total{result="succeeded"} 1`)
	require.Eventually(t, func() bool {
		text, err := s.Hub.ReadMetrics(t.Context())
		return err == nil && strings.Contains(text, `ot_hub_member_agent_installed{member="edge"} 1`)
	}, testenv.Patience, tick)
}

// awaitSettled waits until the running hub, whose attempts are used up, has reconciled edge: it
// reports invalid values and then their removal.
func (s *testHub) awaitSettled(t *testing.T) {
	t.Helper()
	s.setValues(t, valuesOfEdge, "replicaz: 1")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonValuesInvalid)
	require.NoError(t, s.hubPlane.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: valuesOfEdge}}))
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonInstallAttemptsExhausted)
}

// holdRelease holds writes of the Deployment until the test ends; the channel is closed at the first.
func (s *testHub) holdRelease(t *testing.T) <-chan struct{} {
	t.Helper()
	reached, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.edgeProxy.SetBeforeHook(func(w faults.Write) error {
		if !isDeployment(w) {
			return nil
		}
		once.Do(func() { close(reached) })
		<-end
		return faults.DropConnection()
	})
	t.Cleanup(func() { close(end) })
	return reached
}

func awaitClosed(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testenv.Patience):
		require.Fail(t, what)
	}
}

// TestReleaseOfKilledHubIsRecovered kills the hub during an install. The next hub
// completes the pending release.
func TestReleaseOfKilledHubIsRecovered(t *testing.T) {
	testenv.RunInTurn(t, 1)
	s := shared
	reached := s.holdRelease(t)
	s.optIn(t)
	awaitClosed(t, reached, "the Deployment is not written")
	s.Hub.Kill()
	require.Equal(t, map[string]string{"1": "pending-install"}, listReleases(t, s.edgePlane))
	require.Nil(t, s.getDeployment(t))
	s.edgeProxy.SetBeforeHook(nil)

	dead := s.setLeaseDuration(t, time.Hour)
	require.NotEmpty(t, dead)
	var err error
	s.Hub, err = s.StartHub(context.Background(), "")
	require.NoError(t, err)
	s.awaitCondition(t, metav1.ConditionUnknown, v1alpha1.ReasonInstalling, dead)
	require.Equal(t, map[string]string{"1": "pending-install"}, listReleases(t, s.edgePlane), "the release changed before the dead hub's Lease expired")
	s.setLeaseDuration(t, 5*time.Second)
	s.awaitInstalled(t)
	require.NotNil(t, s.getDeployment(t))
	after := listReleases(t, s.edgePlane)
	assert.Equal(t, "deployed", after["2"])
	assert.NotEqual(t, "pending-install", after["1"])
}

// getLeaseDuration returns how long the install Lease in edge is held without a renewal.
func (s *testHub) getLeaseDuration(t *testing.T) time.Duration {
	t.Helper()
	lease := &coordinationv1.Lease{}
	require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKey{Namespace: agentRelease, Name: install.LeaseName}, lease))
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}

// setLeaseDuration lets the install Lease in edge expire that long after a hub sees the change, and
// returns its holder.
func (s *testHub) setLeaseDuration(t *testing.T, duration time.Duration) (holder string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease := &coordinationv1.Lease{}
		if err := s.edgePlane.Get(t.Context(), client.ObjectKey{Namespace: agentRelease, Name: install.LeaseName}, lease); err != nil {
			return err
		}
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(duration.Seconds()))
		holder = ptr.Deref(lease.Spec.HolderIdentity, "")
		return s.edgePlane.Update(t.Context(), lease)
	}))
	return holder
}

// writeKubeconfig replaces the hub's kubeconfig of edge.
func (s *testHub) writeKubeconfig(t *testing.T, cfg *rest.Config) {
	t.Helper()
	text, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	s.updateObject(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: capiNamespace, Name: edge + "-kubeconfig"}}, func(o client.Object) {
		o.(*corev1.Secret).Data["value"] = text
	})
}

// TestPausedHubIsFenced pauses a hub during an install until another hub leads. It writes
// nothing more when it wakes.
func TestPausedHubIsFenced(t *testing.T) {
	testenv.RunInTurn(t, 2)
	s := shared
	ctx := context.Background()
	reached := make(chan struct{})
	var once sync.Once
	var deposed atomic.Bool
	var late atomic.Int32
	old := s.Hub
	s.edgeProxy.SetBeforeHook(func(w faults.Write) error {
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
		return faults.DropConnection()
	})
	s.optIn(t)
	awaitClosed(t, reached, "the Deployment is not written")
	t.Cleanup(old.Kill)
	fenced := time.After(s.getLeaseDuration(t) / 2)
	s.setLeaseDuration(t, 5*time.Second)

	// The other hub does not use the proxy.
	s.writeKubeconfig(t, s.edgePlane.Config())
	t.Cleanup(func() { s.writeKubeconfig(t, s.throughProxy()) })
	s.setValues(t, valuesOfEdge, "replicas: 9")
	var err error
	s.Hub, err = s.StartHub(ctx, "")
	require.NoError(t, err)
	s.awaitInstalled(t)
	require.Equal(t, int32(9), *s.getDeployment(t).Spec.Replicas)
	before := listReleases(t, s.edgePlane)

	// The test cut the Lease short for the other hub only: the paused one may write for half of the
	// duration that it knows.
	<-fenced
	deposed.Store(true)
	require.NoError(t, old.Resume())
	awaitClosed(t, old.Done(), "the deposed hub does not exit")
	assert.Zero(t, late.Load(), "it wrote: %v", s.edgeProxy.Writes())
	assert.Equal(t, before, listReleases(t, s.edgePlane))
	assert.Equal(t, int32(9), *s.getDeployment(t).Spec.Replicas)
}

// TestKubeconfigWithoutRights uses a member registered with a kubeconfig whose rights
// suffice for sync but not for installs.
func TestKubeconfigWithoutRights(t *testing.T) {
	s := shared
	const name = "small"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: capiNamespace, Name: name}}
	require.NoError(t, s.hubPlane.Create(t.Context(), account))
	cfg, err := s.hubPlane.ServiceAccountConfig(t.Context(), capiNamespace, name)
	require.NoError(t, err)
	s.joinMember(t, name, cfg)
	m := s.awaitConditionOf(t, name, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized, "requires an administrator's kubeconfig")
	assert.NotContains(t, m.Annotations, v1alpha1.AnnotationInstallAttempts, "a check counts as an attempt")
	assert.Empty(t, listReleases(t, s.hubPlane))
}

// TestOptedOutWhileInstalling shows that the hub stops an install when the label is
// removed.
func TestOptedOutWhileInstalling(t *testing.T) {
	s := shared
	var made atomic.Int32
	reached, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.edgeProxy.SetBeforeHook(func(w faults.Write) error {
		switch {
		case isRelease(w):
			made.Add(1)
		case isDeployment(w):
			once.Do(func() { close(reached) })
			<-end
			return faults.DropConnection()
		}
		return nil
	})
	s.optIn(t)
	awaitClosed(t, reached, "the Deployment is not written")
	s.setLabel(t, "")
	testenv.AwaitMember(t, s.hubPlane, edge, "without its label", func(m *v1alpha1.MemberCluster) bool { return m.Labels[v1alpha1.LabelInstallAgent] == "" })
	close(end)
	lease := &coordinationv1.Lease{}
	require.Eventually(t, func() bool {
		return s.edgePlane.Get(t.Context(), client.ObjectKey{Namespace: agentRelease, Name: install.LeaseName}, lease) == nil && ptr.Deref(lease.Spec.HolderIdentity, "") == ""
	}, testenv.Patience, tick, "the Lease is held; the hub's log is %s", s.Hub.LogFile())
	m := testenv.AwaitMember(t, s.hubPlane, edge, "no condition", func(m *v1alpha1.MemberCluster) bool {
		return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentInstalled) == nil
	})
	noted := install.ParseAttempts(m.Annotations[v1alpha1.AnnotationInstallAttempts])
	assert.Equal(t, 1, noted.Count)
	assert.Empty(t, noted.Error, "an error was recorded")
	assert.Equal(t, int32(1), made.Load())
	assert.Nil(t, s.getDeployment(t))
}

// TestUnrecordedRelease covers that Helm returns no error if it cannot record a release
// as deployed.
func TestUnrecordedRelease(t *testing.T) {
	testenv.RunInTurn(t, 3)
	s := shared
	var lost atomic.Bool
	s.edgeProxy.SetBeforeHook(func(w faults.Write) error {
		if w.Method == http.MethodPut && strings.Contains(w.Path, "/secrets/sh.helm.release.") && lost.CompareAndSwap(false, true) {
			return faults.DropConnection()
		}
		return nil
	})
	s.optIn(t)
	s.awaitEvent(t, "AgentNotInstalled", "Helm could not record it as deployed")
	s.awaitInstalled(t)
	require.True(t, lost.Load())
	number, _ := s.newestRelease(t)
	assert.Equal(t, 2, number, "the pending release is not replaced")
}
