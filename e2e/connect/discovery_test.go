//go:build linux

package connect

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/capi"
)

func found(t *testing.T, name string, is func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{}
	require.Eventually(t, func() bool {
		return hub.Get(t.Context(), client.ObjectKey{Name: name}, member) == nil && is(member)
	}, patience, tick, "MemberCluster %s, as it is: %+v", name, member)
	return member
}

func goes(t *testing.T, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(hub.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.MemberCluster{}))
	}, patience, tick, "MemberCluster %s goes", name)
}

func there(*v1alpha1.MemberCluster) bool { return true }

// cluster makes a Cluster with its kubeconfig. Nothing keeps it when it is
// deleted: Cluster API's controllers do not run.
func cluster(t *testing.T, namespace, name string, labels map[string]string) *clusterv1.Cluster {
	t.Helper()
	makeNamespace(t, hub, namespace)
	obj := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	obj.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}
	require.NoError(t, capi.Create(t.Context(), hub, obj, kubeconfig(t, steady.Config())))
	t.Cleanup(func() {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig"}}
		for _, o := range []client.Object{obj, secret} {
			require.NoError(t, client.IgnoreNotFound(hub.Delete(context.Background(), o)))
		}
	})
	return obj
}

// TestDiscoveryOfClusters begins before Cluster API is installed.
func TestDiscoveryOfClusters(t *testing.T) {
	require.NoError(t, capi.InstallCRD(t.Context(), hub.Config()))
	person := join(t, "taken", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "nothing", Key: "kubeconfig"}})
	ot := func(more ...string) map[string]string {
		labels := map[string]string{"fleet": "ot"}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}

	// Its member is connected, from nothing but the Cluster and its kubeconfig.
	a := cluster(t, "team-a", "edge", ot("region", "north", "app.kubernetes.io/instance", "argo"))
	member := found(t, "edge", there)
	require.Equal(t, v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: "edge"}, *member.Spec.Connection.ClusterAPI)
	require.Equal(t, map[string]string{"fleet": "ot", "region": "north", v1alpha1.LabelDiscovered: "cluster-api"}, member.Labels)
	connected(t, "edge")
	report(t, steady, "edge-page", "edge")

	// A name that is taken.
	cluster(t, "team-b", "edge", ot())
	require.Equal(t, "team-b", found(t, "team-b-edge", there).Spec.Connection.ClusterAPI.Namespace)
	cluster(t, "team-b", "taken", ot())
	found(t, "team-b-taken", there)
	require.Nil(t, found(t, "taken", there).Spec.Connection.ClusterAPI, "what people made is left alone")

	// Labels come and go with those of the Cluster, people's stay.
	member.Labels["tier"], member.Labels["region"] = "gold", "south"
	require.NoError(t, hub.Update(t.Context(), member))
	a.Labels["tier"], a.Labels["region"], a.Labels["zone"] = "silver", "west", "1"
	require.NoError(t, hub.Update(t.Context(), a))
	member = found(t, "edge", func(m *v1alpha1.MemberCluster) bool { return m.Labels["zone"] == "1" })
	require.Equal(t, "gold", member.Labels["tier"])
	require.Equal(t, "south", member.Labels["region"])
	delete(a.Labels, "zone")
	require.NoError(t, hub.Update(t.Context(), a))
	found(t, "edge", func(m *v1alpha1.MemberCluster) bool { _, is := m.Labels["zone"]; return !is })

	// Those that are not chosen, or not any more, are no members.
	cluster(t, "team-a", "private", map[string]string{"fleet": "other"})
	a.Labels["fleet"] = "other"
	require.NoError(t, hub.Update(t.Context(), a))
	goes(t, "edge")
	a.Labels["fleet"] = "ot"
	require.NoError(t, hub.Update(t.Context(), a))
	found(t, "edge", there)
	require.True(t, apierrors.IsNotFound(hub.Get(t.Context(), client.ObjectKey{Name: "private"}, &v1alpha1.MemberCluster{})))

	// A member that somebody deletes comes back while its Cluster is there, and
	// goes with it.
	require.NoError(t, hub.Delete(t.Context(), found(t, "edge", there)))
	found(t, "edge", func(m *v1alpha1.MemberCluster) bool { return m.DeletionTimestamp.IsZero() })
	require.NoError(t, hub.Delete(t.Context(), a))
	goes(t, "edge")
	found(t, "team-b-edge", there)
	require.Equal(t, person.UID, found(t, "taken", there).UID)
}

func TestDiscoveryOfSecrets(t *testing.T) {
	text := account(t, steady, "found")
	labelled := func(name, member string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: hubNamespace, Name: name, Labels: map[string]string{v1alpha1.LabelMember: member, "region": "north"},
		}, Data: map[string][]byte{"kubeconfig": text}}
	}
	secret := labelled("frankfurt-kubeconfig", "frankfurt")
	require.NoError(t, hub.Create(t.Context(), secret))
	member := found(t, "frankfurt", there)
	require.Equal(t, "frankfurt-kubeconfig", member.Spec.Connection.KubeconfigSecretRef.Name)
	require.Equal(t, map[string]string{"region": "north", v1alpha1.LabelDiscovered: "secret"}, member.Labels)
	connected(t, "frankfurt")

	// Replaced by deletion, as some tools do.
	m := connected(t, "frankfurt")
	require.NoError(t, hub.Delete(t.Context(), secret))
	require.NoError(t, hub.Create(t.Context(), labelled("frankfurt-kubeconfig", "frankfurt")))
	require.Same(t, m, connected(t, "frankfurt"), "that is no outage")
	require.Equal(t, member.UID, found(t, "frankfurt", there).UID, "it is the same member")

	// A second Secret for one name changes nothing; it takes over when the first
	// is gone.
	require.NoError(t, hub.Create(t.Context(), labelled("second", "frankfurt")))
	require.NoError(t, hub.Delete(t.Context(), labelled("frankfurt-kubeconfig", "frankfurt")))
	found(t, "frankfurt", func(m *v1alpha1.MemberCluster) bool {
		return m.Spec.Connection.KubeconfigSecretRef.Name == "second" && m.UID == member.UID
	})

	// Another label is another member.
	second := labelled("second", "munich")
	require.NoError(t, hub.Update(t.Context(), second))
	connected(t, "munich")
	goes(t, "frankfurt")
	require.NoError(t, hub.Delete(t.Context(), second))
	goes(t, "munich")

	// People's stay.
	join(t, "mine", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "other", Key: "kubeconfig"}})
	bad, other := labelled("bad", "Not_A_Name"), labelled("claims-mine", "mine")
	defer func() {
		require.NoError(t, hub.Delete(t.Context(), bad))
		require.NoError(t, hub.Delete(t.Context(), other))
	}()
	require.NoError(t, hub.Create(t.Context(), bad))
	require.NoError(t, hub.Create(t.Context(), other))
	require.Eventually(t, func() bool {
		reasons := map[string]string{}
		for _, e := range events(t) {
			reasons[e.Regarding.Name] = e.Reason
		}
		return reasons["bad"] == "NameInvalid" && reasons["claims-mine"] == "NameTaken"
	}, patience, tick)
	require.Equal(t, "other", found(t, "mine", there).Spec.Connection.KubeconfigSecretRef.Name)
}
