//go:build linux

package dial_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// Images are synced on, and nothing is planned or made anew, while a member goes from
// push to pull and back, as agent/README.md has it.
func TestAMemberGoesFromOneModeToTheOther(t *testing.T) {
	s := shared
	cfg, err := s.member.ControlPlane.ServiceAccountConfig(t.Context(), agent.Namespace, "ot-hub")
	require.NoError(t, err)
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	require.NoError(t, s.Create(t.Context(), secret))
	t.Cleanup(func() { require.NoError(t, s.Delete(context.Background(), secret)) })
	push := func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}}
	}
	pull := func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{AutoAccept: true}}
	}
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	push(m)
	require.NoError(t, s.Create(t.Context(), m))
	t.Cleanup(func() { s.remove(t) })
	s.last = ""
	s.agent(t, nil)
	first := s.ready(t)
	require.NotEqual(t, "agent", first.Status.Shard)

	img := s.image(t, "first")
	carriedBy := func(shard string, images int32) *v1alpha1.MemberCluster {
		return scene.EventuallyMember(t, s, name, "carried by "+shard, func(m *v1alpha1.MemberCluster) bool {
			return (m.Status.Shard == "agent") == (shard == "agent") && m.Status.Images != nil && m.Status.Images.Ready == images
		})
	}
	carriedBy("hub", 1)
	require.NoError(t, s.member.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	plans := plan(t, s.member.Client(), agent.Namespace)
	require.NotNil(t, plans)

	s.change(t, pull)
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.joined(t)
	second := s.image(t, "second")
	carriedBy("agent", 2)
	s.ready(t)

	s.change(t, push)
	for _, name := range []string{join.JoinSecret, join.CredentialSecret} {
		require.NoError(t, s.member.Client().Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: name}}))
	}
	s.image(t, "third")
	carriedBy("hub", 3)
	last := s.ready(t)
	require.True(t, scene.Await(t, func() bool { return s.condition(t) == nil }), "the ledger tells of a hub that nothing is left of: %+v", s.condition(t))

	require.Equal(t, first.Status.ClusterUID, last.Status.ClusterUID)
	require.Equal(t, first.Status.Plan, last.Status.Plan, "nothing was planned anew")
	now := plan(t, s.member.Client(), agent.Namespace)
	require.NotNil(t, now)
	require.Equal(t, plans.UID, now.UID, "the plan never was away")
	for _, before := range []*v1alpha1.VMDiskImage{img, second} {
		after := &v1alpha1.VMDiskImage{}
		require.NoError(t, s.member.Client().Get(t.Context(), client.ObjectKeyFromObject(before), after))
		require.Equal(t, before.UID, after.UID)
		require.Equal(t, v1alpha1.PhaseSucceeded, after.Status.Phase)
	}
}
