package connection

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// tokenPolicy is the admission policy of chart ot-agent that bounds the hub's tokens.
const tokenPolicy = "ot-agent-hub-tokens"

// shorterLives are requested where the member's policy refuses the usual one.
var shorterLives = []time.Duration{24 * time.Hour, time.Hour}

// issueTokenWith requests a new token using the current token in a kubeconfig.
func (k *credentialReconciler) issueTokenWith(ctx context.Context, member *v1alpha1.MemberCluster, kubeconfig []byte, life time.Duration) (*memberToken, error) {
	c, done, err := k.newMemberClient(member, kubeconfig)
	if err != nil {
		return nil, err
	}
	defer done()
	return k.requestToken(ctx, c, member, kubeconfig, life)
}

// requestToken returns a token that the member has accepted.
func (k *credentialReconciler) requestToken(ctx context.Context, c client.Client, member *v1alpha1.MemberCluster, kubeconfig []byte, life time.Duration) (*memberToken, error) {
	namespace := member.Spec.AgentNamespace
	sent := time.Now()
	granted, err := createToken(ctx, c, namespace, life)
	for _, shorter := range shorterLives {
		if !isRefusedByPolicy(err) {
			break
		}
		if shorter < life {
			life = shorter
			granted, err = createToken(ctx, c, namespace, life)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", namespace, HubAccount, err)
	}
	next, err := kubeconfigWithToken(kubeconfig, granted.Status.Token)
	if err != nil {
		return nil, err
	}
	if err := k.reviewToken(ctx, member, next); err != nil {
		return nil, fmt.Errorf("trying the new token of ServiceAccount %s/%s: %w", namespace, HubAccount, err)
	}
	return &memberToken{kubeconfig: next, value: granted.Status.Token, issued: sent, expires: sent.Add(grantedLife(granted, life))}, nil
}

// minTokenSeconds is the shortest life that an API server gives a token.
const minTokenSeconds = 600

// grantedLife returns how long a token is valid, as the member says: never less than API servers
// give, since a token without a life would be renewed again and again without a pause, and never
// more than was requested.
func grantedLife(granted *authenticationv1.TokenRequest, requested time.Duration) time.Duration {
	most := int64(requested / time.Second)
	seconds := max(min(ptr.Deref(granted.Spec.ExpirationSeconds, most), most), minTokenSeconds)
	return time.Duration(seconds) * time.Second
}

// createToken requests a token that is bound to the anchor Secret. Only a member whose chart
// is older than that Secret issues one that is bound to the account only.
func createToken(ctx context.Context, c client.Client, namespace string, life time.Duration) (*authenticationv1.TokenRequest, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: HubAccount}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(life / time.Second)),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: credential.AnchorSecret},
	}}
	err := c.SubResource("token").Create(ctx, account, request)
	if !isMissingAnchor(err) {
		return request, err
	}
	missing := prerequisiteError(fmt.Sprintf("the member has no Secret %s/%s, to which the hub's tokens are bound; whoever deleted it revoked them: to let the hub in again, run helm upgrade for chart ot-agent in the member",
		namespace, credential.AnchorSecret))
	// The policy came with the Secret. It holds for the hub's account, which may not read it,
	// but not for an administrator, who may.
	switch err := c.Get(ctx, client.ObjectKey{Name: tokenPolicy}, &admissionregistrationv1.ValidatingAdmissionPolicy{}); {
	case err == nil:
		return nil, missing
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("reading ValidatingAdmissionPolicy %s: %w", tokenPolicy, err)
	}
	request.Spec.BoundObjectRef = nil
	err = c.SubResource("token").Create(ctx, account, request)
	if isRefusedByPolicy(err) {
		return nil, missing
	}
	return request, err
}

func isMissingAnchor(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Kind == "secrets"
}

func isRefusedByPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), tokenPolicy)
}

// reviewToken asks the member who the user of a kubeconfig is. An error that is
// Unauthorized means that the member refuses the token.
func (k *credentialReconciler) reviewToken(ctx context.Context, member *v1alpha1.MemberCluster, kubeconfig []byte) error {
	c, done, err := k.newMemberClient(member, kubeconfig)
	if err != nil {
		return err
	}
	defer done()
	review := &authenticationv1.SelfSubjectReview{}
	switch err := c.Create(ctx, review); {
	case apierrors.IsForbidden(err):
		return nil // it knows the user, who may not ask
	case err != nil:
		return err
	}
	if want := fmt.Sprintf("system:serviceaccount:%s:%s", member.Spec.AgentNamespace, HubAccount); review.Status.UserInfo.Username != want {
		return fmt.Errorf("the member says that it is a token of another user than %s", want)
	}
	return nil
}
