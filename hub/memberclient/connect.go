package memberclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maintainConnection keeps a member connected until ctx ends.
func (p *Provider) maintainConnection(ctx context.Context, e *memberEntry) {
	connect := func(ctx context.Context) (bool, error) { return p.runConnection(ctx, e) }
	hubclient.KeepConnected(ctx, p.options.ProbeInterval, e.trigger, connect, func(err error) time.Duration {
		return p.recordBroken(ctx, e, err)
	})
}

// recordBroken records why a member is not connected, and returns the least delay before the
// next attempt.
func (p *Provider) recordBroken(ctx context.Context, e *memberEntry, err error) (minDelay time.Duration) {
	e.watchesFail = errors.As(err, new(*hubclient.WatchError))
	switch {
	case errors.Is(err, hubclient.ErrNotServed):
		p.updateState(e, State{
			Known: true, Reachable: true, Reason: v1alpha1.ReasonConnected,
			Message: "connected, but its API server does not serve ClusterReports: install chart ot-agent there, with crds.mailbox enabled",
		})
		return p.options.ProbeInterval
	case errors.Is(err, hubclient.ErrWatchStale):
		// The member is reachable, so its state stays.
		log.FromContext(ctx).Info("Watches are stale; reconnecting to the member", "member", e.name, "error", err.Error())
	case err != nil:
		reason, message := ClassifyError(err)
		log.FromContext(ctx).V(1).Info("Failed to connect to the member; retrying", "member", e.name, "reason", reason, "error", err.Error())
		p.updateState(e, State{Known: true, Reason: reason, Message: message})
	}
	return 0
}

// runConnection connects to a member and returns when the connection is broken. engaged
// reports whether it ever worked.
func (p *Provider) runConnection(ctx context.Context, e *memberEntry) (engaged bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	report := &v1alpha1.ClusterReport{}
	c, err := hubclient.New(hubclient.Endpoint{
		Config: e.target.Config, Token: &e.token, Namespace: e.target.Namespace,
		Watched: []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}, report}, Report: report,
	}, p.options)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if _, err := c.Probe(ctx); err != nil {
		return false, err
	}
	if err := c.Start(ctx); err != nil {
		return false, err
	}

	m := &Member{connection: c, config: e.target.Config, Namespace: e.target.Namespace}
	p.setEngaged(e, m)
	// Deferred last, so it runs before the context is cancelled.
	defer p.setEngaged(e, nil)
	if err := p.aware.Engage(ctx, multicluster.ClusterName(e.name), m); err != nil {
		return false, fmt.Errorf("engaging the member: %w", err)
	}
	c.OnMailboxEvent(p.mailboxHandler(e.name))
	p.notifyChange(e.name)
	if e.watchesFail {
		if err := p.awaitSteadyWatches(ctx, c, e); err != nil {
			return true, err
		}
	}
	p.updateState(e, connectedState())
	return true, c.WaitUntilBroken(ctx, e.trigger)
}

// awaitSteadyWatches returns nil once a connection has worked for a probe interval, and else why it is
// broken. A member that accepts watches and ends them would else be reached and lost again with each
// attempt.
func (p *Provider) awaitSteadyWatches(ctx context.Context, c *hubclient.Connection, e *memberEntry) error {
	ctx, cancel := context.WithTimeout(ctx, p.options.ProbeInterval)
	defer cancel()
	if err := c.WaitUntilBroken(ctx, e.trigger); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// mailboxHandler calls the hooks for events in a member's mailbox.
func (p *Provider) mailboxHandler(name string) func(hubclient.Event) {
	p.mu.Lock()
	hooks := slices.Clone(p.mailboxHooks)
	p.mu.Unlock()
	return func(e hubclient.Event) {
		for _, hook := range hooks {
			hook(name, e)
		}
	}
}
