//go:build linux

package fleet

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// MemberOptions describe a member. The zero value is a cluster that the hub reaches
// directly, with an agent and imports that end at once.
type MemberOptions struct {
	Name string
	// Labels of its MemberCluster.
	Labels map[string]string
	// ImportDuration is how long an import takes.
	ImportDuration time.Duration
	// Heartbeat of the agent's reports; by default 2 s.
	Heartbeat time.Duration
	// Controllers of the controller manager that run there.
	Controllers []string
	// Pull registers the member in pull mode.
	Pull bool
	// Unregistered leaves the registration with the hub to the tests.
	Unregistered bool
	// WithoutAgent installs the agent's chart and leaves starting agents to the tests.
	WithoutAgent bool
	// Offline cuts the link before the member joins.
	Offline bool
	// Link puts a link that can fail between hub and member.
	Link bool
	// Proxy puts a proxy that sees every write between hub and member; it implies Link.
	Proxy bool
	// AgentProxy puts a proxy between the agent and its own API server.
	AgentProxy bool
	// Observe records the member's imports from the beginning.
	Observe bool
}

// Each returns one member for each name, which differ in their names only.
func Each(o MemberOptions, names ...string) []MemberOptions {
	all := make([]MemberOptions, len(names))
	for i, name := range names {
		all[i] = o
		all[i].Name = name
	}
	return all
}

func (o MemberOptions) clusterOptions() member.Options {
	return member.Options{
		Name: o.Name, InstantImporter: true, InstantImportDuration: o.ImportDuration, Controllers: o.Controllers, Scheme: testenv.NewScheme(),
		// No controller removes this protection from claims that are being deleted.
		APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
	}
}

// Member is a cluster of the fleet.
type Member struct {
	*member.Member
	client.WithWatch
	// Agent is the running agent; tests that replace it set it by StartAgent.
	Agent *program.Agent
	// Link and Proxy lie on the way from hub to member; in pull mode from agent to hub.
	Link  *faults.Link
	Proxy *faults.Proxy
	// AgentProxy lies between the agent and its own API server.
	AgentProxy *faults.Proxy
	Observer   *observer.Observer

	options MemberOptions
}

// PullMode reports whether the member registers in pull mode.
func (m *Member) PullMode() bool { return m.options.Pull }

// agentValues install the agent's chart without a policy of the member's own.
var agentValues = map[string]any{
	"policy": map[string]any{"create": false},
	"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
}

// InstallChart installs the agent's chart with an account for the hub, or sets right what a test
// has changed of it.
func (m *Member) InstallChart(ctx context.Context) error {
	return program.InstallAgent(ctx, m.ControlPlane, agentValues)
}

// setUp installs the agent's chart, opens the ways between hub and member, and starts the agent.
func (m *Member) setUp(ctx context.Context, hub *controlplane.ControlPlane) (err error) {
	m.InstantImporter().AllowFinishes(1 << 20)
	if m.WithWatch, err = client.NewWithWatch(m.ControlPlane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
		return err
	}
	if err := m.InstallChart(ctx); err != nil {
		return err
	}
	if m.options.Observe {
		if m.Observer, err = observer.Start(context.WithoutCancel(ctx), m.ControlPlane.Config()); err != nil {
			return err
		}
	}
	if m.options.AgentProxy {
		if m.AgentProxy, err = faults.StartProxy(m.ControlPlane.Config()); err != nil {
			return err
		}
	}
	if err := m.openLink(hub); err != nil || m.options.WithoutAgent {
		return err
	}
	return m.StartAgent(ctx)
}

// openLink starts link and proxy between hub and member: towards the member, or in pull
// mode towards the hub.
func (m *Member) openLink(hub *controlplane.ControlPlane) (err error) {
	if !m.options.Link && !m.options.Proxy {
		return nil
	}
	startProxy, to := faults.StartProxy, m.ControlPlane.Config()
	if m.options.Pull {
		startProxy, to = faults.StartTLSProxy, hub.Config()
	}
	if m.Link, err = faults.StartLink(to); err != nil {
		return err
	}
	if m.Link.Redirect(to); m.options.Offline {
		m.Link.Cut()
	}
	if m.options.Proxy {
		m.Proxy, err = startProxy(to)
	}
	return err
}

// StartAgent starts the member's agent. It takes the Lease of an agent that was killed at once.
func (m *Member) StartAgent(ctx context.Context, args ...string) (err error) {
	m.Agent, err = m.RunAgent(ctx, program.Options{Args: args})
	return err
}

// RunAgent starts an agent with options of its own and leaves Member.Agent and the Lease as
// they are.
func (m *Member) RunAgent(ctx context.Context, o program.Options) (*program.Agent, error) {
	heartbeat := m.options.Heartbeat
	if heartbeat == 0 {
		heartbeat = 2 * time.Second
	}
	if m.AgentProxy != nil && o.ConfigureClient == nil {
		o.ConfigureClient = m.AgentProxy.Redirect
	}
	o.LeaseDuration, o.Log = program.StableLease, os.Getenv("OT_FLEET_AGENT_LOG")
	o.Args = append([]string{"--report-heartbeat=" + heartbeat.String()}, o.Args...)
	return program.StartAgent(ctx, m.ControlPlane, o)
}

// Ledger returns the status of the member's SyncLedger; the zero value for none.
func (m *Member) Ledger(t *testing.T) v1alpha1.SyncLedgerStatus {
	t.Helper()
	l := &v1alpha1.SyncLedger{}
	key := client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}
	require.NoError(t, client.IgnoreNotFound(m.Get(context.WithoutCancel(t.Context()), key, l)))
	if l.Status == nil {
		return v1alpha1.SyncLedgerStatus{}
	}
	return *l.Status
}

// Stop ends the agent, then the cluster.
func (m *Member) Stop() error {
	if m.Agent != nil {
		m.Agent.Kill()
	}
	for _, p := range []*faults.Proxy{m.AgentProxy, m.Proxy} {
		if p != nil {
			_ = p.Close()
		}
	}
	if m.Link != nil {
		m.Link.Close()
	}
	if m.Observer != nil {
		m.Observer.Stop()
	}
	return m.Member.Stop()
}
