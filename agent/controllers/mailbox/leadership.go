package mailbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errNotLeading: another agent of this cluster leads.
var errNotLeading = errors.New("another agent of this cluster leads")

// LeadershipCheck confirms, by the leader election Lease, that this process still leads. A
// process that was paused may continue before its elector notices that it has lost the
// Lease.
type LeadershipCheck struct {
	// Live reads past any cache; nil where leader election is off.
	Live client.Reader
	// Key of the Lease.
	Key client.ObjectKey

	mu     sync.Mutex
	holder string
}

// Confirm returns errNotLeading once the holder of the Lease is another one than at the
// first call. That has to be right after this process was elected: until there is a
// credential, hours may pass and another agent may lead.
func (l *LeadershipCheck) Confirm(ctx context.Context) error {
	if l.Live == nil {
		return nil
	}
	lease := &coordinationv1.Lease{}
	if err := l.Live.Get(ctx, l.Key, lease); err != nil {
		return fmt.Errorf("reading leader election Lease %s: %w", l.Key, err)
	}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == "" {
		l.holder = holder
	}
	if holder != l.holder {
		return errNotLeading
	}
	return nil
}
