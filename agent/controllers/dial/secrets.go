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

	"github.com/pelotech/ot-fleet/api/join"
)

// Keys of Secret ot-hub-credential, beside join.KubeconfigKey with the credential.
const (
	clusterKey  = "cluster"
	keyKey      = "key"
	usedKey     = "used"
	receivedKey = "received"
)

// readInvitation returns what the platform team has put there; nil for nothing.
func (r *Reconciler) readInvitation(ctx context.Context) (*invitation, error) {
	secret, err := r.secret(ctx, join.JoinSecret)
	if err != nil || secret == nil {
		return nil, err
	}
	return parseInvitation(secret.Data), nil
}

func parseInvitation(data map[string][]byte) *invitation {
	kubeconfig := data[join.KubeconfigKey]
	if len(kubeconfig) == 0 {
		return &invitation{fault: fmt.Sprintf("Secret %s has no key %s", join.JoinSecret, join.KubeconfigKey)}
	}
	sum := sha256.Sum256(kubeconfig)
	i := &invitation{hash: hex.EncodeToString(sum[:])}
	c, err := readCredential(kubeconfig)
	if err != nil {
		i.fault = fmt.Sprintf("Secret %s, key %s: %v", join.JoinSecret, join.KubeconfigKey, err)
		return i
	}
	i.access, i.token = c.access, c.token
	return i
}

// readKept returns what this agent, or one before it, has stored. What somebody made
// unreadable is not there.
func (r *Reconciler) readKept(ctx context.Context) (kept, *corev1.Secret, error) {
	secret, err := r.secret(ctx, join.CredentialSecret)
	if err != nil || secret == nil {
		return kept{}, nil, err
	}
	return parseKept(secret.Data), secret, nil
}

func parseKept(data map[string][]byte) kept {
	k := kept{cluster: types.UID(data[clusterKey]), used: string(data[usedKey])}
	if key, err := join.ParseKey(data[keyKey]); err == nil {
		k.key = &key
	}
	if c, err := readCredential(data[join.KubeconfigKey]); err == nil {
		// A time that cannot be read is long ago: the token is renewed.
		c.received, _ = time.Parse(time.RFC3339Nano, string(data[receivedKey]))
		k.credential = &c
	}
	return k
}

func (k kept) data() (map[string][]byte, error) {
	data := map[string][]byte{clusterKey: []byte(k.cluster), usedKey: []byte(k.used)}
	if k.key != nil {
		data[keyKey] = k.key.Bytes()
	}
	if c := k.credential; c != nil {
		kubeconfig, err := c.access.Kubeconfig()
		if err != nil {
			return nil, err
		}
		data[join.KubeconfigKey] = kubeconfig
		data[receivedKey] = []byte(c.received.UTC().Format(time.RFC3339Nano))
	}
	return data, nil
}

// keep stores what is to be kept, unless somebody else has since it was read: an
// agent that was paused must not replace the key with which the next one has asked.
func (r *Reconciler) keep(ctx context.Context, k kept, was *corev1.Secret) (*corev1.Secret, error) {
	data, err := k.data()
	if err != nil {
		return nil, err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Namespace, Name: join.CredentialSecret,
		Labels: map[string]string{"app.kubernetes.io/managed-by": "ot-agent"},
	}}
	verb, do := "creating", func() error { return r.Create(ctx, next) }
	if was != nil {
		next = was.DeepCopy()
		verb, do = "updating", func() error { return r.Update(ctx, next) }
	}
	next.Data = data
	if err := do(); err != nil {
		return nil, fmt.Errorf("%s Secret %s/%s, which is to hold the agent's credential on the hub: %w", verb, r.Namespace, join.CredentialSecret, err)
	}
	return next, nil
}

// secret is read past any cache; nil where there is none.
func (r *Reconciler) secret(ctx context.Context, name string) (*corev1.Secret, error) {
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
