package mailbox

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
)

const (
	// heartbeatInterval is how often the agent renews its Lease on the hub.
	heartbeatInterval = 20 * time.Second
	// heartbeatRetryDelay is the wait after a renewal that failed.
	heartbeatRetryDelay = 2 * time.Second
)

// runHeartbeat renews the agent's Lease on the hub until ctx ends. The first renewal
// confirms to the hub that the credential has arrived.
func (s *Syncer) runHeartbeat(ctx context.Context, session *hubSession, hub *hubclient.Connection) {
	for ctx.Err() == nil {
		wait := heartbeatInterval
		if err := s.renewLease(ctx, session, hub.GetClient()); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("Failed to renew the Lease on the hub; retrying", "error", err.Error())
			wait = heartbeatRetryDelay
		}
		hubclient.WaitForTrigger(ctx, nil, wait)
	}
}

func (s *Syncer) renewLease(ctx context.Context, session *hubSession, hub client.Client) error {
	if err := s.Leadership.Confirm(ctx); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: session.credential.Access.Namespace, Name: registration.LeaseName}
	if err := hub.Get(ctx, key, lease); err != nil {
		return fmt.Errorf("reading Lease %s on the hub: %w", key, err)
	}
	holder, now := registration.LeaseHolder(s.BootID, session.credential.Claims), metav1.NowMicro()
	if ptr.Deref(lease.Spec.HolderIdentity, "") != holder {
		lease.Spec.HolderIdentity, lease.Spec.AcquireTime = &holder, &now
	}
	lease.Spec.RenewTime = &now
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(3 * heartbeatInterval / time.Second))
	if err := hub.Update(ctx, lease); err != nil {
		return fmt.Errorf("renewing Lease %s on the hub: %w", key, err)
	}
	return nil
}
