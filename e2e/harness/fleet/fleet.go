//go:build linux

// Package fleet starts a hub and its members for the tests of a package: control planes,
// charts, the hub, the agents, and the links and proxies between them.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Options describe a fleet. The zero value is a hub without members.
type Options struct {
	// Policy is the data of the fleet's policy ConfigMap.
	Policy map[string]string
	// MemberTimeout is after how long the hub gives up a silent agent; by default 3 s.
	MemberTimeout time.Duration
	// HubArgs are added to the hub's flags.
	HubArgs []string
	// WithoutHub installs the hub's chart and leaves starting hubs to the tests.
	WithoutHub bool
	// APIServerArgs are added to the flags of the hub's API server.
	APIServerArgs []string
	// HubProxy puts a proxy between the hub and its own API server.
	HubProxy bool
	// HubCanImport makes the hub's cluster one that an agent can run in.
	HubCanImport bool
	// Members are clusters with an agent.
	Members []MemberOptions
	// Fakes is the number of fake members, called fake-0 and so on. The tests register them.
	Fakes int
	// FakePlane gives the fake members an API server of their own instead of the hub's.
	FakePlane bool
}

// Fleet is a hub with its members.
type Fleet struct {
	// WithWatch reaches the hub's API server with all rights.
	client.WithWatch
	Plane *controlplane.ControlPlane
	// HubMember is the hub's cluster with Options.HubCanImport.
	HubMember *member.Member
	// Proxy is the hub's way to its own API server with Options.HubProxy.
	Proxy *faults.Proxy
	// Hub is the running hub; tests that replace it set it by StartHub.
	Hub     *program.Hub
	Members map[string]*Member
	Fakes   *fakemember.Members
	// FakePlane serves the fake members.
	FakePlane *controlplane.ControlPlane

	options Options
	onStop  []func()
}

// RunTests runs the tests of a package with one fleet. setUp completes it before the first
// test.
func RunTests(m *testing.M, o Options, setUp func(context.Context, *Fleet) error) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		f, err := Start(ctx, o)
		if err == nil {
			err = setUp(ctx, f)
		}
		return f.Stop, err
	})
}

// OnStop registers a function that Stop calls after the hub has stopped, while the API
// servers still run.
func (f *Fleet) OnStop(stop func()) { f.onStop = append(f.onStop, stop) }

// Start starts a fleet and returns when all members that join are Ready. On an error the
// returned fleet stops what has started.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	if o.MemberTimeout == 0 {
		o.MemberTimeout = 3 * time.Second
	}
	f := &Fleet{options: o, Members: map[string]*Member{}}
	if err := f.startPlanes(ctx); err != nil {
		return f, err
	}
	var err error
	if o.HubProxy {
		if f.Proxy, err = faults.StartProxy(f.Plane.Config()); err != nil {
			return f, err
		}
	}
	if !o.WithoutHub {
		if err := f.StartHub(ctx); err != nil {
			return f, err
		}
	}
	if o.Fakes > 0 {
		if f.Fakes, err = fakemember.Start(ctx, f.FakePlane, "fake", o.Fakes); err != nil {
			return f, err
		}
	}
	var joined []string
	for _, m := range o.Members {
		if m.Unregistered {
			continue
		}
		if err := f.Join(ctx, f.Members[m.Name]); err != nil {
			return f, fmt.Errorf("joining member %s: %w", m.Name, err)
		}
		if !m.Offline {
			joined = append(joined, m.Name)
		}
	}
	if o.WithoutHub {
		return f, nil
	}
	return f, f.AwaitReady(ctx, joined...)
}

// startPlanes starts the control planes side by side, with their charts and agents.
func (f *Fleet) startPlanes(ctx context.Context) error {
	options := make([]member.Options, len(f.options.Members))
	for i, m := range f.options.Members {
		options[i] = m.clusterOptions()
	}
	var group errgroup.Group
	group.Go(func() error { return f.startHubPlane(ctx) })
	group.Go(func() error {
		started, err := member.StartAll(ctx, options...)
		for i, m := range started {
			f.Members[m.Name()] = &Member{Member: m, options: f.options.Members[i]}
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range f.Members {
		group.Go(func() error { return m.setUp(ctx, f.Plane) })
	}
	return group.Wait()
}

// startHubPlane starts the hub's control plane, with its chart, and that of the fakes.
func (f *Fleet) startHubPlane(ctx context.Context) (err error) {
	if f.options.HubCanImport {
		if f.HubMember, err = member.Start(ctx, member.Options{Name: "hub", InstantImporter: true, Scheme: testenv.NewScheme()}); err != nil {
			return err
		}
		f.Plane = f.HubMember.ControlPlane
	} else if f.Plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true, APIServerArgs: f.options.APIServerArgs}); err != nil {
		return err
	}
	if f.WithWatch, err = client.NewWithWatch(f.Plane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
		return err
	}
	policy := map[string]any{}
	for key, value := range f.options.Policy {
		policy[key] = value
	}
	if err := program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": policy}}); err != nil {
		return err
	}
	if f.FakePlane = f.Plane; !f.options.FakePlane {
		return nil
	}
	if f.FakePlane, err = controlplane.Start(ctx, controlplane.Options{Name: "fake"}); err != nil {
		return err
	}
	return program.InstallAgent(ctx, f.FakePlane, agentValues) // for its CRDs
}

// StartHub starts the fleet's hub. It takes the Lease of a hub that was killed at once.
func (f *Fleet) StartHub(ctx context.Context, args ...string) error {
	if err := program.DeleteHubLease(ctx, f); err != nil {
		return err
	}
	h, err := f.RunHub(ctx, program.Options{LeaseDuration: program.LongLease, Args: args})
	if err == nil {
		f.Hub = h
	}
	return err
}

// RestartHub starts a hub when the last one has exited.
func (f *Fleet) RestartHub(t *testing.T) {
	t.Helper()
	if f.Hub.HasEnded() {
		require.NoError(t, f.StartHub(context.WithoutCancel(t.Context())))
	}
}

// RunHub starts a hub with options of its own and leaves Fleet.Hub and the Lease as they are.
func (f *Fleet) RunHub(ctx context.Context, o program.Options) (*program.Hub, error) {
	args := []string{"--probe-interval=1s", "--member-timeout=" + f.options.MemberTimeout.String()}
	if f.Proxy != nil || o.ConfigureClient != nil {
		flags, err := program.HubAPIFlags(f.Plane)
		if err != nil {
			return nil, err
		}
		args = append(args, flags...)
	}
	if o.Log == "" {
		o.Log = os.Getenv("OT_FLEET_HUB_LOG")
	}
	if f.Proxy != nil && o.ConfigureClient == nil {
		o.ConfigureClient = f.Proxy.Redirect
	}
	o.Args = append(append(args, f.options.HubArgs...), o.Args...)
	return program.StartHub(ctx, f.Plane, o)
}

// Stop ends hub and agents before the API servers that they use.
func (f *Fleet) Stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	if f.Proxy != nil {
		errs = append(errs, f.Proxy.Close())
	}
	if f.Fakes != nil {
		f.Fakes.Stop()
	}
	for _, stop := range f.onStop {
		stop()
	}
	var group errgroup.Group
	for _, m := range f.Members {
		group.Go(m.Stop)
	}
	if f.FakePlane != nil && f.FakePlane != f.Plane {
		group.Go(f.FakePlane.Stop)
	}
	switch {
	case f.HubMember != nil:
		group.Go(f.HubMember.Stop)
	case f.Plane != nil:
		group.Go(f.Plane.Stop)
	}
	return errors.Join(append(errs, group.Wait())...)
}
