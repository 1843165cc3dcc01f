//go:build linux

package registration_test

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

// cluster is the UID that fake agents present.
const cluster = types.UID("11111111-1111-1111-1111-111111111111")

// awaitCondition waits for a condition. It polls in the test's goroutine, so that the condition
// may end the test.
func awaitCondition(t *testing.T, condition func() bool, format string, args ...any) {
	t.Helper()
	require.Truef(t, testenv.AwaitCondition(t, condition), format, args...)
}

// createPullMember creates a MemberCluster in pull mode until the test ends.
func createPullMember(t *testing.T, name string, pull v1alpha1.MemberPull) {
	t.Helper()
	member := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{Pull: &pull}},
	}
	shared.CreateForTest(t, member)
}

func getMember(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Name: name}, member))
	return member
}

// patchMember merges a patch into a MemberCluster.
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

// awaitJoinedReason waits until a member's condition Joined has a reason.
func awaitJoinedReason(t *testing.T, name, reason string) *metav1.Condition {
	t.Helper()
	var c metav1.Condition
	awaitCondition(t, func() bool {
		c = ptr.Deref(meta.FindStatusCondition(getMember(t, name).Status.Conditions, v1alpha1.ConditionJoined), metav1.Condition{})
		return c.Reason == reason
	}, "Joined of %s: want %s, have %+v", name, reason, &c)
	return &c
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

// fakeAgent holds a token for a member's namespace on the hub.
type fakeAgent struct {
	registration.HubAccess
	client.Client
	cfg     *rest.Config
	account types.UID
}

func newFakeAgent(t *testing.T, a registration.HubAccess) *fakeAgent {
	t.Helper()
	v := &fakeAgent{HubAccess: a, cfg: &rest.Config{
		Host: a.Server, BearerToken: a.Token, TLSClientConfig: rest.TLSClientConfig{CAData: a.CA}, QPS: 1000, Burst: 2000,
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

// awaitInvited returns a fake agent with a member's join token, once it differs from those of
// before.
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

// mustRequestCredential presents a join token, again until the API server knows its permissions.
func (v *fakeAgent) mustRequestCredential(t *testing.T, key registration.KeyPair) {
	t.Helper()
	awaitAllowed(t, func() error { return v.requestCredential(t.Context(), key) })
}

// mustRenewLease uses a credential, again until the API server knows its permissions.
func (v *fakeAgent) mustRenewLease(t *testing.T) {
	t.Helper()
	awaitAllowed(t, func() error { return v.renewLease(t.Context()) })
}

// awaitAllowed retries a request while it is forbidden.
func awaitAllowed(t *testing.T, request func() error) {
	t.Helper()
	var err error
	awaitCondition(t, func() bool {
		if err = request(); !apierrors.IsForbidden(err) {
			require.NoError(t, err)
		}
		return err == nil
	}, "the request stays forbidden: %v", &err)
}

// requestCredential presents a join token with a key.
func (v *fakeAgent) requestCredential(ctx context.Context, key registration.KeyPair) error {
	return v.requestCredentialAs(ctx, cluster, key)
}

// requestCredentialAs presents a join token as the agent of a cluster.
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

// awaitCredential waits for the credential that is issued for a key.
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
	}, "no credential was issued to the agent of %s", v.Namespace)
	return newFakeAgent(t, access)
}

// renewLease renews the agent's Lease on the hub, as agents do.
func (v *fakeAgent) renewLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: v.Namespace, Name: registration.LeaseName}, lease); err != nil {
		return err
	}
	lease.Spec.HolderIdentity = ptr.To(registration.LeaseHolder("boot", registration.TokenClaims{AccountUID: v.account}))
	return v.Update(ctx, lease)
}

// listPlans makes a request that every registered agent may make.
func (v *fakeAgent) listPlans(ctx context.Context) error {
	return v.List(ctx, &v1alpha1.ClusterPlanList{}, client.InNamespace(v.Namespace))
}

// isRefused reports a request that was not authenticated or not authorized.
func isRefused(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// registerFakeAgent registers a member with autoAccept and connects its fake agent.
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

// requireRevoked requires that a credential is refused, and that it is not authenticated once
// the API server's token cache expires, which takes 10 s by default.
func (v *fakeAgent) requireRevoked(t *testing.T) {
	t.Helper()
	began := time.Now()
	awaitCondition(t, func() bool { return isRefused(v.listPlans(t.Context())) }, "%s is not refused", v.Namespace)
	refusal := time.Since(began)
	awaitCondition(t, func() bool { return apierrors.IsUnauthorized(v.listPlans(t.Context())) }, "%s is still authenticated", v.Namespace)
	t.Logf("%s was refused %v after the revocation and not authenticated after %v", v.Namespace, refusal, time.Since(began))
}

// awaitMemberGone waits until nothing is left of an agent's accounts, tokens and bindings.
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
		}, "%T %s/%s still exists", what.o, what.in, what.name)
	}
}

func newMergePatch(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}
