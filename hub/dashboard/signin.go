package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// signInPath is what a person has to be allowed to read to sign in: the first page needs it.
const signInPath = readapi.Root + "summary"

// serveAuth signs people in and out. Package ui has checked that a page of the dashboard asks for it.
func (d *dashboard) serveAuth(w http.ResponseWriter, request *http.Request) {
	do := map[string]func(http.ResponseWriter, *http.Request){"/auth/login": d.signIn, "/auth/logout": signOut}[request.URL.Path]
	switch {
	case do == nil:
		writeError(w, http.StatusNotFound, "there is no such path")
	case request.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		writeError(w, http.StatusMethodNotAllowed, "use POST")
	default:
		do(w, request)
	}
}

// signIn puts a token that the API server accepts, of a user who may read, into cookies.
func (d *dashboard) signIn(w http.ResponseWriter, request *http.Request) {
	var body struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, `the body is not JSON like {"token": "…"}`)
		return
	}
	token, ok := cleanToken(body.Token)
	switch {
	case !ok:
		writeError(w, http.StatusBadRequest, "this is not a bearer token, which is one word: such as kubectl create token prints, or as in the user's part of a kubeconfig")
		return
	case len(token) > maxTokenBytes:
		writeError(w, http.StatusBadRequest, errTokenTooLong.Error())
		return
	}
	now := time.Now()
	succeeded, wait := d.limit.beginAttempt(request.RemoteAddr, now)
	if wait > 0 {
		d.Metrics.CountSignIn("limited")
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		writeError(w, http.StatusTooManyRequests, "too many sign-ins failed: wait a moment")
		return
	}
	cookies, err := d.checkSignIn(request.Context(), token, now)
	var refused *refusedRead
	switch {
	case errors.Is(err, errNotAccepted):
		d.Metrics.CountSignIn("refused")
		writeRefusal(w, request, err)
		return
	case errors.As(err, &refused):
		d.Metrics.CountSignIn("forbidden")
		writeRefusal(w, request, err)
		return
	}
	succeeded() // no failure of this person
	switch {
	case errors.Is(err, errTokenTooLong):
		writeError(w, http.StatusBadRequest, err.Error())
	case err != nil:
		d.Metrics.CountSignIn("failed")
		log.FromContext(request.Context()).Error(err, "Failed to sign somebody in to the dashboard; they have to try again")
		writeRefusal(w, request, err)
	default:
		d.Metrics.CountSignIn("accepted")
		answerCookies(w, cookies)
	}
}

// checkSignIn returns the cookies for a token that its user may read with.
func (d *dashboard) checkSignIn(ctx context.Context, token string, now time.Time) ([]*http.Cookie, error) {
	if err := d.checkRead(ctx, token, http.MethodGet, signInPath); err != nil {
		return nil, err
	}
	end := signInEnd(token, now)
	if !now.Before(end) {
		return nil, errNotAccepted
	}
	return d.Keys.sealCookies(ctx, token, now, end)
}

// signOut removes the cookies. The token is valid until it ends: only who issued it can revoke it.
func signOut(w http.ResponseWriter, _ *http.Request) { answerCookies(w, clearCookies()) }

func answerCookies(w http.ResponseWriter, cookies []*http.Cookie) {
	for _, cookie := range cookies {
		http.SetCookie(w, cookie)
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the caller is gone
}
