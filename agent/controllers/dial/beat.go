package dial

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
	// heartbeatInterval of the Lease by which the hub knows that this agent dials in.
	heartbeatInterval = 20 * time.Second
	// heartbeatRetryDelay is how soon it is tried again.
	heartbeatRetryDelay = 2 * time.Second
)

// runHeartbeat renews the Lease on the hub until ctx ends. The first time tells the hub that
// the credential has arrived.
func (c *Syncer) runHeartbeat(ctx context.Context, d *hubSession, hub *hubclient.Connection) {
	for ctx.Err() == nil {
		wait := heartbeatInterval
		if err := c.renewLease(ctx, d, hub.GetClient()); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("The sign of life to the hub is tried again", "error", err.Error())
			wait = heartbeatRetryDelay
		}
		hubclient.WaitForTrigger(ctx, nil, wait)
	}
}

func (c *Syncer) renewLease(ctx context.Context, d *hubSession, hub client.Client) error {
	if err := c.Leader.Confirm(ctx); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: d.credential.access.Namespace, Name: registration.LeaseName}
	if err := hub.Get(ctx, key, lease); err != nil {
		return fmt.Errorf("reading Lease %s on the hub: %w", key, err)
	}
	holder, now := registration.LeaseHolder(c.BootID, d.credential.token), metav1.NowMicro()
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
