package registration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/api/registration"
)

// Keys of Secret ot-hub-credential, beside registration.KubeconfigKey.
const (
	clusterUIDKey   = "cluster"
	privateKeyKey   = "key"
	usedJoinHashKey = "used"
	receivedAtKey   = "received"
)

// joinSecret is Secret ot-hub-join, which the platform team creates.
type joinSecret struct {
	mailbox.Credential
	// hash of the kubeconfig: a join token that is used up is recognized by it.
	hash string
	// invalid is why the Secret cannot be used; then Credential is not valid.
	invalid string
}

// credential is the agent's credential on the hub.
type credential struct {
	mailbox.Credential
	// receivedAt is when this agent stored it, by its own clock: the offset between its
	// clock and the hub's does not matter.
	receivedAt time.Time
}

// storedCredential is Secret ot-hub-credential, which the agent owns.
type storedCredential struct {
	// clusterUID is the cluster in which the Secret was made: a copy of it in another
	// cluster is ignored.
	clusterUID types.UID
	key        *registration.KeyPair
	// usedJoinHash is the hash of the join Secret that led to credential.
	usedJoinHash string
	credential   *credential
}

// readJoinSecret returns nil if there is none.
func (r *Reconciler) readJoinSecret(ctx context.Context) (*joinSecret, error) {
	secret, err := r.getSecret(ctx, registration.JoinSecret)
	if err != nil || secret == nil {
		return nil, err
	}
	return parseJoinSecret(secret.Data), nil
}

func parseJoinSecret(data map[string][]byte) *joinSecret {
	kubeconfig := data[registration.KubeconfigKey]
	if len(kubeconfig) == 0 {
		return &joinSecret{invalid: fmt.Sprintf("Secret %s has no key %s", registration.JoinSecret, registration.KubeconfigKey)}
	}
	sum := sha256.Sum256(kubeconfig)
	s := &joinSecret{hash: hex.EncodeToString(sum[:])}
	c, err := parseCredential(kubeconfig)
	if err != nil {
		s.invalid = fmt.Sprintf("Secret %s, key %s: %v", registration.JoinSecret, registration.KubeconfigKey, err)
		return s
	}
	s.Credential = c.Credential
	return s
}

func parseCredential(kubeconfig []byte) (credential, error) {
	access, err := registration.ParseHubAccess(kubeconfig)
	if err != nil {
		return credential{}, err
	}
	claims, err := registration.ParseTokenClaims(access.Token)
	return credential{Credential: mailbox.Credential{Access: access, Claims: claims}}, err
}

// readStoredCredential returns what this agent, or an earlier one, has stored. Keys that
// cannot be parsed count as missing. The Secret is nil if there is none.
func (r *Reconciler) readStoredCredential(ctx context.Context) (storedCredential, *corev1.Secret, error) {
	secret, err := r.getSecret(ctx, registration.CredentialSecret)
	if err != nil || secret == nil {
		return storedCredential{}, nil, err
	}
	return parseStoredCredential(secret.Data), secret, nil
}

func parseStoredCredential(data map[string][]byte) storedCredential {
	stored := storedCredential{clusterUID: types.UID(data[clusterUIDKey]), usedJoinHash: string(data[usedJoinHashKey])}
	if key, err := registration.ParseKeyPair(data[privateKeyKey]); err == nil {
		stored.key = &key
	}
	if c, err := parseCredential(data[registration.KubeconfigKey]); err == nil {
		// Without a valid time it is the zero time, and the token is renewed at once.
		c.receivedAt, _ = time.Parse(time.RFC3339Nano, string(data[receivedAtKey]))
		stored.credential = &c
	}
	return stored
}

func (s storedCredential) secretData() (map[string][]byte, error) {
	data := map[string][]byte{clusterUIDKey: []byte(s.clusterUID), usedJoinHashKey: []byte(s.usedJoinHash)}
	if s.key != nil {
		data[privateKeyKey] = s.key.Bytes()
	}
	if c := s.credential; c != nil {
		kubeconfig, err := c.Access.MarshalKubeconfig()
		if err != nil {
			return nil, err
		}
		data[registration.KubeconfigKey] = kubeconfig
		data[receivedAtKey] = []byte(c.receivedAt.UTC().Format(time.RFC3339Nano))
	}
	return data, nil
}

// storeCredential writes the Secret in place of previous, nil for none, and of no other: an
// agent that was paused must not replace the key that its successor has sent to the hub.
func (r *Reconciler) storeCredential(ctx context.Context, stored storedCredential, previous *corev1.Secret) (*corev1.Secret, error) {
	data, err := stored.secretData()
	if err != nil {
		return nil, err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Namespace, Name: registration.CredentialSecret,
		Labels: map[string]string{"app.kubernetes.io/managed-by": "ot-agent"},
	}}
	verb, write := "creating", func() error { return r.Create(ctx, next) }
	if previous != nil {
		next = previous.DeepCopy()
		verb, write = "updating", func() error { return r.Update(ctx, next) }
	}
	next.Data = data
	if err := write(); err != nil {
		return nil, fmt.Errorf("%s Secret %s/%s for the agent's credential on the hub: %w", verb, r.Namespace, registration.CredentialSecret, err)
	}
	return next, nil
}

// getSecret reads a Secret live; nil if there is none.
func (r *Reconciler) getSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s/%s: %w", r.Namespace, name, err)
	}
	return secret, nil
}
