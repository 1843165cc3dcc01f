// Package grant writes the TransferGrants: shares of the budget over the whole
// fleet, or, where there is none, grants without limits.
//
// There is one item in its queue: all members are looked at together. What each may
// be running stands in a budget.Book, which is this process's own. A new one learns
// what is stored, and writes to each stored grant and plan before it raises anything,
// so that what another process had decided before, and has not written yet, is refused.
// What this process plans itself is counted before it is written.
package grant

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
)

// Shares tell what each member has of the budget. The zero value is ready for use.
type Shares struct {
	mu       sync.Mutex
	known    bool
	limited  bool
	shares   map[string]share
	onChange []func(member string)

	// challenge is the identity of this process.
	challenge string
	// looking: the shares are being worked out.
	allocating bool
	intents    map[string][]planIntent
	// removable are the members that may be let go of, by name.
	removable map[string]types.UID
}

type share struct {
	transfers v1alpha1.MemberTransfers
	safe      int32
	mayPlan   bool
	// reportedBounds is the policy by the member's report; nil for none.
	reportedBounds *budget.Bounds
}

// ForMember a member; nil where there is no budget, or nothing known of it.
func (s *Shares) ForMember(member string) *v1alpha1.MemberTransfers {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, is := s.shares[member]; is && s.limited {
		return one.transfers.DeepCopy()
	}
	return nil
}

// SafeShare is the share without a grant that the plan of a member may give it: what the
// policy asks for is let through once there is room. known is false where nobody
// can say yet.
func (s *Shares) SafeShare(member string) (n int32, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, is := s.shares[member]
	return one.safe, is && s.known && one.mayPlan
}

// MayRemove tells whether plan and grant of a member may be removed on the hub: what it
// holds by them is stored.
func (s *Shares) MayRemove(member *v1alpha1.MemberCluster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && (!s.limited || s.removable[member.Name] == member.UID)
}

// setRemovable replaces the members that may be let go of.
func (s *Shares) setRemovable(left map[string]types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removable = left
}

// OnChange has something done, without blocking, when what is said of a member has
// changed. Call it before the controller starts.
func (s *Shares) OnChange(do func(member string)) { s.onChange = append(s.onChange, do) }

// publish replaces all that is said.
func (s *Shares) publish(limits bool, shares map[string]share) {
	s.mu.Lock()
	var changed []string
	for name, one := range shares {
		if before, is := s.shares[name]; !is || !before.equal(one) || limits != s.limited {
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

// newMemberTransfers is an account as the status of a MemberCluster tells it. Until when
// something is held is told of those alone that are not heard of: for all others it
// moves with every report.
func newMemberTransfers(a budget.MemberAccount) v1alpha1.MemberTransfers {
	t := v1alpha1.MemberTransfers{Granted: a.Granted, Held: a.Held, Wanted: a.Wanted, Reason: a.Reason, Message: a.Message}
	if a.Silent && !a.HeldUntil.IsZero() && a.Reason == v1alpha1.TransfersReserved {
		until := metav1.NewTime(a.HeldUntil.Truncate(0)).Rfc3339Copy()
		t.HeldUntil = &until
	}
	return t
}
