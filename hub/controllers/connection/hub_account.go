package connection

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// HubAccount is the name of the hub's ServiceAccount in a member, its Role and its
// RoleBinding.
const HubAccount = credential.Account

// prerequisiteError says what somebody has to create or correct first.
type prerequisiteError string

func (e prerequisiteError) Error() string { return string(e) }

// mailboxRules are the hub's permissions in a member, in the agent's namespace.
func mailboxRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterplans", "transfergrants"},
			Verbs: []string{"get", "list", "watch", "create", "update", "delete"},
		},
		{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterreports"},
			Verbs: []string{"get", "list", "watch"},
		},
		{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{HubAccount},
			Verbs: []string{"create"},
		},
	}
}

var adminMapper = func() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	m.Add(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), meta.RESTScopeRoot)
	m.Add(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"), meta.RESTScopeRoot)
	m.Add(rbacv1.SchemeGroupVersion.WithKind("Role"), meta.RESTScopeNamespace)
	m.Add(rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), meta.RESTScopeNamespace)
	return m
}()

// readClusterAPIKubeconfig returns the kubeconfig that Cluster API keeps for its
// Cluster.
func readClusterAPIKubeconfig(ctx context.Context, live client.Reader, member *v1alpha1.MemberCluster) ([]byte, error) {
	ref := member.Spec.Connection.ClusterAPI
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name + "-kubeconfig"}
	if len(content.IsPathSegmentName(key.Namespace)) > 0 || len(content.IsPathSegmentName(key.Name)) > 0 {
		return nil, prerequisiteError(fmt.Sprintf("no Cluster can have the name %s/%s: correct spec.connection.clusterAPI", ref.Namespace, ref.Name))
	}
	secret := &corev1.Secret{}
	switch err := live.Get(ctx, key, secret); {
	case apierrors.IsNotFound(err):
		return nil, prerequisiteError(fmt.Sprintf("Secret %s does not exist: Cluster API creates it when the control plane of Cluster %s/%s is up", key, ref.Namespace, ref.Name))
	case apierrors.IsForbidden(err):
		return nil, prerequisiteError(fmt.Sprintf("the hub may not read Secret %s, the kubeconfig of Cluster %s/%s: set clusterAPI.enabled in the hub's chart, with %s in clusterAPI.namespaces, and run helm upgrade again where that namespace is newer than the release", key, ref.Namespace, ref.Name, ref.Namespace))
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s with the kubeconfig of Cluster %s/%s: %w", key, ref.Namespace, ref.Name, err)
	}
	if problem := checkClusterAPISecret(secret, ref); problem != "" {
		return nil, prerequisiteError(fmt.Sprintf("Secret %s, for the kubeconfig of Cluster %s/%s, %s", key, ref.Namespace, ref.Name, problem))
	}
	return secret.Data["value"], nil
}

// issueTokenAsAdmin creates the hub's account in the member and requests a token for
// it.
func (k *credentialReconciler) issueTokenAsAdmin(ctx context.Context, member *v1alpha1.MemberCluster, admin []byte) (*memberToken, error) {
	c, done, err := k.newMemberClient(member, admin)
	if err != nil {
		return nil, err
	}
	defer done()
	namespace := member.Spec.AgentNamespace
	switch err := c.Get(ctx, types.NamespacedName{Name: namespace}, &corev1.Namespace{}); {
	case apierrors.IsNotFound(err):
		return nil, prerequisiteError(fmt.Sprintf("the member has no namespace %s: install chart ot-agent there, or correct spec.agentNamespace", namespace))
	case err != nil:
		return nil, fmt.Errorf("reading namespace %s in member %s: %w", namespace, member.Name, err)
	}
	if err := ensureHubAccount(ctx, c, namespace); err != nil {
		return nil, fmt.Errorf("creating the hub's account in member %s: %w", member.Name, err)
	}
	return k.requestToken(ctx, c, member, admin, tokenLife)
}

func (k *credentialReconciler) newMemberClient(member *v1alpha1.MemberCluster, kubeconfig []byte) (client.Client, func(), error) {
	cfg, _, err := hubclient.ParseMemberKubeconfig(member, kubeconfig)
	if err != nil {
		return nil, nil, prerequisiteError(err.Error())
	}
	c, done, err := hubclient.NewClient(cfg, k.RequestTimeout, client.Options{Scheme: clientgoscheme.Scheme, Mapper: adminMapper})
	if err != nil {
		return nil, nil, prerequisiteError(fmt.Sprintf("making a client from the kubeconfig: %v", err))
	}
	return c, done, nil
}

// ensureHubAccount creates or corrects the hub's ServiceAccount, Role and RoleBinding.
// It writes nothing unless all existing objects of these names belong to the hub,
// because it runs with administrator permissions.
func ensureHubAccount(ctx context.Context, c client.Client, namespace string) error {
	objectMeta := metav1.ObjectMeta{Namespace: namespace, Name: HubAccount, Labels: map[string]string{managedByLabel: managedByHub}}
	key := client.ObjectKey{Namespace: namespace, Name: HubAccount}

	account, role, binding := &corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}
	for _, object := range []client.Object{account, role, binding} {
		switch err := c.Get(ctx, key, object); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("reading %T %s: %w", object, key, err)
		default:
			if err := checkHubOwned(object); err != nil {
				return err
			}
		}
	}
	if account.UID == "" {
		if err := createObject(ctx, c, &corev1.ServiceAccount{ObjectMeta: objectMeta, AutomountServiceAccountToken: ptr.To(false)}); err != nil {
			return err
		}
	}
	// An account of the chart's has a Secret of the chart's: Helm refuses to adopt another.
	if account.UID == "" || account.Labels[managedByLabel] == managedByHub {
		anchor := &corev1.Secret{ObjectMeta: objectMeta, Type: corev1.SecretTypeOpaque}
		anchor.Name = credential.AnchorSecret
		if err := createObject(ctx, c, anchor); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	if role.UID == "" {
		if err := createObject(ctx, c, &rbacv1.Role{ObjectMeta: objectMeta, Rules: mailboxRules()}); err != nil {
			return err
		}
	} else if !equality.Semantic.DeepEqual(role.Rules, mailboxRules()) {
		role.Rules = mailboxRules()
		if err := c.Update(ctx, role); err != nil {
			return fmt.Errorf("correcting Role %s: %w", key, err)
		}
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: HubAccount}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: HubAccount}}
	if binding.UID == "" {
		return createObject(ctx, c, &rbacv1.RoleBinding{ObjectMeta: objectMeta, RoleRef: ref, Subjects: subjects})
	}
	if binding.RoleRef != ref {
		return prerequisiteError(fmt.Sprintf("RoleBinding %s in the member binds %s %s, which cannot be changed: delete the RoleBinding", key, binding.RoleRef.Kind, binding.RoleRef.Name))
	}
	if !equality.Semantic.DeepEqual(binding.Subjects, subjects) {
		binding.Subjects = subjects
		if err := c.Update(ctx, binding); err != nil {
			return fmt.Errorf("correcting RoleBinding %s: %w", key, err)
		}
	}
	return nil
}

// checkHubOwned refuses objects that neither a hub nor the agent's chart created. A hub
// that runs in the member uses the same names in its own namespace.
func checkHubOwned(object client.Object) error {
	labels := object.GetLabels()
	if labels[managedByLabel] == managedByHub || labels[partOfLabel] == "ot-fleet" && labels[nameLabel] == "ot-agent" {
		return nil
	}
	name := fmt.Sprintf("%s %s/%s", kindOf(object), object.GetNamespace(), object.GetName())
	if labels[partOfLabel] == "ot-fleet" && labels[nameLabel] == "ot-hub" {
		return prerequisiteError(fmt.Sprintf("%s in the member belongs to a hub that runs there: install the agent in a namespace without a hub, and set spec.agentNamespace to it", name))
	}
	return prerequisiteError(fmt.Sprintf("%s in the member was created neither by the hub nor by chart ot-agent, and the hub needs this name: delete it, or set spec.agentNamespace to the agent's namespace", name))
}

func kindOf(object client.Object) string {
	gvk, err := apiutil.GVKForObject(object, clientgoscheme.Scheme)
	if err != nil {
		return fmt.Sprintf("%T", object)
	}
	return gvk.Kind
}

// createObject fails if somebody else created the object at the same time: the next
// reconcile inspects it first.
func createObject(ctx context.Context, c client.Client, object client.Object) error {
	if err := c.Create(ctx, object); err != nil {
		return fmt.Errorf("creating %s %s: %w", kindOf(object), client.ObjectKeyFromObject(object), err)
	}
	return nil
}
