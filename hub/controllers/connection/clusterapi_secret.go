package connection

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// checkClusterAPISecret returns what tells a Secret from one that Cluster API keeps for
// a Cluster; empty if nothing does. The hub may read every Secret by name: without the
// check, a reference to a Cluster would have it log in with whatever
// <name>-kubeconfig holds.
func checkClusterAPISecret(secret *corev1.Secret, ref *v1alpha1.ClusterAPIRef) string {
	// Some providers of managed control planes leave the type out.
	if secret.Type != clusterv1.ClusterSecretType && (secret.Type != corev1.SecretTypeOpaque || !isControlledByClusterAPI(secret)) {
		return fmt.Sprintf("has type %s, not %s, and no controller of Cluster API as its owner: Cluster API did not create it; delete it, or create it anew with that type",
			secret.Type, clusterv1.ClusterSecretType)
	}
	if label := secret.Labels[clusterv1.ClusterNameLabel]; label != ref.Name {
		return fmt.Sprintf("has label %s=%s, not %s: it is not the Cluster's; correct the label", clusterv1.ClusterNameLabel, label, ref.Name)
	}
	for _, owner := range secret.OwnerReferences {
		version, err := schema.ParseGroupVersion(owner.APIVersion)
		if err == nil && version.Group == clusterv1.GroupVersion.Group && owner.Kind == clusterv1.ClusterKind && owner.Name != ref.Name {
			return fmt.Sprintf("is owned by Cluster %s, not %s: it is not the Cluster's; delete it", owner.Name, ref.Name)
		}
	}
	if len(secret.Data["value"]) == 0 {
		return "has no key value: Cluster API has not written it yet"
	}
	return ""
}

// isControlledByClusterAPI reports whether a kind of Cluster API or of a provider of it owns
// the Secret.
func isControlledByClusterAPI(secret *corev1.Secret) bool {
	owner := metav1.GetControllerOfNoCopy(secret)
	if owner == nil {
		return false
	}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && (version.Group == clusterv1.GroupVersion.Group || strings.HasSuffix(version.Group, "."+clusterv1.GroupVersion.Group))
}
