// Package transport bounds what a server that is not trusted can make this process read,
// keep and wait for. Every connection between hub and member goes through Limit.
//
// Decoding amplifies: two bytes of JSON become a structure of hundreds of bytes. So an
// answer has a cost, which counts its values as well as its bytes.
package transport

import (
	"fmt"
	"time"
)

// valueCost is what each value in an answer costs beside its bytes. The largest structures
// that answers are decoded into have about three times as many.
const valueCost = 128

// eventCost is what each event of a watch costs at least.
const eventCost = 16 << 10

// retryDelay is the delay before a request is sent again that the server refuses for now.
const retryDelay = time.Second

// RequestTimeout ends a request of a program that its own API server does not answer, so that
// no controller hangs with it.
const RequestTimeout = 30 * time.Second

// MaxHeaderBytes bounds the headers of one answer.
const MaxHeaderBytes = 64 << 10

// Limits of the answers of one server.
type Limits struct {
	// AnswerCost bounds one answer that is no watch, EventCost one event of a watch.
	AnswerCost, EventCost int64
	// TotalCost bounds all answers of one transport together, for a caller that keeps them;
	// 0 for none. Once it is exceeded, nothing is sent any more.
	TotalCost int64
	// ErrorBytes bounds the body of an answer with an error code.
	ErrorBytes int64
	// AnswerTime bounds the time for the body of one answer, or for the rest of an event
	// that has begun.
	AnswerTime time.Duration
	// WatchBurst and WatchRate bound the cost of the events of all watches together: at
	// once, and per second. Events are decoded one at a time: this bounds work, not memory.
	WatchBurst, WatchRate int64
}

// Mailbox are the limits for the objects of a mailbox, which are listed in pages of
// MailboxPageSize, and for requests for single objects.
var Mailbox = Limits{
	AnswerCost: 12 << 20, EventCost: 12 << 20, ErrorBytes: 256 << 10, AnswerTime: 30 * time.Second,
	// An agent that writes all pages of its report at once, and then rewrites pages as
	// often as it may, is within these.
	WatchBurst: 160 << 20, WatchRate: 16 << 20,
}

// MailboxPageSize is the number of objects in one answer to a list request. The largest
// that an agent writes cost about 1 MiB.
const MailboxPageSize = 8

// Install are the limits for installing a chart: the history of a release is read in one
// answer, and the list of all kinds that the cluster serves in another. Helm keeps what it
// has read until it ends.
var Install = Limits{
	AnswerCost: 32 << 20, TotalCost: 128 << 20, EventCost: 8 << 20, ErrorBytes: 256 << 10, AnswerTime: 30 * time.Second,
	WatchBurst: 8 << 20, WatchRate: 1 << 20,
}

// LimitError means that a server has exceeded a limit.
type LimitError struct {
	// Request is method and path.
	Request string
	// Bound says what was exceeded; it is always the same for the same limit.
	Bound string
}

// Error implements error.
func (e *LimitError) Error() string { return fmt.Sprintf("the answer to %s %s", e.Request, e.Bound) }

// timeoutError means that an answer was not complete in time.
type timeoutError struct{ request string }

// Error implements error.
func (e *timeoutError) Error() string {
	return fmt.Sprintf("the answer to %s is not complete in time", e.request)
}

// Timeout marks the error as one of net.Error's timeouts.
func (e *timeoutError) Timeout() bool { return true }

func formatBytes(n int64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
