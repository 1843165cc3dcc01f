//go:build linux

package registration_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forgeToken is a token that expires at another time, signed with the API server's own
// key: what the same token is when that time has come. Nobody has to wait for it.
func forgeToken(t *testing.T, token string, expires time.Duration) string {
	t.Helper()
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	var claims map[string]any
	require.NoError(t, json.Unmarshal(payload, &claims))
	now := time.Now()
	claims["exp"] = now.Add(expires).Unix()
	claims["iat"], claims["nbf"] = now.Add(-time.Hour).Unix(), now.Add(-time.Hour).Unix()
	payload, err = json.Marshal(claims)
	require.NoError(t, err)

	text, err := os.ReadFile(filepath.Join(shared.Plane.Dir(), "service-accounts.key"))
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	require.NotNil(t, block)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	require.NoError(t, err)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	require.NoError(t, err)
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}
