// Package shard divides the members among the replicas of the hub.
//
// Each replica has a Lease (Replica), and syncs members only while it holds it by its own
// clock. Every replica watches the Leases of the others (Peers). The elected one
// (Assigner) assigns members to live replicas in the spec of each MemberLink, which Links
// reads. The replica that syncs a member writes the result to the status of its
// MemberLink. The Challenge, which is new for every process, identifies the elected
// process.
//
// Invariant: no safety depends on one replica alone syncing a member. What two replicas
// sync at the same time is guarded copy by copy, see package api/mailbox.
package shard

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Links reads MemberLinks. Every replica has all of them in its cache.
type Links struct {
	Cached client.Reader
}

// Get returns the MemberLink of a member, nil for none. It is the object of the cache: who changes it
// copies it first.
func (l *Links) Get(ctx context.Context, member string) (*v1alpha1.MemberLink, error) {
	link := &v1alpha1.MemberLink{}
	err := l.Cached.Get(ctx, client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the MemberLink of MemberCluster %s: %w", member, err)
	}
	return link, nil
}

// OwnsMember reports whether this replica has to sync a member now. It is called before
// each sync, since a paused process finds out only here that its Lease has ended.
func (r *Replica) OwnsMember(link *v1alpha1.MemberLink) bool {
	return r.isAssigned(link) && r.HoldsLease()
}

// RecheckAfter returns when to decide again about a member that this replica does not own; 0 for never. The hooks
// of OnLeaseChange miss a clock that jumps and is set back between two renewals.
func (r *Replica) RecheckAfter(link *v1alpha1.MemberLink) time.Duration {
	if r.isAssigned(link) {
		return r.LeaseDuration
	}
	return 0
}

func (r *Replica) isAssigned(link *v1alpha1.MemberLink) bool {
	return link != nil && link.Spec.Mode == v1alpha1.LinkPush && link.Spec.Replica == r.Name()
}
