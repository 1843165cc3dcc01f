package dial

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unauthorizedRetryDelay is the wait before a credential is tried again that the hub has
// refused: it stays refused, but for an API server that knows too little yet.
const unauthorizedRetryDelay = 30 * time.Second

// Syncer holds the one connection to the hub, and carries over it.
type Syncer struct {
	// Member is this cluster: Cached and Live of the agent's own namespace.
	Member  Member
	Leader  *LeadershipCheck
	Metrics *metrics.PullMode
	// BootID of this process.
	BootID  string
	Options hubclient.Options
	// OnConnectionChange is called when the state of the connection has changed. It must not
	// block.
	OnConnectionChange func()

	mu             sync.Mutex
	ctx            context.Context // of Start; nil before it runs
	currentSession *hubSession
	connection     connectionState
}

// Member is the agent's own end of the mailbox.
type Member struct {
	// Cached may be old, and Live may not answer from a cache.
	Cached client.Reader
	Live   client.Client
	// Watch has something done at every event of the mailbox here, from now on. It is
	// called once, when there is first something to be carried with.
	Watch     func(ctx context.Context, do func()) error
	Namespace string
}

// hubSession is what one credential is used for. Its token may be replaced under it,
// by another one of the same account; all else is another connection.
type hubSession struct {
	target        string
	credential    credential
	token         hubclient.Token
	probeRequests chan struct{}
	syncRequests  chan struct{}
	cancel        context.CancelFunc
	done          chan struct{}
}

// NeedLeaderElection is true: one agent of a cluster carries.
func (c *Syncer) NeedLeaderElection() bool { return true }

// Start carries until ctx ends.
func (c *Syncer) Start(ctx context.Context) error {
	if err := c.Leader.Confirm(ctx); err != nil {
		log.FromContext(ctx).Info("Whether this agent leads is asked again before it carries", "error", err.Error())
	}
	c.mu.Lock()
	c.ctx = ctx
	if c.currentSession != nil {
		c.startSessionLocked(c.currentSession)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.UseCredential(nil)
	return nil
}

// UseCredential has everything carried with this from now on; nil for nothing. It waits for
// what was carried with another credential to end.
func (c *Syncer) UseCredential(what *credential) {
	c.mu.Lock()
	was := c.currentSession
	if was != nil && what != nil && was.target == connectionTarget(*what) {
		if was.token.Get() != what.access.Token {
			was.token.Set(what.access.Token)
			notify(was.probeRequests)
		}
		c.mu.Unlock()
		return
	}
	c.currentSession, c.connection = nil, connectionState{}
	if was != nil && was.cancel != nil {
		was.cancel()
	}
	c.mu.Unlock()
	if was != nil && was.done != nil {
		<-was.done
	}
	if what == nil {
		return
	}
	next := &hubSession{target: connectionTarget(*what), credential: *what, probeRequests: make(chan struct{}, 1), syncRequests: make(chan struct{}, 1)}
	next.token.Set(what.access.Token)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx != nil && c.ctx.Err() != nil {
		return
	}
	c.currentSession = next
	if c.ctx != nil {
		c.startSessionLocked(next)
	}
}

// connectionTarget is the same where a connection may go on with another token.
func connectionTarget(c credential) string {
	return c.access.Server + " " + c.access.Namespace + " " + string(c.token.AccountUID) + " " + string(c.access.CA)
}

func (c *Syncer) startSessionLocked(d *hubSession) {
	ctx, cancel := context.WithCancel(c.ctx)
	d.cancel, d.done = cancel, make(chan struct{})
	go func() {
		defer close(d.done)
		defer cancel()
		c.keepConnected(ctx, d)
	}()
}

// connectionState is how the connection is.
func (c *Syncer) connectionState() connectionState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connection
}

// RequestSync has it looked at what there is to be carried. It never blocks: one poke that
// is not taken yet stands for all.
func (c *Syncer) RequestSync() {
	c.mu.Lock()
	d := c.currentSession
	c.mu.Unlock()
	if d != nil {
		notify(d.syncRequests)
	}
}

func notify(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

func (c *Syncer) setConnectionState(d *hubSession, l connectionState) {
	c.mu.Lock()
	same := c.currentSession != d || c.connection == l
	if !same {
		c.connection = l
	}
	c.mu.Unlock()
	if !same {
		c.OnConnectionChange()
	}
}

// keepConnected keeps the hub connected until ctx ends.
func (c *Syncer) keepConnected(ctx context.Context, d *hubSession) {
	longest := c.Options.ProbeInterval
	pause := min(hubclient.FirstRetryDelay, longest)
	for ctx.Err() == nil {
		connected, err := c.runSession(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = min(hubclient.FirstRetryDelay, longest)
		}
		wait := pause
		switch {
		case errors.Is(err, errNotLeading):
			log.FromContext(ctx).Info("Another agent leads: nothing is carried any more")
			c.setConnectionState(d, connectionState{attempted: true, outcome: outcome{v1alpha1.ReasonConnecting, "another agent of this cluster leads"}})
			return // the manager ends, too
		case errors.Is(err, hubclient.ErrWatchStale):
			log.FromContext(ctx).Info("Connecting to the hub anew", "reason", err.Error())
		case errors.Is(err, errMailboxNotServed):
			c.setConnectionState(d, connectionState{attempted: true, outcome: outcome{v1alpha1.ReasonMailboxNotServed, "connected to the hub, but this cluster does not serve ClusterPlans, TransferGrants and ClusterReports: install ot-agent's chart with crds.mailbox"}})
			wait = longest
		case errors.Is(err, hubclient.ErrNotServed):
			c.setConnectionState(d, connectionState{attempted: true, outcome: outcome{v1alpha1.ReasonMailboxNotServed, "the hub does not serve ClusterReports: is ot-hub's chart installed there?"}})
			wait = longest
		case err != nil:
			o := explainConnectionError(err)
			log.FromContext(ctx).Info("No connection to the hub", "reason", o.reason, "error", err.Error())
			c.setConnectionState(d, connectionState{attempted: true, outcome: o})
			if o.reason == v1alpha1.ReasonUnauthorized {
				wait = max(wait, unauthorizedRetryDelay)
			}
		}
		hubclient.WaitForTrigger(ctx, d.probeRequests, wait)
		pause = min(2*pause, longest)
	}
}

// runSession is one connection, from dialling until it is no longer good. It tells
// whether it was good at all.
func (c *Syncer) runSession(ctx context.Context, d *hubSession) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reports := &metav1.PartialObjectMetadata{}
	reports.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReport"))
	hub, err := hubclient.New(hubclient.Endpoint{
		Config: newRESTConfig(d.credential.access), Token: &d.token, Namespace: d.credential.access.Namespace,
		Watched: []client.Object{&v1alpha1.MemberLink{}, &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}, reports}, Report: reports,
	}, c.Options)
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
	if err := c.Member.Watch(ctx, c.RequestSync); err != nil {
		return false, err
	}
	if err := hub.OnMailboxEvent(func(o client.Object, deleted bool) {
		// What is carried up is no reason to look again.
		if _, report := o.(*metav1.PartialObjectMetadata); !report || deleted {
			notify(d.syncRequests)
		}
	}); err != nil {
		return false, err
	}
	c.setConnectionState(d, connectionState{attempted: true, connected: true, outcome: outcome{
		v1alpha1.ReasonConnected, "connected to " + d.credential.access.Server + " as " + d.credential.access.Namespace}})

	held := make(chan error, 1)
	go func() { held <- hub.WaitUntilBroken(ctx, d.probeRequests) }()
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		c.runHeartbeat(ctx, d, hub)
	}()
	defer func() {
		cancel()
		<-beats
	}()
	return true, c.syncUntilClosed(ctx, d, hub, held)
}

// syncUntilClosed carries whenever there may be something to be carried, until the
// connection is no longer good.
func (c *Syncer) syncUntilClosed(ctx context.Context, d *hubSession, hub *hubclient.Connection, held <-chan error) error {
	t := &connectionSync{syncer: c, hub: hub, namespace: d.credential.access.Namespace}
	notify(d.syncRequests)
	return runSyncLoop(ctx, held, d.syncRequests, t.syncOnce)
}

// runSyncLoop carries whenever it is poked, and goes on by itself where that says when.
// What failed waits longer each time, whoever pokes meanwhile: there are as many
// pokes as there are events, and each would be one more that fails.
func runSyncLoop(ctx context.Context, held <-chan error, pokes <-chan struct{}, carry func(context.Context) (time.Duration, error)) error {
	backoff := minSyncBackoff
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	due := pokes
	for {
		select {
		case err := <-held:
			return err
		case <-timer.C:
		case <-due:
		}
		timer.Stop()
		again, err := carry(ctx)
		due = pokes
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotLeading):
			return err
		case err != nil:
			log.FromContext(ctx).Info("Not everything could be carried; it is tried again", "error", err.Error())
			again, backoff, due = backoff, min(2*backoff, maxSyncBackoff), nil
		default:
			backoff = minSyncBackoff
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}
