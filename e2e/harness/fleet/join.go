//go:build linux

package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const pollInterval = 50 * time.Millisecond

// HubConfig is the client configuration by which the hub reaches the member: the rights of
// the agent's chart, over the member's link or proxy.
func (m *Member) HubConfig(ctx context.Context) (*rest.Config, error) {
	cfg, err := m.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return nil, err
	}
	switch {
	case m.options.Pull: // link and proxy lead to the hub
	case m.Proxy != nil:
		m.Proxy.Redirect(cfg)
	case m.Link != nil:
		m.Link.Redirect(cfg)
	}
	return cfg, nil
}

// Join registers a member with the hub, by its mode.
func (f *Fleet) Join(ctx context.Context, m *Member) error {
	if m.options.Pull {
		var redirect func(*registration.HubAccess)
		if m.Proxy != nil {
			redirect = func(a *registration.HubAccess) { a.Server, a.CA = m.Proxy.Endpoint() }
		}
		return program.RegisterPullMember(ctx, f, m.Client(), program.AgentNamespace, m.Name(), m.options.Labels, redirect)
	}
	cfg, err := m.HubConfig(ctx)
	if err != nil {
		return err
	}
	return f.CreateMember(ctx, m.Name(), program.AgentNamespace, m.options.Labels, cfg)
}

// JoinFake registers a fake member with the hub until the test ends.
func (f *Fleet) JoinFake(t *testing.T, m *fakemember.Member) {
	t.Helper()
	f.JoinFakeAs(t, m, nil)
}

// JoinFakeAs is JoinFake with labels of the MemberCluster.
func (f *Fleet) JoinFakeAs(t *testing.T, m *fakemember.Member, labels map[string]string) {
	t.Helper()
	cfg, err := m.Config(t.Context())
	require.NoError(t, err)
	mc := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	f.AwaitGone(t, mc.DeepCopy()) // the hub may still remove it after the last test
	require.NoError(t, f.CreateMember(t.Context(), m.Name, m.Name, labels, cfg))
	t.Cleanup(func() {
		require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), mc)))
	})
}

// CreateMember creates a MemberCluster and the Secret with its kubeconfig.
func (f *Fleet) CreateMember(ctx context.Context, name, agentNamespace string, labels map[string]string, cfg *rest.Config) error {
	if err := f.PutKubeconfig(ctx, name, cfg); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: v1alpha1.MemberClusterSpec{
			AgentNamespace: agentNamespace,
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
		},
	})
}

// PutKubeconfig creates or replaces the kubeconfig Secret of a member.
func (f *Fleet) PutKubeconfig(ctx context.Context, name string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if err = f.Create(ctx, secret); apierrors.IsAlreadyExists(err) {
		err = f.Update(ctx, secret)
	}
	return err
}

// AwaitReady waits until members are Ready, before there is a test; see AwaitHealthy.
func (f *Fleet) AwaitReady(ctx context.Context, names ...string) error {
	err := wait.PollUntilContextTimeout(ctx, pollInterval, testenv.Patience, true, func(ctx context.Context) (bool, error) {
		for _, name := range names {
			m := &v1alpha1.MemberCluster{}
			if f.Get(ctx, client.ObjectKey{Name: name}, m) != nil || !IsReady(m) {
				return false, f.Hub.ExitError()
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for members %q to be Ready (the hub's log is %s): %w", names, f.Hub.LogFile(), err)
	}
	return nil
}

// AwaitHealthy waits until a member is Ready.
func (f *Fleet) AwaitHealthy(t *testing.T, name string) {
	t.Helper()
	f.AwaitMember(t, name, "Ready", IsReady)
}

// AwaitMember waits until a MemberCluster meets all conditions.
func (f *Fleet) AwaitMember(t *testing.T, name, wanted string, conditions ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	if f.Hub != nil {
		wanted += "; the hub's log is " + f.Hub.LogFile()
	}
	return testenv.AwaitMember(t, f, name, wanted, conditions...)
}

// GetMember returns a MemberCluster as stored.
func (f *Fleet) GetMember(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.GetMember(t, f, name)
}

// IsReady reports whether condition Ready is True.
func IsReady(m *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady)
}
