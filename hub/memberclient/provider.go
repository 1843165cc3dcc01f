// Package memberclient holds the hub's connections to its member clusters, as a
// provider of multicluster-runtime. Each member is looked after by a goroutine
// of its own with a timeout on everything it does: one that hangs holds up
// nobody but itself.
package memberclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Options of a Provider. What is zero has the default.
type Options = hubclient.Options

// Target says how a member is reached.
type Target struct {
	// Config may have a bearer token; other files and plugins it must not need.
	Config *rest.Config
	// Namespace of the member's agent: nothing is read or watched outside it.
	Namespace string
	// ConfigVersion differs where Config does, but for the bearer token: a new token is
	// taken up by the connection that is there, all else is a new connection.
	ConfigVersion string
	// Source is what Config was read from; Keep asks for it.
	Source string
}

// State is what is known of the connection to a member.
type State struct {
	// Known is false as long as no attempt to reach it has come to an end.
	Known     bool
	Reachable bool
	// Reason is one of those of v1alpha1.ConditionReachable.
	Reason string
	// Message says what to do; it is the same for the same cause.
	Message string
	// Since is when Reachable or Reason has become what it is.
	Since time.Time
}

// Member is a member that is connected and whose mailbox is being watched.
// GetCache reads what was seen last; GetClient reads and writes past the cache,
// and each of its requests ends in time.
type Member struct {
	cluster.Cluster
	// Namespace of the agent.
	Namespace string
}

type fieldIndex struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

// memberEntry is what the Provider knows of one member.
type memberEntry struct {
	name   string
	target Target
	token  hubclient.Token
	// trigger asks for a probe, or for an attempt, at once.
	trigger chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}

	state   State
	engaged *Member
	// reached: it has been connected. note is what Keep has to say of it.
	everReached bool
	keptNote    string
}

// Provider gives multicluster-runtime the members that can be reached.
//
// The library's own clusters.Clusters is not used: it removes by name whatever
// has taken the place of a cluster that ended, so that a re-connection may end
// the new connection, and it can engage one at a time.
//
// It is no multicluster.ProviderRunnable on purpose: the library would run it
// in the elected replica only. Add what Runnable returns to the manager.
type Provider struct {
	options Options

	mu      sync.Mutex
	ctx     context.Context // of Runnable; nil before it runs
	aware   multicluster.Aware
	entries map[string]*memberEntry
	// ending are the connections that were replaced or removed and have not ended.
	ending       map[string]chan struct{}
	indexes      []fieldIndex
	changeHooks  []func(string)
	mailboxHooks []func(string, client.Object)
}

var _ multicluster.Provider = (*Provider)(nil)

// New returns a Provider without members.
func New(o Options) *Provider {
	o.SetDefaults()
	if o.UserAgent == "" {
		o.UserAgent = "ot-hub"
	}
	return &Provider{options: o, entries: map[string]*memberEntry{}, ending: map[string]chan struct{}{}}
}

// Runnable connects and probes members for as long as it runs, in every replica.
func (p *Provider) Runnable(aware multicluster.Aware) manager.Runnable {
	return &runnable{provider: p, aware: aware}
}

type runnable struct {
	provider *Provider
	aware    multicluster.Aware
}

// NeedLeaderElection is false: every replica relays.
func (r *runnable) NeedLeaderElection() bool { return false }

// Start returns when ctx has ended and with it every connection.
func (r *runnable) Start(ctx context.Context) error {
	p := r.provider
	p.mu.Lock()
	if p.ctx != nil {
		p.mu.Unlock()
		return errors.New("starting the connections to members: they have been started already")
	}
	p.ctx, p.aware = ctx, r.aware
	for _, e := range p.entries {
		p.startEntryLocked(e)
	}
	p.mu.Unlock()

	<-ctx.Done()
	p.mu.Lock()
	var all []chan struct{}
	for _, e := range p.entries {
		if e.done != nil {
			all = append(all, e.done)
		}
	}
	for _, done := range p.ending {
		all = append(all, done)
	}
	p.mu.Unlock()
	for _, done := range all {
		<-done
	}
	return nil
}

// OnChange has hook called when the State of a member has changed, and after
// it was engaged or disengaged. Call it before the Provider runs. A hook must
// not block.
func (p *Provider) OnChange(hook func(name string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changeHooks = append(p.changeHooks, hook)
}

// OnMailboxEvent has hook called with each object of a member's mailbox that is seen to
// be made, changed or deleted, those included that are there when the member is
// connected. Call it before the Provider runs. A hook must not block, nor change
// the object.
//
// It is there because the watches of multicluster-runtime (v0.24) leave a
// goroutine behind for each connection; these go with the connection's cache.
func (p *Provider) OnMailboxEvent(hook func(name string, o client.Object)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mailboxHooks = append(p.mailboxHooks, hook)
}

func (p *Provider) notifyChange(name string) {
	p.mu.Lock()
	hooks := slices.Clone(p.changeHooks)
	p.mu.Unlock()
	for _, hook := range hooks {
		hook(name)
	}
}

// SetTarget says how a member is reached from now on. It does not wait for anything.
func (p *Provider) SetTarget(name string, t Target) {
	t.Config = rest.CopyConfig(t.Config)
	token := t.Config.BearerToken
	t.Config.BearerToken = ""

	p.mu.Lock()
	old := p.entries[name]
	if old != nil && old.keptNote != "" {
		old.keptNote = ""
		defer p.notifyChange(name)
	}
	defer p.mu.Unlock()
	if old != nil && old.cancel != nil && old.target.ConfigVersion == t.ConfigVersion && old.target.Namespace == t.Namespace {
		old.target.Source = t.Source
		if old.token.Get() != token {
			old.token.Set(token)
			old.triggerProbe()
		}
		return
	}
	e := &memberEntry{name: name, target: t, trigger: make(chan struct{}, 1), cancel: func() {}}
	e.token.Set(token)
	if old != nil {
		// What was true of the connection before is, until this one has come to an
		// end of its first attempt: a rotation is no outage.
		e.state = old.state
		p.stopEntryLocked(old)
	}
	p.entries[name] = e
	if p.ctx != nil {
		p.startEntryLocked(e)
	}
}

// KeepConnection lets a connection go on whose source is gone, and has its State say so
// with note. There is none to keep, and false is returned, where the member was
// never reached by what that source had, or is to be reached in another namespace.
func (p *Provider) KeepConnection(name, source, namespace, note string) bool {
	p.mu.Lock()
	e := p.entries[name]
	keep := e != nil && e.everReached && e.target.Source == source && e.target.Namespace == namespace
	same := keep && e.keptNote == note
	if keep {
		e.keptNote = note
	}
	p.mu.Unlock()
	if keep && !same {
		p.notifyChange(name)
	}
	return keep
}

// SetUnreachable says that a member cannot be reached for now, and why; what connection
// there was ends.
func (p *Provider) SetUnreachable(name, reason, message string) {
	p.mu.Lock()
	e := &memberEntry{name: name}
	if old := p.entries[name]; old != nil {
		e.state = old.state
		p.stopEntryLocked(old)
	}
	p.entries[name] = e
	p.mu.Unlock()
	p.updateState(e, State{Known: true, Reason: reason, Message: message})
}

// Remove forgets a member.
func (p *Provider) Remove(name string) {
	p.mu.Lock()
	e := p.entries[name]
	if e != nil {
		p.stopEntryLocked(e)
		delete(p.entries, name)
	}
	p.mu.Unlock()
	if e != nil {
		p.notifyChange(name)
	}
}

// State of the connection to a member.
func (p *Provider) State(name string) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[name]
	if e == nil {
		return State{}
	}
	s := e.state
	if s.Known && e.keptNote != "" {
		s.Message += "; " + e.keptNote
	}
	return s
}

// GetMember returns one that is connected; else the error is
// multicluster.ErrClusterNotFound.
func (p *Provider) GetMember(name string) (*Member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[name]; e != nil && e.engaged != nil {
		return e.engaged, nil
	}
	return nil, fmt.Errorf("member %s is not connected: %w", name, multicluster.ErrClusterNotFound)
}

// Get is Member, for multicluster-runtime.
func (p *Provider) Get(_ context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	m, err := p.GetMember(name.String())
	if err != nil {
		return nil, err
	}
	return m, nil
}

// IndexField indexes a field in all members, those to come included.
func (p *Provider) IndexField(ctx context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	p.mu.Lock()
	p.indexes = append(p.indexes, fieldIndex{object, field, extract})
	var engaged []*memberEntry
	for _, e := range p.entries {
		if e.engaged != nil {
			engaged = append(engaged, e)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, e := range engaged {
		if err := e.engaged.GetFieldIndexer().IndexField(ctx, object, field, extract); err != nil {
			errs = append(errs, fmt.Errorf("indexing field %s of %T in member %s: %w", field, object, e.name, err))
		}
	}
	return errors.Join(errs...)
}

func (e *memberEntry) triggerProbe() {
	select {
	case e.trigger <- struct{}{}:
	default:
	}
}

// startEntryLocked lets the goroutine of a member begin after the one before it has
// ended: an old connection must not be engaged over a newer one.
func (p *Provider) startEntryLocked(e *memberEntry) {
	if e.cancel == nil {
		return // it cannot be reached, as Fail has said
	}
	ctx, cancel := context.WithCancel(p.ctx)
	e.cancel, e.done = cancel, make(chan struct{})
	before := p.ending[e.name]
	delete(p.ending, e.name)
	go func() {
		defer close(e.done)
		defer cancel()
		if before != nil {
			<-before
		}
		p.maintainConnection(ctx, e)
	}()
}

// stopEntryLocked ends the goroutine of a member and does not wait for it.
func (p *Provider) stopEntryLocked(e *memberEntry) {
	e.engaged = nil
	if e.done == nil {
		return
	}
	e.cancel()
	done := e.done
	p.ending[e.name] = done
	go func() {
		<-done
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ending[e.name] == done {
			delete(p.ending, e.name)
		}
	}()
}

// updateState notes the state of a member unless another connection has taken the
// place of this one, and tells those who want to know.
func (p *Provider) updateState(e *memberEntry, s State) {
	p.mu.Lock()
	if p.entries[e.name] != e {
		p.mu.Unlock()
		return
	}
	s.Since = e.state.Since
	if e.state.Known != s.Known || e.state.Reachable != s.Reachable || e.state.Reason != s.Reason {
		s.Since = time.Now()
	}
	same := e.state == s
	e.state = s
	e.everReached = e.everReached || s.Reachable
	p.mu.Unlock()
	if !same {
		p.notifyChange(e.name)
	}
}

// setEngaged makes a member known, or unknown again with nil.
func (p *Provider) setEngaged(e *memberEntry, m *Member) {
	p.mu.Lock()
	same := p.entries[e.name] != e || e.engaged == m
	if !same {
		e.engaged = m
	}
	p.mu.Unlock()
	if !same && m == nil {
		p.notifyChange(e.name)
	}
}

func connectedState() State {
	return State{Known: true, Reachable: true, Reason: v1alpha1.ReasonConnected, Message: "connected"}
}
