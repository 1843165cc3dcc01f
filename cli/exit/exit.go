// Package exit defines the exit codes of every verb.
package exit

import (
	"errors"
	"fmt"
)

// Code is an exit code. Pipelines branch on it, so its meaning is the same for all verbs.
type Code int

// Exit codes. 0 to 2 are those of kubectl diff and grep.
const (
	// Yes: it is so, it is done, there is no difference.
	Yes Code = 0
	// No: it failed, a check failed, or there are differences.
	No Code = 1
	// Unanswered: the question could not be answered: usage, connection, rights, not found.
	Unanswered Code = 2
	// NotYet: not within --timeout.
	NotYet Code = 3
	// Held: it waits for a person, as for an approval.
	Held Code = 4
	// Unknown: clusters are unknown, and --allow-unknown was not given.
	Unknown Code = 5
	// Interrupted: by ctrl-C, as shells have it.
	Interrupted Code = 130
)

// Error is an error with an exit code. Err is nil where the screen has said everything.
type Error struct {
	Code Code
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// With returns an error that ends the program with a code, without a message; nil for Yes.
func With(code Code) error {
	if code == Yes {
		return nil
	}
	return &Error{Code: code}
}

// Because returns err with an exit code; nil where err is nil.
func Because(code Code, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Err: err}
}

// CodeOf returns the exit code that an error stands for: Unanswered unless it says another.
func CodeOf(err error) Code {
	if err == nil {
		return Yes
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Unanswered
}

// MessageOf returns what to tell the user of an error; empty where the screen has said it.
func MessageOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Err == nil {
		return ""
	}
	return err.Error()
}
