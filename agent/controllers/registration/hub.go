package registration

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// hubRequestTimeout bounds a request to the hub.
const hubRequestTimeout = 10 * time.Second

// requestJoin creates the ClusterJoin on the hub if there is none, and reads the answer.
func (r *Reconciler) requestJoin(ctx context.Context, in decisionInput) joinAnswer {
	access := in.joinSecret.Access
	hub, done, err := newHubClient(access)
	if err != nil {
		return joinFailure(err)
	}
	defer done()
	own := v1alpha1.ClusterJoinSpec{
		ClusterUID: in.clusterUID, PublicKey: in.stored.key.PublicKey(), Account: in.joinSecret.Claims.AccountUID, AgentVersion: r.Version,
	}
	join := &v1alpha1.ClusterJoin{}
	key := client.ObjectKey{Namespace: access.Namespace, Name: v1alpha1.MailboxName}
	err = hub.Get(ctx, key, join)
	if apierrors.IsNotFound(err) {
		join = &v1alpha1.ClusterJoin{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: own}
		if err = hub.Create(ctx, join); apierrors.IsAlreadyExists(err) {
			err = hub.Get(ctx, key, join)
		}
	}
	if err != nil {
		return joinFailure(err)
	}
	return evaluateJoin(join, own)
}

// evaluateJoin reads the answer from the ClusterJoin that is on the hub.
func evaluateJoin(join *v1alpha1.ClusterJoin, own v1alpha1.ClusterJoinSpec) joinAnswer {
	switch {
	case join.Spec.Account != own.Account:
		return joinAnswer{kind: joinPending} // it belongs to the former join token: the hub deletes it
	case join.Spec.PublicKey != own.PublicKey || join.Spec.ClusterUID != own.ClusterUID:
		return joinAnswer{kind: joinTaken}
	case join.Status.Phase == v1alpha1.JoinIssued:
		return joinAnswer{kind: joinIssued, sealed: join.Status.Credential}
	}
	return joinAnswer{kind: joinPending}
}

func joinFailure(err error) joinAnswer {
	failure, _ := hubclient.ClassifyError(err)
	if failure == hubclient.UnauthorizedFailure || failure == hubclient.ForbiddenFailure {
		return joinAnswer{kind: joinRefused, message: "the hub refuses the join token"}
	}
	return joinAnswer{kind: joinUnanswered, failure: failure, message: mailbox.ExplainError(err).Message}
}

// renewCredential requests the next token.
func (r *Reconciler) renewCredential(ctx context.Context, c credential) renewalResult {
	token, err := requestToken(ctx, c)
	if err != nil {
		r.Metrics.CountFailedRenewal()
		log.FromContext(ctx).Info("Failed to renew the credential on the hub; retrying", "expires", c.Claims.Expires, "error", err.Error())
		_, cause := hubclient.ClassifyError(err)
		return renewalResult{attempted: true, failure: cause}
	}
	return renewalResult{attempted: true, token: token}
}

func requestToken(ctx context.Context, c credential) (string, error) {
	hub, done, err := newHubClient(c.Access)
	if err != nil {
		return "", err
	}
	defer done()
	return requestNextToken(ctx, hub, c)
}

// requestNextToken requests a token with the lifetime of the current one. Where the hub
// allows less, which it says by forbidding the request, the lifetime is halved.
func requestNextToken(ctx context.Context, hub client.Client, c credential) (string, error) {
	for lifetime := c.Claims.Expires.Sub(c.Claims.Issued); ; lifetime = max(lifetime/2, registration.MinTokenLife) {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(lifetime.Seconds()))}}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.Access.Namespace, Name: registration.AgentAccount}}
		err := hub.SubResource("token").Create(ctx, account, request)
		switch {
		case err == nil:
			return request.Status.Token, nil
		case !apierrors.IsForbidden(err) || lifetime <= registration.MinTokenLife:
			return "", fmt.Errorf("requesting the next token of ServiceAccount %s/%s on the hub: %w", account.Namespace, account.Name, err)
		}
	}
}

// newHubClient returns a client for a few requests; done closes its connections.
func newHubClient(access registration.HubAccess) (hub client.Client, done func(), err error) {
	cfg := mailbox.NewRESTConfig(access)
	cfg.BearerToken = access.Token
	return hubclient.NewClient(cfg, hubRequestTimeout, client.Options{Scheme: hubclient.Scheme, Mapper: hubclient.Mapper})
}
