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

	"github.com/pelotech/ot-fleet/agent/identity"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The chart's other rules let the agent create Secrets anywhere, for machines; what
// it may read and change of these two does not depend on that.
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-join,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=agent-namespace,resources=secrets,resourceNames=ot-hub-credential,verbs=get;list;watch;update

// How soon something is tried again, growing from the first to the second.
const (
	hubSoon, hubLate       = time.Second, 30 * time.Second
	peopleSoon, peopleLate = time.Second, 10 * time.Second
	seldomDelay            = time.Minute
	// requestTimeout ends a request to the hub.
	requestTimeout = 10 * time.Second
)

// Reconciler joins, and keeps the credential.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live    client.Reader
	Cluster *identity.Cluster
	Metrics *metrics.Hub
	// Namespace of the agent.
	Namespace string
	// Version of the agent.
	Version string
	// RenewAfter is the age at which a token is renewed; by default two thirds of its
	// life.
	RenewAfter time.Duration
	Carrier    *Carrier
	// Changed is called when what Condition says has changed. It must not block.
	Changed func()

	pokes chan event.GenericEvent
	// tries of what was tried last, in vain so far. Only Reconcile touches them, one
	// at a time.
	tries tries
	said  said
	// used is what is being carried with. Only Reconcile touches it, too.
	used *credential
}

// tries counts those in a row that have waited in the same way.
type tries struct {
	of    wait
	count int
}

// Reconcile takes joining and the credential as far as they go now.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	v, stored, err := r.gather(ctx)
	if err != nil {
		return r.failed(ctx, decision{carry: r.used}, "what the agent dials in with could not be read, and that is tried again", err)
	}
	var d decision
	for {
		v.now = time.Now()
		d = decide(v)
		switch d.step {
		case makeKey:
			key, err := join.NewKey(rand.Reader)
			if err != nil {
				return ctrl.Result{}, err
			}
			d.kept.key = &key
			fallthrough
		case store:
			if stored, err = r.keep(ctx, d.kept, stored); outdated(err) {
				return ctrl.Result{RequeueAfter: hubSoon}, nil // it is decided again from what is stored by now
			} else if err != nil {
				return r.failed(ctx, d, "what the hub is to know this agent by could not be stored, and that is tried again", err)
			}
			r.stored(ctx, v.kept, d.kept)
			v.kept, v.answer, v.renewal = d.kept, answer{}, renewal{}
			continue
		case ask:
			v.answer = r.ask(ctx, v)
			continue
		case renew:
			v.renewal = r.renew(ctx, *d.kept.credential)
			continue
		}
		break
	}
	r.used = d.carry
	r.Carrier.Use(d.carry)
	r.say(ctx, d)
	return ctrl.Result{RequeueAfter: r.pause(v, d)}, nil
}

func (r *Reconciler) gather(ctx context.Context) (v view, stored *corev1.Secret, err error) {
	v.renewAfter = r.RenewAfter
	if v.cluster, err = r.Cluster.UID(ctx); err != nil {
		return v, nil, err
	}
	if v.invitation, err = r.readInvitation(ctx); err != nil {
		return v, nil, err
	}
	v.kept, stored, err = r.readKept(ctx)
	return v, stored, err
}

// outdated tells of a write that somebody else was faster than.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// failed tells people of Secrets that cannot be read or written, and has it tried
// again. What is being carried goes on with what it has.
func (r *Reconciler) failed(ctx context.Context, d decision, what string, err error) (ctrl.Result, error) {
	r.Metrics.NotStored()
	d.carry, d.joining, d.trouble = r.used, nil, what+": "+err.Error()
	r.say(ctx, d)
	return ctrl.Result{}, err
}

func (r *Reconciler) stored(ctx context.Context, before, now kept) {
	switch c := now.credential; {
	case c == nil:
		fingerprint, _ := join.Fingerprint(now.key.Public())
		log.FromContext(ctx).Info("Made the key that the hub is asked with to be let in", "fingerprint", fingerprint)
	case before.credential == nil || before.used != now.used:
		log.FromContext(ctx).Info("The hub has let this agent in", "hub", c.access.Server, "namespace", c.access.Namespace, "expires", c.token.Expires)
	default:
		log.FromContext(ctx).Info("Renewed the credential on the hub", "expires", c.token.Expires)
		r.Metrics.Renewed()
	}
}

// pause is how long to wait for what nothing tells of.
func (r *Reconciler) pause(v view, d decision) time.Duration {
	if r.tries.of != d.waits {
		r.tries = tries{of: d.waits}
	}
	r.tries.count++
	grow := func(soon, late time.Duration) time.Duration {
		return min(late, soon<<min(r.tries.count-1, 10))
	}
	var wait time.Duration
	switch d.waits {
	case forHub:
		return grow(hubSoon, hubLate)
	case forPeople:
		wait = grow(peopleSoon, peopleLate)
	case seldom:
		wait = seldomDelay
	case forNews:
	}
	if c := d.kept.credential; c != nil {
		due := max(v.due(*c).Sub(v.now), hubSoon)
		if wait == 0 || due < wait {
			wait = due
		}
	}
	return wait
}

// ask presents the join token, unless that was done, and reads the answer.
func (r *Reconciler) ask(ctx context.Context, v view) answer {
	hub, done, err := connect(v.invitation.access)
	if err != nil {
		return unanswered(err)
	}
	defer done()
	mine := v1alpha1.ClusterJoinSpec{
		ClusterUID: v.cluster, PublicKey: v.kept.key.Public(), Account: v.invitation.token.Account, AgentVersion: r.Version,
	}
	there := &v1alpha1.ClusterJoin{}
	key := client.ObjectKey{Namespace: v.invitation.access.Namespace, Name: v1alpha1.MailboxName}
	err = hub.Get(ctx, key, there)
	if apierrors.IsNotFound(err) {
		there = &v1alpha1.ClusterJoin{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: mine}
		if err = hub.Create(ctx, there); apierrors.IsAlreadyExists(err) {
			err = hub.Get(ctx, key, there)
		}
	}
	if err != nil {
		return unanswered(err)
	}
	return answerOf(there, mine)
}

func answerOf(there *v1alpha1.ClusterJoin, mine v1alpha1.ClusterJoinSpec) answer {
	switch {
	case there.Spec.Account != mine.Account:
		return answer{kind: pending} // of the join token before, and being removed
	case there.Spec.PublicKey != mine.PublicKey || there.Spec.ClusterUID != mine.ClusterUID:
		return answer{kind: taken}
	case there.Status.Phase == v1alpha1.JoinIssued:
		return answer{kind: issued, sealed: there.Status.Credential}
	}
	return answer{kind: pending}
}

func unanswered(err error) answer {
	fault, _ := dial.FaultOf(err)
	if fault == dial.FaultUnauthorized || fault == dial.FaultForbidden {
		return answer{kind: refused, message: "the hub does not take the join token"}
	}
	return answer{kind: noAnswer, fault: fault, message: faultOf(err).message}
}

// renew asks for the next token.
func (r *Reconciler) renew(ctx context.Context, c credential) renewal {
	token, err := requestToken(ctx, c)
	if err != nil {
		r.Metrics.NotRenewed()
		log.FromContext(ctx).Info("The credential on the hub could not be renewed; it is tried again", "expires", c.token.Expires, "error", err.Error())
		_, why := dial.FaultOf(err)
		return renewal{asked: true, fault: why}
	}
	return renewal{asked: true, token: token}
}

func requestToken(ctx context.Context, c credential) (string, error) {
	hub, done, err := connect(c.access)
	if err != nil {
		return "", err
	}
	defer done()
	return nextToken(ctx, hub, c)
}

// nextToken asks for one that lives as long as the one before. Where the hub allows
// less by now, which it says by forbidding it, half of that is asked for, and so on.
func nextToken(ctx context.Context, hub client.Client, c credential) (string, error) {
	for life := c.token.Expires.Sub(c.token.Issued); ; life = max(life/2, join.MinTokenLife) {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life.Seconds()))}}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.access.Namespace, Name: join.AgentAccount}}
		err := hub.SubResource("token").Create(ctx, account, request)
		switch {
		case err == nil:
			return request.Status.Token, nil
		case !apierrors.IsForbidden(err) || life <= join.MinTokenLife:
			return "", fmt.Errorf("asking for the next token of ServiceAccount %s/%s on the hub: %w", account.Namespace, account.Name, err)
		}
	}
}

// connect makes a client for a few requests to the hub.
func connect(a join.Access) (hub client.Client, done func(), err error) {
	cfg := config(a)
	cfg.BearerToken = a.Token
	return dial.NewClient(cfg, requestTimeout, client.Options{Scheme: dial.Scheme, Mapper: dial.Mapper})
}

// config without the token.
func config(a join.Access) *rest.Config {
	return &rest.Config{Host: a.Server, UserAgent: "ot-agent", TLSClientConfig: rest.TLSClientConfig{CAData: a.CA}}
}
