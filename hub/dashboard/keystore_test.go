package dashboard

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// testReplicas share one API server.
func testReplicas(count int) (client.Client, []*KeyStore) {
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	replicas := make([]*KeyStore, count)
	for i := range replicas {
		replicas[i] = &KeyStore{Live: c, Namespace: "ot-hub"}
	}
	return c, replicas
}

func requireOpens(t *testing.T, s *KeyStore, token string, now time.Time, sealer *KeyStore) {
	t.Helper()
	cookies, err := sealer.sealCookies(t.Context(), token, now, now.Add(time.Hour))
	require.NoError(t, err)
	got, _, err := s.openCookies(requestWith(cookies...), now)
	require.NoError(t, err)
	require.Equal(t, token, got)
}

// What one replica seals, each other opens: started before or after it, and before and after each
// rotation.
func TestReplicasOpenEachOthersCookies(t *testing.T) {
	_, replicas := testReplicas(3)
	now := testTime
	for range 4 {
		for _, sealer := range replicas {
			for _, opener := range replicas {
				now = now.Add(2 * keyReadAgain)
				requireOpens(t, opener, "abc", now, sealer)
			}
		}
		now = now.Add(keyLife)
		require.NoError(t, replicas[1].read(t.Context(), now), "it rotates")
	}
}

// A cookie outlives one rotation, and a replica that restarts.
func TestCookieOutlivesRotation(t *testing.T) {
	c, replicas := testReplicas(2)
	cookies, err := replicas[0].sealCookies(t.Context(), "abc", testTime, testTime.Add(2*keyLife))
	require.NoError(t, err)
	later := testTime.Add(keyLife)
	require.NoError(t, replicas[1].read(t.Context(), later))
	restarted := &KeyStore{Live: c, Namespace: "ot-hub"}
	got, _, err := restarted.openCookies(requestWith(cookies...), later)
	require.NoError(t, err)
	require.Equal(t, "abc", got)
	require.NoError(t, replicas[1].read(t.Context(), later.Add(keyLife)))
	require.NoError(t, restarted.read(t.Context(), later.Add(keyLife)))
	_, _, err = restarted.openCookies(requestWith(cookies...), later)
	require.ErrorIs(t, err, errUnreadable, "not the second rotation")
}

// Deleting the Secret ends all cookies.
func TestDeletedKeysEndCookies(t *testing.T) {
	c, replicas := testReplicas(2)
	cookies, err := replicas[0].sealCookies(t.Context(), "abc", testTime, testTime.Add(time.Hour))
	require.NoError(t, err)
	secret := &corev1.Secret{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: KeySecret}, secret))
	require.NoError(t, c.Delete(t.Context(), secret))
	for _, r := range replicas {
		require.NoError(t, r.read(t.Context(), testTime))
		_, _, err := r.openCookies(requestWith(cookies...), testTime)
		require.ErrorIs(t, err, errUnreadable)
	}
	requireOpens(t, replicas[1], "abc", testTime.Add(time.Minute), replicas[0])
}

// Who signs in at a replica that has not heard of the deletion gets cookies of the next key.
func TestDeletedKeySealsNothing(t *testing.T) {
	c, replicas := testReplicas(2)
	for _, r := range replicas {
		require.NoError(t, r.read(t.Context(), testTime))
	}
	require.NoError(t, c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: KeySecret}}))
	later := testTime.Add(keyReadAgain)
	require.NoError(t, replicas[1].read(t.Context(), later))
	requireOpens(t, replicas[1], "abc", later, replicas[0])
}

// Replicas that start at once, or find an old key at once, agree.
func TestReplicasAgreeOnKeys(t *testing.T) {
	c, replicas := testReplicas(8)
	for _, now := range []time.Time{testTime, testTime.Add(keyLife)} {
		var all sync.WaitGroup
		for _, r := range replicas {
			all.Go(func() { assert.NoError(t, r.read(context.Background(), now)) })
		}
		all.Wait()
		secret := &corev1.Secret{}
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: KeySecret}, secret))
		for _, r := range replicas {
			known := r.current()
			assert.Equal(t, secret.Data[keyCurrent], known.current)
		}
	}
}

// Unreadable cookies cost the API server one read in a while, whatever is in them.
func TestUnreadableCookiesAreCheap(t *testing.T) {
	reads := 0
	_, replicas := testReplicas(1)
	s := replicas[0]
	s.Live = &countingClient{Client: s.Live, reads: &reads}
	require.NoError(t, s.read(t.Context(), testTime))
	foreign := sealed(t, keys{current: keyB}, "abc", testTime.Add(time.Hour))
	for i := range 1000 {
		_, _, err := s.openCookies(requestWith(foreign...), testTime.Add(time.Duration(i)*time.Millisecond))
		require.ErrorIs(t, err, errUnreadable)
	}
	assert.Equal(t, 1, reads)
	_, _, _ = s.openCookies(requestWith(foreign...), testTime.Add(keyReadAgain))
	assert.Equal(t, 2, reads)
}

// countingClient counts reads, and fails them with err unless that is nil.
type countingClient struct {
	client.Client
	reads *int
	err   error
}

func (c *countingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	*c.reads++
	if c.err != nil {
		return c.err
	}
	return c.Client.Get(ctx, key, o, options...)
}

// A Secret that somebody has changed to what is no key is replaced.
func TestKeysThatAreNone(t *testing.T) {
	for name, data := range map[string]map[string][]byte{
		"empty":              {},
		"short":              {keyCurrent: []byte("short"), keyMade: []byte(testTime.Format(time.RFC3339))},
		"without a time":     {keyCurrent: keyA},
		"made in the future": {keyCurrent: keyA, keyMade: []byte(testTime.Add(48 * time.Hour).Format(time.RFC3339))},
	} {
		t.Run(name, func(t *testing.T) {
			c, replicas := testReplicas(2)
			secret := &corev1.Secret{Data: data}
			secret.Namespace, secret.Name = "ot-hub", KeySecret
			require.NoError(t, c.Create(t.Context(), secret))
			requireOpens(t, replicas[1], "abc", testTime, replicas[0])
			known := replicas[0].current()
			assert.Len(t, known.current, keyBytes)
			assert.NotEqual(t, keyA, known.current)
		})
	}
}

// While the API server does not answer, keys that were read go on opening cookies, and requests do not
// add to its load. Without any key, nobody is taken for signed out.
func TestKeysWhileTheAPIServerIsDown(t *testing.T) {
	_, replicas := testReplicas(2)
	reads := 0
	down := &countingClient{Client: replicas[0].Live, reads: &reads, err: errors.New("connection refused")}
	cookies, err := replicas[0].sealCookies(t.Context(), "abc", testTime, testTime.Add(time.Hour))
	require.NoError(t, err)
	replicas[0].Live, replicas[1].Live = down, down
	got, _, err := replicas[0].openCookies(requestWith(cookies...), testTime.Add(time.Minute))
	require.NoError(t, err)
	assert.Equal(t, "abc", got)
	assert.Zero(t, reads)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			_, _, err := replicas[1].openCookies(requestWith(cookies...), testTime)
			assert.ErrorIs(t, err, errNoKeys)
		})
	}
	all.Wait()
	assert.Equal(t, 1, reads, "one for all of them")
	_, err = replicas[1].sealCookies(t.Context(), "abc", testTime, testTime.Add(time.Hour))
	require.ErrorIs(t, err, errNoKeys)
}
