// Package mailbox keeps the agent's connection to its hub in pull mode, and copies
// plan, grant and report between the hub and the agent's namespace over it. Package
// controllers/registration provides the credential.
package mailbox

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
)

// Credential is what the agent authenticates to the hub with.
type Credential struct {
	Access registration.HubAccess
	// Claims of Access.Token.
	Claims registration.TokenClaims
}

// Syncer holds the one connection to the hub and syncs the mailbox over it. Create it
// with all exported fields set, and call Setup.
type Syncer struct {
	Member     Member
	Leadership *LeadershipCheck
	Metrics    *metrics.PullMode
	// BootID identifies this process.
	BootID  string
	Options hubclient.Options
	// OnStateChange is called when State has changed. It must not block.
	OnStateChange func()

	mu      sync.Mutex
	ctx     context.Context // of Start; nil before it runs
	session *hubSession
	state   ConnectionState
}

// Member is the agent's own side of the mailbox.
type Member struct {
	// Cached may lag behind; Live always reads from the API server.
	Cached client.Reader
	Live   client.Client
	// Watch calls onEvent at every event of the mailbox in this cluster from now on. It is
	// called for every connection, and watches no kind twice.
	Watch     func(ctx context.Context, onEvent func()) error
	Namespace string
}

// hubSession is the use of one credential. Its token may be replaced by another one of
// the same account; any other change needs a new session.
type hubSession struct {
	target        string
	credential    Credential
	token         hubclient.Token
	probeRequests chan struct{}
	syncRequests  chan struct{}
	cancel        context.CancelFunc
	done          chan struct{}
}

// NeedLeaderElection is true: one agent of a cluster syncs.
func (s *Syncer) NeedLeaderElection() bool { return true }

// Start syncs until ctx ends.
func (s *Syncer) Start(ctx context.Context) error {
	if err := s.Leadership.Confirm(ctx); err != nil {
		log.FromContext(ctx).Info("Leadership unconfirmed; retrying before sync", "error", err.Error())
	}
	s.mu.Lock()
	s.ctx = ctx
	if s.session != nil {
		s.startSessionLocked(s.session)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.UseCredential(nil)
	return nil
}

// UseCredential syncs with this credential from now on; nil ends the connection. It
// returns after the session of another credential has ended.
func (s *Syncer) UseCredential(credential *Credential) {
	s.mu.Lock()
	previous := s.session
	if previous != nil && credential != nil && previous.target == connectionTarget(*credential) {
		if previous.token.Get() != credential.Access.Token {
			previous.token.Set(credential.Access.Token)
			notify(previous.probeRequests)
		}
		s.mu.Unlock()
		return
	}
	s.session, s.state = nil, ConnectionState{}
	if previous != nil && previous.cancel != nil {
		previous.cancel()
	}
	s.mu.Unlock()
	if previous != nil && previous.done != nil {
		<-previous.done
	}
	if credential == nil {
		return
	}
	next := &hubSession{
		target: connectionTarget(*credential), credential: *credential,
		probeRequests: make(chan struct{}, 1), syncRequests: make(chan struct{}, 1),
	}
	next.token.Set(credential.Access.Token)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx != nil && s.ctx.Err() != nil {
		return
	}
	s.session = next
	if s.ctx != nil {
		s.startSessionLocked(next)
	}
}

// connectionTarget is equal for two credentials that differ in their token only, so that
// the connection can continue.
func connectionTarget(c Credential) string {
	return c.Access.Server + " " + c.Access.Namespace + " " + string(c.Claims.AccountUID) + " " + string(c.Access.CA)
}

func (s *Syncer) startSessionLocked(session *hubSession) {
	ctx, cancel := context.WithCancel(s.ctx)
	session.cancel, session.done = cancel, make(chan struct{})
	go func() {
		defer close(session.done)
		defer cancel()
		s.keepConnected(ctx, session)
	}()
}

// State returns the state of the current connection.
func (s *Syncer) State() ConnectionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Syncer) setState(session *hubSession, state ConnectionState) {
	s.mu.Lock()
	changed := s.session == session && s.state != state
	if changed {
		s.state = state
	}
	s.mu.Unlock()
	if changed {
		s.OnStateChange()
	}
}

// RequestSync asks for a sync. It never blocks: one pending request stands for all.
func (s *Syncer) RequestSync() {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session != nil {
		notify(session.syncRequests)
	}
}

// notify sends without blocking on a channel of capacity 1.
func notify(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
