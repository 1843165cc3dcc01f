//go:build linux

package registration_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestSwitchBetweenPushAndPull shows that images stay synced, and nothing is planned or
// created again, while a member changes from push to pull mode and back as
// docs/operate/members.md describes. Running downloads continue within the budget.
func TestSwitchBetweenPushAndPull(t *testing.T) {
	testenv.RunInTurn(t, 9)
	s := shared
	cfg, err := s.member.ControlPlane.ServiceAccountConfig(t.Context(), program.AgentNamespace, "ot-hub")
	require.NoError(t, err)
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	const name = "by-kubeconfig"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	require.NoError(t, s.Create(t.Context(), secret))
	t.Cleanup(func() { require.NoError(t, s.Delete(context.Background(), secret)) })
	push := func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}}
	}
	pull := func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{AutoAccept: true}}
	}
	m := &v1alpha1.MemberCluster{}
	push(m)
	s.createMemberWith(t, m.Spec.Connection)
	s.startAgent(t, nil)
	first := s.awaitMemberReady(t)
	require.NotEqual(t, "agent", first.Status.Shard)

	slow := []string{"slow-0", "slow-1"}
	release := s.member.InstantImporter().HoldImports(func(dv *cdiv1.DataVolume) bool {
		return slices.Contains(slow, dv.Annotations[v1alpha1.AnnotationImageName])
	})
	t.Cleanup(release)
	for _, name := range slow {
		s.member.CreateImageForTest(t, name)
	}
	begun := s.awaitSlots(t, slow)

	img := s.member.CreateImageForTest(t, "first")
	carriedBy := func(shard string, images, syncing int) *v1alpha1.MemberCluster {
		return testenv.AwaitMember(t, s, s.memberName, "carried by "+shard, func(m *v1alpha1.MemberCluster) bool {
			return (m.Status.Shard == "agent") == (shard == "agent") && m.Status.Images != nil &&
				m.Status.Images.Ready == int32(images) && m.Status.Images.Syncing == int32(syncing)
		})
	}
	carriedBy("hub", 1, len(slow))
	reported := s.reportSequence(t)
	require.NoError(t, s.member.Get(t.Context(), client.ObjectKeyFromObject(img), img))
	plans := getPlan(t, s.member, program.AgentNamespace)
	require.NotNil(t, plans)

	s.updateMember(t, pull)
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.awaitJoined(t)
	second := s.member.CreateImageForTest(t, "second")
	carriedBy("agent", 2, len(slow))
	s.awaitMemberReady(t)
	require.Equal(t, begun, s.awaitSlots(t, slow), "the downloads are what they were")
	between := s.reportSequence(t)
	require.Greater(t, between, reported, "the report goes on")

	s.updateMember(t, push)
	for _, name := range []string{registration.JoinSecret, registration.CredentialSecret} {
		require.NoError(t, s.member.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: name}}))
	}
	s.member.CreateImageForTest(t, "third")
	carriedBy("hub", 3, len(slow))
	require.Equal(t, begun, s.awaitSlots(t, slow), "the downloads are what they were")
	require.Greater(t, s.reportSequence(t), between, "the report goes on")
	last := s.awaitMemberReady(t)
	require.True(t, testenv.AwaitCondition(t, func() bool { return s.hubConnectedCondition(t) == nil }), "the ledger tells of a hub that nothing is left of: %+v", s.hubConnectedCondition(t))

	require.Equal(t, first.Status.ClusterUID, last.Status.ClusterUID)
	require.Equal(t, first.Status.Plan, last.Status.Plan, "nothing was planned anew")
	now := getPlan(t, s.member, program.AgentNamespace)
	require.NotNil(t, now)
	require.Equal(t, plans.UID, now.UID, "the plan never was away")
	for _, before := range []*v1alpha1.VMDiskImage{img, second} {
		after := &v1alpha1.VMDiskImage{}
		require.NoError(t, s.member.Get(t.Context(), client.ObjectKeyFromObject(before), after))
		require.Equal(t, before.UID, after.UID)
		require.Equal(t, v1alpha1.PhaseSucceeded, after.Status.Phase)
	}
	release()
	carriedBy("hub", 5, 0)
}

// awaitSlots that images have, once all of them have one, within the budget.
func (s *testFleet) awaitSlots(t *testing.T, images []string) (held []v1alpha1.Slot) {
	t.Helper()
	ledger := &v1alpha1.SyncLedger{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger))
		held = nil
		for _, slot := range ledger.Status.Slots {
			if slices.Contains(images, slot.Image.Name) {
				held = append(held, slot)
			}
		}
		return len(held) == len(images)
	}), "%+v", ledger.Status)
	require.EqualValues(t, 3, ledger.Status.Budget)
	require.LessOrEqual(t, len(ledger.Status.Slots), 3)
	return held
}

// reportSequence is the sequence of the report that the hub has.
func (s *testFleet) reportSequence(t *testing.T) int64 {
	t.Helper()
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, root))
	return root.Sequence
}
