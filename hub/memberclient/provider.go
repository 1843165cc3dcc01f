// Package memberclient holds the hub's connections to its members, as a provider of
// multicluster-runtime. Each member has its own goroutine with a timeout on everything
// it does, so one that hangs delays no other.
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

// Options of a Provider. Zero values get the default.
type Options = hubclient.Options

// Target says how to connect to a member.
type Target struct {
	// Config may have a bearer token. It must not need other files or plugins.
	Config *rest.Config
	// Namespace of the member's agent: nothing else is read or watched.
	Namespace string
	// ConfigVersion changes whenever Config changes, except for its bearer token: the
	// existing connection uses a new token, and everything else needs a new connection.
	ConfigVersion string
	// ConnectionID of the MemberCluster that Config was made for.
	ConnectionID string
}

// State of the connection to a member.
type State struct {
	// Known is false until the first attempt to connect has ended.
	Known     bool
	Reachable bool
	// Reason is one of those of v1alpha1.ConditionReachable.
	Reason string
	// Message says what to do; it is always the same for the same cause.
	Message string
	// ConnectionID of the target that was tried.
	ConnectionID string
	// Since is when Reachable or Reason last changed.
	Since time.Time
}

// memberEntry is the Provider's state of one member.
type memberEntry struct {
	name   string
	target Target
	token  hubclient.Token
	// trigger requests a probe, or an attempt to connect, at once.
	trigger chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}

	// state is that of the former entry until tried.
	state   State
	tried   bool
	engaged *Member
	// everReached: the member has been connected with this target. keptNote is the note
	// of KeepConnection.
	everReached bool
	keptNote    string
	// watchesFail: lists and watches failed over the last connection. Only maintainConnection's
	// goroutine uses it.
	watchesFail bool
}

// Provider gives multicluster-runtime the members that are reachable.
//
// It does not use the library's clusters.Clusters, which removes by name whatever has
// replaced an ended cluster, so that a reconnection could end the new connection, and
// which engages one cluster at a time.
//
// It deliberately is not a multicluster.ProviderRunnable: the library would run it in
// the elected replica only. Add the result of Runnable to the manager.
type Provider struct {
	options Options

	mu      sync.Mutex
	ctx     context.Context // of Runnable; nil before it runs
	aware   multicluster.Aware
	entries map[string]*memberEntry
	// ending are replaced or removed connections that have not ended yet.
	ending       map[string]chan struct{}
	changeHooks  []func(string)
	mailboxHooks []func(string, hubclient.Event)
}

var _ multicluster.Provider = (*Provider)(nil)

// New returns a Provider without members.
func New(o Options) *Provider {
	o.SetDefaults()
	o.AlignProbes = true // of hundreds of members
	if o.UserAgent == "" {
		o.UserAgent = "ot-hub"
	}
	return &Provider{options: o, entries: map[string]*memberEntry{}, ending: map[string]chan struct{}{}}
}

// Runnable connects and probes members while it runs, in every replica.
func (p *Provider) Runnable(aware multicluster.Aware) manager.Runnable {
	return &runnable{provider: p, aware: aware}
}

type runnable struct {
	provider *Provider
	aware    multicluster.Aware
}

// NeedLeaderElection returns false: every replica syncs mailboxes.
func (r *runnable) NeedLeaderElection() bool { return false }

// Start returns when ctx and every connection have ended.
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

// OnChange calls hook when the State of a member changes, and after it is engaged or
// disengaged. Call it before the Provider runs. A hook must not block.
func (p *Provider) OnChange(hook func(name string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changeHooks = append(p.changeHooks, hook)
}

// OnMailboxEvent calls hook for each object of a member's mailbox that is created,
// changed or deleted, and for existing ones when the member is connected. Call it
// before the Provider runs. A hook must not block or change the object.
//
// The watches of multicluster-runtime (v0.24) leak a goroutine per connection; these
// end with the connection's cache.
func (p *Provider) OnMailboxEvent(hook func(name string, e hubclient.Event)) {
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

// SetTarget sets how to connect to a member. It does not wait.
func (p *Provider) SetTarget(name string, t Target) {
	t.Config = rest.CopyConfig(t.Config)
	token := t.Config.BearerToken
	t.Config.BearerToken = ""

	stateChanged := false
	defer func() {
		if stateChanged {
			p.notifyChange(name)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.entries[name]
	if old != nil && old.keptNote != "" {
		old.keptNote, stateChanged = "", true
	}
	if old != nil && old.cancel != nil && old.target.ConfigVersion == t.ConfigVersion && old.target.Namespace == t.Namespace {
		old.target.ConnectionID = t.ConnectionID
		if old.tried && old.state.ConnectionID != t.ConnectionID { // the same server by the same credential
			old.state.ConnectionID, stateChanged = t.ConnectionID, true
		}
		if old.token.Get() != token {
			old.token.Set(token)
			old.triggerProbe()
		}
		return
	}
	e := &memberEntry{name: name, target: t, trigger: make(chan struct{}, 1), cancel: func() {}}
	e.token.Set(token)
	if old != nil {
		// Keep the state until the first attempt of the new connection has ended: rotating
		// a credential is no outage.
		e.state = old.state
		p.stopEntryLocked(old)
	}
	p.entries[name] = e
	if p.ctx != nil {
		p.startEntryLocked(e)
	}
}

// KeepConnection keeps a connection although its Secret no longer exists, and adds note
// to its State. It returns false if there is no connection to keep: the member was
// never reached by that connection.
func (p *Provider) KeepConnection(name, connectionID, note string) bool {
	p.mu.Lock()
	e := p.entries[name]
	keep := e != nil && e.everReached && e.target.ConnectionID == connectionID
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

// SetUnreachable ends the connection to a member and sets why it cannot be reached.
func (p *Provider) SetUnreachable(name, connectionID, reason, message string) {
	p.mu.Lock()
	e := &memberEntry{name: name, target: Target{ConnectionID: connectionID}}
	if old := p.entries[name]; old != nil {
		e.state = old.state
		p.stopEntryLocked(old)
	}
	p.entries[name] = e
	p.mu.Unlock()
	p.updateState(e, State{Known: true, Reason: reason, Message: message})
}

// Remove ends the connection to a member and forgets it.
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

// State returns the state of the connection to a member.
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

// GetMember returns a connected member, or multicluster.ErrClusterNotFound.
func (p *Provider) GetMember(name string) (*Member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[name]; e != nil && e.engaged != nil {
		return e.engaged, nil
	}
	return nil, fmt.Errorf("member %s is not connected: %w", name, multicluster.ErrClusterNotFound)
}

// ConnectionID returns the ConnectionID by which a member is connected; empty if another
// connection has replaced that one.
func (p *Provider) ConnectionID(name string, m *Member) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[name]; e != nil && e.engaged == m {
		return e.target.ConnectionID
	}
	return ""
}

// Get implements multicluster.Provider.
func (p *Provider) Get(_ context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	m, err := p.GetMember(name.String())
	if err != nil {
		return nil, err
	}
	return m, nil
}

// IndexField implements multicluster.Provider.
func (*Provider) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoInformers
}

func (e *memberEntry) triggerProbe() {
	select {
	case e.trigger <- struct{}{}:
	default:
	}
}

// startEntryLocked starts the goroutine of a member after its predecessor has ended: an
// old connection must not be engaged over a newer one.
func (p *Provider) startEntryLocked(e *memberEntry) {
	if e.cancel == nil {
		return // SetUnreachable has no connection to start
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

// stopEntryLocked ends the goroutine of a member without waiting for it.
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

// updateState stores the state of a member and calls the hooks, unless the entry was
// replaced.
func (p *Provider) updateState(e *memberEntry, s State) {
	p.mu.Lock()
	if p.entries[e.name] != e {
		p.mu.Unlock()
		return
	}
	s.Since, s.ConnectionID, e.tried = e.state.Since, e.target.ConnectionID, true
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

// setEngaged stores the connected member, or nil when it is disconnected.
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
