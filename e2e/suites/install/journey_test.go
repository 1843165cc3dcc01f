//go:build linux

package install_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestInstallByLabel(t *testing.T) {
	s := shared
	require.Nil(t, s.getDeployment(t))
	s.deleteCRDs(t)
	s.optIn(t)
	member := s.awaitInstalled(t)
	assert.NotContains(t, member.Annotations, v1alpha1.AnnotationInstallAttempts, "attempts are counted after a success")

	deployment := s.getDeployment(t)
	require.NotNil(t, deployment)
	assert.Equal(t, "ghcr.io/pelotech/ot-agent:dev", deployment.Spec.Template.Spec.Containers[0].Image, "the hub's own version")
	require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKey{Name: agentRelease}, &rbacv1.ClusterRole{}))
	for _, kind := range []string{"vmdiskimages", "clusterplans"} {
		require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKey{Name: kind + ".pelotech.ot"}, &apiextensionsv1.CustomResourceDefinition{}))
	}

	testenv.AwaitMember(t, s.hubPlane, edge, "reachable with the installed account", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReachable)
	})

	t.Run("members that do not opt in get nothing", func(t *testing.T) {
		assert.Nil(t, meta.FindStatusCondition(testenv.GetMember(t, s.hubPlane, quiet).Status.Conditions, v1alpha1.ConditionAgentInstalled))
		assert.True(t, apierrors.IsNotFound(s.hubPlane.Get(t.Context(), client.ObjectKey{Name: agentRelease}, &corev1.Namespace{})))
		assert.Empty(t, listReleases(t, s.hubPlane))
	})
	t.Run("the agent stays without the label", func(t *testing.T) {
		s.setLabel(t, "")
		testenv.AwaitMember(t, s.hubPlane, edge, "no condition", func(m *v1alpha1.MemberCluster) bool {
			return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentInstalled) == nil
		})
		s.awaitEvent(t, "InstallsStopped", v1alpha1.LabelInstallAgent)
		assert.Equal(t, deployment.UID, s.getDeployment(t).UID)
		s.setValues(t, valuesOfAll, "replicas: 4")
		s.setLabel(t, "true")
		s.awaitCondition(t, metav1.ConditionTrue, v1alpha1.ReasonInstalled)
		require.Eventually(t, func() bool { return *s.getDeployment(t).Spec.Replicas == 4 }, testenv.Patience, tick, "the agent is not managed again after opting in again")
	})
}

func TestChartValues(t *testing.T) {
	s := shared
	s.setValues(t, valuesOfAll, "replicas: 3\npodLabels: {site: north}")
	s.optIn(t)
	s.awaitInstalled(t)
	require.Equal(t, int32(3), *s.getDeployment(t).Spec.Replicas)
	first, _ := s.newestRelease(t)

	s.setValues(t, valuesOfEdge, "replicas: 1")
	require.Eventually(t, func() bool { return *s.getDeployment(t).Spec.Replicas == 1 }, testenv.Patience, tick, "the member's own values do not win")
	assert.Equal(t, "north", s.getDeployment(t).Spec.Template.Labels["site"], "the values of all members are lost")
	s.awaitInstalled(t)
	second, _ := s.newestRelease(t)
	assert.Greater(t, second, first)

	s.setValues(t, valuesOfEdge, "replicaz: 1")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonValuesInvalid, "ConfigMap ot-hub/ot-agent-values-edge", "replicaz")
	s.setValues(t, valuesOfEdge, "replicas: [")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonValuesInvalid, "ConfigMap ot-hub/ot-agent-values-edge is no YAML")
	ready := meta.FindStatusCondition(testenv.GetMember(t, s.hubPlane, edge).Status.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, ready)
	assert.Equal(t, v1alpha1.ReasonValuesInvalid, ready.Reason)
	now, _ := s.newestRelease(t)
	assert.Equal(t, second, now, "invalid values were installed")
	s.setValues(t, valuesOfEdge, "replicas: 5")
	require.Eventually(t, func() bool { return *s.getDeployment(t).Spec.Replicas == 5 }, testenv.Patience, tick, "repaired values are not installed")
	s.awaitInstalled(t)
}

// TestForeignReleaseIsAdoptedByAnnotation opts in a cluster where a person installed the
// agent with Helm before.
func TestForeignReleaseIsAdoptedByAnnotation(t *testing.T) {
	s := shared
	t.Cleanup(func() { s.resetEdge(t) })
	s.runHelm(t, true, "install", agentRelease, chartDir(t), "--create-namespace", "--set", "image.tag=dev", "--set", "replicas=7", "--set", "podLabels.by=hand")
	before := s.getDeployment(t)
	s.setLabel(t, "true")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonForeignAgent, "there is release ot-agent, revision 1", "annotate membercluster edge pelotech.ot/adopt-agent=true")
	assert.Equal(t, before.ResourceVersion, s.getDeployment(t).ResourceVersion, "the hub changed it")
	assert.Equal(t, map[string]string{"1": "deployed"}, listReleases(t, s.edgePlane))

	s.setAnnotation(t, v1alpha1.AnnotationAdoptAgent, "true")
	s.awaitInstalled(t)
	after := s.getDeployment(t)
	assert.Equal(t, before.UID, after.UID, "it was recreated instead of adopted")
	assert.Equal(t, int32(2), *after.Spec.Replicas, "the hub's values")
	assert.NotContains(t, after.Spec.Template.Labels, "by", "other values remain")
	number, _ := s.newestRelease(t)
	assert.Greater(t, number, 1)

	s.setAnnotation(t, v1alpha1.AnnotationAdoptAgent, "")
	s.awaitInstalled(t)
	s.runHelm(t, true, "upgrade", agentRelease, chartDir(t), "--reuse-values", "--force-conflicts", "--set", "image.tag=dev", "--set", "replicas=6")
	s.setAnnotation(t, "example.com/touch", "again") // the hub does not watch releases
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonForeignAgent, "there is release ot-agent, revision "+strconv.Itoa(number+1))
	assert.Equal(t, int32(6), *s.getDeployment(t).Spec.Replicas, "a release upgraded by hand is no longer the hub's")
}

// TestForeignObjectsAreKept uses an agent without a Helm release, as from a GitOps tool
// that applies manifests.
func TestForeignObjectsAreKept(t *testing.T) {
	testenv.RunInTurn(t, 5)
	s := shared
	t.Cleanup(func() { s.resetEdge(t) })
	s.runHelm(t, true, "install", agentRelease, chartDir(t), "--create-namespace", "--set", "image.tag=dev")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentRelease, Name: "sh.helm.release.v1.ot-agent.v1"}}
	require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	require.NoError(t, s.edgePlane.Delete(t.Context(), secret))
	before := s.getDeployment(t)
	s.setLabel(t, "true")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonForeignAgent, "there is Deployment ot-agent/ot-agent, and no release of it")
	assert.Equal(t, before.ResourceVersion, s.getDeployment(t).ResourceVersion)
	s.setAnnotation(t, v1alpha1.AnnotationAdoptAgent, "true")
	s.awaitInstalled(t)
	assert.Equal(t, before.UID, s.getDeployment(t).UID)
}

func TestNewerAgentIsKept(t *testing.T) {
	s := shared
	s.setValues(t, valuesOfEdge, "image: {tag: v0.4.0}")
	s.optIn(t)
	s.awaitInstalled(t)
	s.setValues(t, valuesOfEdge, "image: {tag: v0.3.9}")
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonDowngradeRefused, "has agent v0.4.0", "would install v0.3.9", "pelotech.ot/downgrade-agent=v0.3.9")
	assert.Contains(t, s.getDeployment(t).Spec.Template.Spec.Containers[0].Image, ":v0.4.0")
	s.setAnnotation(t, v1alpha1.AnnotationDowngradeAgent, "v0.3.9")
	s.awaitInstalled(t)
	assert.Contains(t, s.getDeployment(t).Spec.Template.Spec.Containers[0].Image, ":v0.3.9")
}

// TestHubUpgradeUpgradesAgents shows that an upgraded hub upgrades the agents that it
// installed to its own version, CRDs first.
func TestHubUpgradeUpgradesAgents(t *testing.T) {
	testenv.RunInTurn(t, 4)
	s := shared
	restartHub := func(ctx context.Context, version string) {
		t.Helper()
		require.NoError(t, s.Hub.Stop(testenv.Patience))
		var err error
		s.Hub, err = s.StartHub(ctx, version)
		require.NoError(t, err)
	}
	t.Cleanup(func() { restartHub(context.Background(), "") })
	// CRDs of another version would be refused as a downgrade, here and in later tests.
	s.deleteCRDs(t)
	t.Cleanup(func() { s.deleteCRDs(t) })
	restartHub(t.Context(), "v1.3.7")
	s.optIn(t)
	s.awaitCondition(t, metav1.ConditionTrue, v1alpha1.ReasonInstalled, "has agent v1.3.7")
	before := s.getDeployment(t)
	assert.Equal(t, "ghcr.io/pelotech/ot-agent:v1.3.7", before.Spec.Template.Spec.Containers[0].Image)
	_, err := s.edgePlane.RemoveFields(t.Context(), "clusterplans.pelotech.ot", "spec.policySource")
	require.NoError(t, err)
	number, _ := s.newestRelease(t)

	restartHub(t.Context(), "v1.4.0")
	s.awaitCondition(t, metav1.ConditionTrue, v1alpha1.ReasonInstalled, "has agent v1.4.0")
	after := s.getDeployment(t)
	assert.Equal(t, before.UID, after.UID)
	assert.Equal(t, "ghcr.io/pelotech/ot-agent:v1.4.0", after.Spec.Template.Spec.Containers[0].Image)
	upgraded, state := s.newestRelease(t)
	assert.Equal(t, number+1, upgraded)
	assert.Equal(t, "deployed", state)
	kind := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKey{Name: "clusterplans.pelotech.ot"}, kind))
	assert.Contains(t, kind.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "policySource")
}

// TestClusterOwnedByOtherMember shows that a cluster belongs to at most one member, and a
// member to one cluster.
func TestClusterOwnedByOtherMember(t *testing.T) {
	s := shared
	system := &corev1.Namespace{}
	require.NoError(t, s.edgePlane.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	testenv.AwaitMember(t, s.hubPlane, edge, "discovered", func(m *v1alpha1.MemberCluster) bool { return m.UID != "" })
	s.setAnnotation(t, v1alpha1.AnnotationAcceptCluster, "11111111-1111-1111-1111-111111111111")
	s.optIn(t)
	s.awaitCondition(t, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster, v1alpha1.AnnotationAcceptCluster+"="+string(system.UID))
	assert.Empty(t, listReleases(t, s.edgePlane))
	s.setAnnotation(t, v1alpha1.AnnotationAcceptCluster, string(system.UID))
	s.awaitInstalled(t)
	before := listReleases(t, s.edgePlane)

	s.joinMember(t, "twin", s.edgePlane.Config())
	s.awaitConditionOf(t, "twin", metav1.ConditionFalse, v1alpha1.ReasonDuplicateCluster, "belongs to MemberCluster edge")
	assert.Equal(t, before, listReleases(t, s.edgePlane))
}
