package credential

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

const accountPrefix = "system:serviceaccount:"

// Describe returns what a bearer token says of itself. Nothing of it is verified: the
// member's API server does that, and a token that lies is refused there.
func Describe(token string) Given {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Given{Kind: "a token that is no ServiceAccount's"}
	}
	var claims struct {
		Subject      string `json:"sub"`
		Expires      int64  `json:"exp"`
		LegacySecret string `json:"kubernetes.io/serviceaccount/secret.name"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || !strings.HasPrefix(claims.Subject, accountPrefix) {
		return Given{Kind: "a token that is no ServiceAccount's"}
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(claims.Subject, accountPrefix), ":")
	given := Given{Kind: "a token of ServiceAccount " + namespace + "/" + name, Namespace: namespace, Account: name, LegacySecret: claims.LegacySecret}
	if claims.Expires > 0 {
		given.Expires = time.Unix(claims.Expires, 0)
	}
	return given
}
