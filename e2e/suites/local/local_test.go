//go:build linux

// Package local_test runs the journeys of package fleetjourneys on local control planes:
// real API servers and CDI, simulated nodes. Only it shows them without containers.
package local_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The members: edge runs in pull mode, far is reached over a link.
const (
	pullMember   = "edge"
	linkedMember = "far"
)

var sharedFleet *processFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		sharedFleet = &processFleet{members: map[string]*member.Member{}, agents: map[string]*program.Agent{}}
		return sharedFleet.stop, sharedFleet.start(ctx)
	})
}

func TestJourneys(t *testing.T) {
	for _, journey := range fleetjourneys.Journeys {
		t.Run(journey.Name, func(t *testing.T) { journey.Run(t, sharedFleet) })
	}
}

// processFleet is a fleetjourneys.Fleet of processes of this machine.
type processFleet struct {
	hubPlane  *controlplane.ControlPlane
	hubClient client.Client
	hub       *program.Hub
	members   map[string]*member.Member
	agents    map[string]*program.Agent
	link      *faults.Link
	source    *httptest.Server
}

func (f *processFleet) start(ctx context.Context) (err error) {
	// It has whatever it is asked for: how a download goes is in the path.
	f.source = httptest.NewServer(nil)
	var group errgroup.Group
	group.Go(func() error {
		if f.hubPlane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
			return err
		}
		if f.hubClient, err = client.New(f.hubPlane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
			return err
		}
		policy := map[string]any{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false"}
		return program.InstallHub(ctx, f.hubPlane, map[string]any{"policy": map[string]any{"data": policy}})
	})
	group.Go(func() error {
		started, err := member.StartAll(ctx, member.Options{Name: pullMember, Scheme: testenv.NewScheme()}, member.Options{Name: linkedMember, Scheme: testenv.NewScheme()})
		for _, m := range started {
			f.members[m.Name()] = m
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range f.members {
		err := program.InstallAgent(ctx, m.ControlPlane, map[string]any{
			"policy": map[string]any{"create": false}, "hub": map[string]any{"serviceAccount": map[string]any{"create": true}},
		})
		if err := errors.Join(err, f.startAgent(ctx, m)); err != nil {
			return err
		}
	}
	if err := f.startHub(ctx); err != nil {
		return err
	}
	if err := program.RegisterPullMember(ctx, f.hubClient, f.members[pullMember].Client(), program.AgentNamespace, pullMember, nil, func(*registration.HubAccess) {}); err != nil {
		return err
	}
	if f.link, err = faults.StartLink(f.members[linkedMember].ControlPlane.Config()); err != nil {
		return err
	}
	cfg, err := f.members[linkedMember].ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	f.link.Redirect(cfg)
	return program.CreateMemberSecret(ctx, f.hubClient, linkedMember, cfg)
}

func (f *processFleet) startAgent(ctx context.Context, m *member.Member) (err error) {
	f.agents[m.Name()], err = program.StartAgent(ctx, m.ControlPlane, program.Options{LeaseDuration: 15 * time.Second, Args: []string{"--report-heartbeat=2s"}})
	return err
}

func (f *processFleet) startHub(ctx context.Context) (err error) {
	f.hub, err = program.StartHub(ctx, f.hubPlane, program.Options{Args: []string{"--probe-interval=1s", "--member-timeout=5s"}})
	return err
}

func (f *processFleet) stop() error {
	var errs []error
	if f.hub != nil {
		errs = append(errs, f.hub.Stop(time.Minute))
	}
	for name, m := range f.members {
		if a := f.agents[name]; a != nil {
			a.Kill()
		}
		errs = append(errs, m.Stop())
	}
	if f.link != nil {
		f.link.Close()
	}
	if f.hubPlane != nil {
		errs = append(errs, f.hubPlane.Stop())
	}
	f.source.Close()
	return errors.Join(errs...)
}

// Hub implements fleetjourneys.Fleet.
func (f *processFleet) Hub() client.Client { return f.hubClient }

// Members implements fleetjourneys.Fleet.
func (f *processFleet) Members() (members []fleetjourneys.Member) {
	for _, name := range []string{pullMember, linkedMember} {
		m := f.members[name]
		members = append(members, fleetjourneys.Member{Name: name, Client: m.Client(), Config: m.ControlPlane.Config(), PullMode: name == pullMember})
	}
	return members
}

// ImageSpec implements fleetjourneys.Fleet.
func (f *processFleet) ImageSpec(way fleetjourneys.SourceBehaviour, name string) v1alpha1.VMDiskImageSpec {
	path := map[fleetjourneys.SourceBehaviour]string{fleetjourneys.SlowDownload: "/ok/5s/", fleetjourneys.FailingDownload: "/servererror/"}[way]
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: f.source.URL + path + name + ".qcow2",
		DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
	}
}

// RequireBytes implements fleetjourneys.Fleet: nothing is downloaded here.
func (f *processFleet) RequireBytes(*testing.T, fleetjourneys.Member, *v1alpha1.VMDiskImage) {}

// SourceRequests implements fleetjourneys.Fleet: no request reaches the source.
func (f *processFleet) SourceRequests(*testing.T, v1alpha1.VMDiskImageSpec) (fleetjourneys.RequestCounts, bool) {
	return fleetjourneys.RequestCounts{}, false
}

// KillAgent implements fleetjourneys.Fleet.
func (f *processFleet) KillAgent(t *testing.T, m fleetjourneys.Member) {
	f.agents[m.Name].Kill()
	require.NoError(t, f.startAgent(context.Background(), f.members[m.Name]))
}

// KillHub implements fleetjourneys.Fleet.
func (f *processFleet) KillHub(t *testing.T) {
	f.hub.Kill()
	require.NoError(t, f.startHub(context.Background()))
}

// CutNetwork implements fleetjourneys.Fleet, for far alone.
func (f *processFleet) CutNetwork(t *testing.T, m fleetjourneys.Member) func() {
	require.Equal(t, linkedMember, m.Name)
	f.link.Cut()
	mend := func() { require.NoError(t, f.link.Repair(context.Background())) }
	t.Cleanup(mend)
	return mend
}
