package connection

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// Cluster API keeps the kubeconfig of a Cluster in a Secret beside it, in any namespace
// and with a name that is not known beforehand, so no narrower permission than get is
// possible. Without list and watch, only a Secret whose name is known can be read. Other
// kubeconfig Secrets are in the hub's own namespace.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// credentialReconciler creates and renews the hub's token in members. It runs in the
// elected replica only.
type credentialReconciler struct {
	Options
	client  client.Client
	live    client.Reader
	secrets *SecretReader
	events  events.EventRecorder
	given   givenCredentials
}

func (k *credentialReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// A member that hangs must not block a worker for long.
	ctx, cancel := context.WithTimeout(ctx, 3*k.RequestTimeout)
	defer cancel()

	secret, err := k.secrets.readSecret(ctx, TokenSecretName(request.Name))
	if err != nil {
		return reconcile.Result{}, err
	}
	member := &v1alpha1.MemberCluster{}
	switch err := k.client.Get(ctx, request.NamespacedName, member); {
	case apierrors.IsNotFound(err):
		k.Problems.setProblem(request.Name, nil)
		k.Rotations.Forget(request.Name)
		k.given.forget(request.Name)
		return reconcile.Result{}, k.deleteTokenSecret(ctx, secret)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading MemberCluster %s: %w", request.Name, err)
	}
	if !member.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	if member.Spec.Quarantine != nil {
		// Nothing is asked of the member. A token that Cluster API's kubeconfig can replace
		// is thrown away; any other expires by itself.
		k.Problems.setProblem(member.Name, nil)
		k.Rotations.setCondition(member, credential.QuarantineCondition(&member.Spec.Connection))
		if member.Spec.Connection.ClusterAPI != nil {
			return reconcile.Result{}, k.deleteTokenSecret(ctx, secret)
		}
		return reconcile.Result{}, nil
	}
	switch c := member.Spec.Connection; {
	case c.ClusterAPI != nil:
		return k.reconcileToken(ctx, member, secret)
	case c.KubeconfigSecretRef != nil:
		k.Problems.setProblem(request.Name, nil)
		return k.reconcileGiven(ctx, member, secret)
	}
	k.Problems.setProblem(request.Name, nil)
	k.Rotations.setCondition(member, nil)
	return reconcile.Result{}, k.deleteTokenSecret(ctx, secret)
}

func (k *credentialReconciler) reconcileToken(ctx context.Context, member *v1alpha1.MemberCluster, secret *corev1.Secret) (reconcile.Result, error) {
	if secret != nil && secret.Labels[managedByLabel] != managedByHub {
		k.Problems.setProblem(member.Name, &CredentialProblem{Reason: v1alpha1.ReasonCredentialsMissing, Message: fmt.Sprintf(
			"Secret %s/%s was not created by the hub, which needs this name for the member's token: rename or delete it", secret.Namespace, secret.Name)})
		return reconcile.Result{RequeueAfter: k.RetryRefused}, nil
	}
	token, known := tokenFromSecret(secret, clusterAPIPurpose(member))
	if !known {
		if wait := k.failureWait(member, false, time.Now()); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		return k.issueFromClusterAPI(ctx, member, secret, false)
	}
	k.Problems.setProblem(member.Name, nil)
	state, err := k.linkStatus(ctx, member)
	if err != nil {
		return reconcile.Result{}, err
	}
	lifetime, now := token.lifetime(), time.Now()
	wait := lifetime.RenewalWait(now, k.RenewAfter)
	if refused := state.Known && !state.Reachable && state.Reason == v1alpha1.ReasonUnauthorized; !refused && wait > 0 {
		k.Rotations.setCondition(member, credential.ClusterAPICondition(&lifetime, ""))
	}
	if state.Known && !state.Reachable {
		if state.Reason == v1alpha1.ReasonUnauthorized {
			if wait := max(lifetime.RefusedWait(now, k.rotationOptions()), k.failureWait(member, true, now)); wait > 0 {
				return reconcile.Result{RequeueAfter: wait}, nil
			}
			return k.issueFromClusterAPI(ctx, member, secret, true)
		}
		if moved, err := k.adoptNewAddress(ctx, member, secret, token); moved || err != nil {
			return reconcile.Result{}, err
		}
	}
	if state.Known && !state.Reachable {
		// A member that is down is not asked: its requests would hold the workers, which others
		// wait for. Its link says when it is back.
		if wait <= 0 {
			k.Rotations.setCondition(member, credential.ClusterAPICondition(&lifetime, state.Message))
			wait = k.RetryRefused
		}
		return reconcile.Result{RequeueAfter: min(wait, k.RetryRefused)}, nil
	}
	if wait = max(wait, k.failureWait(member, true, now)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return k.renewToken(ctx, member, secret, token)
}

// issueFromClusterAPI issues a token with Cluster API's kubeconfig: the first one, or
// one that replaces a refused token.
func (k *credentialReconciler) issueFromClusterAPI(ctx context.Context, member *v1alpha1.MemberCluster, secret *corev1.Secret, refused bool) (reconcile.Result, error) {
	var missing prerequisiteError
	admin, err := readClusterAPIKubeconfig(ctx, k.live, member)
	if err != nil && !errors.As(err, &missing) {
		return reconcile.Result{}, err // reading from the hub failed
	}
	var next *memberToken
	if err == nil {
		next, err = k.issueTokenAsAdmin(ctx, member, admin)
	}
	if err == nil {
		k.recordResult(ctx, member, nil, "")
		next.purpose = clusterAPIPurpose(member)
		if err := k.writeTokenSecret(ctx, member, secret, next); err != nil {
			return reconcile.Result{}, err
		}
		if refused {
			k.recordWarning(member, "TokenRefused", "The member refused the hub's token; the hub created a new one with Cluster API's kubeconfig")
		} else {
			k.events.Eventf(member, nil, corev1.EventTypeNormal, "TokenMade", "UseClusterAPI",
				"Created a ServiceAccount for the hub with Cluster API's kubeconfig, which is not used again while the token is valid")
		}
		return reconcile.Result{}, nil
	}

	reason, message := v1alpha1.ReasonCredentialsMissing, ""
	if errors.As(err, &missing) {
		message = missing.Error()
	} else {
		reason, message = memberclient.ClassifyError(err)
	}
	k.Rotations.setCondition(member, credential.ClusterAPICondition(nil, message))
	k.recordResult(ctx, member, err, "Failed to issue a token for the member; retrying")
	state, err := k.linkStatus(ctx, member)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case refused:
		k.recordWarning(member, "TokenRefused", "The member refused the hub's token, and the hub could not create a new one with Cluster API's kubeconfig: %s", message)
		return reconcile.Result{RequeueAfter: max(k.RetryRefused, k.failureWait(member, true, time.Now()))}, nil
	case state.Reachable:
		k.recordWarning(member, "TokenLost", "Secret %s/%s with the hub's token was deleted, and the hub could not create a new one with Cluster API's kubeconfig: %s",
			k.Namespace, TokenSecretName(member.Name), message)
	default:
		k.Problems.setProblem(member.Name, &CredentialProblem{Reason: reason, Message: message})
	}
	return reconcile.Result{RequeueAfter: k.failureWait(member, false, time.Now())}, nil
}

// linkStatus returns the connection status that the syncing replica reports.
func (k *credentialReconciler) linkStatus(ctx context.Context, member *v1alpha1.MemberCluster) (v1alpha1.MemberLinkStatus, error) {
	link, err := k.Links.Get(ctx, member.Name)
	if link == nil || err != nil {
		return v1alpha1.MemberLinkStatus{}, err
	}
	return link.Status, nil
}

func (k *credentialReconciler) recordWarning(member *v1alpha1.MemberCluster, reason, format string, args ...any) {
	k.events.Eventf(member, nil, corev1.EventTypeWarning, reason, "UseClusterAPI", format, args...)
}

// adoptNewAddress takes the address and certificate authority of the member's API
// server from Cluster API if they have changed, and reports whether they have.
func (k *credentialReconciler) adoptNewAddress(ctx context.Context, member *v1alpha1.MemberCluster, secret *corev1.Secret, token *memberToken) (bool, error) {
	admin, err := readClusterAPIKubeconfig(ctx, k.live, member)
	if err != nil {
		return false, nil // the MemberLink's status already says why the member is unreachable
	}
	moved, err := kubeconfigWithToken(admin, token.value)
	if err != nil || string(moved) == string(secret.Data[kubeconfigKey]) {
		return false, nil
	}
	movedToken := *token
	movedToken.kubeconfig = moved
	if err := k.writeTokenSecret(ctx, member, secret, &movedToken); err != nil {
		return false, err
	}
	k.events.Eventf(member, nil, corev1.EventTypeNormal, "AddressChanged", "Connect",
		"Took the API server's address and certificate authority from Cluster API's kubeconfig")
	return true, nil
}

// renewToken requests the next token with the current one.
func (k *credentialReconciler) renewToken(ctx context.Context, member *v1alpha1.MemberCluster, secret *corev1.Secret, old *memberToken) (reconcile.Result, error) {
	next, err := k.issueTokenWith(ctx, member, old.kubeconfig, tokenLife)
	if err == nil {
		k.recordResult(ctx, member, nil, "")
		next.purpose = old.purpose
		return reconcile.Result{}, k.writeTokenSecret(ctx, member, secret, next)
	}
	if _, missing := MissingPrerequisite(err); missing || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || hubclient.IsObjectNotFound(err) {
		return k.issueFromClusterAPI(ctx, member, secret, true)
	}
	lifetime := old.lifetime()
	_, message := memberclient.ClassifyError(err)
	k.Rotations.setCondition(member, credential.ClusterAPICondition(&lifetime, message))
	k.recordResult(ctx, member, err, "Failed to renew the member's token; keeping the current one and retrying")
	return reconcile.Result{RequeueAfter: k.failureWait(member, true, time.Now())}, nil
}

func (k *credentialReconciler) deleteTokenSecret(ctx context.Context, secret *corev1.Secret) error {
	if secret == nil || secret.Labels[managedByLabel] != managedByHub {
		return nil
	}
	if err := k.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Secret %s/%s with the token of a deleted member: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

func (k *credentialReconciler) writeTokenSecret(ctx context.Context, member *v1alpha1.MemberCluster, old *corev1.Secret, t *memberToken) error {
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: TokenSecretName(member.Name)}}
	if old != nil {
		next = old.DeepCopy()
	}
	t.fillSecret(next, member)
	verb, do := "creating", func() error { return k.client.Create(ctx, next) }
	if old != nil {
		verb, do = "updating", func() error { return k.client.Update(ctx, next) }
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s Secret %s/%s with the token of MemberCluster %s: %w", verb, next.Namespace, next.Name, member.Name, err)
	}
	return nil
}
