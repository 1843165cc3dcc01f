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
type PruneNonces struct {
	mu      sync.Mutex
	bootID  string
	count   int
	nonce   string // empty: none was drawn
	drawnAt time.Duration
}

// NewPruneNonces returns the nonces of the process with this boot ID.
func NewPruneNonces(bootID string) *PruneNonces { return &PruneNonces{bootID: bootID} }

// DrawNonce draws a nonce, unless the last one can still be confirmed.
func (n *PruneNonces) DrawNonce(now time.Duration) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isAliveLocked(now) {
		return false
	}
	n.count++
	n.nonce, n.drawnAt = n.bootID+"/"+strconv.Itoa(n.count), now
	return true
}

// LastNonce returns the nonce that was drawn last; empty for none.
func (n *PruneNonces) LastNonce() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nonce
}

// IsConfirmedBy reports whether prunes of a plan that confirms this nonce may begin.
func (n *PruneNonces) IsConfirmedBy(confirmed string, now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isAliveLocked(now) && confirmed == n.nonce
}

func (n *PruneNonces) isAliveLocked(now time.Duration) bool {
	return n.nonce != "" && now-n.drawnAt < image.PruneNonceLife
}
