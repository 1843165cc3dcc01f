package execute

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/join"
)

func newExecutor(hub, member client.Client) *Executor {
	return &Executor{
		Request: join.Request{Name: "oslo", Labels: map[string]string{"edge": "true"}}, Namespace: "ot-hub", AgentNamespace: "ot-agent",
		Hub: hub, Member: member, Timeout: time.Nanosecond, Begin: func(join.Step) {}, End: func(join.Step, string) {},
	}
}

func clusterWith(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(objects...).Build()
}

func secret(namespace, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
}

// TestJoinTokenReplacesSecretMadeByHand covers what Helm refuses, and deletes, and conflicts with.
func TestJoinTokenReplacesSecretMadeByHand(t *testing.T) {
	hub := clusterWith(secret("ot-hub", "ot-member-oslo-join", map[string][]byte{"kubeconfig": []byte("next")}))
	member := clusterWith(secret("ot-agent", registration.JoinSecret, map[string][]byte{"kubeconfig": []byte("by hand"), "other": nil}))
	x := newExecutor(hub, member)
	steps := []join.Step{{Action: join.AwaitToken}, {Action: join.StoreToken}}
	require.NoError(t, x.Run(t.Context(), steps))
	stored := &corev1.Secret{}
	require.NoError(t, member.Get(t.Context(), client.ObjectKey{Namespace: "ot-agent", Name: registration.JoinSecret}, stored))
	assert.Equal(t, map[string][]byte{"kubeconfig": []byte("next")}, stored.Data)

	x.spent = []byte("next") // no other token was made meanwhile
	err := x.Run(t.Context(), steps)
	require.ErrorAs(t, err, new(TimeoutError))
	require.ErrorContains(t, err, "the hub has made no join token for oslo: does it run? kubectl -n ot-hub get pods")
}

// A ledger has no status between its creation and its first write, and after a restore.
func TestLedgerWithoutStatusSaysNothing(t *testing.T) {
	member := clusterWith(&v1alpha1.SyncLedger{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.LedgerName}})
	condition, err := readHubConnected(t.Context(), member, "ot-agent")
	require.NoError(t, err)
	assert.Nil(t, condition)
}

// TestWritesAreRepeatedAfterConflicts has somebody else write between each read and write.
func TestWritesAreRepeatedAfterConflicts(t *testing.T) {
	conflicts := 0
	member := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(secret("ot-agent", registration.JoinSecret, nil)).
		WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if conflicts++; conflicts < retry.DefaultRetry.Steps {
				return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, o.GetName(), errors.New("changed"))
			}
			return c.Update(ctx, o, options...)
		}}).Build()
	require.NoError(t, newExecutor(nil, member).storeToken(t.Context()))
	assert.Equal(t, retry.DefaultRetry.Steps, conflicts)
}

func TestWaitsGoOnWithoutAnAnswer(t *testing.T) {
	ready := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}
	ready.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	asked := 0
	failing := func(failure error, times int) client.Client {
		asked = 0
		return fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(ready.DeepCopy()).
			WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if asked++; asked <= times {
					return failure
				}
				return c.Get(ctx, key, o, options...)
			}}).Build()
	}
	x := newExecutor(failing(errors.New("connection refused"), 1), nil)
	x.Timeout = time.Minute
	require.NoError(t, x.awaitReady(t.Context()))
	assert.Equal(t, 2, asked)

	x.Hub = failing(apierrors.NewForbidden(schema.GroupResource{Resource: "memberclusters"}, "oslo", errors.New("no")), 1)
	require.ErrorContains(t, x.awaitReady(t.Context()), "is forbidden")
	assert.Equal(t, 1, asked, "a refusal is an answer")

	x.Hub, x.Timeout = failing(errors.New("connection refused"), 1000), time.Nanosecond
	require.ErrorContains(t, x.awaitReady(t.Context()), "connection refused", "why it is not known counts")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.Hub, x.Timeout = failing(errors.New("canceled"), 1000), time.Minute
	require.ErrorIs(t, x.awaitReady(ctx), context.Canceled)
}

// TestRunningAgentStoresNothingAfterLeave has the agent, which works on, act on each deletion at once.
func TestRunningAgentStoresNothingAfterLeave(t *testing.T) {
	deleted := 0
	member := fake.NewClientBuilder().WithScheme(connect.Scheme).
		WithObjects(secret("ot-agent", registration.JoinSecret, nil), secret("ot-agent", registration.CredentialSecret, nil)).
		WithInterceptorFuncs(interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			deleted++
			if err := c.Delete(ctx, o, options...); err != nil {
				return err
			}
			var left corev1.SecretList
			require.NoError(t, c.List(ctx, &left))
			if len(left.Items) == 1 && left.Items[0].Name == registration.JoinSecret {
				return c.Create(ctx, secret("ot-agent", registration.CredentialSecret, nil))
			}
			return nil
		}}).Build()
	require.NoError(t, newExecutor(nil, member).Run(t.Context(), []join.Step{{Action: join.DeleteCredential}}))
	assert.Equal(t, 2, deleted)
	var left corev1.SecretList
	require.NoError(t, member.List(t.Context(), &left))
	assert.Empty(t, left.Items)
}

func TestTokenFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "join.kubeconfig")
	require.NoError(t, os.WriteFile(path+".new", []byte("left behind"), 0o644))
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, writePrivateFile(path, []byte("token")))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "token", string(text))
}
