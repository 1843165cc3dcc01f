package registration

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TokenClaims are the claims of a ServiceAccount token. They are not verified here; the
// API server does that.
type TokenClaims struct {
	// AccountUID is the UID of the ServiceAccount; the token is invalid once that is
	// deleted.
	AccountUID types.UID
	// Issued and Expires are by the API server's clock. The agent renews after two
	// thirds of the time between.
	Issued, Expires time.Time
}

// ParseTokenClaims reads the claims of a token.
func ParseTokenClaims(token string) (TokenClaims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return TokenClaims{}, errors.New("it is not a ServiceAccount token: it does not have three parts")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return TokenClaims{}, fmt.Errorf("reading a token: %w", err)
	}
	var claims struct {
		Issued     int64 `json:"iat"`
		Expires    int64 `json:"exp"`
		Kubernetes struct {
			Account struct {
				UID types.UID `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return TokenClaims{}, fmt.Errorf("reading a token: %w", err)
	}
	if claims.Kubernetes.Account.UID == "" || claims.Issued <= 0 || claims.Expires <= claims.Issued {
		return TokenClaims{}, errors.New("it is not a ServiceAccount token with a valid expiry")
	}
	return TokenClaims{AccountUID: claims.Kubernetes.Account.UID, Issued: time.Unix(claims.Issued, 0), Expires: time.Unix(claims.Expires, 0)}, nil
}

// LeaseHolder returns the holderIdentity of an agent's Lease: its boot ID and the
// ServiceAccount of the token it uses.
func LeaseHolder(bootID string, t TokenClaims) string { return bootID + "/" + string(t.AccountUID) }

// AccountOfHolder returns the UID of the ServiceAccount in a holderIdentity; empty if
// there is none.
func AccountOfHolder(holder string) types.UID {
	at := strings.LastIndexByte(holder, '/')
	if at < 0 {
		return ""
	}
	return types.UID(holder[at+1:])
}
