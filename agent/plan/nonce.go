package plan

import (
	"strconv"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/agent/image"
)

// PruneNonces has the nonce by which this process asks whether the prunes of its plan are still requested.
// It is safe for concurrent use.
//
// Invariant: a plan that confirms the nonce was written after it was drawn, since no other process draws
// it. A plan alone may be older: it lies in the mailbox while no hub runs.
//
// Invariant: a nonce is drawn for the report that carries it, so that its life is that of the round trip to
// the hub, however late the report is written after the agent has asked.
type PruneNonces struct {
	mu      sync.Mutex
	bootID  string
	asked   bool // the next report draws a nonce; the last one has lapsed
	count   int
	nonce   string // empty: none was drawn
	drawnAt time.Duration

	// unconfirmed counts the nonces that were drawn since one was confirmed, or since a prune began to wait.
	unconfirmed int
	requestedAt time.Duration // whether or not that drew a nonce
}

// lateAnswers in a row are no failover of the hub.
const lateAnswers = 2

// NewPruneNonces returns the nonces of the process with this boot ID.
func NewPruneNonces(bootID string) *PruneNonces { return &PruneNonces{bootID: bootID} }

// RequestNonce has the next report ask, unless the last nonce can still be confirmed.
func (n *PruneNonces) RequestNonce(now time.Duration) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now-n.requestedAt >= image.PruneNonceLife {
		n.unconfirmed = 0 // no prune has waited since: each that waits requests more often
	}
	n.requestedAt = now
	if n.asked || n.isAliveLocked(now) {
		return false
	}
	n.asked = true
	return true
}

// NonceForReport returns the nonce of a report that is about to be written: the one that was drawn last, or
// another one where that is asked for; empty for none.
func (n *PruneNonces) NonceForReport(now time.Duration) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked {
		n.count++
		n.unconfirmed++
		n.asked, n.nonce, n.drawnAt = false, n.bootID+"/"+strconv.Itoa(n.count), now
	}
	return n.nonce
}

// IsConfirmedBy reports whether prunes of a plan that confirms this nonce may begin.
func (n *PruneNonces) IsConfirmedBy(confirmed string, now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.isAliveLocked(now) || confirmed != n.nonce {
		return false
	}
	n.unconfirmed = 0
	return true
}

// AreAnswersLate reports whether the hub has confirmed none of the last nonces while it lived.
func (n *PruneNonces) AreAnswersLate(now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	lapsed := n.unconfirmed
	if n.isAliveLocked(now) {
		lapsed--
	}
	return lapsed >= lateAnswers
}

func (n *PruneNonces) isAliveLocked(now time.Duration) bool {
	return n.nonce != "" && now-n.drawnAt < image.PruneNonceLife
}
