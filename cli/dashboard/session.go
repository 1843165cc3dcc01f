package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"

	"github.com/pelotech/ot-fleet/ui"
)

// maxSessions bounds the browsers that have a cookie; the oldest is signed out.
const maxSessions = 16

// maxKeyBytes bounds the body of an exchange.
const maxKeyBytes = 1024

// Sessions knows who may use the dashboard: whoever had the one-time key, by the cookie that
// it was exchanged for. Only digests of both are remembered, which compare in constant time.
type Sessions struct {
	// cookie is another name in each process: cookies know no ports.
	cookie string

	mu sync.Mutex
	// key is the digest of the key that was not used yet; nil for none.
	key *digest
	// signedIn are the digests of cookies, the oldest first.
	signedIn []digest
}

type digest [sha256.Size]byte

// NewSessions returns Sessions that nobody is in.
func NewSessions() *Sessions { return &Sessions{cookie: "ot-fleet-" + rand.Text()} }

// NewKey returns a key that one browser can sign in with, once. The key before, if unused, is
// void.
func (s *Sessions) NewKey() string {
	key := rand.Text() + rand.Text()
	sum := digest(sha256.Sum256([]byte(key)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = &sum
	return key
}

// exchange returns the cookie for a key, and voids the key; false for any other key.
func (s *Sessions) exchange(key string) (cookie string, ok bool) {
	given := sha256.Sum256([]byte(key))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == nil || subtle.ConstantTimeCompare(s.key[:], given[:]) != 1 {
		return "", false
	}
	s.key = nil
	cookie = rand.Text() + rand.Text()
	if len(s.signedIn) == maxSessions {
		s.signedIn = s.signedIn[1:]
	}
	s.signedIn = append(s.signedIn, sha256.Sum256([]byte(cookie)))
	return cookie, true
}

// isSignedIn reports whether a request has a cookie of this process.
func (s *Sessions) isSignedIn(request *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := 0
	for _, cookie := range request.CookiesNamed(s.cookie) {
		given := sha256.Sum256([]byte(cookie.Value))
		for i := range s.signedIn {
			found |= subtle.ConstantTimeCompare(s.signedIn[i][:], given[:])
		}
	}
	return found == 1
}

// errOtherSignIn is the answer to a sign-in that the hub's own dashboard has.
var errOtherSignIn = errors.New("this dashboard acts by the kubeconfig, and takes no token: open the address that kubectl ot dashboard prints")

// ServeHTTP answers below /auth/: it exchanges a key for a cookie.
func (s *Sessions) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.URL.Path != "/auth/key" {
		ui.WriteError(w, ui.WithStatus(http.StatusNotFound, errOtherSignIn))
		return
	}
	if request.Method != http.MethodPost {
		ui.WriteError(w, ui.WithStatus(http.StatusMethodNotAllowed, errors.New("a key is sent by POST")))
		return
	}
	if mediaType, _, err := mime.ParseMediaType(request.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		ui.WriteError(w, ui.WithStatus(http.StatusUnsupportedMediaType, errors.New("a key is sent as application/json")))
		return
	}
	var given struct {
		Key string `json:"key"`
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, maxKeyBytes+1))
	if err != nil || len(body) > maxKeyBytes || json.Unmarshal(body, &given) != nil {
		ui.WriteError(w, ui.WithStatus(http.StatusBadRequest, errors.New(`a key is sent as {"key": "…"}`)))
		return
	}
	cookie, ok := s.exchange(given.Key)
	switch {
	case ok:
		http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	case !s.isSignedIn(request): // a page that is opened again is signed in already
		ui.WriteError(w, ui.WithStatus(http.StatusUnauthorized, errors.New("this address was used already, or is of another kubectl ot dashboard: press Enter there for a new one")))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
