//go:build linux

package program

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DeleteAgentLease deletes the Lease of an agent that is dead or paused, so that the next
// one does not wait for it to expire.
func DeleteAgentLease(ctx context.Context, c client.Client) error {
	return agentProgram.deleteLease(ctx, c)
}

// DeleteHubLease deletes the Lease of a hub that is dead or paused.
func DeleteHubLease(ctx context.Context, c client.Client) error {
	return hubProgram.deleteLease(ctx, c)
}

func (p *Program) deleteLease(ctx context.Context, c client.Client) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Name, Name: p.Name}}
	return client.IgnoreNotFound(c.Delete(ctx, lease))
}

// takeOverLease deletes the Lease before the program starts. A typed client does not discover the API
// server's kinds.
func (p *Program) takeOverLease(ctx context.Context, cfg *rest.Config) error {
	c, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client for the Lease of %s: %w", p.Name, err)
	}
	if err := c.Leases(p.Name).Delete(ctx, p.Name, metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking over the Lease of %s: %w", p.Name, err)
	}
	return nil
}

// AgentLeaseHolder returns the identity that holds the agents' Lease; empty for none.
func AgentLeaseHolder(ctx context.Context, c client.Client) string {
	lease := &coordinationv1.Lease{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: AgentNamespace, Name: agentProgram.Name}, lease); err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
