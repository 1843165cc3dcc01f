// Package registration gets the agent its credential on the hub in pull mode: it presents
// the join token of Secret ot-hub-join, stores the credential that the hub issues in Secret
// ot-hub-credential, renews it, and drops it when another one replaces it. Package
// controllers/mailbox connects with it.
package registration

import (
	"context"
	"crypto/rand"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/trigger"
)

// The agent may create Secrets in any namespace, for VirtualMachines; its rights on these
// two do not depend on that.
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-join,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-credential,verbs=get;list;watch;update

// Requeue delays. A growing one doubles from min to max.
const (
	minHubRetryDelay, maxHubRetryDelay               = time.Second, 30 * time.Second
	minAcceptanceRetryDelay, maxAcceptanceRetryDelay = time.Second, 10 * time.Second
	rejectedRetryDelay                               = time.Minute
)

// Reconciler registers the agent with its hub and keeps its credential.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live    client.Reader
	Cluster *apidiscovery.ClusterIdentity
	Metrics *metrics.PullMode
	// Namespace and Version of the agent.
	Namespace string
	Version   string
	// RenewAfter is the age at which a token is renewed; 0 for two thirds of its lifetime.
	RenewAfter time.Duration
	Syncer     *mailbox.Syncer
	// OnConditionChange is called when Condition has changed. It must not block.
	OnConditionChange func()

	triggers  trigger.Source[reconcile.Request]
	published publishedStatus
	// retries and active, the credential in use, belong to Reconcile, which runs one at a
	// time.
	retries retryCounter
	active  *credential
}

// retryCounter counts the reconciles in a row that ended with the same retryClass.
type retryCounter struct {
	class retryClass
	count int
}

// Reconcile takes registration and renewal as far as they go, then hands the credential to
// the Syncer.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	in, secret, err := r.gather(ctx)
	if err != nil {
		return r.reportStorageFailure(ctx, decision{}, "failed to read the agent's credential on the hub; retrying", err)
	}
	for {
		in.now = time.Now()
		d := decide(in)
		switch d.step {
		case stepCreateKey, stepStore:
			if d.step == stepCreateKey {
				key, err := registration.NewKeyPair(rand.Reader)
				if err != nil {
					return ctrl.Result{}, err
				}
				d.stored.key = &key
			}
			if secret, err = r.storeCredential(ctx, d.stored, secret); isWriteConflict(err) {
				return ctrl.Result{RequeueAfter: minHubRetryDelay}, nil
			} else if err != nil {
				return r.reportStorageFailure(ctx, d, "failed to store the agent's credential on the hub; retrying", err)
			}
			r.logStored(ctx, in.stored, d.stored)
			in.stored, in.answer, in.renewal = d.stored, joinAnswer{}, renewalResult{}
		case stepAskHub:
			in.answer = r.requestJoin(ctx, in)
		case stepRenew:
			in.renewal = r.renewCredential(ctx, *d.stored.credential)
		case stepNone:
			r.useCredential(d.active)
			r.publishStatus(ctx, d)
			return ctrl.Result{RequeueAfter: r.requeueDelay(in, d)}, nil
		}
	}
}

// gather reads what a decision rests on. The Secret is the one that holds the stored
// credential, nil for none.
func (r *Reconciler) gather(ctx context.Context) (in decisionInput, secret *corev1.Secret, err error) {
	in.renewAfter = r.RenewAfter
	if in.clusterUID, err = r.Cluster.UID(ctx); err != nil {
		return in, nil, err
	}
	// A member that leaves deletes the join Secret before the credential. Invariant: the credential
	// is read first, so that one that was deleted is not created again for a join Secret that is gone.
	if in.stored, secret, err = r.readStoredCredential(ctx); err != nil {
		return in, nil, err
	}
	in.joinSecret, err = r.readJoinSecret(ctx)
	return in, secret, err
}

func (r *Reconciler) useCredential(c *credential) {
	r.active = c
	if c == nil {
		r.Syncer.UseCredential(nil)
		return
	}
	r.Syncer.UseCredential(&c.Credential)
}

// isWriteConflict: another process has written the Secret since it was read.
func isWriteConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// reportStorageFailure publishes that the Secrets cannot be read or written. The connection
// in use stays.
func (r *Reconciler) reportStorageFailure(ctx context.Context, d decision, problem string, err error) (ctrl.Result, error) {
	r.Metrics.CountStoreFailure()
	d.active, d.joinStatus, d.credentialProblem = r.active, nil, problem+": "+err.Error()
	r.publishStatus(ctx, d)
	return ctrl.Result{}, err
}

func (r *Reconciler) logStored(ctx context.Context, before, now storedCredential) {
	switch c := now.credential; {
	case c == nil:
		fingerprint, _ := registration.Fingerprint(now.key.PublicKey())
		log.FromContext(ctx).Info("Created the key for the registration with the hub", "fingerprint", fingerprint)
	case before.credential == nil || before.usedJoinHash != now.usedJoinHash:
		log.FromContext(ctx).Info("Registered with the hub", "hub", c.Access.Server, "namespace", c.Access.Namespace, "expires", c.Claims.Expires)
	default:
		log.FromContext(ctx).Info("Renewed the credential on the hub", "expires", c.Claims.Expires)
		r.Metrics.CountRenewal()
	}
}

// requeueDelay is the wait for what no event announces.
func (r *Reconciler) requeueDelay(in decisionInput, d decision) time.Duration {
	if r.retries.class != d.retry {
		r.retries = retryCounter{class: d.retry}
	}
	r.retries.count++
	grow := func(from, to time.Duration) time.Duration {
		return min(to, from<<min(r.retries.count-1, 10))
	}
	var delay time.Duration
	switch d.retry {
	case retryHub:
		return grow(minHubRetryDelay, maxHubRetryDelay)
	case retryAcceptance:
		delay = grow(minAcceptanceRetryDelay, maxAcceptanceRetryDelay)
	case retryRejected:
		delay = rejectedRetryDelay
	case retryNever:
	}
	if c := d.stored.credential; c != nil {
		due := max(in.renewalDue(*c).Sub(in.now), minRenewalAge)
		if delay == 0 || due < delay {
			delay = due
		}
	}
	return delay
}

// request is the only one: there is one registration.
func (r *Reconciler) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: registration.JoinSecret}}
}
