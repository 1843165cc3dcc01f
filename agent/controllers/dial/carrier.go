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
	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// refusedDelay is the wait before a credential is tried again that the hub has
// refused: it stays refused, but for an API server that knows too little yet.
const refusedDelay = 30 * time.Second

// Carrier holds the one connection to the hub, and carries over it.
type Carrier struct {
	// Member is this cluster: Cached and Live of the agent's own namespace.
	Member  Member
	Leader  *Leader
	Metrics *metrics.Hub
	// BootID of this process.
	BootID  string
	Options dial.Options
	// Changed is called when the state of the connection has changed. It must not
	// block.
	Changed func()

	mu      sync.Mutex
	ctx     context.Context // of Start; nil before it runs
	current *dialled
	line    line
}

// Member is the agent's own end of the mailbox.
type Member struct {
	// Cached may be old, and Live may not answer from a cache.
	Cached client.Reader
	Live   client.Client
	// Follow has something done at every event of the mailbox here, from now on. It is
	// called once, when there is first something to be carried with.
	Follow    func(ctx context.Context, do func()) error
	Namespace string
}

// dialled is what one credential is used for. Its token may be replaced under it,
// by another one of the same account; all else is another connection.
type dialled struct {
	to     string
	what   credential
	token  dial.Token
	probe  chan struct{}
	pokes  chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

// NeedLeaderElection is true: one agent of a cluster carries.
func (c *Carrier) NeedLeaderElection() bool { return true }

// Start carries until ctx ends.
func (c *Carrier) Start(ctx context.Context) error {
	if err := c.Leader.Leads(ctx); err != nil {
		log.FromContext(ctx).Info("Whether this agent leads is asked again before it carries", "error", err.Error())
	}
	c.mu.Lock()
	c.ctx = ctx
	if c.current != nil {
		c.startLocked(c.current)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.Use(nil)
	return nil
}

// Use has everything carried with this from now on; nil for nothing. It waits for
// what was carried with another credential to end.
func (c *Carrier) Use(what *credential) {
	c.mu.Lock()
	was := c.current
	if was != nil && what != nil && was.to == target(*what) {
		if was.token.Get() != what.access.Token {
			was.token.Set(what.access.Token)
			poke(was.probe)
		}
		c.mu.Unlock()
		return
	}
	c.current, c.line = nil, line{}
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
	next := &dialled{to: target(*what), what: *what, probe: make(chan struct{}, 1), pokes: make(chan struct{}, 1)}
	next.token.Set(what.access.Token)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx != nil && c.ctx.Err() != nil {
		return
	}
	c.current = next
	if c.ctx != nil {
		c.startLocked(next)
	}
}

// target is the same where a connection may go on with another token.
func target(c credential) string {
	return c.access.Server + " " + c.access.Namespace + " " + string(c.token.Account) + " " + string(c.access.CA)
}

func (c *Carrier) startLocked(d *dialled) {
	ctx, cancel := context.WithCancel(c.ctx)
	d.cancel, d.done = cancel, make(chan struct{})
	go func() {
		defer close(d.done)
		defer cancel()
		c.look(ctx, d)
	}()
}

// state is how the connection is.
func (c *Carrier) state() line {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.line
}

// Poke has it looked at what there is to be carried. It never blocks: one poke that
// is not taken yet stands for all.
func (c *Carrier) Poke() {
	c.mu.Lock()
	d := c.current
	c.mu.Unlock()
	if d != nil {
		poke(d.pokes)
	}
}

func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

func (c *Carrier) settle(d *dialled, l line) {
	c.mu.Lock()
	same := c.current != d || c.line == l
	if !same {
		c.line = l
	}
	c.mu.Unlock()
	if !same {
		c.Changed()
	}
}

// look keeps the hub connected until ctx ends.
func (c *Carrier) look(ctx context.Context, d *dialled) {
	longest := c.Options.ProbeInterval
	pause := min(dial.FirstRetry, longest)
	for ctx.Err() == nil {
		connected, err := c.session(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = min(dial.FirstRetry, longest)
		}
		wait := pause
		switch {
		case errors.Is(err, errNotLeading):
			log.FromContext(ctx).Info("Another agent leads: nothing is carried any more")
			c.settle(d, line{known: true, outcome: outcome{v1alpha1.ReasonConnecting, "another agent of this cluster leads"}})
			return // the manager ends, too
		case errors.Is(err, dial.ErrDeaf):
			log.FromContext(ctx).Info("Connecting to the hub anew", "reason", err.Error())
		case errors.Is(err, errNoMailbox):
			c.settle(d, line{known: true, outcome: outcome{v1alpha1.ReasonNotServed, "connected to the hub, but this cluster does not serve ClusterPlans, TransferGrants and ClusterReports: install ot-agent's chart with crds.mailbox"}})
			wait = longest
		case errors.Is(err, dial.ErrNotServed):
			c.settle(d, line{known: true, outcome: outcome{v1alpha1.ReasonNotServed, "the hub does not serve ClusterReports: is ot-hub's chart installed there?"}})
			wait = longest
		case err != nil:
			o := faultOf(err)
			log.FromContext(ctx).Info("No connection to the hub", "reason", o.reason, "error", err.Error())
			c.settle(d, line{known: true, outcome: o})
			if o.reason == v1alpha1.ReasonUnauthorized {
				wait = max(wait, refusedDelay)
			}
		}
		dial.Await(ctx, d.probe, wait)
		pause = min(2*pause, longest)
	}
}

// session is one connection, from dialling until it is no longer good. It tells
// whether it was good at all.
func (c *Carrier) session(ctx context.Context, d *dialled) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reports := &metav1.PartialObjectMetadata{}
	reports.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReport"))
	hub, err := dial.New(dial.End{
		Config: config(d.what.access), Token: &d.token, Namespace: d.what.access.Namespace,
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
	if err := c.Member.Follow(ctx, c.Poke); err != nil {
		return false, err
	}
	if err := hub.OnMail(func(o client.Object, deleted bool) {
		// What is carried up is no reason to look again.
		if _, report := o.(*metav1.PartialObjectMetadata); !report || deleted {
			poke(d.pokes)
		}
	}); err != nil {
		return false, err
	}
	c.settle(d, line{known: true, connected: true, outcome: outcome{
		v1alpha1.ReasonConnected, "connected to " + d.what.access.Server + " as " + d.what.access.Namespace}})

	held := make(chan error, 1)
	go func() { held <- hub.Hold(ctx, d.probe) }()
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		c.beat(ctx, d, hub)
	}()
	defer func() {
		cancel()
		<-beats
	}()
	return true, c.carryOn(ctx, d, hub, held)
}

// carryOn carries whenever there may be something to be carried, until the
// connection is no longer good.
func (c *Carrier) carryOn(ctx context.Context, d *dialled, hub *dial.Connection, held <-chan error) error {
	t := &transfer{carrier: c, hub: hub, namespace: d.what.access.Namespace}
	poke(d.pokes)
	return pace(ctx, held, d.pokes, t.carry)
}

// pace carries whenever it is poked, and goes on by itself where that says when.
// What failed waits longer each time, whoever pokes meanwhile: there are as many
// pokes as there are events, and each would be one more that fails.
func pace(ctx context.Context, held <-chan error, pokes <-chan struct{}, carry func(context.Context) (time.Duration, error)) error {
	backoff := leastBackoff
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
			again, backoff, due = backoff, min(2*backoff, mostBackoff), nil
		default:
			backoff = leastBackoff
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}
