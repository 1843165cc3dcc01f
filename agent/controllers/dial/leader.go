package dial

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

// LeadershipCheck tells whether this process still leads, by the Lease that agents of one
// cluster lead by. One that was paused goes on before it is told that it has lost
// that: so it looks before it carries.
type LeadershipCheck struct {
	// Live reads past any cache; nil where agents need not be elected.
	Live client.Reader
	Key  client.ObjectKey

	mu     sync.Mutex
	holder string
}

// Confirm returns errNotLeading once another agent leads than when it was first
// called, which is to be right after this one was elected: until a credential is
// there, hours may pass, and another agent lead by then.
func (l *LeadershipCheck) Confirm(ctx context.Context) error {
	if l.Live == nil {
		return nil
	}
	lease := &coordinationv1.Lease{}
	if err := l.Live.Get(ctx, l.Key, lease); err != nil {
		return fmt.Errorf("reading Lease %s, by which an agent leads: %w", l.Key, err)
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
