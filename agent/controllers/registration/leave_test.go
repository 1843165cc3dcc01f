package registration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/registration"
)

// maxRequests is more than three reconciles have.
const maxRequests = 20

// leaveDuring deletes the join Secret before request joinAt for a Secret, and the credential before
// request credentialAt, as a member does that leaves. It counts the requests.
type leaveDuring struct {
	joinAt, credentialAt, requests int
}

func (l *leaveDuring) act(ctx context.Context, c client.Client, o client.Object) error {
	if _, isSecret := o.(*corev1.Secret); !isSecret {
		return nil
	}
	l.requests++
	if l.requests == l.joinAt {
		if err := c.Delete(ctx, newSecret(registration.JoinSecret, nil)); err != nil {
			return err
		}
	}
	if l.requests == l.credentialAt {
		return c.Delete(ctx, newSecret(registration.CredentialSecret, nil))
	}
	return nil
}

func (l *leaveDuring) intercept() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if err := l.act(ctx, c, o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := l.act(ctx, c, o); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if err := l.act(ctx, c, o); err != nil {
				return err
			}
			return c.Update(ctx, o, options...)
		},
	}
}

// TestNoCredentialAfterLeave deletes the two Secrets at each pair of moments of a running agent, in
// the documented order.
func TestNoCredentialAfterLeave(t *testing.T) {
	token := newKubeconfig(t, "ot-member-a", newToken("join-1", testStart, time.Hour))
	current, err := parseCredential(newKubeconfig(t, "ot-member-a", newToken("agent-1", testStart, time.Hour)))
	require.NoError(t, err)
	current.receivedAt = time.Now()
	used := parseJoinSecret(map[string][]byte{registration.KubeconfigKey: token}).hash
	for name, stored := range map[string]storedCredential{
		"registered":                  {clusterUID: ownClusterUID, key: newKey(t), usedJoinHash: used, credential: &current},
		"registered, another token":   {clusterUID: ownClusterUID, key: newKey(t), usedJoinHash: "before", credential: &current},
		"waiting for acceptance":      {clusterUID: ownClusterUID, key: newKey(t)},
		"copied from another cluster": {clusterUID: "other", key: newKey(t), credential: &current},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := stored.secretData()
			require.NoError(t, err)
			tried := 0
			for joinAt := 1; joinAt <= maxRequests; joinAt++ {
				for credentialAt := joinAt; credentialAt <= maxRequests; credentialAt++ {
					leave := &leaveDuring{joinAt: joinAt, credentialAt: credentialAt}
					r, _ := newTestReconciler(t, leave.intercept(), newSecret(registration.JoinSecret, map[string][]byte{registration.KubeconfigKey: token}), newSecret(registration.CredentialSecret, data))
					ctx, cancel := context.WithCancel(t.Context())
					cancel() // the hub is not asked
					for range 3 {
						_, err := r.Reconcile(ctx, ctrl.Request{})
						require.NoError(t, err)
					}
					if leave.requests < credentialAt {
						break // the agent is done
					}
					tried++
					err := r.Live.Get(t.Context(), client.ObjectKey{Namespace: "ot-agent", Name: registration.CredentialSecret}, &corev1.Secret{})
					assert.True(t, apierrors.IsNotFound(err), "join Secret deleted before request %d, credential before request %d: %v", joinAt, credentialAt, err)
				}
			}
			assert.Greater(t, tried, 10)
		})
	}
}
