package join

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

func key(t *testing.T) Key {
	t.Helper()
	k, err := NewKey(rand.Reader)
	require.NoError(t, err)
	return k
}

func TestOnlyTheHolderOfTheKeyOpensWhatIsSealedForIt(t *testing.T) {
	holder, other := key(t), key(t)
	sealed, err := Seal(holder.Public(), []byte("a token"), rand.Reader)
	require.NoError(t, err)
	assert.NotContains(t, string(sealed), "a token")

	opened, err := holder.Open(sealed)
	require.NoError(t, err)
	assert.Equal(t, "a token", string(opened))

	_, err = other.Open(sealed)
	require.Error(t, err)
	// The public half is in every ClusterJoin.
	_, err = Key{public: holder.public, private: other.private}.Open(sealed)
	require.Error(t, err)
	sealed[len(sealed)-1] ^= 1
	_, err = holder.Open(sealed)
	require.Error(t, err, "it was changed on the way")
}

func TestKeyIsKept(t *testing.T) {
	k := key(t)
	again, err := ParseKey(k.Bytes())
	require.NoError(t, err)
	assert.Equal(t, k, again)
	_, err = ParseKey(k.Bytes()[1:])
	require.Error(t, err)
}

func TestPublicKeysThatAreNone(t *testing.T) {
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
	// As head --bytes=32 /dev/zero | openssl dgst -sha256 -binary | base64 has it.
	assert.Equal(t, "SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU", got)
	other, err := Fingerprint(key(t).Public())
	require.NoError(t, err)
	assert.Len(t, other, 50)
	assert.NotEqual(t, got, other)
}

func TestAccessIsWrittenAndRead(t *testing.T) {
	want := Access{Server: "https://hub.example:6443", CA: []byte("ca"), Namespace: "ot-member-frankfurt", Token: "a.b.c"}
	data, err := want.Kubeconfig()
	require.NoError(t, err)
	got, err := ParseAccess(data)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestAccessThatIsNone(t *testing.T) {
	whole := Access{Server: "https://hub", Namespace: "n", Token: "t"}
	for name, change := range map[string]func(*Access){
		"no server":    func(a *Access) { a.Server = "" },
		"plain text":   func(a *Access) { a.Server = "http://hub" },
		"no namespace": func(a *Access) { a.Namespace = "" },
		"no token":     func(a *Access) { a.Token = "" },
	} {
		t.Run(name, func(t *testing.T) {
			a := whole
			change(&a)
			data, err := a.Kubeconfig()
			require.NoError(t, err)
			_, err = ParseAccess(data)
			require.Error(t, err)
		})
	}
	_, err := ParseAccess([]byte("{"))
	require.Error(t, err)
}

// What is wrong with a Secret goes into conditions and logs.
func TestWhatIsNoKubeconfigIsNotRepeated(t *testing.T) {
	for name, text := range map[string]string{
		"the token alone":    "secret0123456789",
		"an unknown anchor":  "users: *secret0123456789",
		"a tag":              "users: !secret0123456789 [1]",
		"a number of a kind": "users: [{name: me, user: secret0123456789}]",
		"a key twice":        "secret0123456789: 1\nsecret0123456789: 2",
		"no base64":          "clusters: [{name: c, cluster: {certificate-authority-data: secret0123456789-}}]",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAccess([]byte(text))
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "secret0123456789")
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

func token(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestToken(t *testing.T) {
	got, err := ParseToken(token(`{"iat":1000,"exp":4600,"kubernetes.io":{"namespace":"n","serviceaccount":{"name":"s","uid":"1-2"}}}`))
	require.NoError(t, err)
	assert.Equal(t, Token{Account: "1-2", Issued: time.Unix(1000, 0), Expires: time.Unix(4600, 0)}, got)

	for name, text := range map[string]string{
		"nothing":              "",
		"opaque":               "abc",
		"no base64":            "a.!.c",
		"no JSON":              token("{"),
		"no account":           token(`{"exp":4600}`),
		"it never expires":     token(`{"iat":1000,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
		"no time of issue":     token(`{"exp":4600,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
		"it lives for no time": token(`{"iat":4600,"exp":4600,"kubernetes.io":{"serviceaccount":{"uid":"1"}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseToken(text)
			require.Error(t, err)
		})
	}
}

func TestHolder(t *testing.T) {
	assert.Equal(t, types.UID("1-2"), HolderAccount(Holder("boot/1", Token{Account: "1-2"})))
	assert.Empty(t, HolderAccount("boot"))
	assert.Empty(t, HolderAccount(""))
}

func TestSecretName(t *testing.T) {
	assert.Equal(t, "ot-member-frankfurt-join", SecretName("frankfurt"))
	for name, want := range map[string]string{
		"ot-member-frankfurt-join": "frankfurt", "ot-member-a-join-join": "a-join",
		"ot-member-frankfurt": "", "ot-member--join": "", "frankfurt-join": "",
	} {
		got, is := SecretMember(name)
		assert.Equal(t, want, got, name)
		assert.Equal(t, want != "", is, name)
	}
}
