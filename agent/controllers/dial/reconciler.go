// Package dial has the agent dial in, where it was given a join token: it asks the
// hub to be let in, keeps the credential that comes of that and renews it, and
// carries plan, grant and report between the hub and its own namespace.
package dial

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The chart's other rules let the agent create Secrets anywhere, for machines; what
// it may read and change of these two does not depend on that.
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-join,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-credential,verbs=get;list;watch;update

// How soon something is tried again, growing from the first to the second.
const (
	minHubRetryDelay, maxHubRetryDelay               = time.Second, 30 * time.Second
	minAcceptanceRetryDelay, maxAcceptanceRetryDelay = time.Second, 10 * time.Second
	rejectedRetryDelay                               = time.Minute
	// hubRequestTimeout ends a request to the hub.
	hubRequestTimeout = 10 * time.Second
)

// Reconciler joins, and keeps the credential.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live    client.Reader
	Cluster *apidiscovery.ClusterIdentity
	Metrics *metrics.PullMode
	// Namespace of the agent.
	Namespace string
	// Version of the agent.
	Version string
	// RenewAfter is the age at which a token is renewed; by default two thirds of its
	// life.
	RenewAfter time.Duration
	Syncer     *Syncer
	// OnChange is called when what Condition says has changed. It must not block.
	OnChange func()

	triggers chan event.GenericEvent
	// retries of what was tried last, in vain so far. Only Reconcile touches them, one
	// at a time.
	retries   retryCounter
	published publishedStatus
	// activeCredential is what is being carried with. Only Reconcile touches it, too.
	activeCredential *credential
}

// retryCounter counts those in a row that have waited in the same way.
type retryCounter struct {
	class retryClass
	count int
}

// Reconcile takes joining and the credential as far as they go now.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	v, stored, err := r.gather(ctx)
	if err != nil {
		return r.reportStorageFailure(ctx, decision{activeCredential: r.activeCredential}, "what the agent dials in with could not be read, and that is tried again", err)
	}
	var d decision
	for {
		v.now = time.Now()
		d = decide(v)
		switch d.step {
		case stepCreateKey:
			key, err := registration.NewKeyPair(rand.Reader)
			if err != nil {
				return ctrl.Result{}, err
			}
			d.stored.key = &key
			fallthrough
		case stepStore:
			if stored, err = r.storeCredential(ctx, d.stored, stored); isOutdatedWrite(err) {
				return ctrl.Result{RequeueAfter: minHubRetryDelay}, nil // it is decided again from what is stored by now
			} else if err != nil {
				return r.reportStorageFailure(ctx, d, "what the hub is to know this agent by could not be stored, and that is tried again", err)
			}
			r.recordStored(ctx, v.stored, d.stored)
			v.stored, v.answer, v.renewal = d.stored, joinAnswer{}, renewalResult{}
			continue
		case stepAskHub:
			v.answer = r.requestJoin(ctx, v)
			continue
		case stepRenew:
			v.renewal = r.renewCredential(ctx, *d.stored.credential)
			continue
		}
		break
	}
	r.activeCredential = d.activeCredential
	r.Syncer.UseCredential(d.activeCredential)
	r.publishStatus(ctx, d)
	return ctrl.Result{RequeueAfter: r.retryDelay(v, d)}, nil
}

func (r *Reconciler) gather(ctx context.Context) (v decisionInput, stored *corev1.Secret, err error) {
	v.renewAfter = r.RenewAfter
	if v.clusterUID, err = r.Cluster.UID(ctx); err != nil {
		return v, nil, err
	}
	if v.joinSecret, err = r.readJoinSecret(ctx); err != nil {
		return v, nil, err
	}
	v.stored, stored, err = r.readStoredCredential(ctx)
	return v, stored, err
}

// isOutdatedWrite tells of a write that somebody else was faster than.
func isOutdatedWrite(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// reportStorageFailure tells people of Secrets that cannot be read or written, and has it tried
// again. What is being carried goes on with what it has.
func (r *Reconciler) reportStorageFailure(ctx context.Context, d decision, what string, err error) (ctrl.Result, error) {
	r.Metrics.CountStoreFailure()
	d.activeCredential, d.joinProblem, d.credentialProblem = r.activeCredential, nil, what+": "+err.Error()
	r.publishStatus(ctx, d)
	return ctrl.Result{}, err
}

func (r *Reconciler) recordStored(ctx context.Context, before, now storedCredential) {
	switch c := now.credential; {
	case c == nil:
		fingerprint, _ := registration.Fingerprint(now.key.PublicKey())
		log.FromContext(ctx).Info("Made the key that the hub is asked with to be let in", "fingerprint", fingerprint)
	case before.credential == nil || before.usedJoinHash != now.usedJoinHash:
		log.FromContext(ctx).Info("The hub has let this agent in", "hub", c.access.Server, "namespace", c.access.Namespace, "expires", c.token.Expires)
	default:
		log.FromContext(ctx).Info("Renewed the credential on the hub", "expires", c.token.Expires)
		r.Metrics.CountRenewal()
	}
}

// retryDelay is how long to wait for what nothing tells of.
func (r *Reconciler) retryDelay(v decisionInput, d decision) time.Duration {
	if r.retries.class != d.retry {
		r.retries = retryCounter{class: d.retry}
	}
	r.retries.count++
	grow := func(soon, late time.Duration) time.Duration {
		return min(late, soon<<min(r.retries.count-1, 10))
	}
	var wait time.Duration
	switch d.retry {
	case retryHub:
		return grow(minHubRetryDelay, maxHubRetryDelay)
	case retryAcceptance:
		wait = grow(minAcceptanceRetryDelay, maxAcceptanceRetryDelay)
	case retryRejected:
		wait = rejectedRetryDelay
	case retryNever:
	}
	if c := d.stored.credential; c != nil {
		due := max(v.renewalDue(*c).Sub(v.now), minHubRetryDelay)
		if wait == 0 || due < wait {
			wait = due
		}
	}
	return wait
}

// requestJoin presents the join token, unless that was done, and reads the answer.
func (r *Reconciler) requestJoin(ctx context.Context, v decisionInput) joinAnswer {
	hub, done, err := newHubClient(v.joinSecret.access)
	if err != nil {
		return joinFailure(err)
	}
	defer done()
	mine := v1alpha1.ClusterJoinSpec{
		ClusterUID: v.clusterUID, PublicKey: v.stored.key.PublicKey(), Account: v.joinSecret.token.AccountUID, AgentVersion: r.Version,
	}
	there := &v1alpha1.ClusterJoin{}
	key := client.ObjectKey{Namespace: v.joinSecret.access.Namespace, Name: v1alpha1.MailboxName}
	err = hub.Get(ctx, key, there)
	if apierrors.IsNotFound(err) {
		there = &v1alpha1.ClusterJoin{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: mine}
		if err = hub.Create(ctx, there); apierrors.IsAlreadyExists(err) {
			err = hub.Get(ctx, key, there)
		}
	}
	if err != nil {
		return joinFailure(err)
	}
	return evaluateJoin(there, mine)
}

func evaluateJoin(there *v1alpha1.ClusterJoin, mine v1alpha1.ClusterJoinSpec) joinAnswer {
	switch {
	case there.Spec.Account != mine.Account:
		return joinAnswer{kind: joinPending} // of the join token before, and being removed
	case there.Spec.PublicKey != mine.PublicKey || there.Spec.ClusterUID != mine.ClusterUID:
		return joinAnswer{kind: joinTaken}
	case there.Status.Phase == v1alpha1.JoinIssued:
		return joinAnswer{kind: joinIssued, sealed: there.Status.Credential}
	}
	return joinAnswer{kind: joinPending}
}

func joinFailure(err error) joinAnswer {
	fault, _ := hubclient.ClassifyError(err)
	if fault == hubclient.UnauthorizedFailure || fault == hubclient.ForbiddenFailure {
		return joinAnswer{kind: joinRefused, message: "the hub does not take the join token"}
	}
	return joinAnswer{kind: joinUnanswered, fault: fault, message: explainConnectionError(err).message}
}

// renewCredential asks for the next token.
func (r *Reconciler) renewCredential(ctx context.Context, c credential) renewalResult {
	token, err := requestToken(ctx, c)
	if err != nil {
		r.Metrics.CountFailedRenewal()
		log.FromContext(ctx).Info("The credential on the hub could not be renewed; it is tried again", "expires", c.token.Expires, "error", err.Error())
		_, why := hubclient.ClassifyError(err)
		return renewalResult{attempted: true, fault: why}
	}
	return renewalResult{attempted: true, token: token}
}

func requestToken(ctx context.Context, c credential) (string, error) {
	hub, done, err := newHubClient(c.access)
	if err != nil {
		return "", err
	}
	defer done()
	return requestNextToken(ctx, hub, c)
}

// requestNextToken asks for one that lives as long as the one before. Where the hub allows
// less by now, which it says by forbidding it, half of that is asked for, and so on.
func requestNextToken(ctx context.Context, hub client.Client, c credential) (string, error) {
	for life := c.token.Expires.Sub(c.token.Issued); ; life = max(life/2, registration.MinTokenLife) {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life.Seconds()))}}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.access.Namespace, Name: registration.AgentAccount}}
		err := hub.SubResource("token").Create(ctx, account, request)
		switch {
		case err == nil:
			return request.Status.Token, nil
		case !apierrors.IsForbidden(err) || life <= registration.MinTokenLife:
			return "", fmt.Errorf("asking for the next token of ServiceAccount %s/%s on the hub: %w", account.Namespace, account.Name, err)
		}
	}
}

// newHubClient makes a client for a few requests to the hub.
func newHubClient(a registration.HubAccess) (hub client.Client, done func(), err error) {
	cfg := newRESTConfig(a)
	cfg.BearerToken = a.Token
	return hubclient.NewClient(cfg, hubRequestTimeout, client.Options{Scheme: hubclient.Scheme, Mapper: hubclient.Mapper})
}

// newRESTConfig without the token.
func newRESTConfig(a registration.HubAccess) *rest.Config {
	return &rest.Config{Host: a.Server, UserAgent: "ot-agent", TLSClientConfig: rest.TLSClientConfig{CAData: a.CA}}
}
