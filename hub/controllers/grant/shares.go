// Package grant writes the TransferGrants: shares of the fleet-wide budget or, without
// one, grants without limits.
//
// The queue has one request, for the whole fleet. A budget.Accountant of this process
// knows what each member may be running. A new leader learns what is stored, and writes
// every stored grant and plan once before it raises anything.
//
// Invariant: a write that an earlier leader decided is refused from then on. Invariant:
// what this process plans counts before it is written.
package grant

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
)

// Shares has the share of each member. The zero Shares is ready for use.
type Shares struct {
	mu       sync.Mutex
	known    bool
	limited  bool
	shares   map[string]share
	onChange []func(member string)

	// challenge identifies this process.
	challenge string
	// allocating: an allocation is running.
	allocating bool
	intents    map[string][]planIntent
	// heldBySource are the slots that count as taken, by group of sources, "" for all.
	heldBySource map[string]int64
	// removable are the members that may be removed, by name.
	removable map[string]types.UID
}

type share struct {
	transfers v1alpha1.MemberTransfers
	safe      int32
	mayPlan   bool
	// reportedBounds is the policy in the member's report; nil for none.
	reportedBounds *budget.Bounds
}

// ForMember returns the share of a member; nil without a budget, or if it is unknown.
func (s *Shares) ForMember(member string) *v1alpha1.MemberTransfers {
	s.mu.Lock()
	defer s.mu.Unlock()
	if memberShare, ok := s.shares[member]; ok && s.limited {
		return memberShare.transfers.DeepCopy()
	}
	return nil
}

// SafeShare returns the share without a grant that the plan of a member may give it. It
// follows the policy once there is room. known is false while nobody can say.
func (s *Shares) SafeShare(member string) (n int32, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	memberShare, ok := s.shares[member]
	return memberShare.safe, ok && s.known && memberShare.mayPlan
}

// MayRemove reports whether plan and grant of a member may be deleted on the hub: what it
// holds is stored.
func (s *Shares) MayRemove(member *v1alpha1.MemberCluster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && (!s.limited || s.removable[member.Name] == member.UID)
}

// HeldBySource returns the slots that the budget counts as taken, departed members included,
// by group of sources, "" for all; nil without a budget, or while it is unknown.
func (s *Shares) HeldBySource() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || !s.limited {
		return nil
	}
	return maps.Clone(s.heldBySource)
}

func (s *Shares) setHeldBySource(held map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heldBySource = held
}

// setRemovable replaces the members that may be removed.
func (s *Shares) setRemovable(left map[string]types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removable = left
}

// OnChange registers a function that is called when the share of a member changes. It
// must not block. Call OnChange before the controller starts.
func (s *Shares) OnChange(do func(member string)) { s.onChange = append(s.onChange, do) }

// publish replaces all shares.
func (s *Shares) publish(limits bool, shares map[string]share) {
	s.mu.Lock()
	var changed []string
	for name, memberShare := range shares {
		if before, ok := s.shares[name]; !ok || !before.equal(memberShare) || limits != s.limited {
			changed = append(changed, name)
		}
	}
	if s.limited && !limits {
		for name := range maps.Keys(s.shares) {
			changed = append(changed, name)
		}
	}
	s.known, s.limited, s.shares, s.allocating = true, limits, shares, false
	s.mu.Unlock()
	for _, name := range changed {
		for _, do := range s.onChange {
			do(name)
		}
	}
}

func (s share) equal(o share) bool {
	same := s.transfers.HeldUntil.Equal(o.transfers.HeldUntil)
	s.transfers.HeldUntil, o.transfers.HeldUntil = nil, nil
	s.reportedBounds, o.reportedBounds = nil, nil
	return same && s == o
}

// newMemberTransfers returns the status of an account. Only silent members get heldUntil:
// for all others it moves with every report.
func newMemberTransfers(a budget.MemberAccount) v1alpha1.MemberTransfers {
	t := v1alpha1.MemberTransfers{Granted: a.Granted, Held: a.Held, Wanted: a.Wanted, Excess: a.Excess, Reason: a.Reason, Message: a.Message}
	if a.Silent && !a.HeldUntil.IsZero() && a.Reason == v1alpha1.TransfersReserved {
		until := metav1.NewTime(a.HeldUntil.Truncate(0)).Rfc3339Copy()
		t.HeldUntil = &until
	}
	return t
}
