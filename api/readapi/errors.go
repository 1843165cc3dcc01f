package readapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Errors of a Client, by what to do about them.
var (
	// ErrUnauthorized: the hub does not accept the credential.
	ErrUnauthorized = errors.New("the read API does not accept this credential: log in again, or use another context")
	// ErrForbidden: the caller lacks the right to read.
	ErrForbidden = errors.New("the read API is not open to you: it needs get on /fleet/v1/*, as ClusterRole ot-hub-reader has")
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the hub refuses the request; the message says what is wrong with it.
	ErrInvalid = errors.New("the read API refuses the request")
	// ErrUnsupported: the hub is older than the client and does not have the path or parameter.
	ErrUnsupported = errors.New("the hub's version has no such answer: upgrade the hub")
	// ErrUnavailable: no replica can answer at the moment.
	ErrUnavailable = errors.New("the read API cannot answer at the moment: try again")
	// ErrTooLarge: the answer exceeds MaxAnswerBytes.
	ErrTooLarge = errors.New("the answer is too large: ask for less at a time")
)

// UnknownPathMessage starts the message of a hub that does not have a path.
const UnknownPathMessage = "this API has no such path"

// unknownParameterMessage is a part of the message of a hub that does not have a parameter.
const unknownParameterMessage = " takes no parameter "

// ChooseClustersMessage is a part of the message of a hub that refuses a Matrix as too large.
const ChooseClustersMessage = "choose clusters with cols or selector"

// ErrorAnswer is the body of an answer that is an error.
type ErrorAnswer struct {
	Error string `json:"error"`
}

// Error is an answer of the read API that is an error.
type Error struct {
	// Path that was asked for, without its query.
	Path string
	// Status of the answer, and its message for people.
	Status  int
	Message string
	// RetryAfter is when the hub wants to be asked again; zero for never.
	RetryAfter time.Duration
}

// Error says what the hub answered, and what to do.
func (e *Error) Error() string {
	kind := e.kind()
	if e.Message == "" {
		return fmt.Sprintf("%s: %s (status %d)", e.Path, kind, e.Status)
	}
	if slices.Contains([]error{ErrNotFound, ErrInvalid, ErrUnavailable}, kind) {
		return e.Message
	}
	return fmt.Sprintf("%s (%s: %s)", kind, e.Path, e.Message)
}

// Unwrap returns one of the errors of this package.
func (e *Error) Unwrap() error { return e.kind() }

func (e *Error) kind() error {
	switch {
	case e.Status == http.StatusUnauthorized:
		return ErrUnauthorized
	case e.Status == http.StatusForbidden:
		return ErrForbidden
	case e.Status == http.StatusNotFound && (strings.HasPrefix(e.Message, UnknownPathMessage) || e.Message == ""):
		return ErrUnsupported
	case e.Status == http.StatusNotFound:
		return ErrNotFound
	case e.Status == http.StatusBadRequest && strings.Contains(e.Message, unknownParameterMessage):
		return ErrUnsupported
	case e.Status >= http.StatusInternalServerError:
		return ErrUnavailable
	default:
		return ErrInvalid
	}
}
