package registration

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func newTestKey(t *testing.T) KeyPair {
	t.Helper()
	k, err := NewKeyPair(rand.Reader)
	require.NoError(t, err)
	return k
}

func TestOnlyKeyHolderOpensSealedMessage(t *testing.T) {
	holder, other := newTestKey(t), newTestKey(t)
	sealed, err := Seal(holder.PublicKey(), []byte("a token"), rand.Reader)
	require.NoError(t, err)
	assert.NotContains(t, string(sealed), "a token")

	opened, err := holder.OpenSealed(sealed)
	require.NoError(t, err)
	assert.Equal(t, "a token", string(opened))

	_, err = other.OpenSealed(sealed)
	require.Error(t, err)
	// The public key is in every ClusterJoin.
	_, err = KeyPair{publicKey: holder.publicKey, privateKey: other.privateKey}.OpenSealed(sealed)
	require.Error(t, err)
	sealed[len(sealed)-1] ^= 1
	_, err = holder.OpenSealed(sealed)
	require.Error(t, err, "it was changed on the way")
}

func TestKeyPairRoundTrips(t *testing.T) {
	k := newTestKey(t)
	again, err := ParseKeyPair(k.Bytes())
	require.NoError(t, err)
	assert.Equal(t, k, again)
	_, err = ParseKeyPair(k.Bytes()[1:])
	require.Error(t, err)
}

func TestInvalidPublicKeysAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":   "",
		"no base64": strings.Repeat("!", 44),
		"too short": base64.StdEncoding.EncodeToString(make([]byte, 31)),
		"too long":  base64.StdEncoding.EncodeToString(make([]byte, 33)),
		"odd bits":  strings.Repeat("A", 42) + "B=",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Seal(text, nil, rand.Reader)
			require.Error(t, err)
			_, err = Fingerprint(text)
			require.Error(t, err)
		})
	}
}

func TestFingerprint(t *testing.T) {
	got, err := Fingerprint(base64.StdEncoding.EncodeToString(make([]byte, keySize)))
	require.NoError(t, err)
	// Computed by head --bytes=32 /dev/zero | openssl dgst -sha256 -binary | base64.
	assert.Equal(t, "SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU", got)
	other, err := Fingerprint(newTestKey(t).PublicKey())
	require.NoError(t, err)
	assert.Len(t, other, 50)
	assert.NotEqual(t, got, other)
}

func TestHubAccessRoundTrips(t *testing.T) {
	want := HubAccess{Server: "https://hub.example:6443", CA: []byte("ca"), Namespace: "ot-member-frankfurt", Token: "a.b.c"}
	data, err := want.MarshalKubeconfig()
	require.NoError(t, err)
	got, err := ParseHubAccess(data)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestIncompleteKubeconfigsAreRefused(t *testing.T) {
	whole := HubAccess{Server: "https://hub", Namespace: "n", Token: "t"}
	for name, change := range map[string]func(*HubAccess){
		"no server":    func(a *HubAccess) { a.Server = "" },
		"plain text":   func(a *HubAccess) { a.Server = "http://hub" },
		"no namespace": func(a *HubAccess) { a.Namespace = "" },
		"no token":     func(a *HubAccess) { a.Token = "" },
	} {
		t.Run(name, func(t *testing.T) {
			a := whole
			change(&a)
			data, err := a.MarshalKubeconfig()
			require.NoError(t, err)
			_, err = ParseHubAccess(data)
			require.Error(t, err)
		})
	}
	_, err := ParseHubAccess([]byte("{"))
	require.Error(t, err)
}

// Errors about a Secret go into conditions and logs.
func TestParseErrorDoesNotRepeatInput(t *testing.T) {
	for name, text := range map[string]string{
		"the token alone":    "secret0123456789",
		"an unknown anchor":  "users: *secret0123456789",
		"a tag":              "users: !secret0123456789 [1]",
		"a number of a kind": "users: [{name: me, user: secret0123456789}]",
		"a key twice":        "secret0123456789: 1\nsecret0123456789: 2",
		"no base64":          "clusters: [{name: c, cluster: {certificate-authority-data: secret0123456789-}}]",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHubAccess([]byte(text))
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "secret0123456789")
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

func newTestToken(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestParseTokenClaims(t *testing.T) {
	got, err := ParseTokenClaims(newTestToken(`{"iat":1000,"exp":4600,"kubernetes.io":{"namespace":"n","serviceaccount":{"name":"s","uid":"1-2"}}}`))
	require.NoError(t, err)
	assert.Equal(t, TokenClaims{AccountUID: "1-2", Issued: time.Unix(1000, 0), Expires: time.Unix(4600, 0)}, got)

	for name, text := range map[string]string{
		"nothing":              "",
		"opaque":               "abc",
		"no base64":            "a.!.c",
		"no JSON":              newTestToken("{"),
		"no account":           newTestToken(`{"exp":4600}`),
		"it never expires":     newTestToken(`{"iat":1000,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
		"no time of issue":     newTestToken(`{"exp":4600,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
		"it lives for no time": newTestToken(`{"iat":4600,"exp":4600,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseTokenClaims(text)
			require.Error(t, err)
		})
	}
}

func TestLeaseHolderRoundTrips(t *testing.T) {
	assert.Equal(t, types.UID("1-2"), AccountOfHolder(LeaseHolder("boot/1", TokenClaims{AccountUID: "1-2"})))
	assert.Empty(t, AccountOfHolder("boot"))
	assert.Empty(t, AccountOfHolder(""))
}

func TestJoinSecretNameRoundTrips(t *testing.T) {
	assert.Equal(t, "ot-member-frankfurt-join", JoinSecretName("frankfurt"))
	for name, want := range map[string]string{
		"ot-member-frankfurt-join": "frankfurt", "ot-member-a-join-join": "a-join",
		"ot-member-frankfurt": "", "ot-member--join": "", "frankfurt-join": "",
	} {
		got, ok := MemberOfJoinSecret(name)
		assert.Equal(t, want, got, name)
		assert.Equal(t, want != "", ok, name)
	}
}
