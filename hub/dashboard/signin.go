package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/ui"
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
	cookies, err := d.checkSignIn(request, token, time.Now())
	d.Metrics.CountSignIn(signInResult(err))
	switch {
	case errors.Is(err, errTokenTooLong):
		writeError(w, http.StatusBadRequest, err.Error())
	case err != nil:
		ui.WriteError(w, describeRefusal(request, err))
	default:
		answerCookies(w, cookies)
	}
}

// signInResult names an outcome for the metric.
func signInResult(err error) string {
	var refused *refusedRead
	var tooMany *limited
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, errNotAccepted):
		return "refused"
	case errors.As(err, &refused):
		return "forbidden"
	case errors.As(err, &tooMany):
		return "limited"
	}
	return "failed"
}

// checkSignIn returns the cookies for a token that its user may read with.
func (d *dashboard) checkSignIn(request *http.Request, token string, now time.Time) ([]*http.Cookie, error) {
	of, err := d.identify(request, token, true)
	if err != nil {
		return nil, err
	}
	if err := d.checkRead(request, of, http.MethodGet, signInPath); err != nil {
		return nil, err
	}
	end := signInEnd(token, now)
	if !now.Before(end) {
		return nil, errNotAccepted
	}
	return d.Keys.sealCookies(request.Context(), token, now, end)
}

// signOut removes the cookies. The token is valid until it ends: only who issued it can revoke it.
func signOut(w http.ResponseWriter, _ *http.Request) { answerCookies(w, clearCookies()) }

func answerCookies(w http.ResponseWriter, cookies []*http.Cookie) {
	for _, cookie := range cookies {
		http.SetCookie(w, cookie)
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeError(w http.ResponseWriter, status int, message string) {
	ui.WriteError(w, ui.WithStatus(status, errors.New(message)))
}
