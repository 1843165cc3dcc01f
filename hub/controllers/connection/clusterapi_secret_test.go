package connection

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCheckClusterAPISecret(t *testing.T) {
	owner := func(apiVersion, kind, name string) func(*corev1.Secret) {
		return func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name}}
		}
	}
	typed := func(secretType corev1.SecretType, apiVersion string, controller bool) func(*corev1.Secret) {
		return func(s *corev1.Secret) {
			owner(apiVersion, "AzureManagedControlPlane", "edge-x7")(s)
			s.Type, s.OwnerReferences[0].Controller = secretType, &controller
		}
	}
	const azure = "infrastructure.cluster.x-k8s.io/v1beta1"
	for name, tt := range map[string]struct {
		change func(*corev1.Secret)
		want   string
	}{
		"Cluster API's":                  {func(*corev1.Secret) {}, ""},
		"owned by its Cluster":           {owner("cluster.x-k8s.io/v1beta1", "Cluster", "edge"), ""},
		"owned by its control plane":     {owner("controlplane.cluster.x-k8s.io/v1beta1", "KubeadmControlPlane", "edge-x7"), ""},
		"owned by another Cluster":       {owner("cluster.x-k8s.io/v1beta2", "Cluster", "other"), "is owned by Cluster other"},
		"an ordinary Secret":             {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, "has type Opaque"},
		"a service account's":            {func(s *corev1.Secret) { s.Type = corev1.SecretTypeServiceAccountToken }, "has type kubernetes.io/service-account-token"},
		"a provider's without type":      {typed(corev1.SecretTypeOpaque, azure, true), ""},
		"Cluster API's without type":     {typed(corev1.SecretTypeOpaque, "cluster.x-k8s.io/v1beta1", true), ""},
		"that of no controller":          {typed(corev1.SecretTypeOpaque, azure, false), "has type Opaque"},
		"that of another group":          {typed(corev1.SecretTypeOpaque, "evilcluster.x-k8s.io/v1", true), "no controller of Cluster API"},
		"that of the core group":         {typed(corev1.SecretTypeOpaque, "v1", true), "no controller of Cluster API"},
		"that with another type":         {typed(corev1.SecretTypeServiceAccountToken, azure, true), "has type kubernetes.io/service-account-token"},
		"that of no Cluster":             {func(s *corev1.Secret) { typed(corev1.SecretTypeOpaque, azure, true)(s); s.Labels = nil }, "has label cluster.x-k8s.io/cluster-name="},
		"of no Cluster":                  {func(s *corev1.Secret) { s.Labels = nil }, "has label cluster.x-k8s.io/cluster-name="},
		"of a Cluster with another name": {func(s *corev1.Secret) { s.Labels[clusterv1.ClusterNameLabel] = "other" }, "cluster-name=other, not edge"},
		"not written yet":                {func(s *corev1.Secret) { s.Data = nil }, "has no key value"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.ClusterNameLabel: "edge"}},
				Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": []byte("text")},
			}
			tt.change(secret)
			problem := checkClusterAPISecret(secret, &v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: "edge"})
			if tt.want == "" {
				require.Empty(t, problem)
				return
			}
			require.Contains(t, problem, tt.want)
		})
	}
}
