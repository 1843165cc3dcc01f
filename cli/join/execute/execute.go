package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/join"
)

// TimeoutError says what did not happen in time.
type TimeoutError struct{ Text string }

func (e TimeoutError) Error() string { return e.Text }

// PersonError says what a person has to decide first.
type PersonError struct{ Text string }

func (e PersonError) Error() string { return e.Text }

// givenTokenLife of the token that the hub is given, and replaces.
const givenTokenLife = 24 * time.Hour

// requestTimeout bounds one request of a wait.
const requestTimeout = 30 * time.Second

// pollInterval is how often the hub is asked whether something has happened.
const pollInterval = 500 * time.Millisecond

// Executor does the steps of one member.
type Executor struct {
	Request   join.Request
	Namespace string // of chart ot-hub
	// HubKubectl begins commands about the hub's Pods and Secrets: kubectl, and flags where it needs any.
	HubKubectl string
	Hub        client.Client
	// Member is nil where it is not reached from here; State is then nil, too.
	Member client.Client
	State  *join.MemberState
	// AgentNamespace in the member.
	AgentNamespace string
	// Timeout of each step.
	Timeout time.Duration
	// InstallChart runs helm.
	InstallChart func(ctx context.Context, namespace string, values []string) error
	// Begin and End tell a person about each step; End with what came of it.
	Begin func(join.Step)
	End   func(join.Step, string)
	// Accept asks a person whether to accept an agent; PersonError where nobody can be asked.
	Accept func(join.Acceptance) error

	// Finished counts the steps that were done.
	Finished int

	token, spent []byte
}

// Token is the join token, once it was awaited.
func (e *Executor) Token() []byte { return e.token }

// Run does steps in their order, and stops at the first that fails.
func (e *Executor) Run(ctx context.Context, steps []join.Step) error {
	for _, s := range steps {
		e.Begin(s)
		result, err := e.run(ctx, s)
		if err != nil {
			return err
		}
		e.Finished++
		e.End(s, result)
	}
	return nil
}

// run does one step and returns what came of it, where the step's text does not say it.
func (e *Executor) run(ctx context.Context, s join.Step) (result string, err error) {
	name := e.Request.Name
	switch s.Action {
	case join.Keep:
		return "", nil
	case join.CreateMember:
		return "", e.createMember(ctx)
	case join.SetAutoAccept:
		return "", e.changeMember(ctx, func(m *v1alpha1.MemberCluster) {
			if m.Spec.Connection.Pull != nil {
				m.Spec.Connection.Pull.AutoAccept = true
			}
		})
	case join.SetLabels:
		return "", e.changeMember(ctx, func(m *v1alpha1.MemberCluster) { m.Labels = merged(m.Labels, e.Request.Labels) })
	case join.RequestToken:
		return "", e.requestToken(ctx)
	case join.AwaitToken:
		return "", e.awaitToken(ctx)
	case join.InstallAgent:
		return "chart ot-agent is installed in namespace " + e.AgentNamespace, e.InstallChart(ctx, e.AgentNamespace, s.Values)
	case join.StoreToken:
		return "", e.storeToken(ctx)
	case join.DeleteUsedToken:
		return "", e.deleteInMember(ctx, registration.JoinSecret)
	case join.WriteFile:
		return "", writePrivateFile(e.Request.Output, e.token)
	case join.AwaitAgent:
		return e.awaitAgent(ctx)
	case join.GiveCredential:
		return "", e.giveCredential(ctx)
	case join.LabelSecret:
		return "", e.changeSecret(ctx, func(*corev1.Secret) {})
	case join.AwaitReady:
		return fmt.Sprintf("MemberCluster %s is Ready", name), e.awaitReady(ctx)
	case join.AwaitRotated:
		return "the hub has a token of its own", e.awaitRotated(ctx)
	case join.DeleteLegacyToken:
		return "", e.deleteInMember(ctx, join.LegacyTokenSecret)
	case join.DeleteHubSecret:
		return "", ignoreNotFound(e.Hub.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: s.Values[0]}}))
	case join.DeleteMember:
		return "", ignoreNotFound(e.Hub.Delete(ctx, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	case join.AwaitGone:
		return fmt.Sprintf("MemberCluster %s is gone", name), e.awaitGone(ctx)
	case join.RevokeTokens:
		return "", e.deleteInMember(ctx, join.AccessSecret, join.LegacyTokenSecret)
	case join.DeleteCredential:
		// With a join token and no credential, a running agent registers anew: the token goes first.
		return "", e.deleteInMember(ctx, registration.JoinSecret, registration.CredentialSecret)
	}
	return "", fmt.Errorf("step %s is not known", s.Action)
}

func ignoreNotFound(err error) error { return client.IgnoreNotFound(err) }

// merged returns labels with further ones.
func merged(labels map[string]string, more ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, some := range append([]map[string]string{labels}, more...) {
		for key, value := range some {
			all[key] = value
		}
	}
	return all
}

func (e *Executor) createMember(ctx context.Context) error {
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: e.Request.Name, Labels: e.Request.Labels}}
	member.Spec.Connection.Pull = &v1alpha1.MemberPull{AutoAccept: e.Request.AutoAccept}
	return wrap(e.Hub.Create(ctx, member), "creating MemberCluster %s", e.Request.Name)
}

// changeMember changes the MemberCluster, unless it is so already.
func (e *Executor) changeMember(ctx context.Context, change func(*v1alpha1.MemberCluster)) error {
	member := &v1alpha1.MemberCluster{}
	if err := e.Hub.Get(ctx, client.ObjectKey{Name: e.Request.Name}, member); err != nil {
		return fmt.Errorf("reading MemberCluster %s: %w", e.Request.Name, err)
	}
	base := member.DeepCopy()
	change(member)
	return wrap(e.Hub.Patch(ctx, member, client.MergeFrom(base)), "changing MemberCluster %s", e.Request.Name)
}

// requestToken has the hub make a join token, and remembers the one before.
func (e *Executor) requestToken(ctx context.Context) (err error) {
	if e.spent, err = readJoinToken(ctx, e.Hub, e.Namespace, e.Request.Name); err != nil {
		return err
	}
	return e.changeMember(ctx, func(m *v1alpha1.MemberCluster) {
		m.Annotations = merged(m.Annotations, map[string]string{v1alpha1.AnnotationJoinToken: strconv.FormatInt(time.Now().UnixNano(), 10)})
	})
}

// awaitCondition asks until something holds. A request that the API server has refused ends it;
// one that it could not answer is repeated.
func (e *Executor) awaitCondition(ctx context.Context, holds func(context.Context) (bool, error)) (bool, error) {
	var unanswered error
	ask := func(context.Context) (bool, error) {
		// Not the context of the poll: at its end, a client would fail rather than the condition.
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		done, err := holds(request)
		unanswered = err
		if err != nil && ctx.Err() == nil && !isRefusal(err) {
			return false, nil
		}
		return done, err
	}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, e.Timeout, true, ask)
	if ctx.Err() == nil && wait.Interrupted(err) {
		// Once more: the timeout may have ended between two requests.
		done, _ := ask(ctx)
		return done, unanswered
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return err == nil, err
}

// isRefusal reports whether the API server has answered, and would answer the same once more.
func isRefusal(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err)
}

// member reads the MemberCluster; nil where there is none.
func (e *Executor) member(ctx context.Context) (*v1alpha1.MemberCluster, error) {
	member, err := getOptional(ctx, e.Hub, "", e.Request.Name, &v1alpha1.MemberCluster{})
	return member, wrap(err, "reading MemberCluster %s", e.Request.Name)
}

// said is the message of a condition of the MemberCluster, or something else where it has none.
func (e *Executor) said(ctx context.Context, condition, otherwise string) string {
	member, err := e.member(ctx)
	if err != nil {
		return err.Error()
	}
	if message := join.Message(member, condition); message != "" {
		return message
	}
	return otherwise
}

func (e *Executor) formatHubCommand(format string, words ...string) string {
	return cmp.Or(e.HubKubectl, "kubectl") + shellword.FormatCommand(format, words...)
}

func (e *Executor) awaitToken(ctx context.Context) error {
	made, err := e.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		token, err := readJoinToken(ctx, e.Hub, e.Namespace, e.Request.Name)
		e.token = token
		return len(token) > 0 && string(token) != string(e.spent), err
	})
	if err != nil {
		return err
	}
	if made {
		return e.checkHubAddress(ctx)
	}
	return TimeoutError{fmt.Sprintf("the hub has made no join token for %s: %s", e.Request.Name,
		e.said(ctx, v1alpha1.ConditionJoined, "does it run? "+e.formatHubCommand(" -n %s get pods", e.Namespace)))}
}

// storeToken writes the join token to the member, over whatever is in its place.
func (e *Executor) storeToken(ctx context.Context) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.AgentNamespace, Name: registration.JoinSecret}}
	return wrap(createOrUpdate(ctx, e.Member, secret, func() {
		secret.Data = map[string][]byte{registration.KubeconfigKey: e.token}
	}), "storing the join token in Secret %s/%s of the cluster", e.AgentNamespace, registration.JoinSecret)
}

// createOrUpdate writes an object as it is changed, again after a conflict.
func createOrUpdate(ctx context.Context, c client.Client, o client.Object, change func()) error {
	return retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		err := c.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		change()
		if err != nil {
			return c.Create(ctx, o)
		}
		return c.Update(ctx, o)
	})
}

// writePrivateFile replaces a file by one that nobody else reads.
func writePrivateFile(path string, content []byte) error {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !os.IsNotExist(err) {
		return err
	}
	// Exclusively: a link that somebody puts there meanwhile is not followed.
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// changeSecret changes the hub's Secret with the kubeconfig, and gives it its labels.
func (e *Executor) changeSecret(ctx context.Context, change func(*corev1.Secret)) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Request.Name}}
	return wrap(createOrUpdate(ctx, e.Hub, secret, func() {
		secret.Labels = merged(secret.Labels, e.Request.Labels, map[string]string{v1alpha1.LabelMember: e.Request.Name})
		change(secret)
	}), "writing Secret %s/%s", e.Namespace, e.Request.Name)
}

// giveCredential gives the hub a token of its account in the member.
func (e *Executor) giveCredential(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.AgentNamespace, Name: join.HubAccount}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(givenTokenLife.Seconds())),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: join.AccessSecret},
	}}
	if err := e.Member.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("the cluster issues no token of ServiceAccount %s/%s: %w", e.AgentNamespace, join.HubAccount, err)
	}
	kubeconfig, err := e.Request.Access(*e.State).Kubeconfig(request.Status.Token)
	if err != nil {
		return err
	}
	return e.changeSecret(ctx, func(secret *corev1.Secret) {
		secret.Data = map[string][]byte{kubeconfigKey: kubeconfig}
	})
}

// uid of the member's cluster; empty where it is not known.
func (e *Executor) uid() types.UID {
	if e.State == nil {
		return ""
	}
	return e.State.UID
}

func (e *Executor) awaitReady(ctx context.Context) error {
	ready, err := e.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		member, err := e.member(ctx)
		return join.Ready(member, e.uid()), err
	})
	if err != nil || ready {
		return err
	}
	return TimeoutError{fmt.Sprintf("MemberCluster %s is not Ready: %s", e.Request.Name, e.said(ctx, v1alpha1.ConditionReady,
		"there is none, or no hub runs: "+e.formatHubCommand(" -n %s get pods, and describe secret %s", e.Namespace, e.Request.Name)))}
}

func (e *Executor) awaitRotated(ctx context.Context) error {
	rotated, err := e.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		member, err := e.member(ctx)
		return join.Rotated(member), err
	})
	if err != nil || rotated {
		return err
	}
	return TimeoutError{"the hub has not replaced the token, which ends within a day: " +
		e.said(ctx, v1alpha1.ConditionCredentialRotated, "upgrade the hub: it is older than this program")}
}

func (e *Executor) awaitGone(ctx context.Context) error {
	gone, err := e.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		member, err := e.member(ctx)
		return member == nil, err
	})
	if err != nil || gone {
		return err
	}
	return TimeoutError{fmt.Sprintf("MemberCluster %s is still there; it goes once a hub runs: %s", e.Request.Name, e.formatHubCommand(" -n %s get pods", e.Namespace))}
}

// deleteInMember deletes Secrets of the agent's namespace, in their order.
func (e *Executor) deleteInMember(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := e.Member.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.AgentNamespace, Name: name}})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Secret %s/%s of the cluster: %w", e.AgentNamespace, name, err)
		}
	}
	return nil
}
