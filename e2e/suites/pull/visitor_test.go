//go:build linux

package pull_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// patience is how long a test waits for what is bound to come.
	patience = testenv.Patience
	tick     = 20 * time.Millisecond
	// cluster of the agents that are played.
	cluster = types.UID("11111111-1111-1111-1111-111111111111")
)

// awaitCondition wants something to come true. It asks in the test's own goroutine, so
// that what is asked may end the test.
func awaitCondition(t *testing.T, holds func() bool, format string, args ...any) {
	t.Helper()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for end := time.Now().Add(patience); !holds(); {
		require.Truef(t, time.Now().Before(end), format, args...)
		<-ticker.C
	}
}

// createPullMember creates a member in pull mode and deletes it when the test ends.
func createPullMember(t *testing.T, name string, pull v1alpha1.MemberPull) {
	t.Helper()
	member := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{Pull: &pull}},
	}
	require.NoError(t, shared.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(shared.Delete(context.Background(), member))) })
}

func getMember(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Name: name}, member))
	return member
}

// patchMember a member as a person does.
func patchMember(t *testing.T, name, patch string) {
	t.Helper()
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, shared.Patch(t.Context(), member, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func patchPull(t *testing.T, name, pull string) {
	t.Helper()
	patchMember(t, name, `{"spec":{"connection":{"pull":`+pull+`}}}`)
}

func acceptKey(t *testing.T, name string, key registration.KeyPair) {
	t.Helper()
	patchPull(t, name, `{"acceptedKey":"`+fingerprint(t, key)+`"}`)
}

func requestJoinToken(t *testing.T, name, value string) {
	t.Helper()
	patchMember(t, name, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationJoinToken+`":"`+value+`"}}}`)
}

// awaitJoinedReason waits until condition Joined of a member has a reason.
func awaitJoinedReason(t *testing.T, name, reason string) *metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	awaitCondition(t, func() bool {
		c = meta.FindStatusCondition(getMember(t, name).Status.Conditions, v1alpha1.ConditionJoined)
		return c != nil && c.Reason == reason
	}, "Joined of %s: want %s, have %+v", name, reason, &c)
	return c
}

func newKey(t *testing.T) registration.KeyPair {
	t.Helper()
	key, err := registration.NewKeyPair(rand.Reader)
	require.NoError(t, err)
	return key
}

func fingerprint(t *testing.T, key registration.KeyPair) string {
	t.Helper()
	text, err := registration.Fingerprint(key.PublicKey())
	require.NoError(t, err)
	return text
}

// fakeAgent is a client of the hub with a token for a member's namespace.
type fakeAgent struct {
	registration.HubAccess
	client.Client
	cfg     *rest.Config
	account types.UID
}

func newFakeAgent(t *testing.T, a registration.HubAccess) *fakeAgent {
	t.Helper()
	v := &fakeAgent{HubAccess: a, cfg: &rest.Config{
		Host: a.Server, BearerToken: a.Token, TLSClientConfig: rest.TLSClientConfig{CAData: a.CA}, QPS: 1000, Burst: 2000, Timeout: 10 * time.Second,
	}}
	token, err := registration.ParseTokenClaims(a.Token)
	require.NoError(t, err)
	v.account = token.AccountUID
	v.Client, err = client.New(v.cfg, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
	require.NoError(t, err)
	return v
}

func getJoinSecret(ctx context.Context, member string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	return secret, shared.Get(ctx, client.ObjectKey{Namespace: program.HubNamespace, Name: registration.JoinSecretName(member)}, secret)
}

// awaitInvited waits for a member's join token that differs from those in before, and
// returns a client that holds it.
func awaitInvited(t *testing.T, member string, before ...*fakeAgent) *fakeAgent {
	t.Helper()
	var access registration.HubAccess
	awaitCondition(t, func() bool {
		secret, err := getJoinSecret(t.Context(), member)
		if err != nil {
			return false
		}
		access, err = registration.ParseHubAccess(secret.Data[registration.KubeconfigKey])
		require.NoError(t, err)
		for _, b := range before {
			if b.Token == access.Token {
				return false
			}
		}
		return true
	}, "no join token for %s", member)
	return newFakeAgent(t, access)
}

// mustRequestCredential presents a join token, as often as the API server has yet to hear of its rights.
func (v *fakeAgent) mustRequestCredential(t *testing.T, key registration.KeyPair) {
	t.Helper()
	awaitAllowed(t, func() error { return v.requestCredential(t.Context(), key) })
}

// mustRenewLease uses what it was issued, as often as the API server has yet to hear of its rights.
func (v *fakeAgent) mustRenewLease(t *testing.T) {
	t.Helper()
	awaitAllowed(t, func() error { return v.renewLease(t.Context()) })
}

// awaitAllowed wants a request to be answered, and nothing but a refusal before.
func awaitAllowed(t *testing.T, request func() error) {
	t.Helper()
	var err error
	awaitCondition(t, func() bool {
		if err = request(); !apierrors.IsForbidden(err) {
			require.NoError(t, err)
		}
		return err == nil
	}, "it is not allowed: %v", &err)
}

// requestCredential presents a join token.
func (v *fakeAgent) requestCredential(ctx context.Context, key registration.KeyPair) error {
	return v.requestCredentialAs(ctx, cluster, key)
}

// requestCredentialAs presents it as the agent of some cluster.
func (v *fakeAgent) requestCredentialAs(ctx context.Context, cluster types.UID, key registration.KeyPair) error {
	return v.Create(ctx, &v1alpha1.ClusterJoin{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.ClusterJoinSpec{ClusterUID: cluster, PublicKey: key.PublicKey(), Account: v.account, AgentVersion: "played"},
	})
}

func (v *fakeAgent) getClusterJoin(ctx context.Context) (*v1alpha1.ClusterJoin, error) {
	asked := &v1alpha1.ClusterJoin{}
	return asked, v.Get(ctx, client.ObjectKey{Namespace: v.Namespace, Name: v1alpha1.MailboxName}, asked)
}

// awaitCredential waits for what is issued to a key.
func (v *fakeAgent) awaitCredential(t *testing.T, key registration.KeyPair) *fakeAgent {
	t.Helper()
	var access registration.HubAccess
	awaitCondition(t, func() bool {
		asked, err := v.getClusterJoin(t.Context())
		if err != nil || asked.Status.Phase != v1alpha1.JoinIssued {
			return false
		}
		opened, err := key.OpenSealed(asked.Status.Credential)
		require.NoError(t, err)
		access, err = registration.ParseHubAccess(opened)
		require.NoError(t, err)
		return true
	}, "nothing was issued to the agent of %s", v.Namespace)
	return newFakeAgent(t, access)
}

// renewLease renews the agent's Lease, as an agent does with what it was issued.
func (v *fakeAgent) renewLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: v.Namespace, Name: registration.LeaseName}, lease); err != nil {
		return err
	}
	lease.Spec.HolderIdentity = ptr.To(registration.LeaseHolder("boot", registration.TokenClaims{AccountUID: v.account}))
	return v.Update(ctx, lease)
}

// listPlans is a request that an agent may always make.
func (v *fakeAgent) listPlans(ctx context.Context) error {
	return v.List(ctx, &v1alpha1.ClusterPlanList{}, client.InNamespace(v.Namespace))
}

// isRefused reports whether an API server refused a request, authenticated or not.
func isRefused(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// registerFakeAgent registers a member in pull mode that needs no acceptance.
func registerFakeAgent(t *testing.T, member string) (agent, token *fakeAgent, key registration.KeyPair) {
	t.Helper()
	createPullMember(t, member, v1alpha1.MemberPull{AutoAccept: true})
	key = newKey(t)
	token = awaitInvited(t, member)
	token.mustRequestCredential(t, key)
	agent = token.awaitCredential(t, key)
	agent.mustRenewLease(t)
	awaitJoinedReason(t, member, v1alpha1.ReasonJoined)
	return agent, token, key
}

// requireRevoked wants a credential to be worth nothing: to be refused, and not to be known any
// more once the API server has forgotten it, which by its own default takes 10 s.
func (v *fakeAgent) requireRevoked(t *testing.T) {
	t.Helper()
	began := time.Now()
	awaitCondition(t, func() bool { return isRefused(v.listPlans(t.Context())) }, "%s is not refused", v.Namespace)
	refusal := time.Since(began)
	awaitCondition(t, func() bool { return apierrors.IsUnauthorized(v.listPlans(t.Context())) }, "%s is still known", v.Namespace)
	t.Logf("%s was forbidden %v after its revocation, and unauthenticated after %v", v.Namespace, refusal, time.Since(began))
}

// awaitMemberGone waits until every object that an agent was given is deleted.
func awaitMemberGone(t *testing.T, member string) {
	t.Helper()
	namespace := v1alpha1.MemberNamespacePrefix + member
	for _, what := range []struct {
		o    client.Object
		in   string
		name string
	}{
		{&corev1.ServiceAccount{}, namespace, registration.AgentAccount},
		{&corev1.ServiceAccount{}, namespace, registration.JoinAccount},
		{&rbacv1.RoleBinding{}, namespace, registration.AgentAccount},
		{&rbacv1.RoleBinding{}, namespace, registration.JoinAccount},
		{&v1alpha1.ClusterJoin{}, namespace, v1alpha1.MailboxName},
		{&corev1.Secret{}, program.HubNamespace, registration.JoinSecretName(member)},
	} {
		awaitCondition(t, func() bool {
			return apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKey{Namespace: what.in, Name: what.name}, what.o))
		}, "%T %s/%s is left", what.o, what.in, what.name)
	}
}

func newMergePatch(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}
