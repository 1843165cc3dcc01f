// Package shard divides the members among the replicas of the hub.
//
// Each replica has a Lease of its own (Replica), and carries for members only while
// it holds it by its own clock. Every replica watches the Leases of the others
// (Peers); the elected one assigns members to those that are alive, in the spec of
// each member's MemberLink, which Links reads. Whoever carries for a member says how
// that goes in the status of it. The elected process is told by its Challenge, which
// is new for every process.
//
// Nothing that must be safe rests on it that one replica alone carries for a member:
// what two carry at the same time is guarded copy by copy, see package api/mailbox.
package shard

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Links reads the MemberLinks. Every replica has all of them in its cache.
type Links struct {
	Cached client.Reader
}

// Get is the MemberLink of a member as the cache shows it; nil for none. It is the
// caller's own.
func (l *Links) Get(ctx context.Context, member string) (*v1alpha1.MemberLink, error) {
	link := &v1alpha1.MemberLink{}
	err := l.Cached.Get(ctx, client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the MemberLink of MemberCluster %s: %w", member, err)
	}
	return link, nil
}

// ConfirmedSequence is what status.confirmed of a link says to the elected process: what
// another process was told is of no account, for the hub's store may have been
// restored from a backup since.
func (r *Replica) ConfirmedSequence(link *v1alpha1.MemberLink) int64 {
	if link == nil || link.Status.Challenge != r.Challenge() {
		return 0
	}
	return link.Status.Confirmed
}

// OwnsMember tells whether this replica is to carry for a member now. It is asked before
// each carrying: a process that was paused finds here that its time is over.
func (r *Replica) OwnsMember(link *v1alpha1.MemberLink) bool {
	return link != nil && link.Spec.Mode == v1alpha1.LinkPush && link.Spec.Replica == r.Name() && r.HoldsLease()
}
