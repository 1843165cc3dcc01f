package grant

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// assumedGrantDuration is taken for that of a grant until there has been one: it says
	// only how often a hub is asked that does not answer.
	assumedGrantDuration = 5 * time.Minute
	// maxRememberedRequests are the requests whose time is remembered.
	maxRememberedRequests = 64
)

// Demand is what a cluster could run, were there no fleet-wide budget.
type Demand struct {
	// Wanted includes what runs.
	Wanted int32
	// Sources are parts of it, of each group in the plan's order.
	Sources []v1alpha1.SourceDemand
}

// request is one that may have been sent since.
type request struct {
	nonce       string
	requestedAt time.Duration
}

// RequestTracker is what a process has asked for, and the newest grant that it has seen. It is
// safe for concurrent use.
type RequestTracker struct {
	mu           sync.Mutex
	bootID       string
	requestCount int
	requests     []request // the newest last
	// open: the newest request is still the one to be answered.
	awaitingAnswer bool
	// holds: the ledger is of this process.
	ownsLedger bool
	demand     Demand

	newestGrant *v1alpha1.TransferGrantSpec
	// void: nothing is gone by of the newest, whatever is shown from now on. The hub
	// may have been told so.
	void          bool
	grantDuration time.Duration
}

// NewRequestTracker returns the book of a process.
func NewRequestTracker(boot string) *RequestTracker {
	return &RequestTracker{bootID: boot, grantDuration: assumedGrantDuration}
}

// BootID names the process.
func (b *RequestTracker) BootID() string { return b.bootID }

// ClaimLedger takes note that the ledger is written by this process: from here on it may
// ask. It tells whether that is new.
func (b *RequestTracker) ClaimLedger() (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !b.ownsLedger
	b.ownsLedger = true
	return changed
}

// LoseLedger takes note that another process has written the ledger: what this one has asked
// for, the other may have given up. All requests are forgotten.
func (b *RequestTracker) LoseLedger() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ownsLedger, b.awaitingAnswer, b.requests = false, false, nil
}

// SetDemand takes note of what is wanted, and tells whether that is new.
func (b *RequestTracker) SetDemand(d Demand) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if equality.Semantic.DeepEqual(b.demand, d) {
		return false
	}
	b.demand = d
	if d.Wanted == 0 {
		b.awaitingAnswer = false
	}
	return true
}

// Demand is what is wanted.
func (b *RequestTracker) Demand() Demand {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.demand
}

// RequestNonce returns the nonce that a report is to have which is written from now on: that
// of the newest request, or of a new one where that is due. Empty where nothing is
// wanted.
func (b *RequestTracker) RequestNonce(now time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, asks := b.nextRequestAtLocked()
	if !asks {
		return ""
	}
	if now >= at {
		b.requestCount++
		b.requests = append(b.requests, request{nonce: b.bootID + "/" + strconv.Itoa(b.requestCount), requestedAt: now})
		b.requests = b.requests[max(0, len(b.requests)-maxRememberedRequests):]
		b.awaitingAnswer = true
	}
	return b.requests[len(b.requests)-1].nonce
}

// NextRequestAt tells when the next request is due; 0 for at once. asks is false where
// nothing is wanted.
func (b *RequestTracker) NextRequestAt() (at time.Duration, asks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nextRequestAtLocked()
}

func (b *RequestTracker) nextRequestAtLocked() (at time.Duration, asks bool) {
	switch {
	case !b.ownsLedger || b.demand.Wanted == 0:
		return 0, false
	case !b.awaitingAnswer:
		return 0, true
	default:
		return b.requests[len(b.requests)-1].requestedAt + b.grantDuration/3, true
	}
}

// ObserveGrant takes note of the grant that the mailbox shows, nil for none. One that is for
// another cluster is none; one that is older than another which was seen before is of
// no account. What was not there once gives nothing when it is back, and of two of one
// sequence neither does.
func (b *RequestTracker) ObserveGrant(spec *v1alpha1.TransferGrantSpec, cluster types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case spec == nil || spec.ClusterUID != cluster:
		b.void = true
	case b.newestGrant == nil || spec.Sequence > b.newestGrant.Sequence:
		b.newestGrant, b.void = spec.DeepCopy(), false
		if _, mine := b.requestedAtLocked(spec.Limits); mine {
			b.grantDuration = time.Duration(spec.Limits.DurationSeconds) * time.Second
		}
	case spec.Sequence == b.newestGrant.Sequence && !equality.Semantic.DeepEqual(*b.newestGrant, *spec):
		b.void = true
	}
}

// requestedAtLocked is when this process asked for what was granted.
func (b *RequestTracker) requestedAtLocked(l *v1alpha1.TransferLimits) (at time.Duration, mine bool) {
	if l == nil {
		return 0, false
	}
	i := slices.IndexFunc(b.requests, func(r request) bool { return r.nonce == l.Nonce })
	if i < 0 {
		return 0, false
	}
	return b.requests[i].requestedAt, true
}

// Share is what a process may go by at a time.
type Share struct {
	// Sequence of the newest grant; 0 where there has been none.
	Sequence int64
	// InForce until Until. Slots and Sources are zero where it is not.
	InForce    bool
	ValidUntil time.Duration
	Slots      int32
	Sources    []v1alpha1.SourceGrant
	// Ended: it was in force, and its time is over.
	Expired bool
}

// ShareAt is what there is at a time.
func (b *RequestTracker) ShareAt(now time.Duration) Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s Share
	if b.newestGrant == nil {
		return s
	}
	s.Sequence = b.newestGrant.Sequence
	since, mine := b.requestedAtLocked(b.newestGrant.Limits)
	if !mine || b.void || b.newestGrant.Unlimited {
		return s
	}
	s.ValidUntil = since + time.Duration(b.newestGrant.Limits.DurationSeconds)*time.Second
	if now >= s.ValidUntil {
		s.Expired = true
		return s
	}
	s.InForce, s.Slots, s.Sources = true, b.newestGrant.Limits.Slots, slices.Clone(b.newestGrant.Limits.Sources)
	return s
}
