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

// maxRememberedRequests bounds the requests whose time is remembered.
const maxRememberedRequests = 64

// Demand is what a cluster would run without a fleet-wide budget.
type Demand struct {
	// Wanted is the number of imports, those that run included.
	Wanted int32
	// Sources are the parts of it by group of sources, in the plan's order.
	Sources []v1alpha1.SourceDemand
}

// request is one that may have been sent.
type request struct {
	nonce       string
	requestedAt time.Duration
	// wanted is the largest demand that was reported with it, by group of sources.
	wanted map[string]int32
}

// RequestTracker tracks what a process has requested, and the newest grant that it has
// seen. It is safe for concurrent use.
type RequestTracker struct {
	mu           sync.Mutex
	bootID       string
	requestCount int
	requests     []request // the newest last
	// awaitingAnswer: the newest request is still the current one.
	awaitingAnswer bool
	// ownsLedger: this process has written the ledger last.
	ownsLedger bool
	demand     Demand

	newestGrant *v1alpha1.TransferGrantSpec
	// void: newestGrant must not be used again, whatever is seen later. The hub may have
	// been told that it is unused.
	void          bool
	grantDuration time.Duration
}

// NewRequestTracker returns the tracker of the process with this boot id.
func NewRequestTracker(bootID string) *RequestTracker {
	return &RequestTracker{bootID: bootID, grantDuration: v1alpha1.AssumedGrantDuration}
}

// BootID identifies the process.
func (t *RequestTracker) BootID() string { return t.bootID }

// ClaimLedger records that this process has written the ledger: from now on it may request.
func (t *RequestTracker) ClaimLedger() (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = !t.ownsLedger
	t.ownsLedger = true
	return changed
}

// LoseLedger records that another process has written the ledger. All requests are
// forgotten: the other process may have given up what they were granted.
func (t *RequestTracker) LoseLedger() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ownsLedger, t.awaitingAnswer, t.requests = false, false, nil
}

// SetDemand replaces the demand.
func (t *RequestTracker) SetDemand(d Demand) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if equality.Semantic.DeepEqual(t.demand, d) {
		return false
	}
	t.demand = d
	if d.Wanted == 0 {
		t.awaitingAnswer = false
	}
	return true
}

// Demand returns the demand.
func (t *RequestTracker) Demand() Demand {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.demand
}

// RequestNonce returns the nonce of the report that is written next: that of the newest
// request, or of a new one if that is due. It is empty where there is nothing to request.
func (t *RequestTracker) RequestNonce(now time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, needed := t.nextRequestAtLocked()
	if !needed {
		return ""
	}
	if now >= at {
		t.requestCount++
		t.requests = append(t.requests, request{nonce: t.bootID + "/" + strconv.Itoa(t.requestCount), requestedAt: now, wanted: map[string]int32{}})
		t.requests = t.requests[max(0, len(t.requests)-maxRememberedRequests):]
		t.awaitingAnswer = true
	}
	newest := t.requests[len(t.requests)-1]
	for _, source := range t.demand.Sources {
		newest.wanted[source.Name] = max(newest.wanted[source.Name], source.Wanted)
	}
	return newest.nonce
}

// NextRequestAt returns when the next request is due; 0 for now. needed is false where
// there is nothing to request.
func (t *RequestTracker) NextRequestAt() (at time.Duration, needed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nextRequestAtLocked()
}

func (t *RequestTracker) nextRequestAtLocked() (at time.Duration, needed bool) {
	switch {
	case !t.ownsLedger || t.demand.Wanted == 0:
		return 0, false
	case !t.awaitingAnswer:
		return 0, true
	default:
		return t.requests[len(t.requests)-1].requestedAt + t.grantDuration/3, true
	}
}

// ObserveGrant records the grant that the mailbox shows; nil for none. A grant for another
// cluster counts as none, and one that is older than the newest is ignored. A grant that
// was missing once stays void, and so do two grants with the same sequence.
func (t *RequestTracker) ObserveGrant(spec *v1alpha1.TransferGrantSpec, cluster types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case spec == nil || spec.ClusterUID != cluster:
		t.void = true
	case t.newestGrant == nil || spec.Sequence > t.newestGrant.Sequence:
		t.newestGrant, t.void = spec.DeepCopy(), false
		if t.requestOfLocked(spec.Limits) != nil {
			t.grantDuration = time.Duration(spec.Limits.DurationSeconds) * time.Second
		}
	case spec.Sequence == t.newestGrant.Sequence && !equality.Semantic.DeepEqual(*t.newestGrant, *spec):
		t.void = true
	}
}

// requestOfLocked returns the request of this process that was granted; nil if it is not
// of this process.
func (t *RequestTracker) requestOfLocked(limits *v1alpha1.TransferLimits) *request {
	if limits == nil {
		return nil
	}
	i := slices.IndexFunc(t.requests, func(r request) bool { return r.nonce == limits.Nonce })
	if i < 0 {
		return nil
	}
	return &t.requests[i]
}

// Share is what a process may use of the fleet-wide budget at a time.
type Share struct {
	// Sequence of the newest grant; 0 where there has been none.
	Sequence int64
	// InForce until ValidUntil. Slots and Sources are zero otherwise.
	InForce    bool
	ValidUntil time.Duration
	Slots      int32
	Sources    []v1alpha1.SourceGrant
	// FullyGranted are the groups of sources of which the grant gave all that its request
	// wanted.
	FullyGranted []string
	// Expired: it was in force until ValidUntil.
	Expired bool
}

// ShareAt returns the share at a time.
func (t *RequestTracker) ShareAt(now time.Duration) Share {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s Share
	if t.newestGrant == nil {
		return s
	}
	limits := t.newestGrant.Limits
	s.Sequence = t.newestGrant.Sequence
	answered := t.requestOfLocked(limits)
	if answered == nil || t.void || t.newestGrant.Unlimited {
		return s
	}
	s.ValidUntil = answered.requestedAt + time.Duration(limits.DurationSeconds)*time.Second
	if now >= s.ValidUntil {
		s.Expired = true
		return s
	}
	s.InForce, s.Slots, s.Sources = true, limits.Slots, slices.Clone(limits.Sources)
	for _, source := range s.Sources {
		if wanted := answered.wanted[source.Name]; wanted > 0 && source.Slots >= wanted {
			s.FullyGranted = append(s.FullyGranted, source.Name)
		}
	}
	return s
}
