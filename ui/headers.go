package ui

import (
	"net/http"
	"strings"
	"time"
)

// securityHeaders are those of every answer, of errors too. Invariant: the app runs scripts and
// styles from files of its own alone, and talks to its own origin alone.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}

// guardedWriter sets the security headers when an answer begins, so that no handler and no
// server behind it can leave out or replace one.
type guardedWriter struct {
	http.ResponseWriter
	// reads: the answer is one of the read API, which sets no cookies.
	reads bool
	begun bool
}

func newGuardedWriter(w http.ResponseWriter, request *http.Request) *guardedWriter {
	g := &guardedWriter{ResponseWriter: w, reads: strings.HasPrefix(request.URL.Path, "/fleet/")}
	if strings.HasPrefix(request.URL.Path, "/auth/") || strings.HasPrefix(request.URL.Path, "/k8s/") {
		w.Header().Set("Cache-Control", "no-store")
	}
	return g
}

// extendDeadline gives the reader time for the next part of an answer. Who does not read ends the
// answer, and does not hold it in memory. A stream of events has its own deadlines.
func (w *guardedWriter) extendDeadline() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTimeout)) // writers without deadlines are those of tests
}

// WriteHeader implements http.ResponseWriter.
func (w *guardedWriter) WriteHeader(status int) {
	w.extendDeadline()
	if !w.begun {
		w.begun = status >= http.StatusOK // more headers may follow an informational answer
		header := w.Header()
		for name := range header {
			if strings.HasPrefix(name, "Access-Control-") || w.reads && name == "Set-Cookie" {
				header.Del(name)
			}
		}
		SetSecurityHeaders(header)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *guardedWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	w.extendDeadline()
	return w.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController: a flush may begin an answer.
func (w *guardedWriter) FlushError() error {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController, which sets deadlines.
func (w *guardedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetSecurityHeaders sets the headers that every answer has, for one beside a Handler.
func SetSecurityHeaders(header http.Header) {
	for name, value := range securityHeaders {
		header.Set(name, value)
	}
}
