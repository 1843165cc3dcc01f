package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=secrets,verbs=get;create;update

// KeySecret is the Secret in the hub's namespace with the keys of cookies. Its name may be written
// by the hub (admission policy ot-hub-account).
const KeySecret = "ot-hub-ui-key"

// Keys of the Secret.
const (
	keyCurrent  = "key"
	keyPrevious = "previous"
	keyMade     = "made"
)

const (
	// keyReadInterval is how often a replica reads the Secret.
	keyReadInterval = 15 * time.Second
	// keyReadAgain is how soon it does for a cookie that it cannot read.
	keyReadAgain = time.Second
	// keyReadTimeout bounds a read that requests wait for.
	keyReadTimeout = 5 * time.Second
	// keyLife is how long a key seals. It opens cookies for as long again.
	keyLife = 7 * 24 * time.Hour
)

// KeyStore holds the keys of cookies, which all replicas share by a Secret. It implements
// manager.Runnable.
//
// Deleting the Secret ends all cookies: the next read creates other keys.
type KeyStore struct {
	// Live bypasses the cache.
	Live      client.Client
	Namespace string

	// reading is held while the Secret is read for a request.
	reading sync.Mutex
	mu      sync.Mutex
	keys    keys
	// triedAt is when the Secret was last read, successfully or not.
	triedAt time.Time
}

// Start reads the Secret again and again, and rotates the keys.
func (s *KeyStore) Start(ctx context.Context) error {
	ticker := time.NewTicker(keyReadInterval)
	defer ticker.Stop()
	for {
		if err := s.read(ctx, time.Now()); err != nil {
			log.FromContext(ctx).Error(err, "Failed to read the keys of the dashboard's cookies; retrying", "secret", KeySecret, "retryAfter", keyReadInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*KeyStore) NeedLeaderElection() bool { return false }

// errNoKeys is the error of cookies while the Secret has never been read.
var errNoKeys = errors.New("the keys of the dashboard's cookies are not known yet")

// openCookies returns the token in a request's cookies. Another replica may have rotated the keys: they
// are read again for a cookie that cannot be read.
func (s *KeyStore) openCookies(request *http.Request, now time.Time) (token string, end time.Time, err error) {
	token, end, err = s.current().openToken(request, now)
	if !errors.Is(err, errUnreadable) {
		return token, end, err
	}
	s.readAgain(request.Context(), now)
	known := s.current()
	if known.current == nil {
		return "", end, errNoKeys
	}
	return known.openToken(request, now)
}

// sealCookies returns cookies that hold a token. The Secret may have been deleted since it was read:
// the other replicas would not open what the key before seals.
func (s *KeyStore) sealCookies(ctx context.Context, token string, now, end time.Time) ([]*http.Cookie, error) {
	s.readAgain(ctx, now)
	known := s.current()
	if known.current == nil {
		return nil, errNoKeys
	}
	return known.sealToken(token, now, end)
}

func (s *KeyStore) current() keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys
}

// readAgain reads the Secret unless that was tried a moment ago. Invariant: requests cost the API
// server one read in keyReadAgain, however many they are and whether or not it answers.
func (s *KeyStore) readAgain(ctx context.Context, now time.Time) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	recent := now.Sub(s.triedAt) < keyReadAgain
	s.mu.Unlock()
	if recent {
		return
	}
	// Others wait for it, whether or not this caller does.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyReadTimeout)
	defer cancel()
	if err := s.read(ctx, now); err != nil {
		log.FromContext(ctx).V(1).Info("Failed to read the keys of the dashboard's cookies", "secret", KeySecret, "error", err.Error())
	}
}

// read reads the Secret, creates it where it is missing, and rotates the keys when they are old.
// Invariant: a key is stored before it seals.
func (s *KeyStore) read(ctx context.Context, now time.Time) error {
	secret, err := s.ensureSecret(ctx, now)
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		secret, err = s.ensureSecret(ctx, now) // another replica was faster
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.triedAt = now
	if err != nil {
		return fmt.Errorf("keeping Secret %s/%s: %w", s.Namespace, KeySecret, err)
	}
	s.keys = keys{current: secret.Data[keyCurrent], previous: secret.Data[keyPrevious]}
	return nil
}

func (s *KeyStore) ensureSecret(ctx context.Context, now time.Time) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: KeySecret}, secret)
	switch {
	case apierrors.IsNotFound(err):
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: KeySecret}}
		if err := setNewKey(secret, now); err != nil {
			return nil, err
		}
		return secret, s.Live.Create(ctx, secret)
	case err != nil:
		return nil, err
	case needsNewKey(secret, now):
		if err := setNewKey(secret, now); err != nil {
			return nil, err
		}
		return secret, s.Live.Update(ctx, secret)
	}
	return secret, nil
}

// needsNewKey reports whether the key is old or of the wrong size. A time in the future is that of
// a clock that was wrong.
func needsNewKey(secret *corev1.Secret, now time.Time) bool {
	made, err := time.Parse(time.RFC3339, string(secret.Data[keyMade]))
	age := now.Sub(made)
	return err != nil || age >= keyLife || age < -time.Hour || len(secret.Data[keyCurrent]) != keyBytes
}

// setNewKey gives a Secret a random key, and keeps the key it had as the previous one.
func setNewKey(secret *corev1.Secret, now time.Time) error {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("making a key for the dashboard's cookies: %w", err)
	}
	had := secret.Data[keyCurrent]
	secret.Data = map[string][]byte{keyCurrent: key, keyMade: []byte(now.UTC().Format(time.RFC3339))}
	if len(had) == keyBytes {
		secret.Data[keyPrevious] = had
	}
	return nil
}
