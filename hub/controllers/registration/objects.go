package registration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// finalizer keeps a MemberCluster until everything that its agent was given is revoked.
const finalizer = "pelotech.ot/joined"

const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedByHub   = "ot-hub"

	// annotationJoin of the agent's account is the UID of the ClusterJoin that it was
	// created for.
	annotationJoin = "pelotech.ot/join"
	// annotationAccount of the Secret with a join token is the UID of the token's
	// account; annotationExpires is when the token expires.
	annotationAccount = "pelotech.ot/account"
	annotationExpires = "pelotech.ot/expires"
)

func hasFinalizer(member *v1alpha1.MemberCluster, finalizer string) bool {
	return slices.Contains(member.Finalizers, finalizer)
}

func isManagedByHub(secret *corev1.Secret) bool { return secret.Labels[managedByLabel] == managedByHub }

// storedCondition returns condition Joined of the member's status; nil for none.
func (s snapshot) storedCondition() *metav1.Condition {
	return meta.FindStatusCondition(s.member.Status.Conditions, v1alpha1.ConditionJoined)
}

// reportsRevoked reports whether the status already says that nothing that was issued
// is left.
func (s snapshot) reportsRevoked() bool { return joinedReason(s.member) == v1alpha1.ReasonRevoked }

// joinedReason returns the reason of condition Joined in the member's status; empty for
// none.
func joinedReason(member *v1alpha1.MemberCluster) string {
	if c := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined); c != nil {
		return c.Reason
	}
	return ""
}

// roleOfAccount maps accounts to their ClusterRoles.
var roleOfAccount = map[string]string{registration.AgentAccount: registration.AgentRole, registration.JoinAccount: registration.JoinRole}

func memberNamespace(member *v1alpha1.MemberCluster) string {
	return v1alpha1.MemberNamespacePrefix + member.Name
}

func newObjectMeta(member *v1alpha1.MemberCluster, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: memberNamespace(member), Name: name,
		Labels: map[string]string{managedByLabel: managedByHub},
	}
}

// existingObjectMeta identifies an existing object by UID.
func existingObjectMeta(member *v1alpha1.MemberCluster, name string, uid types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: memberNamespace(member), Name: name, UID: uid}
}

// newServiceAccount returns a ServiceAccount that no Pod uses.
func newServiceAccount(member *v1alpha1.MemberCluster, name string, of *v1alpha1.ClusterJoin) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: newObjectMeta(member, name), AutomountServiceAccountToken: ptr.To(false)}
	a.Annotations = map[string]string{v1alpha1.AnnotationJoinToken: member.Annotations[v1alpha1.AnnotationJoinToken]}
	if of != nil {
		a.Annotations[annotationJoin] = string(of.UID)
	}
	return a
}

// quotaName is the ResourceQuota of a member in pull mode.
const quotaName = "ot-member"

// newQuota bounds the objects that an agent creates: root and activity, and the pages. While it
// divides its report anew, the pages of both divisions exist.
func newQuota(member *v1alpha1.MemberCluster) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: newObjectMeta(member, quotaName),
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"count/clusterreports." + corev1.ResourceName(v1alpha1.GroupVersion.Group): *resource.NewQuantity(2*v1alpha1.MaxReportPages+2, resource.DecimalSI),
		}},
	}
}

func newRoleBinding(member *v1alpha1.MemberCluster, name string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: newObjectMeta(member, name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleOfAccount[name]},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: memberNamespace(member)}},
	}
}

// newAccountState summarizes an account and its binding.
func newAccountState(sa *corev1.ServiceAccount, binding, wanted *rbacv1.RoleBinding) (a accountState) {
	if sa != nil {
		a.uid, a.clusterJoinUID, a.joinTokenRequest = sa.UID, types.UID(sa.Annotations[annotationJoin]), sa.Annotations[v1alpha1.AnnotationJoinToken]
	}
	if binding != nil {
		a.bindingExists, a.bindingUID = true, binding.UID
		a.bindingForeign = binding.RoleRef != wanted.RoleRef || !equality.Semantic.DeepEqual(binding.Subjects, wanted.Subjects)
	}
	return a
}

// newJoinSecret returns the Secret with a join token. It is owned by the MemberCluster,
// so that it is deleted even if no hub runs.
func newJoinSecret(member *v1alpha1.MemberCluster, namespace string, token issuedToken, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: registration.JoinSecretName(member.Name),
			Labels:      map[string]string{managedByLabel: managedByHub},
			Annotations: map[string]string{annotationAccount: string(token.account), annotationExpires: token.expires},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "MemberCluster", Name: member.Name, UID: member.UID,
			}},
		},
		Data: map[string][]byte{registration.KubeconfigKey: kubeconfig},
	}
}

// memberKey returns the key of an object in the member's namespace.
func memberKey(member *v1alpha1.MemberCluster, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: memberNamespace(member), Name: name}
}
