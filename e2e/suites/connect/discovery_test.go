//go:build linux

package connect

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

func awaitMember(t *testing.T, name string, is func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{}
	require.Eventually(t, func() bool {
		return hubPlane.Get(t.Context(), client.ObjectKey{Name: name}, member) == nil && is(member)
	}, patience, tick, "MemberCluster %s, as it is: %+v", name, member)
	return member
}

func awaitMemberGone(t *testing.T, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(hubPlane.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.MemberCluster{}))
	}, patience, tick, "MemberCluster %s goes", name)
}

func exists(*v1alpha1.MemberCluster) bool { return true }

// createCluster creates a Cluster with its kubeconfig. No finalizer delays its deletion, since
// Cluster API's controllers do not run.
func createCluster(t *testing.T, namespace, name string, labels map[string]string) *clusterv1.Cluster {
	t.Helper()
	createNamespace(t, hubPlane, namespace)
	obj := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	obj.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}
	require.NoError(t, program.CreateCluster(t.Context(), hubPlane, obj, newKubeconfig(t, steadyPlane.Config())))
	t.Cleanup(func() {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig"}}
		for _, o := range []client.Object{obj, secret} {
			require.NoError(t, client.IgnoreNotFound(hubPlane.Delete(context.Background(), o)))
		}
	})
	return obj
}

// TestDiscoveryOfClusters starts before Cluster API is installed.
func TestDiscoveryOfClusters(t *testing.T) {
	require.NoError(t, program.InstallClusterCRD(t.Context(), hubPlane.Config()))
	person := createMember(t, "taken", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "nothing", Key: "kubeconfig"}})
	ot := func(more ...string) map[string]string {
		labels := map[string]string{fleetLabel: "true"}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}

	// The member is connected by the Cluster and its kubeconfig alone.
	a := createCluster(t, "team-a", "edge", ot("region", "north", "app.kubernetes.io/instance", "argo"))
	member := awaitMember(t, "edge", exists)
	require.Equal(t, v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: "edge"}, *member.Spec.Connection.ClusterAPI)
	require.Equal(t, map[string]string{"region": "north", v1alpha1.LabelDiscovered: "cluster-api"}, member.Labels)
	awaitConnected(t, "edge")
	createReport(t, steadyPlane, "edge-page", "edge")

	// The name is taken.
	createCluster(t, "team-a", "taken", ot())
	awaitMember(t, "team-a--taken", exists)
	require.Nil(t, awaitMember(t, "taken", exists).Spec.Connection.ClusterAPI, "what people made is left alone")

	// Labels follow those of the Cluster; people's labels stay.
	member.Labels["tier"], member.Labels["region"] = "gold", "south"
	require.NoError(t, hubPlane.Update(t.Context(), member))
	a.Labels["tier"], a.Labels["region"], a.Labels["zone"] = "silver", "west", "1"
	require.NoError(t, hubPlane.Update(t.Context(), a))
	member = awaitMember(t, "edge", func(m *v1alpha1.MemberCluster) bool { return m.Labels["zone"] == "1" })
	require.Equal(t, "gold", member.Labels["tier"])
	require.Equal(t, "south", member.Labels["region"])
	delete(a.Labels, "zone")
	require.NoError(t, hubPlane.Update(t.Context(), a))
	awaitMember(t, "edge", func(m *v1alpha1.MemberCluster) bool { _, ok := m.Labels["zone"]; return !ok })

	// Clusters that the selector does not match, or stops matching, are no members.
	createCluster(t, "team-a", "private", map[string]string{fleetLabel: "false"})
	a.Labels[fleetLabel] = "false"
	require.NoError(t, hubPlane.Update(t.Context(), a))
	awaitMemberGone(t, "edge")
	a.Labels[fleetLabel] = "true"
	require.NoError(t, hubPlane.Update(t.Context(), a))
	awaitMember(t, "edge", exists)
	require.True(t, apierrors.IsNotFound(hubPlane.Get(t.Context(), client.ObjectKey{Name: "private"}, &v1alpha1.MemberCluster{})))

	// A deleted member is recreated while its Cluster exists, and deleted with it.
	require.NoError(t, hubPlane.Delete(t.Context(), awaitMember(t, "edge", exists)))
	awaitMember(t, "edge", func(m *v1alpha1.MemberCluster) bool { return m.DeletionTimestamp.IsZero() })
	require.NoError(t, hubPlane.Delete(t.Context(), a))
	awaitMemberGone(t, "edge")
	require.Equal(t, person.UID, awaitMember(t, "taken", exists).UID)
}

// TestClusterLeavesByCommand has a Cluster that stays leave the fleet as the page of members says.
func TestClusterLeavesByCommand(t *testing.T) {
	require.NoError(t, program.InstallClusterCRD(t.Context(), hubPlane.Config()))
	terminal := pages.OpenTerminal(t, "hub", map[string]string{"hub": hubPlane.Kubeconfig()})
	cluster := createCluster(t, "team-a", "frankfurt", map[string]string{fleetLabel: "true"})
	awaitMember(t, "frankfurt", exists)

	_, leaving, found := strings.Cut(pages.Read(t, "docs/operate/members.md").Text(), "### Leaving with Cluster API\n\n```console\n")
	require.True(t, found, "the page has the section")
	command, _, _ := strings.Cut(leaving, "\n")
	require.Equal(t, "kubectl label clusters.cluster.x-k8s.io frankfurt "+fleetLabel+"-", command)
	terminal.MustRun(t, "kubectl config set-context --current --namespace=team-a")
	terminal.MustRun(t, command)
	awaitMemberGone(t, "frankfurt")
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster), "the Cluster itself stays")
	require.NotContains(t, cluster.Labels, fleetLabel)
}

// TestDiscoveryOfHostileClusters has the authors of Clusters try to get another's name, labels
// and kubeconfig.
func TestDiscoveryOfHostileClusters(t *testing.T) {
	require.NoError(t, program.InstallClusterCRD(t.Context(), hubPlane.Config()))
	selected := map[string]string{fleetLabel: "true"}

	// Names that are free are not theirs to take, nor is another's when it is.
	createCluster(t, "team-b", "frankfurt-prod", map[string]string{fleetLabel: "true", "canary": "true", "zone": "1", v1alpha1.LabelInstallAgent: "true"})
	member := awaitMember(t, "team-b--frankfurt-prod", exists)
	require.Equal(t, map[string]string{"zone": "1", v1alpha1.LabelDiscovered: "cluster-api"}, member.Labels)
	require.True(t, apierrors.IsNotFound(hubPlane.Get(t.Context(), client.ObjectKey{Name: "frankfurt-prod"}, &v1alpha1.MemberCluster{})))
	createCluster(t, "team-a", "frankfurt-prod", selected)
	require.Equal(t, "team-a", awaitMember(t, "frankfurt-prod", exists).Spec.Connection.ClusterAPI.Namespace)

	// Another namespace's may not join, and its author can see why. One that has joined stays.
	ref := v1alpha1.ClusterAPIRef{Namespace: "team-c", Name: "old"}
	joined := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "joined", Labels: map[string]string{v1alpha1.LabelDiscovered: "cluster-api"}},
		Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{ClusterAPI: &ref}, AgentNamespace: agentNamespace},
	}
	old := createCluster(t, "team-c", "old", selected)
	require.NoError(t, hubPlane.Create(t.Context(), joined))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(hubPlane.Delete(context.Background(), joined))) })
	createCluster(t, "team-c", "stranger", selected)
	awaitEvent(t, "stranger", "NamespaceNotAllowed", "Clusters of namespace team-c may not join the fleet: add it to clusterAPI.namespaces")
	old.Labels["zone"] = "2"
	require.NoError(t, hubPlane.Update(t.Context(), old))
	awaitMember(t, "joined", func(m *v1alpha1.MemberCluster) bool { return m.Labels["zone"] == "2" })
	var members v1alpha1.MemberClusterList
	require.NoError(t, hubPlane.List(t.Context(), &members))
	for _, m := range members.Items {
		require.False(t, m.Spec.Connection.ClusterAPI != nil && m.Spec.Connection.ClusterAPI.Name == "stranger", "%s joined", m.Name)
	}
	require.NoError(t, hubPlane.Delete(t.Context(), old))
	awaitMemberGone(t, "joined")

	// The hub logs in with no Secret but Cluster API's.
	createNamespace(t, hubPlane, "team-a")
	other := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "borrowed-kubeconfig"},
		Data:       map[string][]byte{"value": newKubeconfig(t, steadyPlane.Config())},
	}
	require.NoError(t, hubPlane.Create(t.Context(), other))
	t.Cleanup(func() { require.NoError(t, hubPlane.Delete(context.Background(), other)) })
	createMember(t, "borrowed", v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: "borrowed"}})
	require.Contains(t, awaitState(t, "borrowed", v1alpha1.ReasonCredentialsMissing).Message, "has type Opaque, not cluster.x-k8s.io/secret")
}

func awaitEvent(t *testing.T, of, reason, note string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(listEvents(t), func(e eventsv1.Event) bool {
			return e.Regarding.Name == of && e.Reason == reason && strings.Contains(e.Note, note)
		})
	}, patience, tick, "event %s of %s", reason, of)
}

func TestDiscoveryOfSecrets(t *testing.T) {
	text := createAccount(t, steadyPlane, "found")
	labelled := func(name, member string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: hubNamespace, Name: name, Labels: map[string]string{v1alpha1.LabelMember: member, "region": "north"},
		}, Data: map[string][]byte{"kubeconfig": text}}
	}
	older := labelled("a-first", "")
	older.Labels = nil
	require.NoError(t, hubPlane.Create(t.Context(), older))
	secret := labelled("frankfurt-kubeconfig", "frankfurt")
	require.NoError(t, hubPlane.Create(t.Context(), secret))
	member := awaitMember(t, "frankfurt", exists)
	require.Equal(t, "frankfurt-kubeconfig", member.Spec.Connection.KubeconfigSecretRef.Name)
	require.Equal(t, map[string]string{"region": "north", v1alpha1.LabelDiscovered: "secret"}, member.Labels)
	awaitConnected(t, "frankfurt")

	// Some tools replace a Secret by deleting it.
	m := awaitConnected(t, "frankfurt")
	require.NoError(t, hubPlane.Delete(t.Context(), secret))
	require.NoError(t, hubPlane.Create(t.Context(), labelled("frankfurt-kubeconfig", "frankfurt")))
	require.Same(t, m, awaitConnected(t, "frankfurt"), "that is no outage")
	require.Equal(t, member.UID, awaitMember(t, "frankfurt", exists).UID, "it is the same member")

	// A second Secret for a name changes nothing until the first is deleted, not even one that
	// is older.
	require.NoError(t, hubPlane.Update(t.Context(), labelled("a-first", "frankfurt")))
	awaitEvent(t, "a-first", "NameTaken", "Secret frankfurt-kubeconfig is already member frankfurt")
	require.NoError(t, hubPlane.Delete(t.Context(), labelled("a-first", "frankfurt")))
	require.NoError(t, hubPlane.Create(t.Context(), labelled("second", "frankfurt")))
	require.NoError(t, hubPlane.Delete(t.Context(), labelled("frankfurt-kubeconfig", "frankfurt")))
	awaitMember(t, "frankfurt", func(m *v1alpha1.MemberCluster) bool {
		return m.Spec.Connection.KubeconfigSecretRef.Name == "second" && m.UID == member.UID
	})

	// Another label value is another member.
	second := labelled("second", "munich")
	require.NoError(t, hubPlane.Update(t.Context(), second))
	awaitConnected(t, "munich")
	awaitMemberGone(t, "frankfurt")

	// In quarantine, a member that somebody switched to pull mode stays there until what it got is
	// revoked. It has its Secret's labels all the same.
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := awaitMember(t, "munich", exists)
		m.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "suspect"}
		m.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}
		return hubPlane.Update(t.Context(), m)
	}))
	second.Labels["region"] = "south"
	require.NoError(t, hubPlane.Update(t.Context(), second))
	awaitMember(t, "munich", func(m *v1alpha1.MemberCluster) bool { return m.Labels["region"] == "south" })
	awaitEvent(t, "second", "UpdateRefused", "MemberCluster munich keeps its connection and does not use this Secret yet")
	require.NotNil(t, awaitMember(t, "munich", exists).Spec.Connection.Pull)
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := awaitMember(t, "munich", exists)
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionJoined, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRevoked})
		return hubPlane.Status().Update(t.Context(), m)
	}))
	awaitMember(t, "munich", func(m *v1alpha1.MemberCluster) bool { return m.Spec.Connection.KubeconfigSecretRef != nil })

	// Only a person ends a quarantine.
	require.NoError(t, hubPlane.Delete(t.Context(), second))
	awaitEvent(t, "munich", "KeptInQuarantine", "the member stays, because it is in quarantine")
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := awaitMember(t, "munich", exists)
		m.Spec.Quarantine = nil
		return hubPlane.Update(t.Context(), m)
	}))
	awaitMemberGone(t, "munich")

	// MemberClusters that people created stay.
	createMember(t, "mine", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "other", Key: "kubeconfig"}})
	bad, other := labelled("bad", "Not_A_Name"), labelled("claims-mine", "mine")
	defer func() {
		require.NoError(t, hubPlane.Delete(t.Context(), bad))
		require.NoError(t, hubPlane.Delete(t.Context(), other))
	}()
	require.NoError(t, hubPlane.Create(t.Context(), bad))
	require.NoError(t, hubPlane.Create(t.Context(), other))
	require.Eventually(t, func() bool {
		reasons := map[string]string{}
		for _, e := range listEvents(t) {
			reasons[e.Regarding.Name] = e.Reason
		}
		return reasons["bad"] == "NameInvalid" && reasons["claims-mine"] == "NameTaken"
	}, patience, tick)
	require.Equal(t, "other", awaitMember(t, "mine", exists).Spec.Connection.KubeconfigSecretRef.Name)
}
