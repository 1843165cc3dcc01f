package dial

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

	"github.com/pelotech/ot-fleet/api/registration"
)

// Keys of Secret ot-hub-credential, beside join.KubeconfigKey with the credential.
const (
	clusterUIDKey   = "cluster"
	privateKeyKey   = "key"
	usedJoinHashKey = "used"
	receivedAtKey   = "received"
)

// readJoinSecret returns what the platform team has put there; nil for nothing.
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
		return &joinSecret{fault: fmt.Sprintf("Secret %s has no key %s", registration.JoinSecret, registration.KubeconfigKey)}
	}
	sum := sha256.Sum256(kubeconfig)
	i := &joinSecret{hash: hex.EncodeToString(sum[:])}
	c, err := parseCredential(kubeconfig)
	if err != nil {
		i.fault = fmt.Sprintf("Secret %s, key %s: %v", registration.JoinSecret, registration.KubeconfigKey, err)
		return i
	}
	i.access, i.token = c.access, c.token
	return i
}

// readStoredCredential returns what this agent, or one before it, has stored. What somebody made
// unreadable is not there.
func (r *Reconciler) readStoredCredential(ctx context.Context) (storedCredential, *corev1.Secret, error) {
	secret, err := r.getSecret(ctx, registration.CredentialSecret)
	if err != nil || secret == nil {
		return storedCredential{}, nil, err
	}
	return parseStoredCredential(secret.Data), secret, nil
}

func parseStoredCredential(data map[string][]byte) storedCredential {
	k := storedCredential{clusterUID: types.UID(data[clusterUIDKey]), usedJoinHash: string(data[usedJoinHashKey])}
	if key, err := registration.ParseKeyPair(data[privateKeyKey]); err == nil {
		k.key = &key
	}
	if c, err := parseCredential(data[registration.KubeconfigKey]); err == nil {
		// A time that cannot be read is long ago: the token is renewed.
		c.receivedAt, _ = time.Parse(time.RFC3339Nano, string(data[receivedAtKey]))
		k.credential = &c
	}
	return k
}

func (k storedCredential) secretData() (map[string][]byte, error) {
	data := map[string][]byte{clusterUIDKey: []byte(k.clusterUID), usedJoinHashKey: []byte(k.usedJoinHash)}
	if k.key != nil {
		data[privateKeyKey] = k.key.Bytes()
	}
	if c := k.credential; c != nil {
		kubeconfig, err := c.access.MarshalKubeconfig()
		if err != nil {
			return nil, err
		}
		data[registration.KubeconfigKey] = kubeconfig
		data[receivedAtKey] = []byte(c.receivedAt.UTC().Format(time.RFC3339Nano))
	}
	return data, nil
}

// storeCredential stores what is to be kept, unless somebody else has since it was read: an
// agent that was paused must not replace the key with which the next one has asked.
func (r *Reconciler) storeCredential(ctx context.Context, k storedCredential, was *corev1.Secret) (*corev1.Secret, error) {
	data, err := k.secretData()
	if err != nil {
		return nil, err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Namespace, Name: registration.CredentialSecret,
		Labels: map[string]string{"app.kubernetes.io/managed-by": "ot-agent"},
	}}
	verb, do := "creating", func() error { return r.Create(ctx, next) }
	if was != nil {
		next = was.DeepCopy()
		verb, do = "updating", func() error { return r.Update(ctx, next) }
	}
	next.Data = data
	if err := do(); err != nil {
		return nil, fmt.Errorf("%s Secret %s/%s, which is to hold the agent's credential on the hub: %w", verb, r.Namespace, registration.CredentialSecret, err)
	}
	return next, nil
}

// getSecret is read past any cache; nil where there is none.
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
