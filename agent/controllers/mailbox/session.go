package mailbox

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// unauthorizedRetryDelay is the wait after the hub has refused a credential. It stays
	// refused, unless the hub's API server lags behind.
	unauthorizedRetryDelay = 30 * time.Second
	// The wait after a failed sync doubles from minSyncBackoff to maxSyncBackoff.
	minSyncBackoff = 100 * time.Millisecond
	maxSyncBackoff = 10 * time.Second
)

// keepConnected connects to the hub, again after every failure, until ctx ends or another
// agent leads.
func (s *Syncer) keepConnected(ctx context.Context, session *hubSession) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	connect := func(ctx context.Context) (bool, error) { return s.runSession(ctx, session) }
	hubclient.KeepConnected(ctx, s.Options.ProbeInterval, session.probeRequests, connect, func(err error) time.Duration {
		if errors.Is(err, errNotLeading) {
			stop() // the manager ends as well
		}
		return s.recordBroken(ctx, session, err)
	})
}

// recordBroken records why the hub is not connected, and returns the least delay before the
// next attempt.
func (s *Syncer) recordBroken(ctx context.Context, session *hubSession, err error) (minDelay time.Duration) {
	switch {
	case errors.Is(err, errNotLeading):
		log.FromContext(ctx).Info("Lost leadership to another agent; stopping sync")
		s.setState(session, disconnected(Outcome{v1alpha1.ReasonConnecting, "another agent of this cluster leads"}))
	case errors.Is(err, hubclient.ErrWatchStale):
		log.FromContext(ctx).Info("Reconnecting to the hub", "reason", err.Error())
	case errors.Is(err, errMailboxNotServed):
		s.setState(session, disconnected(Outcome{v1alpha1.ReasonMailboxNotServed,
			"connected to the hub, but this cluster does not serve ClusterPlans, TransferGrants and ClusterReports: install ot-agent's chart with crds.mailbox"}))
		return s.Options.ProbeInterval
	case errors.Is(err, hubclient.ErrNotServed):
		s.setState(session, disconnected(Outcome{v1alpha1.ReasonMailboxNotServed,
			"the hub does not serve ClusterReports: is ot-hub's chart installed there?"}))
		return s.Options.ProbeInterval
	case err != nil:
		o := ExplainError(err)
		log.FromContext(ctx).Info("Failed to connect to the hub; retrying", "reason", o.Reason, "error", err.Error())
		s.setState(session, disconnected(o))
		if o.Reason == v1alpha1.ReasonUnauthorized {
			return unauthorizedRetryDelay
		}
	}
	return 0
}

// runSession connects once and syncs until the connection breaks. connected is true if it
// was established at all.
func (s *Syncer) runSession(ctx context.Context, session *hubSession) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	access := session.credential.Access
	reports := &metav1.PartialObjectMetadata{}
	reports.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReport"))
	hub, err := hubclient.New(hubclient.Endpoint{
		Config: NewRESTConfig(access), Token: &session.token, Namespace: access.Namespace,
		Watched: []client.Object{&v1alpha1.MemberLink{}, &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}, reports}, Report: reports,
	}, s.Options)
	if err != nil {
		return false, err
	}
	defer hub.Close()
	if _, err := hub.Probe(ctx); err != nil {
		return false, err
	}
	if err := hub.Start(ctx); err != nil {
		return false, err
	}
	if err := s.Member.Watch(ctx, s.RequestSync); err != nil {
		return false, err
	}
	events := &eventFilter{}
	hub.OnMailboxEvent(func(e hubclient.Event) {
		if events.needsSync(e.Object, e.Deleted) {
			notify(session.syncRequests)
		}
	})
	s.setState(session, ConnectionState{Attempted: true, Connected: true, Outcome: Outcome{
		v1alpha1.ReasonConnected, "connected to " + access.Server + " as " + access.Namespace}})

	broken := make(chan error, 1)
	go func() { broken <- hub.WaitUntilBroken(ctx, session.probeRequests) }()
	heartbeatDone := make(chan struct{})
	go func() {
		defer close(heartbeatDone)
		s.runHeartbeat(ctx, session, hub)
	}()
	defer func() {
		cancel()
		<-heartbeatDone
	}()
	notify(session.syncRequests)
	c := &connectionSync{syncer: s, hub: hub, namespace: access.Namespace}
	return true, runSyncLoop(ctx, broken, session.syncRequests, c.syncOnce)
}

// eventFilter selects events of the mailbox on the hub.
type eventFilter struct {
	mu sync.Mutex
	// uid and generation of the MemberLink that was seen last.
	uid        types.UID
	generation int64
}

// needsSync reports whether an event needs a sync. What this agent writes needs none. Nor
// does what another one writes with the same credential, as in a cluster that was cloned:
// each would answer the status of the other with its own, without end.
func (f *eventFilter) needsSync(o client.Object, deleted bool) bool {
	switch o.(type) {
	case *metav1.PartialObjectMetadata: // a ClusterReport
		return deleted
	case *v1alpha1.MemberLink:
		f.mu.Lock()
		defer f.mu.Unlock()
		changed := deleted || f.uid != o.GetUID() || f.generation != o.GetGeneration()
		f.uid, f.generation = o.GetUID(), o.GetGeneration()
		return changed
	}
	return true
}

// runSyncLoop calls syncOnce at every request, and after the delay that it returns, until the
// connection breaks. After a failure requests are ignored until the backoff has passed:
// there are as many requests as events, and each would fail again.
func runSyncLoop(ctx context.Context, broken <-chan error, requests <-chan struct{}, syncOnce func(context.Context) (time.Duration, error)) error {
	backoff := minSyncBackoff
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	accepted := requests
	for {
		select {
		case err := <-broken:
			return err
		case <-timer.C:
		case <-accepted:
		}
		timer.Stop()
		delay, err := syncOnce(ctx)
		accepted = requests
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotLeading):
			return err
		case err != nil:
			log.FromContext(ctx).Info("Failed to sync with the hub; retrying", "error", err.Error())
			delay, backoff, accepted = backoff, min(2*backoff, maxSyncBackoff), nil
		default:
			backoff = minSyncBackoff
		}
		if delay > 0 {
			timer.Reset(delay)
		}
	}
}

// NewRESTConfig returns the client configuration of the hub, without a token.
func NewRESTConfig(access registration.HubAccess) *rest.Config {
	return &rest.Config{Host: access.Server, UserAgent: "ot-agent", TLSClientConfig: rest.TLSClientConfig{CAData: access.CA}}
}
