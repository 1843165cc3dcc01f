package execute

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/join"
)

// kubeconfigKey of the hub's Secrets.
const kubeconfigKey = "kubeconfig"

// getOptional reads an object; nil where there is none, or where the cluster does not serve its
// kind.
func getOptional[T client.Object](ctx context.Context, c client.Reader, namespace, name string, o T) (T, error) {
	var none T
	switch err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return none, nil
	case err != nil:
		return none, err
	}
	return o, nil
}

// ReadHub reads what the hub has of a member.
func ReadHub(ctx context.Context, c client.Reader, namespace, name string) (join.HubState, error) {
	state := join.HubState{Namespace: namespace}
	if err := c.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}); err != nil {
		return state, fmt.Errorf("there is no namespace %s on the hub, or it cannot be read: name its context with --hub, and the namespace of chart ot-hub with --hub-namespace: %w", namespace, err)
	}
	var err error
	if state.Member, err = getOptional(ctx, c, "", name, &v1alpha1.MemberCluster{}); err != nil {
		return state, fmt.Errorf("reading MemberCluster %s: %w", name, err)
	}
	if state.Secret, err = getOptional(ctx, c, namespace, name, &corev1.Secret{}); err != nil {
		return state, fmt.Errorf("reading Secret %s/%s: %w", namespace, name, err)
	}
	if state.JoinToken, err = readJoinToken(ctx, c, namespace, name); err != nil {
		return state, err
	}
	// Who may not read it is told the key by the MemberCluster.
	if state.Join, err = getOptional(ctx, c, v1alpha1.MemberNamespacePrefix+name, v1alpha1.MailboxName, &v1alpha1.ClusterJoin{}); err != nil && !apierrors.IsForbidden(err) {
		return state, fmt.Errorf("reading ClusterJoin %s/%s: %w", v1alpha1.MemberNamespacePrefix+name, v1alpha1.MailboxName, err)
	}
	return state, nil
}

// readJoinToken reads the join token that the hub has made; empty where it has none.
func readJoinToken(ctx context.Context, c client.Reader, namespace, name string) ([]byte, error) {
	key := registration.JoinSecretName(name)
	secret, err := getOptional(ctx, c, namespace, key, &corev1.Secret{})
	if secret == nil || err != nil {
		return nil, wrap(err, "reading Secret %s/%s", namespace, key)
	}
	return secret.Data[registration.KubeconfigKey], nil
}

// ReadMember reads what the member's own API server has.
func ReadMember(ctx context.Context, c client.Client, memberContext, agentNamespace string, access join.Access) (*join.MemberState, error) {
	system := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("the cluster is not reached by context %s: %w", memberContext, err)
	}
	state := &join.MemberState{UID: system.UID, Access: access, Audiences: readAudiences(ctx, c)}
	account, err := getOptional(ctx, c, agentNamespace, join.HubAccount, &corev1.ServiceAccount{})
	if err != nil {
		return nil, fmt.Errorf("reading ServiceAccount %s/%s of the cluster: %w", agentNamespace, join.HubAccount, err)
	}
	state.HasAccount = account != nil
	for name, found := range map[string]func(*corev1.Secret){
		join.AccessSecret:             func(*corev1.Secret) { state.HasAccessSecret = true },
		join.LegacyTokenSecret:        func(*corev1.Secret) { state.HasLegacyToken = true },
		registration.CredentialSecret: func(*corev1.Secret) { state.HasCredential = true },
		registration.JoinSecret: func(s *corev1.Secret) {
			state.HasJoinSecret, state.JoinToken = true, s.Data[registration.KubeconfigKey]
		},
	} {
		secret, err := getOptional(ctx, c, agentNamespace, name, &corev1.Secret{})
		if err != nil {
			return nil, fmt.Errorf("reading Secret %s/%s of the cluster: %w", agentNamespace, name, err)
		}
		if secret != nil {
			found(secret)
		}
	}
	state.HubConnected, err = readHubConnected(ctx, c, agentNamespace)
	return state, err
}

// readHubConnected reads what the agent says of its connection; nil where it says nothing.
func readHubConnected(ctx context.Context, c client.Reader, agentNamespace string) (*metav1.Condition, error) {
	ledger, err := getOptional(ctx, c, agentNamespace, v1alpha1.LedgerName, &v1alpha1.SyncLedger{})
	if ledger == nil || ledger.Status == nil || err != nil { // a new ledger has no status
		return nil, wrap(err, "reading SyncLedger %s/%s of the cluster", agentNamespace, v1alpha1.LedgerName)
	}
	return meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionHubConnected), nil
}

// readAudiences returns the audiences of a cluster's tokens, by requesting one; none where that
// is not allowed. The chart's default will do for most clusters.
func readAudiences(ctx context.Context, c client.Client) []string {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return nil
	}
	return request.Spec.Audiences
}

// ReadLeaving reads what leaving needs to know. member is nil where it is not reached from here.
func ReadLeaving(ctx context.Context, c client.Reader, namespace, name string) (join.Leaving, error) {
	l := join.Leaving{Name: name, Namespace: namespace}
	if err := c.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}); err != nil {
		return l, fmt.Errorf("there is no namespace %s on the hub, or it cannot be read: name its context with --hub, and the namespace of chart ot-hub with --hub-namespace: %w", namespace, err)
	}
	members := &v1alpha1.MemberClusterList{}
	if err := c.List(ctx, members); err != nil {
		return l, fmt.Errorf("listing MemberClusters: %w", err)
	}
	for i := range members.Items {
		if members.Items[i].Name == name {
			l.Member = &members.Items[i]
			continue
		}
		l.Others = append(l.Others, members.Items[i])
	}
	labelled := &corev1.SecretList{}
	if err := c.List(ctx, labelled, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelMember: name}); err != nil {
		return l, fmt.Errorf("listing Secrets of %s: %w", namespace, err)
	}
	l.Secrets = labelled.Items
	if l.Member == nil || l.Member.Spec.Connection.KubeconfigSecretRef == nil {
		return l, nil
	}
	named := l.Member.Spec.Connection.KubeconfigSecretRef.Name
	for _, secret := range l.Secrets {
		if secret.Name == named {
			return l, nil
		}
	}
	secret, err := getOptional(ctx, c, namespace, named, &corev1.Secret{})
	if secret == nil || err != nil {
		return l, wrap(err, "reading Secret %s/%s", namespace, named)
	}
	l.Secrets = append(l.Secrets, *secret)
	return l, nil
}

// wrap says what failed; nil where nothing has.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
