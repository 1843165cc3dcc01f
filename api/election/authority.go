package election

import (
	"errors"
	"time"
)

// Errors of writes that are not sent, and of releases.
var (
	errLeaseExpired = errors.New("not sent: the leader election Lease of this process has expired; it writes again once it has renewed the Lease, or ends if another replica was elected")
	errReleased     = errors.New("not sent: this process releases its leader election Lease")
	errNotReleased  = errors.New("not released: another replica was elected, or a write of this process was not answered and may still be executed; the Lease expires instead")
)

// authority is what a process may write under its Lease, by its own clocks.
type authority struct {
	duration time.Duration
	// held: the last answered write of this process to the Lease made it the holder.
	held bool
	// renewed is when the last stored renewal was sent.
	renewed time.Time
	// superseded: another process was seen to hold the Lease that this one held.
	superseded bool
	// closed: no write begins any more.
	closed bool
	// inFlight counts writes that were begun and have not ended.
	inFlight int
	// unanswered is when the last write was begun whose outcome is unknown; zero for none.
	unanswered time.Time
}

// beginWrite counts a write as in flight, or returns why it must not be sent. Of the monotonic
// and the wall clock the longer counts: the former stops while a virtual machine is
// suspended.
func (a *authority) beginWrite(now time.Time) error {
	since := max(now.Sub(a.renewed), now.Round(0).Sub(a.renewed.Round(0)))
	switch {
	case a.closed:
		return errReleased
	case a.held && (a.superseded || since >= a.duration):
		return errLeaseExpired
	}
	a.inFlight++
	return nil
}

// endWrite counts a write that was begun as ended.
func (a *authority) endWrite(begun time.Time, answered bool) {
	a.inFlight--
	if !answered && begun.After(a.unanswered) {
		a.unanswered = begun
	}
}

// recordHolder records who holds the Lease, and reports whether another process holds the
// one that this process held.
func (a *authority) recordHolder(self bool) (superseded bool) {
	a.superseded = a.superseded || a.held && !self
	return a.superseded
}

// recordRenewal records a stored renewal.
func (a *authority) recordRenewal(sent time.Time) { a.held, a.renewed = true, sent }

// close has no write begin any more.
func (a *authority) close() { a.closed = true }

// mayRelease reports whether the Lease can be released once close was called. A write
// without an answer may still be executed; it has to be as old as it would be at least when
// the Lease expires. The shorter of both clocks counts.
func (a *authority) mayRelease(now time.Time) bool {
	since := min(now.Sub(a.unanswered), now.Round(0).Sub(a.unanswered.Round(0)))
	return a.closed && !a.superseded && a.inFlight == 0 && since >= a.duration
}
