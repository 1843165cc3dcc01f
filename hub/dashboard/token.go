package dashboard

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// bearerPrefix is the scheme of Authorization. Schemes ignore case.
const bearerPrefix = "bearer "

var errSeveralHeaders = errors.New("there are several Authorization headers")

// bearerToken returns the token in Authorization; "" for none. Another scheme, such as the basic
// one of an ingress, is no credential of a person for the API server.
func bearerToken(header http.Header) (string, error) {
	values := header.Values("Authorization")
	if len(values) > 1 {
		return "", errSeveralHeaders
	}
	if len(values) == 0 || len(values[0]) < len(bearerPrefix) || !strings.EqualFold(values[0][:len(bearerPrefix)], bearerPrefix) {
		return "", nil
	}
	return strings.TrimSpace(values[0][len(bearerPrefix):]), nil
}

// cleanToken returns a pasted token without what surrounds it, and whether it has the form of one:
// token68 of RFC 6750.
func cleanToken(text string) (token string, ok bool) {
	token = strings.TrimSpace(text)
	if len(token) >= len(bearerPrefix) && strings.EqualFold(token[:len(bearerPrefix)], bearerPrefix) {
		token = strings.TrimSpace(token[len(bearerPrefix):])
	}
	return token, isToken(token)
}

func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("-._~+/=", rune(c)) {
			return false
		}
	}
	return text != ""
}

// signInEnd returns when a sign-in with a token ends: with a JWT, whose claim is believed after the
// API server has accepted it, or after maxSignIn.
func signInEnd(token string, now time.Time) time.Time {
	latest := now.Add(maxSignIn)
	if end, ok := tokenEnd(token); ok && end.Before(latest) {
		return end
	}
	return latest
}

// maxTokenEnd is a time beyond all tokens, at which a time in seconds is still exact.
const maxTokenEnd = 1 << 40

// tokenEnd returns the end that a JWT claims; false where it claims none.
func tokenEnd(token string) (time.Time, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, false
	}
	var claims struct {
		Expires float64 `json:"exp"` // NumericDate of RFC 7519 may have a fraction
	}
	if json.Unmarshal(text, &claims) != nil || claims.Expires <= 0 || claims.Expires >= maxTokenEnd {
		return time.Time{}, false
	}
	return time.Unix(int64(claims.Expires), 0), true
}
