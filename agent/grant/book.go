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
	// usualDuration is taken for that of a grant until there has been one: it says
	// only how often a hub is asked that does not answer.
	usualDuration = 5 * time.Minute
	// kept are the requests whose time is remembered.
	kept = 64
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
	nonce string
	since time.Duration
}

// Book is what a process has asked for, and the newest grant that it has seen. It is
// safe for concurrent use.
type Book struct {
	mu       sync.Mutex
	boot     string
	asked    int
	requests []request // the newest last
	// open: the newest request is still the one to be answered.
	open bool
	// holds: the ledger is of this process.
	holds bool
	want  Demand

	newest *v1alpha1.TransferGrantSpec
	// void: nothing is gone by of the newest, whatever is shown from now on. The hub
	// may have been told so.
	void     bool
	duration time.Duration
}

// New returns the book of a process.
func New(boot string) *Book { return &Book{boot: boot, duration: usualDuration} }

// Boot names the process.
func (b *Book) Boot() string { return b.boot }

// Hold takes note that the ledger is written by this process: from here on it may
// ask. It tells whether that is new.
func (b *Book) Hold() (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !b.holds
	b.holds = true
	return changed
}

// Lose takes note that another process has written the ledger: what this one has asked
// for, the other may have given up. All requests are forgotten.
func (b *Book) Lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds, b.open, b.requests = false, false, nil
}

// Want takes note of what is wanted, and tells whether that is new.
func (b *Book) Want(d Demand) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if equality.Semantic.DeepEqual(b.want, d) {
		return false
	}
	b.want = d
	if d.Wanted == 0 {
		b.open = false
	}
	return true
}

// Wanted is what is wanted.
func (b *Book) Wanted() Demand {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.want
}

// Ask returns the nonce that a report is to have which is written from now on: that
// of the newest request, or of a new one where that is due. Empty where nothing is
// wanted.
func (b *Book) Ask(now time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, asks := b.next()
	if !asks {
		return ""
	}
	if now >= at {
		b.asked++
		b.requests = append(b.requests, request{nonce: b.boot + "/" + strconv.Itoa(b.asked), since: now})
		b.requests = b.requests[max(0, len(b.requests)-kept):]
		b.open = true
	}
	return b.requests[len(b.requests)-1].nonce
}

// Next tells when the next request is due; 0 for at once. asks is false where
// nothing is wanted.
func (b *Book) Next() (at time.Duration, asks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next()
}

func (b *Book) next() (at time.Duration, asks bool) {
	switch {
	case !b.holds || b.want.Wanted == 0:
		return 0, false
	case !b.open:
		return 0, true
	default:
		return b.requests[len(b.requests)-1].since + b.duration/3, true
	}
}

// Take takes note of the grant that the mailbox shows, nil for none. One that is for
// another cluster is none; one that is older than another which was seen before is of
// no account. What was not there once gives nothing when it is back, and of two of one
// sequence neither does.
func (b *Book) Take(spec *v1alpha1.TransferGrantSpec, cluster types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case spec == nil || spec.ClusterUID != cluster:
		b.void = true
	case b.newest == nil || spec.Sequence > b.newest.Sequence:
		b.newest, b.void = spec.DeepCopy(), false
		if _, mine := b.since(spec.Limits); mine {
			b.duration = time.Duration(spec.Limits.DurationSeconds) * time.Second
		}
	case spec.Sequence == b.newest.Sequence && !equality.Semantic.DeepEqual(*b.newest, *spec):
		b.void = true
	}
}

// since is when this process asked for what was granted.
func (b *Book) since(l *v1alpha1.TransferLimits) (at time.Duration, mine bool) {
	if l == nil {
		return 0, false
	}
	i := slices.IndexFunc(b.requests, func(r request) bool { return r.nonce == l.Nonce })
	if i < 0 {
		return 0, false
	}
	return b.requests[i].since, true
}

// Share is what a process may go by at a time.
type Share struct {
	// Sequence of the newest grant; 0 where there has been none.
	Sequence int64
	// InForce until Until. Slots and Sources are zero where it is not.
	InForce bool
	Until   time.Duration
	Slots   int32
	Sources []v1alpha1.SourceGrant
	// Ended: it was in force, and its time is over.
	Ended bool
}

// Share is what there is at a time.
func (b *Book) Share(now time.Duration) Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s Share
	if b.newest == nil {
		return s
	}
	s.Sequence = b.newest.Sequence
	since, mine := b.since(b.newest.Limits)
	if !mine || b.void || b.newest.Unlimited {
		return s
	}
	s.Until = since + time.Duration(b.newest.Limits.DurationSeconds)*time.Second
	if now >= s.Until {
		s.Ended = true
		return s
	}
	s.InForce, s.Slots, s.Sources = true, b.newest.Limits.Slots, slices.Clone(b.newest.Limits.Sources)
	return s
}
